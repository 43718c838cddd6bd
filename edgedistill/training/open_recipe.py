"""recipe -> everything that it names, opened: models, texts, task, tokenizer, and the student before its
first step.

This is the only place where a recipe is opened. `check` stops here and estimates; `train`, `fit`, `adapt` and
fine-tuning go on with what they are handed. It collects the problems of all parts, because the next attempt
may be an hour away: a missing teacher, a queue that the corpus cannot fill and a batch that is too large come
as one error. A part that depends on one with a problem is left out. Nothing is embedded by a teacher here,
with one exception: token embeddings that are a teacher's outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from edgedistill import files, recipe, run
from edgedistill.data import corpus, parallel_corpus
from edgedistill.data.corpus import Corpus, NothingToTrainOn
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.errors import Problems, UserError
from edgedistill.session import Session
from edgedistill.students.output import Affine
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import targets, tokenizer_files
from edgedistill.training import checkpoint, checks, teacher_record
from edgedistill.training.finetuning import finetuning_plan
from edgedistill.training.finetuning.finetuning_plan import FinetuningPlan
from edgedistill.training.initial_student import (
    corpus_sample,
    earlier_training,
    initial_weights,
    student_tokenizer,
)
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.inputs import pair_batches
from edgedistill.training.load_models import Models, open_models

LARGEST_HELD_OUT_SHARE = 1 / 3  # of the texts; a larger one is probably a mistake


@dataclass(frozen=True)
class Opened:
    """A recipe and what it names.

    models: None where the student comes from another run and only learns from labels. texts: None where
        training reads no corpus.
    stages: for every distillation stage the triples it reads, if any, and how many rows it trains on.
        student: before its first step, or
    the teacher itself.
    """

    spec: recipe.Recipe
    models: Models | None
    texts: Corpus | ParallelCorpus | None
    stages: list[checks.StageRows]
    finetuning: FinetuningPlan | None
    student: PreparedStudent

    @property
    def warnings(self) -> list[str]:
        """What is allowed but probably not meant, one line each: an unusual share of held-out texts, a batch
        larger than the corpus."""
        found = [] if self.texts is None else _held_out_warnings(self.texts)
        for number, (stage, ahead) in enumerate(zip(self.spec.distilling, self.stages, strict=True)):
            if stage.batch > ahead.rows:
                fact = (
                    f"{stage.batch:,} rows, but only {ahead.rows:,} to train on, so every batch repeats some"
                )
                found.append(f"stages[{number}].batch: {fact}; lower it, or add texts")
        return found


def open_recipe(spec: recipe.Recipe, session: Session, folder: Path | None = None) -> Opened:
    """Open everything that a recipe names.

    folder: of the unfinished run, where teachers.json and the tokenizer are written and found again, and for
        which the student's initial
    weights are fitted to the corpus. Without one, for an estimate, the student has only the right shape.
    Raises one UserError with every problem that training would raise before its first step, but for
    `skip_longer_than`, which needs the whole corpus tokenized.
    """
    problems, stages = Problems(), list[checks.StageRows]()
    models, texts, available, planned, student = None, None, None, None, None
    with problems.collect():
        planned = finetuning_plan.plan(spec, session)
    with problems.collect():
        checks.check_languages(spec)
    with problems.collect():
        teacher_record.check_device(spec, session.device)
    own_models = spec.finetuning is None or spec.finetuning.start is None or bool(spec.distilling)
    with problems.collect():
        models = open_models(spec, session) if own_models else None
        if models is not None and folder is not None and (spec.finetuning is None or spec.distilling):
            teacher_record.keep(spec, models, folder)
    reads = spec.corpus is not None and spec.reads_corpus
    with problems.collect():
        try:
            texts = (
                open_corpus(spec.corpus, session, spec.seed) if spec.corpus is not None and reads else None
            )
        except NothingToTrainOn as error:
            available = error.texts
            raise
    if models is not None and texts is not None:
        with problems.collect():
            stages = checks.stage_rows(spec, texts, models, session)
    if models is not None and available is not None:
        with problems.collect():
            checks.check_counts(spec, available, models)
    startable = models is not None or (planned is not None and planned.start is not None)
    if startable and (texts is not None or not reads):
        with problems.collect():
            student = _student(spec, models, planned, texts, session, folder if not problems.found else None)
    problems.raise_any()
    assert student is not None
    return Opened(spec, models, texts, stages, planned, student)


def open_corpus(spec: recipe.Corpus, session: Session, seed: int) -> Corpus | ParallelCorpus:
    """A recipe's texts, or its pairs."""
    return (
        parallel_corpus.build(spec, session, seed)
        if isinstance(spec, recipe.Parallel)
        else corpus.build(spec, session, seed)
    )


def _student(
    spec: recipe.Recipe,
    models: Models | None,
    planned: FinetuningPlan | None,
    texts: Corpus | ParallelCorpus | None,
    session: Session,
    folder: Path | None,
) -> PreparedStudent:
    """The student before its first step: the teacher itself, that of the run which fine-tuning starts from,
    or a new one."""
    if models is None:
        assert planned is not None and planned.start is not None, (
            "only fine-tuning from a run needs no models"
        )
        tokenizer, earlier = planned.start.tokenizer(), tuple(earlier_training.record(planned.start))
        found = PreparedStudent(planned.start.student(), planned.start.shape, tokenizer, earlier=earlier)
    elif isinstance(spec.student, recipe.TeacherItself):
        found = _teacher_itself(spec, models, planned)
    else:
        return _new_student(spec, models, texts, session, folder)
    if folder is not None and planned is not None and not (folder / "tokenizer").exists():
        with files.new_folder(folder / "tokenizer") as temporary:
            tokenizer_files.save_tokenizer(found.tokenizer, temporary)
    finetuning_plan.check_mask(spec, found.tokenizer)
    return found


def _teacher_itself(spec: recipe.Recipe, models: Models, planned: FinetuningPlan | None) -> PreparedStudent:
    """The teacher as the student; where `targets` reduce it, with maps of the shapes that fitting them will
    give."""
    teacher = models.teacher
    assert isinstance(spec.student, recipe.TeacherItself) and isinstance(teacher, teachers.TeacherEncoder)
    shape = teachers.teacher_shape(spec.student, teacher)
    if planned is not None:
        return PreparedStudent(teacher.module, shape, tokenizer_files.from_the_start(teacher.tokenizer))
    _check_targets_of_teacher(spec)
    sizes = [block.projection.dims for block in targets.blocks_of(spec.targets)] if spec.targets else []
    maps = [Affine(np.ones((teacher.dims, dims)), np.zeros(dims)) for dims in sizes]
    return PreparedStudent(as_student(spec, teacher, maps), shape, teacher.tokenizer)


def as_student(spec: recipe.Recipe, teacher: teachers.TeacherEncoder, maps: list[Affine]) -> nn.Module:
    """The teacher's module; with the maps of its `targets` behind it, a module whose outputs are the
    targets."""
    if spec.targets is None:
        return teacher.module
    return run.reduced_teacher(
        teacher.module, maps, spec.targets.blocks if isinstance(spec.targets, recipe.Split) else None
    )


def _check_targets_of_teacher(spec: recipe.Recipe) -> None:
    """Raise UserError where the recipe's targets are made from more than its one teacher."""
    if spec.targets is not None and any(
        of not in (None, spec.teacher)
        for block in targets.blocks_of(spec.targets)
        for of, _ in block.teachers
    ):
        raise UserError(
            "targets: of other teachers than the recipe's; a graph holds one teacher, measure each alone"
        )
    if isinstance(spec.targets, recipe.Concat):
        raise UserError("targets: one teacher joined with itself; leave `kind: concat` out")


def _new_student(
    spec: recipe.Recipe,
    models: Models,
    texts: Corpus | ParallelCorpus | None,
    session: Session,
    folder: Path | None,
) -> PreparedStudent:
    """The recipe's own student. A run that goes on from a checkpoint takes all weights from there: nothing is
    fitted for it."""
    tokenizer = student_tokenizer.build(spec, models, texts, session, folder)
    resumed = folder is not None and spec.finetuning is None and checkpoint.exists(folder / "checkpoints")
    fitted = folder is not None and not resumed
    meets_texts = bool(spec.distilling) or spec.finetuning is None
    sample = (
        corpus_sample.sample(spec, tokenizer, texts, session)
        if fitted and meets_texts and texts is not None
        else None
    )
    student = initial_weights.build(spec, models, tokenizer, session, sample, fitted=fitted)
    problems = Problems()
    with problems.collect():
        checks.check_objectives(spec, student, models)
    with problems.collect():
        pair_batches.check_tokenizers(spec, models, tokenizer)
    with problems.collect():
        finetuning_plan.check_mask(spec, tokenizer)
    problems.raise_any()
    return student


def _held_out_warnings(corpus: Corpus | ParallelCorpus) -> list[str]:
    held_out, training = len(corpus.held_out), corpus.training_count
    if held_out == 0:
        fact = "no text is held out, so `bench` cannot measure the agreement with the teacher on unseen texts"
        return [f"corpus.held_out: {fact}; hold some out, such as 1000"]
    if held_out > LARGEST_HELD_OUT_SHARE * (held_out + training):
        fact = (
            f"{held_out:,} of {held_out + training:,} texts are held out, which leaves {training:,} to "
            "train on"
        )
        return [f"corpus.held_out: {fact}; lower it, or add texts"]
    return []
