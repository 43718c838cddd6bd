"""The student before its first optimizer step: its module, its shape, its initial weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from edgedistill import files, recipe
from edgedistill.data.cached_folder import cached_folder
from edgedistill.data.rows import Rows
from edgedistill.recipe import BuiltStudent, Recipe, Stage
from edgedistill.runtime import prompts
from edgedistill.session import Session
from edgedistill.students import kinds
from edgedistill.students.kind import Start
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student import finished_student, weight_source
from edgedistill.training.initial_student.prepared_student import (
    PreparedStudent,
    StudentTokenizer,
    token_counts,
)
from edgedistill.training.initial_student.weight_source import WeightSource
from edgedistill.training.load_models import Models, with_weights
from edgedistill.vocabulary import initial_embeddings

SAMPLE = 512  # texts of the corpus that narrow layers are fitted to
SAMPLE_TOKENS = 32  # tokens of each that are used
FORMAT = 1  # part of a key of cached outputs: raise it when what is stored changes


def build(
    spec: Recipe,
    models: Models,
    tokenizer: PreTrainedTokenizerBase,
    session: Session,
    texts: Rows | None = None,
    fitted: bool = True,
) -> PreparedStudent:
    """The recipe's student before its first step; the same recipe gives the same weights.

    Its token embeddings and narrow layers are fitted to `texts`, where the recipe asks for that. Without
    `fitted`, which takes most of the time, only its shape is right. Raises UserError where the recipe's
    student does not fit its models or its targets.
    """
    dims = spec.targets.dims if spec.targets else models.teacher.dims
    if spec.finished is not None and models.finished is not None:
        return finished_student.build(spec, spec.finished, models.finished, tokenizer, dims, fitted)
    torch.manual_seed(spec.seed)
    student = spec.built
    source = weight_source.find(student, models, tokenizer)
    pairs = texts if student.reads_translations else None
    embeddings = _token_embeddings(spec, models, tokenizer, source, session, pairs, fitted)
    weights, batch = corpus_sample(spec, tokenizer, texts, session)
    start = Start(tokenizer, dims, embeddings, token_weights=weights, batch=batch, shape_only=not fitted)
    earlier = []
    if source is not None:
        start = replace(start, layers=source.layers, head=source.head)
        earlier = finished_student.earlier(source.finished) if source.finished else []
    limited = _limited_to_trained_positions(student, spec.distilling, source)
    module, shape = kinds.KINDS[limited.kind].initial(limited, start)
    shape = {**shape, **prompts.read(student.model_dump()).own}
    return PreparedStudent(module, shape, tokenizer, drops_head=recipe.drops_head(student), earlier=earlier)


def _limited_to_trained_positions(
    student: BuiltStudent, stages: list[Stage], source: WeightSource | None
) -> BuiltStudent:
    """The recipe's student with the `max_tokens` that its position table is trained for.

    Where the table is randomly initialized, that is what the stages train; where it comes from a run, what
    that run or the stages train.
    """
    trained = [stage.max_tokens for stage in stages]
    if not student.random_positions:
        finished = source.finished if source is not None else None
        trained.append(student.max_tokens if finished is None else finished.max_tokens)
    most = min(student.max_tokens, max(trained, default=student.max_tokens))
    return student.model_copy(update={"max_tokens": most})


def corpus_sample(
    spec: Recipe,
    tokenizer: PreTrainedTokenizerBase,
    texts: Rows | None,
    session: Session,
) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
    """What a table and narrow layers are fitted to: (the weight of each token, (V,) float64; (ids, mask),
    each (B, T), of texts spread over the training texts, of pairs over their source side).

    A token's weight is (its count in the training texts + 1)^count_exponent. Both are None where the recipe
    needs neither.
    """
    student = spec.built
    weighted = student.embeddings.weighting != "none"
    if texts is None or not (weighted or student.reduced):
        return None, None
    limited = StudentTokenizer(tokenizer, student.max_tokens).limited_to(spec.distilling)
    tokens = [limited.tokens(side, session).open() for side in texts.sides]
    rows = texts.sides[0].spread(SAMPLE, 0, texts.sides[0].training_count)
    ids, mask = tokens[0].batch(rows, SAMPLE_TOKENS)
    weights = None
    if weighted:
        counts = token_counts(tokens, texts.sides, len(tokenizer))
        weights = torch.from_numpy((counts + 1.0) ** student.embeddings.count_exponent)
    return weights, (torch.from_numpy(ids), torch.from_numpy(mask))


def _token_embeddings(
    spec: Recipe,
    models: Models,
    tokenizer: PreTrainedTokenizerBase,
    source: WeightSource | None,
    session: Session,
    pairs: Rows | None,
    fitted: bool,
) -> Tensor | None:
    """Rows (V, w) for the tokens of the student's tokenizer, or None where the table is randomly initialized.

    w is the source's width: a student that is narrower reduces them. With `pairs` the rows are fitted to
    their translations. Without `fitted` only problems are looked for, and None is returned.
    """
    table_spec = spec.built.embeddings
    if table_spec.source == "random":
        return None
    start: Any = source or with_weights(models.teacher, "student.embeddings")
    if not fitted:
        return None
    if source is None and table_spec.of == "outputs":
        return torch.from_numpy(_outputs(start, tokenizer, session))
    model = (start if source else start.module).model
    source_tokenizer = start.tokenizer
    table = model.get_input_embeddings().weight.detach()
    rows = initial_embeddings.from_model(tokenizer, source_tokenizer, table)
    if pairs is None:
        return rows
    session.log(
        f"fitting {len(tokenizer):,} token embeddings to {pairs.training_count:,} translation pairs; "
        "minutes for millions of pairs"
    )
    return initial_embeddings.from_translations(rows, tokenizer, source_tokenizer, table, pairs)


def _outputs(teacher: TeacherEncoder, tokenizer: PreTrainedTokenizerBase, session: Session) -> ndarray:
    """The teacher's embedding of each token as a text of its own, (V, d) float32; from the cache where an
    earlier run has left it."""
    ids = initial_embeddings.tokens_as_texts(tokenizer, teacher.tokenizer)
    key = files.cache_key(format=FORMAT, ids=[row.tolist() for row in ids], **teacher.identity())
    folder = session.cache / "token-outputs" / key
    cached_folder(
        folder, lambda temporary: np.save(temporary / "outputs.npy", teacher.embed_ids(ids)), session.log
    )
    return np.load(folder / "outputs.npy")
