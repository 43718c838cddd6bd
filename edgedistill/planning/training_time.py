"""How much training will compute, and about how long it will take on this machine.

The teacher's speed is measured on a sample of the texts that it has still to embed. The student's is measured
on optimizer steps: the initial student behind the stage's objective and optimizer, on batches of a sample of
the texts, against random embeddings in place of the teacher's. Not included: measuring on the `select` suite,
tokenizing, and fine-tuning.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

from edgedistill import objectives, recipe
from edgedistill.data.corpus import Corpus
from edgedistill.objectives import Targets
from edgedistill.session import Session
from edgedistill.students import kinds
from edgedistill.students.output import own
from edgedistill.teacher.embedding_cache import Embeds, TeacherPass
from edgedistill.teacher.encoder import flush_denormals
from edgedistill.training import train
from edgedistill.training.inputs.batch_order import BatchOrder
from edgedistill.training.inputs.labelled_rows import ItemTokens
from edgedistill.training.inputs.stage_targets import matched
from edgedistill.training.open_recipe import Opened
from edgedistill.training.optimizers import optimizers
from edgedistill.training.stages import steps
from edgedistill.training.trained_module import Accelerator, TrainedModule, use_plain_attention

# The most seconds that measuring takes, but for the last batch or step: a check answers at once.
TEACHER_SECONDS, STUDENT_SECONDS = 0.5, 0.8
# Of a student that a check measures. Layers count as often as they are applied.
MOST_PARAMETERS, MOST_LAYERS = 30_000_000, 16
TIMED_PRODUCTS = 2**32  # multiplications of a timed step, at most, forward alone
SAMPLE = 2_048  # texts of a corpus that are read
CHUNK = 128  # texts that the teacher embeds at a time
TIMED_STEPS = 50  # at most; fewer where they take long
TIMED_ROWS = 2_048  # of a batch, at most: a larger one is taken to need as much longer as it is larger
TIMED_VALUES = 1 << 22  # of a batch's targets, at most: those of 65,536 dimensions are timed in batches of 64
LISTED_STEPS = 200  # the first of a stage, from which those that are timed are chosen


def training_samples(opened: Opened) -> int:
    """How many texts the student embeds in training, over all stages and epochs; every view of a text
    counts."""
    stages = zip(opened.spec.distilling, opened.stages, strict=True)
    samples = sum(steps(stage, ahead.training) * stage.batch * stage.views for stage, ahead in stages)
    return samples


def estimate_seconds(opened: Opened, missing: list[TeacherPass], session: Session) -> dict[str, float]:
    """{"teacher", "student"}: about how many seconds embedding and training will take on this machine.

    Takes a second or two, but for a teacher in int8 whose graph is not cached yet: it is made, and training
    will find it.
    """
    accelerator = train.accelerator_for(opened.spec, session.device)
    return {
        "teacher": teacher_seconds(missing, replace(session, device=accelerator.device.type)),
        "student": student_seconds(opened, accelerator),
    }


def teacher_seconds(missing: list[TeacherPass], session: Session) -> float:
    """About how many seconds the teachers will take to embed what is missing."""
    flush_denormals()
    missing = [each for each in missing if each.missing]
    for each in missing:
        each.teacher.prepare(session)
    found = sum(
        each.missing
        * seconds_per_text(each.teacher, sample(each.corpus), session.device, TEACHER_SECONDS / len(missing))
        for each in missing
    )
    return round(found, 3)


def sample(corpus: Corpus) -> list[str]:
    """At most SAMPLE texts of a corpus, spread evenly over it, in random order."""
    return corpus.texts(np.random.default_rng(0).permutation(corpus.spread(SAMPLE)))


def seconds_per_text(teacher: Embeds, texts: list[str], device: str, limit: float) -> float:
    """Seconds in which a teacher embeds one of these texts, the median over chunks of them: other work on the
    machine delays some. They are measured for at most about `limit` seconds."""
    teacher.embed(texts[:2], device, True)  # builds the graph
    done, found = 0, list[float]()
    while done < len(texts) and (done == 0 or limit > 0):
        chunk, started = texts[done : done + (CHUNK if done else 16)], time.perf_counter()
        teacher.embed(chunk, device, True)
        done, seconds = done + len(chunk), time.perf_counter() - started
        found.append(seconds / len(chunk))
        limit -= seconds
    return float(np.median(found))


def student_seconds(opened: Opened, accelerator: Accelerator, seconds: float = STUDENT_SECONDS) -> float:
    """Seconds of the distillation stages: the seconds of a step, measured for about so many, times the number
    of steps."""
    flush_denormals()
    limit = seconds / max(1, len(opened.stages))
    with torch.random.fork_rng(devices=[]):
        found = [
            steps(stage, opened.stages[number].training) * step_seconds(opened, number, accelerator, limit)
            for number, stage in enumerate(opened.spec.distilling)
        ]
    return round(sum(found), 3)


def is_measured(student: nn.Module) -> bool:
    """Whether a student is small enough to be built, converted and trained for a moment by a check, which
    answers within seconds."""
    layers = products(student)[1]
    return kinds.parameters(student)["total"] <= MOST_PARAMETERS and layers <= MOST_LAYERS


def products(student: nn.Module) -> tuple[int, int]:
    """(multiplications for each token, layers that a token passes) of a student; a shared layer counts as
    often as it is applied."""
    bare: Any = own(student)
    encoder = getattr(getattr(bare, "model", None), "encoder", None)
    times = int(getattr(encoder, "times", 1))
    layers = getattr(encoder, "layer", None)
    parameters = kinds.parameters(student)
    depth = 1 if layers is None else len(layers)
    return times * parameters["encoder"] + parameters["head"], times * depth


def step_seconds(opened: Opened, number: int, accelerator: Accelerator, limit: float) -> float:
    """Mean seconds of an optimizer step of a distillation stage, measured for about `limit` seconds on a copy
    of the student."""
    stage, device = opened.spec.distilling[number], accelerator.device
    tokens, dims = _sample(opened, number), _target_dims(opened, number)
    group = stage.group or 1
    lengths = tokens.lengths(np.arange(len(tokens)))
    per_row = max(1, products(opened.student.module)[0]) * max(1.0, float(lengths.mean()))
    most = min(TIMED_ROWS, TIMED_VALUES // (dims or 1), int(TIMED_PRODUCTS / per_row)) // group * group
    timed = stage.model_copy(update={"batch": min(stage.batch, most or stage.batch)})
    student = replace(opened.student, module=copy.deepcopy(opened.student.module))
    module = TrainedModule(timed, student, dims, unit=True).to(device).train()
    use_plain_attention(module.student, accelerator)
    if accelerator.bf16:
        objectives.queues_to_bfloat16(module.objective)
    rows = np.arange(len(tokens))
    short = rows if stage.skip_longer_than is None else rows[lengths <= stage.skip_longer_than]
    rows = short if len(short) else rows  # a sample without short texts does not mean that there are none
    order, of_stage = BatchOrder(timed, tokens, rows, 0), optimizers(module, timed, device.type)
    drawn = _random_targets(timed, len(tokens.columns), dims, device)
    optimizing = list[float]()  # seconds: what does not depend on the batch

    def step(number: int) -> None:
        flat = tokens.batch(order.at(number)[0], device)
        columns = list(zip(flat[::2], flat[1::2], strict=True))
        views = [columns[at % len(columns)] for at in range(stage.views)]
        if stage.tuples is not None:  # the queries, and their documents, none of which two tuples share
            ids, mask = (torch.cat([each] * (stage.views - 1)) for each in columns[1])
            views = [columns[0], (ids, mask)]
        with accelerator.autocast():
            loss = module(views, drawn, number)
        loss.backward()
        started = time.perf_counter()
        for optimizer in of_stage:
            optimizer.step()
            optimizer.zero_grad()
        optimizing.append(time.perf_counter() - started)
        objectives.update_queues(module.objective, drawn)

    count = min(LISTED_STEPS, steps(stage, opened.stages[number].training))
    listed = [order.at(each)[0] for each in range(count)]
    padded = np.array([int(tokens.lengths(each).max()) * len(each) for each in listed])
    numbers = np.random.default_rng(0).permutation(count)
    seconds = timed_steps(step, numbers, limit)
    fixed = float(np.mean(optimizing[-len(seconds) :] or [0.0]))
    per_token = (np.mean(seconds) - fixed) / padded[numbers[: len(seconds)]].mean()
    return float(per_token * padded.mean() * stage.batch / timed.batch + fixed)


def _random_targets(stage: recipe.Stage, columns: int, dims: int | None, device: torch.device) -> Targets:
    """Random numbers in place of what a teacher gives for a batch of so many columns."""
    random = torch.Generator().manual_seed(0)
    documents = stage.batch * (stage.views - 1) if stage.tuples is not None else stage.batch
    sizes = [] if dims is None else [(stage.batch, dims), (documents, dims)][:columns]
    drawn = (torch.randn(size, generator=random) for size in sizes)
    found = Targets(tuple(nn.functional.normalize(each, dim=-1).to(device) for each in drawn))
    if stage.tuples is None:
        return found
    scores = torch.randn(stage.batch, documents, generator=random).to(device)
    return found._replace(positives=torch.arange(stage.batch, device=device), scores=scores)


def _sample(opened: Opened, number: int) -> ItemTokens:
    """A sample of the columns that a stage reads."""
    stage, rows = opened.spec.distilling[number], opened.stages[number].rows
    texts = [side.texts(side.spread(SAMPLE)) for side in rows.sides]
    # sides have different numbers of distinct texts
    items = list(zip(*texts, strict=False))
    return ItemTokens(items, opened.student.tokenizer, "", min(stage.max_tokens, opened.student.max_tokens))


def _target_dims(opened: Opened, number: int) -> int | None:
    """The dimensions of the embeddings that a stage matches; None where its objective reads none."""
    stage, rows = opened.spec.distilling[number], opened.stages[number].rows
    sides = matched(stage, rows)
    if not sides or opened.models is None:
        return None
    if opened.spec.targets is not None:
        return opened.spec.targets.width
    return sides[0].model(opened.models).dims


def timed_steps(step: Callable[[int], object], numbers: np.ndarray, limit: float) -> list[float]:
    """Seconds of the first of these steps: of TIMED_STEPS, or of as many as can be measured in about `limit`
    seconds. `step` runs one.

    All run three times, and the shorter of the last two counts: the first one of a new shape takes longer, as
    its kernels are built, and other work on the machine only ever adds.
    """
    started, count = time.perf_counter(), 0
    chosen = numbers[:TIMED_STEPS].tolist()
    while count < len(chosen) and (count == 0 or time.perf_counter() - started < limit / 3):
        step(chosen[count])
        count += 1
    seconds = np.zeros((2, count))
    for again, at in product(range(2), range(count)):
        started = time.perf_counter()
        step(chosen[at])
        seconds[again, at] = time.perf_counter() - started
    return list(seconds.min(0).tolist())
