"""How much training will compute, and about how long it will take on this machine.

The teacher's speed is measured on a sample of the texts that it has still to embed. The student's is measured on optimizer steps of the
training loop itself: the initial student with the stage's batch, token limit, objective and optimizer, on a sample of the corpus'
texts and with random embeddings in place of the teacher's. Not included: measuring on the `select` suite, making views with other
models, tokenizing, and embedding for fine-tuning.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from edgedistill import objectives, recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.planning.recipe_inspection import Inspected
from edgedistill.runtime import batching
from edgedistill.runtime.similarity import unit_rows
from edgedistill.session import Session, silent
from edgedistill.teacher import targets, token_batches
from edgedistill.teacher.embedding_cache import count_cached
from edgedistill.teacher.encoder import TeacherEncoder, flush_denormals
from edgedistill.training import checks, plain_attention, prepare, train
from edgedistill.training.finetuning import finetune
from edgedistill.training.finetuning.finetuning_plan import FinetuningPlan, learning_rates
from edgedistill.training.finetuning.labelled_inputs import ItemTokens
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.inputs import pair_batches
from edgedistill.training.inputs.text_batches import Batches, Ids
from edgedistill.training.load_models import open_teacher
from edgedistill.training.loop import Loop
from edgedistill.training.metrics_log import MetricsLog, progress_bar
from edgedistill.training.optimizers import FUSED
from edgedistill.training.run_in_progress import RunInProgress
from edgedistill.training.stages import distillation_stages, steps

TEACHER_SECONDS, STUDENT_SECONDS = 3.0, 10.0  # the most that measuring takes, but for the last batch or step
SAMPLE = 2_048  # texts of a corpus that are read
CHUNK = 128  # texts that the teacher embeds at a time
TIMED_STEPS = 50  # at most; fewer where they take long
TIMED_ROWS = 2_048  # of a batch, at most: a larger one is taken to need as much longer as it is larger
LISTED_STEPS = 200  # the first of a stage, from which those that are timed are chosen
RANDOM_VALUES = 1 << 22  # of the embeddings that stand for a teacher's, at most: what they are changes no time


class ToEmbed(NamedTuple):
    """A teacher, the texts that it embeds, and how many of them are not cached yet."""

    teacher: TeacherEncoder
    corpus: Corpus
    missing: int


def texts_to_embed(inspected: Inspected, session: Session) -> list[ToEmbed]:
    """What every teacher has still to embed for the distillation stages. An assistant's embedding layer costs next to nothing."""
    spec, corpus = inspected.spec, inspected.corpus
    if isinstance(corpus, ParallelCorpus):
        sides = []
        for match, side in pair_batches.embeddings_needed(spec):
            teacher = pair_batches.embedding_model(match, inspected.models)
            if match.layer == "output" and teacher is not None:
                sides.append((teacher, corpus.side(side)))
        return [ToEmbed(teacher, side, len(side) - count_cached(teacher, side, session, unit=False)) for teacher, side in sides]
    if corpus is None:
        return []
    blocks = targets.blocks_of(spec.targets) if spec.targets is not None else []
    specs = dict.fromkeys(of or spec.teacher for block in blocks for of, _ in block.teachers) if blocks else [spec.teacher]
    raw = isinstance(spec.targets, recipe.SingleTeacher) and spec.targets.raw
    found = []
    for each in specs:
        opened = inspected.teacher if each == spec.teacher else open_teacher(each, session)
        if isinstance(opened, TeacherEncoder):
            found.append(ToEmbed(opened, corpus, len(corpus) - count_cached(opened, corpus, session, unit=not raw)))
    return found


def training_samples(inspected: Inspected) -> int:
    """How many texts the student embeds in training, over all stages and epochs; every view of a text counts."""
    stages = zip(inspected.spec.distilling, inspected.stages, strict=True)
    samples = sum(steps(stage, ahead.rows) * stage.batch * stage.views for stage, ahead in stages)
    stage, planned = inspected.spec.finetuning, inspected.finetuning
    if stage is not None and planned is not None:
        samples += steps(stage, planned.rows) * stage.batch * len(stage.task.texts) * len(learning_rates(stage))
    return samples


def estimate_seconds(inspected: Inspected, missing: list[ToEmbed], session: Session) -> dict[str, float]:
    """{"teacher", "student"}: about how many seconds embedding and training will take on this machine.

    Takes about 15 s at most, but for a teacher in int8 whose graph is not cached yet: it is made, and training will find it.
    """
    flush_denormals()
    accelerator = train.accelerator_for(inspected.spec, session.device)
    missing = [each for each in missing if each.missing]
    for each in missing:
        each.teacher.prepare(replace(session, device=accelerator.device.type))
    session = replace(session, device=accelerator.device.type, log=silent, progress=False)
    teacher = sum(each.missing * seconds_per_text(each, session.device, TEACHER_SECONDS / len(missing)) for each in missing)
    with torch.random.fork_rng(devices=[]):
        student = _student_seconds(inspected, accelerator)
    return {"teacher": round(teacher, 3), "student": round(student, 3)}


def seconds_per_text(each: ToEmbed, device: str, limit: float) -> float:
    """Mean seconds in which a teacher embeds a text, measured on a random sample of the corpus for at most about `limit` seconds."""
    rows = np.random.default_rng(0).permutation(_spread(each.corpus, SAMPLE))
    return seconds_per_given(each.teacher, each.corpus.texts(rows), device, limit)


def seconds_per_given(teacher: TeacherEncoder, texts: list[str], device: str, limit: float) -> float:
    """Mean seconds in which a teacher embeds one of these texts, measured for at most about `limit` seconds."""
    teacher.embed(texts[:8], device)  # builds the graph
    started, done = time.perf_counter(), 0
    while done < len(texts) and (done == 0 or time.perf_counter() - started < limit):
        chunk = texts[done : done + (CHUNK if done else 16)]
        teacher.embed(chunk, device)
        done += len(chunk)
    return (time.perf_counter() - started) / done


def _student_seconds(inspected: Inspected, accelerator: Accelerator) -> float:
    """Seconds of all stages: the measured seconds of a step times the number of steps."""
    spec, seconds = inspected.spec, 0.0
    limit = STUDENT_SECONDS / max(1, len(spec.stages))
    for number, (stage, ahead) in enumerate(zip(spec.distilling, inspected.stages, strict=True)):
        seconds += steps(stage, ahead.rows) * step_seconds(inspected, number, accelerator, limit)
    if spec.finetuning is not None and inspected.finetuning is not None:
        seconds += _finetuning_seconds(inspected, spec.finetuning, inspected.finetuning, accelerator, limit)
    return seconds


def step_seconds(inspected: Inspected, number: int, accelerator: Accelerator, limit: float) -> float:
    """Mean seconds of an optimizer step of a distillation stage, measured for about `limit` seconds on a copy of the student."""
    with tempfile.TemporaryDirectory() as folder:
        timed = _loop(inspected, number, accelerator, Path(folder))
        share = inspected.spec.distilling[number].batch / timed.stage.batch
        timed.set_up()
        tokens = np.array([_padded_tokens(timed, each) for each in range(min(LISTED_STEPS, timed.steps))])
        numbers = spread_over(tokens)

        def step(number: int) -> None:
            timed.step = number
            timed.train_step()

        seconds = timed_steps(step, numbers, limit)
        return float(np.sum(seconds) / tokens[numbers[: len(seconds)]].sum() * tokens.mean() * share)


def _padded_tokens(loop: Loop, step: int) -> int:
    """Of the batch of a step."""
    rows, _ = loop.order.at(step)
    return int(loop.batches.lengths(rows).max()) * len(rows)


def spread_over(sizes: np.ndarray) -> np.ndarray:
    """Positions (n,) of sizes (n,) in an order whose every beginning holds small, middling and large ones alike; the median comes first."""
    golden = (5**0.5 - 1) / 2
    ranks = ((0.5 + golden * np.arange(8 * len(sizes))) % 1 * len(sizes)).astype(int)
    _, first = np.unique(ranks, return_index=True)
    found: np.ndarray = np.argsort(sizes, kind="stable")[ranks[np.sort(first)]]
    return found


def _loop(inspected: Inspected, number: int, accelerator: Accelerator, folder: Path) -> Loop:
    """The training loop of a stage over a copy of the initial student, a sample of the texts, and random target embeddings."""
    spec, shape = inspected.spec, inspected.shape
    assert shape is not None, "the teacher itself has no distillation stages"
    batches: list[Batches] = [SampleBatches(inspected, number, shape["max_tokens"])] * len(spec.distilling)  # the loop uses its own
    wide = spec.targets.width if spec.targets is not None else inspected.teacher.dims
    student = PreparedStudent(copy.deepcopy(inspected.student), shape, inspected.tokenizer)
    prepared = prepare.Prepared(
        inspected.corpus,  # type: ignore[arg-type]
        RandomEmbeddings(wide),
        batches,
        student,
        checks.drops_head(spec),
    )
    metrics = MetricsLog(folder / "metrics.jsonl", progress_bar(False), silent)
    stage = distillation_stages(spec)[number]
    rows = min(stage.spec.batch, TIMED_ROWS // (stage.spec.group or 1) * (stage.spec.group or 1) or stage.spec.batch)
    stage = replace(stage, spec=stage.spec.model_copy(update={"batch": rows}))
    return Loop(stage, prepared, RunInProgress(folder, accelerator, Session(), metrics))


class RandomEmbeddings:
    """Random unit embeddings in place of a teacher's: rows (n,) -> (n, dims) float32, or (n, 2, dims) of the two sides of pairs."""

    def __init__(self, dims: int, pairs: bool = False) -> None:
        self.dims, self.pairs = dims, pairs
        rows = max(1, min(1_024, RANDOM_VALUES // dims))
        table = np.random.default_rng(0).standard_normal((rows, dims), np.float32)
        self._table = unit_rows(table)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        found = self._table[rows % len(self._table)]
        return np.stack([found, found], 1) if self.pairs else found


class SampleBatches(Batches):
    """The inputs of a stage, with as many rows as training has; their texts repeat a sample of the corpus."""

    def __init__(self, inspected: Inspected, number: int, max_tokens: int) -> None:
        stage, corpus = inspected.spec.distilling[number], inspected.corpus
        columns, rows = _columns(corpus, stage, inspected.stages[number])
        most = min(stage.max_tokens, max_tokens)
        tokenizer = inspected.tokenizer
        ids = [token_batches.encode_ids(tokenizer, column.texts(_spread(column, SAMPLE)), most) for column in columns]
        self._sample = min(map(len, ids))
        self._lengths = np.max([[len(row) for row in column[: self._sample]] for column in ids], axis=0)
        pad = tokenizer.pad_token_id or 0

        def view(column: list[np.ndarray]) -> Any:
            def read(rows: np.ndarray, passes: np.ndarray) -> Ids:
                return batching.pad([column[row % self._sample] for row in rows], pad)

            return read

        views = [view(ids[at % len(ids)]) for at in range(stage.views)]
        super().__init__(views, [self], rows, _random_targets(inspected, stage))

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        return self._lengths[rows % self._sample]

    def short(self, longest: int) -> np.ndarray:
        rows = np.arange(self.texts)
        found = rows[self.lengths(rows) <= longest]
        return found if len(found) else rows  # a sample without short texts does not mean that there are none


def _columns(corpus: Corpus | ParallelCorpus | None, stage: recipe.Stage, ahead: checks.StageRows) -> tuple[Sequence[Corpus], int]:
    """(the corpora that the views of a stage are read from, how many rows they have)."""
    if ahead.triples is not None:
        return ahead.triples.columns, len(ahead.triples)
    if isinstance(corpus, ParallelCorpus):
        return [corpus.source_side, corpus.target_side], len(corpus.training_pairs(stage.pairs))
    assert corpus is not None, "a distillation stage reads a corpus or triples"
    return [corpus], corpus.training_count


def _random_targets(inspected: Inspected, stage: recipe.Stage) -> RandomEmbeddings | None:
    """Embeddings of the size that a stage matches; None where its objective reads none."""
    if stage.triples is not None or not objectives.reads_teacher(stage.objective):
        return None
    if not isinstance(inspected.corpus, ParallelCorpus):
        targets_spec = inspected.spec.targets
        return RandomEmbeddings(targets_spec.width if targets_spec is not None else inspected.teacher.dims)
    matched = pair_batches.embedding_model(stage.match or recipe.Match(), inspected.models)
    return RandomEmbeddings(matched.dims if matched is not None else inspected.teacher.dims, pairs=True)


def _finetuning_seconds(
    inspected: Inspected, stage: recipe.Finetune, planned: FinetuningPlan, accelerator: Accelerator, limit: float
) -> float:
    """Seconds of the fine-tuning stage at all of its learning rates."""
    task, device = planned.task, accelerator.device
    items = task.train.items[:SAMPLE]
    limit_tokens = int(inspected.shape["max_tokens"]) if inspected.shape is not None else stage.max_tokens
    tokens = ItemTokens(items, inspected.tokenizer, "", min(stage.max_tokens, limit_tokens))
    student = copy.deepcopy(inspected.student)
    module = finetune.new_classifier(planned, student).to(device).train()
    plain_attention.use_where_faster(student, accelerator)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.0, fused=device.type in FUSED)

    def step(number: int) -> None:
        rows = np.random.default_rng(number).integers(len(items), size=min(stage.batch, TIMED_ROWS))
        with accelerator.autocast():
            logits = module(*tokens.batch(rows, device))
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits.float(), torch.zeros(len(rows), dtype=torch.int64, device=device)).backward()
        optimizer.step()

    per_step = float(np.mean(timed_steps(step, np.arange(TIMED_STEPS), limit))) * max(1, stage.batch / TIMED_ROWS)
    return per_step * steps(stage, planned.rows) * len(learning_rates(stage))


def timed_steps(step: Callable[[int], object], numbers: np.ndarray, limit: float) -> list[float]:
    """Seconds of the first of these steps: of TIMED_STEPS, or of as many as can be measured in about `limit` seconds. step: runs one.

    All run twice and the second time counts: the first one of a new shape takes longer, as its kernels are built.
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
