"""An opened recipe -> what its stages read: token ids, target embeddings, batches.

The order is not free. The tokens come first, because they say whether a stage that skips long texts keeps
any, before hours of
embedding. The targets come next: some are aligned with the embeddings of the student before its first step,
    so the student must be
there. Then the head of a finished student is fitted to them. What is left out: views that models make are
made with the batches, last, so that everything that can be refused has been refused before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from edgedistill import objectives, recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.data.token_cache import TokenCache
from edgedistill.session import Session
from edgedistill.students import static
from edgedistill.students.output import own
from edgedistill.teacher import targets
from edgedistill.teacher.embedding_cache import embed_corpus
from edgedistill.teacher.targets import EmbeddingRows
from edgedistill.training import checkpoint, checks, student_embeddings
from edgedistill.training.initial_student import finished_student
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.inputs import pair_batches, text_batches
from edgedistill.training.inputs.text_batches import Batches, TokenizedCorpus
from edgedistill.training.load_models import Models
from edgedistill.training.open_recipe import Opened
from edgedistill.training.stages import distillation_stages


@dataclass(frozen=True)
class TrainingData:
    """What the stages of a run read.

    targets: what the student is to match; of pairs, what the first stage over them matches, or None. batches:
        one for each stage.
    """

    targets: EmbeddingRows | None
    batches: list[Batches]


def build(opened: Opened, session: Session, folder: Path) -> TrainingData:
    """Tokens, targets and batches of an opened recipe, from the caches where these have them.

    folder: of the unfinished run, which is given the maps of `targets`. Raises UserError where a stage skips
        so many texts as too long
    that too few remain.
    """
    if isinstance(opened.texts, ParallelCorpus):
        return _over_pairs(opened, opened.texts, session)
    spec, texts, student = opened.spec, opened.texts, opened.student
    assert texts is not None and opened.models is not None
    of_triples = _of_triples(opened, session)
    tokens = student.limited_tokenizer.limited_to(spec.distilling).tokenize(texts, session)
    for stage in distillation_stages(spec):
        if stage.spec.skip_longer_than is not None:
            checks.queue_rows(
                stage, len(tokens.rows_up_to(stage.spec.skip_longer_than, texts.training_count))
            )
    found = target_embeddings(spec, opened.models, texts, student, session, folder)
    if student.new_head and (spec.finetuning is not None or not checkpoint.exists(folder / "checkpoints")):
        finished_student.fit_head(student, found, texts, spec.seed, session)
    _set_token_weights(spec, student, [(tokens, texts.training_count)])
    batches = []
    for stage, own_batches in zip(distillation_stages(spec), of_triples, strict=True):
        of_stage = found if objectives.reads_teacher(stage.spec.objective) else None
        of_texts = text_batches.of_texts
        tokenized = TokenizedCorpus(texts, tokens)
        batches.append(
            own_batches or of_texts(stage, tokenized, student.limited_tokenizer, of_stage, session)
        )
    return TrainingData(found, batches)


def _over_pairs(opened: Opened, pairs: ParallelCorpus, session: Session) -> TrainingData:
    """The same of a parallel corpus."""
    spec, student = opened.spec, opened.student
    assert opened.models is not None
    of_triples = _of_triples(opened, session)
    tokenized = pair_batches.tokenize(spec, pairs, student.limited_tokenizer, session)
    _set_token_weights(
        spec,
        student,
        [
            (tokenized.source, pairs.source_side.training_count),
            (tokenized.target, pairs.target_side.training_count),
        ],
    )
    embedded = pair_batches.EmbeddedSides(pairs, opened.models, session)
    batches = [
        own_batches or pair_batches.of_pairs(stage, tokenized, embedded, student.max_tokens)
        for stage, own_batches in zip(spec.distilling, of_triples, strict=True)
    ]
    return TrainingData(next((each.targets for each in batches if each.targets is not None), None), batches)


def _of_triples(opened: Opened, session: Session) -> list[Batches | None]:
    """For each stage its batches of triples, or None where it reads the corpus."""
    tokenizer, found = opened.student.limited_tokenizer, list[Batches | None]()
    for stage, rows in zip(opened.spec.distilling, opened.stages, strict=True):
        limited = tokenizer.limited(stage.max_tokens)
        found.append(
            None if rows.triples is None else text_batches.of_triples(rows.triples, limited, session)
        )
    return found


def _set_token_weights(
    spec: recipe.Recipe, student: PreparedStudent, counted: list[tuple[TokenCache, int]]
) -> None:
    """Initialise a static student's token weights from token frequencies. counted: token ids, and how many of
    their rows count."""
    bare = own(student.module)
    if (
        isinstance(bare, static.StaticStudent)
        and isinstance(spec.student, recipe.Static)
        and spec.student.token_weights == "sif"
    ):
        counts = np.sum([tokens.counts(len(student.tokenizer), rows) for tokens, rows in counted], 0)
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
        return embed_corpus(models.of(which), texts, session, unit=not raw)

    def of_student(rows: np.ndarray) -> np.ndarray:
        assert student is not None, "the recipe's own checks guarantee it"
        return student_embeddings.embed(
            own(student.module).eval(), student.tokenizer, texts.texts(rows), student.max_tokens
        )

    if spec.targets is None:
        return of_teacher(None)
    data = targets.FittingData(of_teacher, texts.training_count, of_student, spec.seed)
    return targets.load_or_fit(spec.targets, data, folder / "targets", session.log)
