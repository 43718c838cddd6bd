"""How much training will compute, and about how long it will take on this machine.

The teacher's speed is measured on a sample of the texts that it has still to embed. The student's is measured
on optimizer steps: the initial student behind the stage's objective and optimizer, on batches of a sample of
the texts, against random embeddings in place of the teacher's. Not included: measuring on the `select` suite,
tokenizing, and fine-tuning.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from edgedistill import objectives, recipe
from edgedistill.classification.labelled_rows import ItemTokens
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.session import Session, silent
from edgedistill.students import kinds
from edgedistill.students.output import own
from edgedistill.teacher import targets
from edgedistill.teacher.embedding_cache import count_cached
from edgedistill.teacher.encoder import TeacherEncoder, flush_denormals
from edgedistill.training import train
from edgedistill.training.inputs import pair_batches
from edgedistill.training.inputs.batch_order import BatchOrder
from edgedistill.training.open_recipe import Opened
from edgedistill.training.optimizers import optimizers
from edgedistill.training.stages import steps
from edgedistill.training.trained_module import Accelerator, TrainedModule, use_plain_attention

TEACHER_SECONDS, STUDENT_SECONDS = (
    0.5,
    0.8,
)  # the most that measuring takes, but for the last batch or step: a check answers at once
MOST_PARAMETERS, MOST_LAYERS = (
    30_000_000,
    16,
)  # of a student that is measured; layers count as often as they are applied
TIMED_PRODUCTS = 2**32  # multiplications of a timed step, at most, forward alone
SAMPLE = 2_048  # texts of a corpus that are read
CHUNK = 128  # texts that the teacher embeds at a time
TIMED_STEPS = 50  # at most; fewer where they take long
TIMED_ROWS = 2_048  # of a batch, at most: a larger one is taken to need as much longer as it is larger
TIMED_VALUES = 1 << 22  # of a batch's targets, at most: those of 65,536 dimensions are timed in batches of 64
LISTED_STEPS = 200  # the first of a stage, from which those that are timed are chosen


class ToEmbed(NamedTuple):
    """A teacher, the texts that it embeds, and how many of them are not cached yet."""

    teacher: TeacherEncoder
    corpus: Corpus
    missing: int


def texts_to_embed(opened: Opened, session: Session) -> list[ToEmbed]:
    """What every teacher has still to embed for the distillation stages. An assistant's embedding layer costs
    next to nothing."""
    spec, corpus, models = opened.spec, opened.texts, opened.models
    if corpus is None or models is None:
        return []
    if isinstance(corpus, ParallelCorpus):
        sides = []
        for match, side in pair_batches.embeddings_needed(spec):
            teacher = pair_batches.embedding_model(match, models)
            if match.layer == "output" and teacher is not None:
                sides.append((teacher, corpus.side(side)))
        return [
            ToEmbed(teacher, side, len(side) - count_cached(teacher, side, session, unit=False))
            for teacher, side in sides
        ]
    blocks = targets.blocks_of(spec.targets) if spec.targets is not None else []
    specs = (
        dict.fromkeys(of or spec.teacher for block in blocks for of, _ in block.teachers)
        if blocks
        else [spec.teacher]
    )
    raw = isinstance(spec.targets, recipe.SingleTeacher) and spec.targets.raw
    teachers = [teacher for teacher in map(models.of, specs) if isinstance(teacher, TeacherEncoder)]
    return [
        ToEmbed(each, corpus, len(corpus) - count_cached(each, corpus, session, unit=not raw))
        for each in teachers
    ]


def training_samples(opened: Opened) -> int:
    """How many texts the student embeds in training, over all stages and epochs; every view of a text
    counts."""
    stages = zip(opened.spec.distilling, opened.stages, strict=True)
    samples = sum(steps(stage, ahead.rows) * stage.batch * stage.views for stage, ahead in stages)
    return samples


def estimate_seconds(opened: Opened, missing: list[ToEmbed], session: Session) -> dict[str, float]:
    """{"teacher", "student"}: about how many seconds embedding and training will take on this machine.

    Takes a second or two, but for a teacher in int8 whose graph is not cached yet: it is made, and training
    will find it.
    """
    flush_denormals()
    accelerator = train.accelerator_for(opened.spec, session.device)
    missing = [each for each in missing if each.missing]
    for each in missing:
        each.teacher.prepare(replace(session, device=accelerator.device.type))
    session = replace(session, device=accelerator.device.type, log=silent, progress=False)
    teacher = sum(
        each.missing * seconds_per_text(each, session.device, TEACHER_SECONDS / len(missing))
        for each in missing
    )
    with torch.random.fork_rng(devices=[]):
        student = _student_seconds(opened, accelerator)
    return {"teacher": round(teacher, 3), "student": round(student, 3)}


def seconds_per_text(each: ToEmbed, device: str, limit: float) -> float:
    """Mean seconds in which a teacher embeds a text, measured on a random sample of the corpus for at most
    about `limit` seconds."""
    rows = np.random.default_rng(0).permutation(_spread(each.corpus, SAMPLE))
    return seconds_per_given(each.teacher, each.corpus.texts(rows), device, limit)


def seconds_per_given(teacher: TeacherEncoder, texts: list[str], device: str, limit: float) -> float:
    """Mean seconds in which a teacher embeds one of these texts, measured for at most about `limit`
    seconds."""
    teacher.embed(texts[:2], device)  # builds the graph
    started, done = time.perf_counter(), 0
    while done < len(texts) and (done == 0 or time.perf_counter() - started < limit):
        chunk = texts[done : done + (CHUNK if done else 16)]
        teacher.embed(chunk, device)
        done += len(chunk)
    return (time.perf_counter() - started) / done


def _student_seconds(opened: Opened, accelerator: Accelerator) -> float:
    """Seconds of all stages: the measured seconds of a step times the number of steps."""
    spec, seconds = opened.spec, 0.0
    limit = STUDENT_SECONDS / max(1, len(spec.stages))
    if not is_measured(opened.student.module):
        return _computed_seconds(opened)
    for number, (stage, ahead) in enumerate(zip(spec.distilling, opened.stages, strict=True)):
        seconds += steps(stage, ahead.rows) * step_seconds(opened, number, accelerator, limit)
    return seconds


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
    return times * parameters["encoder"] + parameters["head"], times * (
        len(layers) if layers is not None else 1
    )


def _computed_seconds(opened: Opened) -> float:
    """Seconds of training by the number of its multiplications, at the speed of a large product on this
    machine; a lower bound."""
    side = 512
    matrix = torch.ones(side, side)
    matrix @ matrix
    started = time.perf_counter()
    for _ in range(8):
        matrix @ matrix
    rate = 8 * side**3 / (time.perf_counter() - started)
    tokens = [_sample(opened, number) for number in range(len(opened.spec.distilling))]
    mean = (
        np.mean([each.lengths(np.arange(len(each))).mean() for each in tokens])
        if tokens
        else opened.student.max_tokens / 4
    )
    return float(3 * products(opened.student.module)[0] * mean * training_samples(opened) / rate)


def step_seconds(opened: Opened, number: int, accelerator: Accelerator, limit: float) -> float:
    """Mean seconds of an optimizer step of a distillation stage, measured for about `limit` seconds on a copy
    of the student."""
    stage, device = opened.spec.distilling[number], accelerator.device
    tokens, dims = _sample(opened, number), _target_dims(opened, stage)
    group = stage.group or 1
    per_row = max(1, products(opened.student.module)[0]) * max(
        1.0, float(tokens.lengths(np.arange(len(tokens))).mean())
    )
    most = min(TIMED_ROWS, TIMED_VALUES // (dims or 1), int(TIMED_PRODUCTS / per_row)) // group * group
    timed = stage.model_copy(update={"batch": min(stage.batch, most or stage.batch)})
    student = replace(opened.student, module=copy.deepcopy(opened.student.module))
    module = TrainedModule(timed, student, dims, unit=True).to(device).train()
    use_plain_attention(module.student, accelerator)
    if accelerator.bf16:
        objectives.queues_to_bfloat16(module.objective)
    rows = np.arange(len(tokens))
    short = rows if stage.skip_longer_than is None else rows[tokens.lengths(rows) <= stage.skip_longer_than]
    rows = short if len(short) else rows  # a sample without short texts does not mean that there are none
    order, of_stage = BatchOrder(timed, tokens, rows, 0), optimizers(module, timed, device.type)
    of_batch = (timed.batch, 2) if isinstance(opened.texts, ParallelCorpus) else (timed.batch,)
    embeddings = None if dims is None else random_unit_rows(*of_batch, dims).to(device)

    optimizing = list[float]()

    def step(number: int) -> None:
        flat = tokens.batch(order.at(number)[0], device)
        columns = list(zip(flat[::2], flat[1::2], strict=True))
        with accelerator.autocast():
            loss = module([columns[at % len(columns)] for at in range(stage.views)], embeddings)
        optimizing.append(_optimize(loss, of_stage))
        if embeddings is not None:
            objectives.update_queues(module.objective, embeddings)

    listed = [
        order.at(each)[0] for each in range(min(LISTED_STEPS, steps(stage, opened.stages[number].rows)))
    ]
    padded = np.array([int(tokens.lengths(each).max()) * len(each) for each in listed])
    numbers = spread_over(padded)
    seconds = timed_steps(step, numbers, limit)
    fixed = optimizing[-len(seconds) :]
    of_batch_seconds = (
        (np.sum(seconds) - np.sum(fixed)) / padded[numbers[: len(seconds)]].sum() * padded.mean()
    )
    return float(of_batch_seconds * stage.batch / timed.batch + np.mean(fixed or [0.0]))


def _optimize(loss: Tensor, optimizers: Sequence[torch.optim.Optimizer]) -> float:
    """A step of training behind the loss. Returns the optimizers' seconds, which do not depend on the
    batch."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    started = time.perf_counter()
    for optimizer in optimizers:
        optimizer.step()
    return time.perf_counter() - started


def random_unit_rows(*shape: int) -> Tensor:
    """Random embeddings of unit length in place of a teacher's; shape: (n, dims), or (n, 2, dims) for the two
    sides of pairs."""
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    return nn.functional.normalize(rows, dim=-1)


def spread_over(sizes: np.ndarray) -> np.ndarray:
    """Positions (n,) of sizes (n,) in an order whose every beginning holds small, middling and large ones
    alike; the median comes first."""
    golden = (5**0.5 - 1) / 2
    ranks = ((0.5 + golden * np.arange(8 * len(sizes))) % 1 * len(sizes)).astype(int)
    _, first = np.unique(ranks, return_index=True)
    found: np.ndarray = np.argsort(sizes, kind="stable")[ranks[np.sort(first)]]
    return found


def _sample(opened: Opened, number: int) -> ItemTokens:
    """A sample of what a stage reads: of each of its triples or pairs the texts, or single texts."""
    stage, triples, corpus = opened.spec.distilling[number], opened.stages[number].triples, opened.texts
    columns: Sequence[Corpus] = []
    if triples is not None:
        columns = triples.columns
    elif isinstance(corpus, ParallelCorpus):
        columns = [corpus.source_side, corpus.target_side]
    elif corpus is not None:
        columns = [corpus]
    texts = [column.texts(_spread(column, SAMPLE)) for column in columns]
    items = list(
        zip(*texts, strict=False)
    )  # the sides of a parallel corpus have different numbers of distinct texts
    return ItemTokens(items, opened.student.tokenizer, "", min(stage.max_tokens, opened.student.max_tokens))


def _target_dims(opened: Opened, stage: recipe.Stage) -> int | None:
    """The dimensions of the embeddings that a stage matches; None where its objective reads none."""
    if stage.triples is not None or not objectives.reads_teacher(stage.objective):
        return None
    assert opened.models is not None
    if not isinstance(opened.texts, ParallelCorpus):
        return opened.spec.targets.width if opened.spec.targets is not None else opened.models.teacher.dims
    return (
        pair_batches.embedding_model(stage.match or recipe.Match(), opened.models) or opened.models.teacher
    ).dims


def timed_steps(step: Callable[[int], object], numbers: np.ndarray, limit: float) -> list[float]:
    """Seconds of the first of these steps: of TIMED_STEPS, or of as many as can be measured in about `limit`
    seconds. step: runs one.

    All run twice and the second time counts: the first one of a new shape takes longer, as its kernels are
        built.
    """
    started, count = time.perf_counter(), 0
    chosen = numbers[:TIMED_STEPS].tolist()
    while count < len(chosen) and (count == 0 or time.perf_counter() - started < limit / 2):
        step(chosen[count])
        count += 1
    seconds = []
    for number in chosen[:count]:
        started = time.perf_counter()
        step(number)
        seconds.append(time.perf_counter() - started)
    return seconds


def _spread(corpus: Corpus, count: int) -> np.ndarray:
    """At most `count` rows (n,) int64, spread evenly over a corpus."""
    return np.linspace(0, len(corpus) - 1, min(count, len(corpus))).astype(np.int64)
