"""Opens everything that a recipe names, and reports all of its problems at once, before anything is embedded or trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe
from edgedistill.data.corpus import Corpus, NothingToTrainOn
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.errors import Problems, UserError, map_collecting_errors
from edgedistill.session import Session, silent
from edgedistill.students.affine import Affine
from edgedistill.teacher import targets
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.teacher.precomputed_embeddings import PrecomputedEmbeddings
from edgedistill.training import checks, prepare, teacher_record, teacher_run
from edgedistill.training.finetuning import finetuning_plan
from edgedistill.training.finetuning.finetuning_plan import FinetuningPlan
from edgedistill.training.initial_student import initial_weights, student_tokenizer
from edgedistill.training.inputs import pair_batches
from edgedistill.training.load_models import Models, open_assistant, open_teacher

LARGEST_HELD_OUT_SHARE = 1 / 3  # of the texts; a larger one is probably a mistake


@dataclass
class Inspected:
    """A recipe and what it names, opened.

    student: the initial student, or the teacher itself. tokenizer: the student's. shape: its student.json, None for the teacher itself.
    stages: for every distillation stage the triples it reads, if any, and how many rows it trains on.
    """

    spec: recipe.Recipe
    teacher: TeacherEncoder | PrecomputedEmbeddings
    assistant: TeacherEncoder | None
    corpus: Corpus | ParallelCorpus | None
    stages: list[checks.StageRows]
    finetuning: FinetuningPlan | None
    student: Any
    tokenizer: PreTrainedTokenizerBase
    shape: dict[str, Any] | None

    @property
    def models(self) -> Models:
        return Models(self.teacher, self.assistant)

    @property
    def warnings(self) -> list[str]:
        """What is allowed but probably not meant, one line each: an unusual share of held-out texts, a batch larger than the corpus."""
        found = [] if self.corpus is None else _held_out_warnings(self.corpus)
        for number, (stage, ahead) in enumerate(zip(self.spec.distilling, self.stages, strict=True)):
            if stage.batch > ahead.rows:
                fact = f"{stage.batch:,} rows, but only {ahead.rows:,} to train on, so every batch repeats some"
                found.append(f"stages[{number}].batch: {fact}; lower it, or add texts")
        return found


def inspect_all(specs: list[recipe.Recipe], session: Session) -> list[Inspected]:
    """Inspect several recipes. Raises one UserError with the problems of all of them."""
    return map_collecting_errors(specs, lambda spec: inspect(spec, session))


def inspect(spec: recipe.Recipe, session: Session) -> Inspected:
    """Open teacher, corpus and task, and build the initial student. The corpus is built and cached; nothing is embedded or trained.

    Raises one UserError with every problem that training would raise before its first step, but for `skip_longer_than`, which needs
    the whole corpus tokenized. What depends on a part that has a problem is not checked.
    """
    problems = Problems()
    teacher: TeacherEncoder | PrecomputedEmbeddings | None = None
    assistant, corpus, available = None, None, None
    stages, planned, built = list[checks.StageRows](), None, None
    with problems.collect():
        teacher = open_teacher(spec.teacher, session)
    with problems.collect():
        assistant = open_assistant(spec, session)
    reads_corpus = spec.corpus is not None and spec.reads_corpus
    with problems.collect():
        try:
            corpus = prepare.open_corpus(spec.corpus, session, spec.seed) if spec.corpus is not None and reads_corpus else None
        except NothingToTrainOn as error:
            available = error.texts
            raise
    if teacher is not None and corpus is not None:
        with problems.collect():
            stages = checks.stage_rows(spec, corpus, teacher, session)
    if teacher is not None and available is not None:
        with problems.collect():
            checks.check_counts(spec, available, teacher, session)
    if spec.finetuning is not None:
        with problems.collect():
            planned = finetuning_plan.plan(spec, replace(session, log=silent))
    with problems.collect():
        checks.check_languages(spec)
    with problems.collect():
        teacher_record.check_device(spec, session.device)
    if teacher is not None and (assistant is not None or spec.assistant is None) and (corpus is not None or not reads_corpus):
        with problems.collect():
            built = _build(spec, Models(teacher, assistant), corpus, session)
    problems.raise_any()
    assert teacher is not None and built is not None
    return Inspected(spec, teacher, assistant, corpus, stages, planned, *built)


def _build(
    spec: recipe.Recipe, models: Models, corpus: Corpus | ParallelCorpus | None, session: Session
) -> tuple[Any, PreTrainedTokenizerBase, dict[str, Any] | None]:
    """(the initial student, its tokenizer, its student.json). Where the student is the teacher itself: (it, its tokenizer, None)."""
    teacher = models.teacher
    if isinstance(spec.student, recipe.TeacherItself):
        teacher_run.check_targets(spec)
        if not isinstance(teacher, TeacherEncoder):
            raise UserError("teacher.embeddings: a recipe that exports the teacher itself needs its `model`; give it")
        return teacher_run.as_student(spec, teacher, _unfitted_maps(spec, teacher.dims)), teacher.tokenizer, None
    tokenizer = student_tokenizer.build(spec, models, corpus, session)
    student = initial_weights.build(spec, models, tokenizer, session)
    problems = Problems()
    with problems.collect():
        checks.check_objectives(spec, student, models)
    with problems.collect():
        pair_batches.check_tokenizers(spec, models, tokenizer)
    with problems.collect():
        finetuning_plan.check_mask(spec, tokenizer)
    problems.raise_any()
    return student.module, tokenizer, student.shape


def _unfitted_maps(spec: recipe.Recipe, teacher_dims: int) -> list[Affine]:
    """Maps of the shapes that fitting the recipe's targets will give."""
    sizes = [block.projection.dims for block in targets.blocks_of(spec.targets)] if spec.targets else []
    return [Affine(np.ones((teacher_dims, dims)), np.zeros(dims)) for dims in sizes]


def _held_out_warnings(corpus: Corpus | ParallelCorpus) -> list[str]:
    held_out, training = len(corpus.held_out), corpus.training_count
    if held_out == 0:
        fact = "no text is held out, so `bench` cannot measure the agreement with the teacher on unseen texts"
        return [f"corpus.held_out: {fact}; hold some out, such as 1000"]
    if held_out > LARGEST_HELD_OUT_SHARE * (held_out + training):
        fact = f"{held_out:,} of {held_out + training:,} texts are held out, which leaves {training:,} to train on"
        return [f"corpus.held_out: {fact}; lower it, or add texts"]
    return []
