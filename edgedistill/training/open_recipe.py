"""recipe -> everything that it names, opened: models, texts, tokenizer, and the student before its first
step.

This is the only place where a recipe is opened. `check` stops here and estimates; `train`, `fit` and `adapt`
go on with what they are handed. It collects the problems of all parts, because the next attempt may be an
hour away: a missing teacher, a queue that the corpus cannot fill and a batch that is too large come as one
error. A part that depends on one with a problem is left out. Nothing is embedded by a teacher here,
with one exception: token embeddings that are a teacher's outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgedistill.data.rows import Rows
from edgedistill.errors import Problems
from edgedistill.recipe import Recipe
from edgedistill.session import Session
from edgedistill.students.sentence_transformer import Affine
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import tokenizer_files
from edgedistill.training import checkpoint, checks, finetuning
from edgedistill.training.initial_student import initial_weights, student_tokenizer
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.inputs import stage_targets
from edgedistill.training.load_models import Models, open_models, with_weights
from edgedistill.training.training_sources import TrainingSources

LARGEST_HELD_OUT_SHARE = 1 / 3  # of the texts; a larger one is probably a mistake


@dataclass(frozen=True)
class Sources:
    """A recipe, its models and its texts.

    `texts` is None where training reads no corpus. `stages` says for every distillation stage which tuples it
    reads, if any, and how many rows it trains on.
    """

    spec: Recipe
    models: Models
    texts: Rows | None
    stages: list[checks.StageRows]


@dataclass(frozen=True)
class Opened(Sources):
    """A recipe and what it names. `student` is the student before its first step, or the teacher itself;
    `labelled` the stage that fine-tunes, if there is one."""

    student: PreparedStudent
    labelled: finetuning.LabelledStage | None = None

    @property
    def warnings(self) -> list[str]:
        """What is allowed but probably not meant, one line each: an unusual share of held-out texts, a batch
        larger than the corpus."""
        warnings = [] if self.texts is None else _held_out_warnings(self.texts)
        for stage, _, training in self.stages:
            if stage.spec.batch > training:
                warnings.append(
                    f"{stage.place}.batch: {stage.spec.batch:,} rows, but only {training:,} to train on, so "
                    "every batch repeats some; lower it, or add texts"
                )
        return warnings


def open_recipe(spec: Recipe, session: Session, folder: Path | None = None) -> Opened:
    """Open everything that a recipe names.

    The tokenizer is written to `folder`, the unfinished run's, and found again there; with it, the student's
    initial weights are fitted to the corpus. Without one, for an estimate, the student has only the right
    shape. Raises one UserError with every problem that training would raise before its first step, but for
    `skip_longer_than`, which needs the whole corpus tokenized.
    """
    problems = Problems()
    labelled = None
    with problems.collect():
        checks.check_languages(spec)
    if (section := spec.finetuning) is not None:
        with problems.collect():
            labelled = finetuning.open_stage(spec, section, session)
    with problems.collect():
        models, sources = _models_and_sources(spec, session)
        texts = None if sources is None else sources.texts
        with problems.collect():
            stages = [] if sources is None else checks.stage_rows(spec, sources, models)
        if spec.student.trained:
            student = _new_student(spec, models, texts, session, None if problems.found else folder)
        else:
            student = _teacher_itself(spec, models, folder)
    problems.raise_any()
    if labelled is not None:
        if not spec.student.trained:
            student = replace(student, tokenizer=tokenizer_files.from_the_start(student.tokenizer))
        finetuning.mask_token(labelled, student.tokenizer)  # raises
    return Opened(spec, models, texts, stages, student, labelled)


def open_sources(spec: Recipe, session: Session) -> Sources:
    """Open what a recipe's teachers embed, without a student. Raises UserError as `open_recipe`."""
    models, sources = _models_and_sources(spec, session)
    if sources is None:
        return Sources(spec, models, None, [])
    return Sources(spec, models, sources.texts, checks.stage_rows(spec, sources, models))


def _models_and_sources(spec: Recipe, session: Session) -> tuple[Models, TrainingSources | None]:
    """The models of a recipe, and its rows where training reads them. Raises one UserError with the problems
    of both."""
    problems = Problems()
    sources = None
    with problems.collect():
        models = open_models(spec, session)
    if spec.reads_rows:
        with problems.collect():
            sources = TrainingSources.of_recipe(spec, session)
            _ = sources.texts  # raises
    problems.raise_any()
    return models, sources


def _teacher_itself(spec: Recipe, models: Models, folder: Path | None) -> PreparedStudent:
    """The teacher as the student; where `targets` reduce it, with a map of the shape that fitting will
    give."""
    teacher = with_weights(models.teacher, "student")
    module = teacher.module
    if spec.targets is not None:
        dims = spec.targets.dims
        module = module.followed_by(Affine(np.ones((teacher.dims, dims)), np.zeros(dims)))
    student_tokenizer.keep(teacher.tokenizer, folder)
    shape = teachers.teacher_shape(spec.student, teacher)
    return PreparedStudent(module, shape, teacher.tokenizer, model_folder=teacher.folder)


def _new_student(
    spec: Recipe,
    models: Models,
    texts: Rows | None,
    session: Session,
    folder: Path | None,
) -> PreparedStudent:
    """The recipe's own student. A run that goes on from a checkpoint takes all weights from there: nothing is
    fitted for it."""
    tokenizer = student_tokenizer.build(spec, models, texts, session, folder)
    fitted = folder is not None and not checkpoint.exists(folder)
    sample = texts if fitted else None
    student = initial_weights.build(spec, models, tokenizer, session, sample, fitted=fitted)
    problems = Problems()
    with problems.collect():
        checks.check_objectives(spec, student, models)
    with problems.collect():
        stage_targets.check_tokenizers(spec, models, tokenizer)
    problems.raise_any()
    return student


def _held_out_warnings(corpus: Rows) -> list[str]:
    held_out = len(corpus.held_out)
    training = corpus.training_count
    if held_out == 0:
        return [
            "rows.held_out: no text is held out, so `bench` cannot measure the agreement with "
            "the teacher on unseen texts; hold some out, such as 1000"
        ]
    if held_out > LARGEST_HELD_OUT_SHARE * (held_out + training):
        return [
            f"rows.held_out: {held_out:,} of {held_out + training:,} texts are held out, which "
            f"leaves {training:,} to train on; lower it, or add texts"
        ]
    return []
