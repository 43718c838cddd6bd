"""An opened recipe -> what its stages read: token ids, target embeddings, batches.

The order is not free. Tokens and batches come first, because they say whether a stage that skips long texts
keeps any, before hours of embedding. The targets come next: some are aligned with the embeddings of the
student before its first step, so the student must be there. Then the head of a finished student is fitted to
them, and a static student's token weights are set from the frequencies of the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgedistill import objectives, recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.session import Session
from edgedistill.students import static
from edgedistill.students.head import Headed
from edgedistill.students.output import own, read_maps
from edgedistill.teacher import targets
from edgedistill.teacher.embedding_cache import TeacherPass
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.teacher.targets import EmbeddingRows
from edgedistill.training import checkpoint, student_embeddings
from edgedistill.training.checks import StageRows
from edgedistill.training.initial_student import finished_student, initial_weights, student_tokenizer
from edgedistill.training.initial_student.prepared_student import (
    PreparedStudent,
    corpora_of,
    token_counts,
)
from edgedistill.training.inputs import pair_batches, text_batches, tuple_batches
from edgedistill.training.inputs.text_batches import Batches
from edgedistill.training.load_models import Models
from edgedistill.training.open_recipe import Opened, reduced
from edgedistill.training.stages import NumberedStage, distillation_stages
from edgedistill.vocabulary import initial_embeddings


def build(opened: Opened, session: Session, folder: Path) -> tuple[PreparedStudent, list[Batches]]:
    """The student before its first step, and for each stage of an opened recipe its batches, from the caches
    where these have tokens and targets.

    The maps of `targets` are written to `folder`, the unfinished run's. Raises UserError where a stage skips
    so many texts as too long that too few remain.
    """
    spec, models, texts, student = opened.spec, opened.models, opened.texts, opened.student
    if texts is None:
        return student, []
    assert models is not None
    if isinstance(spec.student, recipe.TeacherItself) and isinstance(texts, Corpus):
        return _reduced_teacher(opened, texts, session, folder), []
    tokenizer, corpora = student.limited_tokenizer, corpora_of(texts)
    tokens = [tokenizer.limited_to(spec.distilling).tokens(each, session).open() for each in corpora]
    batches = list[Batches]()
    for stage, ahead in zip(distillation_stages(spec), opened.stages, strict=True):
        if ahead.tuples is not None:
            limited = tokenizer.limited(stage.spec.max_tokens)
            batches.append(tuple_batches.of_tuples(ahead.tuples, limited, session))
        elif isinstance(texts, ParallelCorpus):
            batches.append(pair_batches.of_pairs(stage.spec, texts, tokens, student.max_tokens))
        else:
            batches.append(text_batches.of_texts(stage, texts, tokens[0], tokenizer))
        batches[-1].trained_and_queued(stage)  # raises where too few texts remain

    @cache
    def of_texts() -> EmbeddingRows:
        assert isinstance(texts, Corpus)
        return target_embeddings(spec, models, texts, student, session, folder)

    matched = _matched(opened, of_texts, session, folder)
    if student.new_head and not checkpoint.exists(folder) and isinstance(texts, Corpus):
        finished_student.fit_head(student, of_texts(), texts, spec.seed, session)
    wanted = [matched(*each) for each in zip(distillation_stages(spec), opened.stages, strict=True)]
    bare = own(student.module)

    def counts() -> torch.Tensor:
        return torch.from_numpy(token_counts(tokens, corpora, len(student.tokenizer)))

    if isinstance(spec.student, recipe.Static) and isinstance(bare, static.StaticStudent):
        static.set_sif_weights(bare, counts())
    channel = bare.lexical_channel if isinstance(bare, Headed) else None
    if channel is not None and getattr(spec.student, "lexical", None) is not None:
        occurrences = counts()
        stems, continues = initial_embeddings.stems(student.tokenizer, occurrences.numpy())
        channel.set_words(stems, continues, occurrences, sum(each.training_count for each in corpora))
    return student, [replace(each, targets=of) for each, of in zip(batches, wanted, strict=True)]


def _matched(
    opened: Opened, of_texts: Callable[[], EmbeddingRows], session: Session, folder: Path
) -> Callable[[NumberedStage[recipe.Stage], StageRows], Any]:
    """What the rows of a stage are compared with; None where that is nothing of a teacher's."""
    spec, models, texts = opened.spec, opened.models, opened.texts
    assert models is not None and texts is not None
    of_pairs = pair_batches.targets_of(texts, models, session) if isinstance(texts, ParallelCorpus) else None

    def mapped(embeddings: Callable[[recipe.Teacher | None], EmbeddingRows]) -> EmbeddingRows:
        """What the recipe's `targets` make of the embeddings of other texts than the corpus'."""
        if spec.targets is None:
            return embeddings(None)
        of_texts()  # fits the maps
        blocks = targets.blocks_of(spec.targets)
        rows = [embeddings(block.teacher) for block in blocks]
        return targets.StudentTargets(blocks, read_maps(folder / "targets"), rows)

    def of_stage(stage: NumberedStage[recipe.Stage], ahead: StageRows) -> Any:
        if ahead.tuples is not None:
            return tuple_batches.targets_of(stage, ahead.tuples, models, session, mapped, spec.seed)
        if of_pairs is not None:
            return of_pairs(stage.spec)
        return of_texts() if objectives.reads_teacher(stage.spec.objective) else None

    return of_stage


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
    module = reduced(spec.targets, models.teacher, read_maps(folder / "targets"))
    shape = {**opened.student.shape, "kind": "reduced", "blocks": module.blocks}
    return replace(opened.student, module=module, shape=shape)


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

    Reducers and alignments may need the embeddings of `student` before its first step; it is None where the
    recipe has none of these. The fitted maps are written to `folder`, the unfinished run's.
    """
    raw = isinstance(spec.targets, recipe.SingleTeacher) and spec.targets.raw

    @cache
    def of_teacher(which: recipe.Teacher | None) -> EmbeddingRows:
        return TeacherPass(models.of(which), texts, session, unit=not raw).open()

    def of_student(rows: np.ndarray) -> np.ndarray:
        assert student is not None, "the recipe's own checks guarantee it"
        return student_embeddings.embed(
            own(student.module).eval(), student.tokenizer, texts.texts(rows), student.max_tokens
        )

    if spec.targets is None:
        return of_teacher(None)
    data = targets.FittingData(of_teacher, texts.training_count, of_student, spec.seed)
    return targets.load_or_fit(spec.targets, data, folder / "targets", session.log)
