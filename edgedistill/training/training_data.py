"""An opened recipe -> what its stages read: token ids, target embeddings, batches.

The order is not free. The tokens come first, because they say whether a stage that skips long texts keeps
any, before hours of embedding. The targets come next: some are aligned with the embeddings of the student
before its first step, so the student must be there. Then the head of a finished student is fitted to them.
What is left out: views that models make are made with the batches, last, so that everything that can be
refused has been refused before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from edgedistill import objectives, recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.data.token_cache import TokenCache
from edgedistill.session import Session
from edgedistill.students import affine, static
from edgedistill.students.output import own
from edgedistill.teacher import precomputed_embeddings, targets
from edgedistill.teacher.embedding_cache import embed_corpus
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.teacher.targets import EmbeddingRows
from edgedistill.training import checkpoint, checks, student_embeddings
from edgedistill.training.initial_student import finished_student, initial_weights, student_tokenizer
from edgedistill.training.initial_student.prepared_student import (
    PreparedStudent,
    corpora_of,
    token_counts,
)
from edgedistill.training.inputs import pair_batches, text_batches
from edgedistill.training.inputs.text_batches import Batches
from edgedistill.training.load_models import Models
from edgedistill.training.open_recipe import Opened, reduced
from edgedistill.training.stages import distillation_stages


@dataclass(frozen=True)
class TrainingData:
    """What the stages of a run read: the embeddings that the student is to match, or None (of pairs, what the
    first stage over them matches), and batches for each stage."""

    targets: EmbeddingRows | None
    batches: list[Batches]


def build(opened: Opened, session: Session, folder: Path) -> tuple[PreparedStudent, TrainingData]:
    """The student before its first step, and the tokens, targets and batches of an opened recipe, from the
    caches where these have them.

    The maps of `targets` are written to `folder`, the unfinished run's. Raises UserError where a stage skips
    so many texts as too long that too few remain.
    """
    spec, texts, student = opened.spec, opened.texts, opened.student
    if texts is None:
        return student, TrainingData(None, [])
    assert opened.models is not None
    if isinstance(spec.student, recipe.TeacherItself) and isinstance(texts, Corpus):
        return _reduced_teacher(opened, texts, session, folder), TrainingData(None, [])
    stages, tokenizer = distillation_stages(spec), student.limited_tokenizer
    of_triples = [
        None
        if rows.triples is None
        else text_batches.of_triples(rows.triples, tokenizer.limited(stage.spec.max_tokens), session)
        for stage, rows in zip(stages, opened.stages, strict=True)
    ]
    limited = tokenizer.limited_to(spec.distilling)
    batches = list[Batches]()
    if isinstance(texts, ParallelCorpus):
        sides = corpora_of(texts)
        tokens = [limited.tokenize(side, session) for side in sides]
        _set_token_weights(spec, student, tokens, sides)
        of_pairs = pair_batches.batches_of(texts, tokens, opened.models, student.max_tokens, session)
        for stage, given in zip(stages, of_triples, strict=True):
            batches.append(given or of_pairs(stage.spec))
        matched = (each.targets for each in batches if each.targets is not None)
        return student, TrainingData(next(matched, None), batches)
    of_corpus = limited.tokenize(texts, session)
    for stage in stages:
        if stage.spec.skip_longer_than is not None:
            short = of_corpus.rows_up_to(stage.spec.skip_longer_than, texts.training_count)
            checks.queue_rows(stage, len(short))
    found = target_embeddings(spec, opened.models, texts, student, session, folder)
    if student.new_head and not checkpoint.exists(folder / "checkpoints"):
        finished_student.fit_head(student, found, texts, spec.seed, session)
    _set_token_weights(spec, student, [of_corpus], [texts])
    for stage, given in zip(stages, of_triples, strict=True):
        of_stage = found if objectives.reads_teacher(stage.spec.objective) else None
        batches.append(given or text_batches.of_texts(stage, texts, of_corpus, tokenizer, of_stage, session))
    return student, TrainingData(found, batches)


def _reduced_teacher(opened: Opened, texts: Corpus, session: Session, folder: Path) -> PreparedStudent:
    """The teacher with the maps of its own `targets` behind it, fitted as a student's run would fit them."""
    spec, models, student = opened.spec, opened.models, None
    assert isinstance(spec.student, recipe.TeacherItself) and spec.targets is not None
    assert models is not None and isinstance(models.teacher, TeacherEncoder)
    if spec.student.reference_student is not None:
        other = spec.model_copy(update={"student": spec.student.reference_student})
        tokenizer = student_tokenizer.build(other, models, texts, session)
        student = initial_weights.build(other, models, tokenizer, session, texts)
    target_embeddings(spec, models, texts, student, session, folder)
    module = reduced(spec.targets, models.teacher, affine.read_maps(folder / "targets"))
    shape = {**opened.student.shape, "kind": "reduced", "blocks": module.blocks}
    return replace(opened.student, module=module, shape=shape)


def _set_token_weights(
    spec: recipe.Recipe, student: PreparedStudent, tokens: Sequence[TokenCache], texts: Sequence[Corpus]
) -> None:
    """Initialise a static student's token weights from the frequencies of the tokens in the training
    texts."""
    bare, section = own(student.module), spec.student
    weighed = isinstance(section, recipe.Static) and section.token_weights == "sif"
    if weighed and isinstance(bare, static.StaticStudent):
        counts = token_counts(tokens, texts, len(student.tokenizer))
        static.set_sif_weights(bare, torch.from_numpy(counts))


def target_embeddings(
    spec: recipe.Recipe,
    models: Models,
    texts: Corpus,
    student: PreparedStudent | None,
    session: Session,
    folder: Path,
) -> EmbeddingRows:
    """What the student is to match: the teacher's embeddings, or what the recipe's `targets` make of those of
    its teachers.

    student: before its first step, for reducers and alignments that need its embeddings; None where the
        recipe has none of these.
    folder: the unfinished run's, where the fitted maps are written.
    """
    raw = isinstance(spec.targets, recipe.SingleTeacher) and spec.targets.raw

    @cache
    def of_teacher(which: recipe.Teacher | None) -> EmbeddingRows:
        teacher = models.of(which)
        if isinstance(teacher, precomputed_embeddings.PrecomputedEmbeddings):
            return precomputed_embeddings.corpus_embeddings(teacher, texts, session)
        return embed_corpus(teacher, texts, session, unit=not raw)

    def of_student(rows: np.ndarray) -> np.ndarray:
        assert student is not None, "the recipe's own checks guarantee it"
        return student_embeddings.embed(
            own(student.module).eval(), student.tokenizer, texts.texts(rows), student.max_tokens
        )

    if spec.targets is None:
        return of_teacher(None)
    data = targets.FittingData(of_teacher, texts.training_count, of_student, spec.seed)
    return targets.load_or_fit(spec.targets, data, folder / "targets", session.log)
