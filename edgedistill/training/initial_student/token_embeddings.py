"""The token embedding matrix that a student starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from edgedistill import files, recipe
from edgedistill.data.cached_folder import cached_folder
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.session import Session
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student.weight_source import WeightSource
from edgedistill.training.load_models import Models, with_weights
from edgedistill.vocabulary import initial_embeddings

FORMAT = 1  # part of a key of cached outputs: raise it when what is stored changes


def initial_token_embeddings(
    spec: recipe.Recipe,
    models: Models,
    tokenizer: PreTrainedTokenizerBase,
    source: WeightSource | None,
    session: Session,
    pairs: ParallelCorpus | None,
    fitted: bool = True,
) -> Tensor | None:
    """Rows (V, w) for the tokens of the student's tokenizer, or None where the table is randomly initialized.

    w is the source's width: a student that is narrower reduces them. session: its data folder is where the
    path of GloVe vectors starts, its cache keeps a teacher's outputs for the tokens. pairs: translations to
    which the rows are fitted, where the recipe asks for that.
    fitted: False where only problems are looked for, and None is returned.
    """
    student = spec.student
    assert isinstance(student, recipe.BuiltStudent)
    if isinstance(student, recipe.Recurrent) and student.embeddings.source == "random":
        return None
    if source is None and student.embeddings.source == "glove":
        assert (
            student.embeddings.file is not None
            and not isinstance(student, recipe.Recurrent)
            and student.width is not None
        )
        rows = initial_embeddings.from_glove(
            tokenizer, (session.data or Path()) / student.embeddings.file, student.width, spec.seed
        )
        return rows if fitted else None
    if source is None and student.embeddings.source == "teacher":
        with_weights(models.teacher, "student.embeddings")
    if not fitted:
        return None
    if source is not None:
        model, source_tokenizer = source.model, source.tokenizer
    elif student.embeddings.source == "teacher":
        teacher = with_weights(models.teacher, "student.embeddings")
        if student.embeddings.of == "outputs":
            return torch.from_numpy(_outputs(teacher, tokenizer, session))
        module: Any = teacher.module
        model, source_tokenizer = module.model, teacher.tokenizer
    else:
        return None
    table = model.get_input_embeddings().weight.detach()
    rows = initial_embeddings.from_model(tokenizer, source_tokenizer, table)
    return (
        rows
        if pairs is None
        else initial_embeddings.from_translations(rows, tokenizer, source_tokenizer, table, pairs)
    )


def _outputs(teacher: TeacherEncoder, tokenizer: PreTrainedTokenizerBase, session: Session) -> np.ndarray:
    """The teacher's embedding of each token as a text of its own, (V, d) float32; from the cache where an
    earlier run has left it."""
    ids = initial_embeddings.tokens_as_texts(tokenizer, teacher.tokenizer)
    folder = (
        session.cache
        / "token-outputs"
        / files.cache_key(format=FORMAT, ids=[row.tolist() for row in ids], **teacher.identity())
    )
    cached_folder(
        folder, lambda temporary: np.save(temporary / "outputs.npy", teacher.embed_ids(ids)), session.log
    )
    found: np.ndarray = np.load(folder / "outputs.npy")
    return found
