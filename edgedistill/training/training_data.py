"""An opened recipe -> what its stages read: token ids, target embeddings, batches.

The order is not free. Tokens and batches come first, because they say whether a stage that skips long texts
keeps any, before hours of embedding. The targets come next: some are aligned with the embeddings of the
student before its first step, so the student must be there. Then the head of a finished student is fitted to
them, and a static student's token weights are set from the frequencies of the tokens.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from edgedistill.data.rows import Rows
from edgedistill.session import Session
from edgedistill.students import static
from edgedistill.students.head import Headed
from edgedistill.students.sentence_transformer import Affine
from edgedistill.training import checkpoint
from edgedistill.training.initial_student import finished_student, initial_weights, student_tokenizer
from edgedistill.training.initial_student.prepared_student import PreparedStudent, token_counts
from edgedistill.training.inputs import batches
from edgedistill.training.inputs.batches import Batches
from edgedistill.training.inputs.stage_targets import StageTargets, TargetReader
from edgedistill.training.load_models import Models, with_weights
from edgedistill.training.open_recipe import Opened
from edgedistill.vocabulary import initial_embeddings


def build(opened: Opened, session: Session, folder: Path) -> tuple[PreparedStudent, list[Batches]]:
    """The student before its first step, and for each stage of an opened recipe its batches, from the caches
    where these have tokens and targets.

    The map of `targets` is written to `folder`, the unfinished run's. Raises UserError where a stage skips
    so many texts as too long that too few remain.
    """
    spec = opened.spec
    models = opened.models
    texts = opened.texts
    student = opened.student
    if texts is None:
        return student, []
    if not spec.student.trained:
        return _reduced_teacher(opened, models, texts, session, folder), []
    tokenizer = student.limited_tokenizer.limited_to(spec.distilling)
    of_stages = [batches.of_stage(stage, rows, tokenizer, session) for stage, rows, _ in opened.stages]
    for ahead, stage_batches in zip(opened.stages, of_stages, strict=True):
        stage_batches.trained_and_queued(ahead.stage)  # raises where too few texts remain
    reader = TargetReader(spec, models, texts, student, session, folder)
    if student.new_head and not checkpoint.exists(folder):
        finished_student.fit_head(student, reader.of_texts, texts.sides[0], spec.seed, session)
    targets = [reader.of_stage(stage, rows) for stage, rows, _ in opened.stages]
    _count_tokens(opened, session)
    return student, [_with_targets(*pair) for pair in zip(of_stages, targets, strict=True)]


def _with_targets(batches: Batches, targets: StageTargets) -> Batches:
    """The batches with what they are compared with, and the negatives that were added to their rows."""
    index = batches.index if targets.scored is None else targets.scored.index
    return replace(batches, targets=targets, index=index)


def _count_tokens(opened: Opened, session: Session) -> None:
    """Set what a student has of the frequencies of tokens: a static one's weights, the words of a lexical
    channel."""
    spec = opened.spec
    student = opened.student
    texts = opened.texts
    bare = student.module
    lexical = getattr(spec.student, "lexical", None)
    channel = bare.lexical_channel if isinstance(bare, Headed) and lexical is not None else None
    table = bare if spec.student.bare_table and isinstance(bare, static.StaticStudent) else None
    if texts is None or (table is None and channel is None):
        return
    tokenizer = student.limited_tokenizer.limited_to(spec.distilling)
    tokens = [work.open() for work in batches.token_passes(texts, tokenizer, session)]
    counts = torch.from_numpy(token_counts(tokens, texts.sides, len(student.tokenizer)))
    if table is not None:
        static.set_sif_weights(table, counts)
    if channel is not None:
        stems, continues = initial_embeddings.stems(student.tokenizer, counts.numpy())
        channel.set_words(stems, continues, counts, sum(side.training_count for side in texts.sides))


def _reduced_teacher(
    opened: Opened, models: Models, texts: Rows, session: Session, folder: Path
) -> PreparedStudent:
    """The teacher with the map of its own `targets` behind it, fitted as a student's run would fit them."""
    spec = opened.spec
    student = opened.student
    if (reference := getattr(spec.student, "reference_student", None)) is not None:
        other = spec.model_copy(update={"student": reference})
        tokenizer = student_tokenizer.build(other, models, texts, session)
        student = initial_weights.build(other, models, tokenizer, session, texts)
    _ = TargetReader(spec, models, texts, student, session, folder).of_texts
    teacher = with_weights(models.teacher, "student")
    module = teacher.module.followed_by(Affine.read(folder / "targets"))
    shape = {**opened.student.shape, "kind": "reduced"}
    return replace(opened.student, module=module, shape=shape)
