"""A recipe's teacher as a function of batches, for what calls functions on batches: a loop, Ray Data, Daft,
Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import recipe
from edgedistill.data import readers
from edgedistill.files import Json
from edgedistill.session import Session
from edgedistill.teacher import assistant
from edgedistill.teacher.embedding_cache import check_float16, text_hashes
from edgedistill.teacher.encoder import TeacherEncoder, device_of
from edgedistill.teacher.precomputed_embeddings import PrecomputedEmbeddings

AnyTeacher = TeacherEncoder | PrecomputedEmbeddings


def open_teacher(spec: recipe.Teacher, session: Session) -> AnyTeacher:
    """A teacher model (possibly a finished run), or the file of its precomputed embeddings."""
    if spec.embeddings is not None:
        return PrecomputedEmbeddings(spec, session.data)
    return assistant.open_assistant(spec, "teacher", session)


class Embedder:
    """The teacher of a recipe: `embedder(batch) -> batch`.

    A batch is a mapping of columns, equally long lists or arrays. It comes back with two more: `hash` (n,)
    uint64, of the text as a corpus holds it, and `embedding` (n, d) float16, of unit length, as the teacher's
    cache holds it. Written as Parquet, these two are what `teacher.embeddings` reads.

    Pickled, it is a recipe: the teacher is opened where a batch is first embedded. `recipe_of` is the path of
    a recipe, the name of a shipped one, or a recipe that was read. `column` holds the texts, whose role
    (text, query, document) decides the prompt. Raises UserError as `train` does for the same teacher.
    """

    def __init__(
        self,
        recipe_of: recipe.Recipe | str | Path,
        column: str = "text",
        role: str = "text",
        session: Session = assistant.ANY_DEVICE,
    ) -> None:
        spec = recipe_of if isinstance(recipe_of, recipe.Recipe) else recipe.read(str(recipe_of))
        self.teacher = spec.teacher
        self.column = column
        self.role = role
        self.session = session
        self._opened: Any = None

    def __getstate__(self) -> Json:
        return {**self.__dict__, "_opened": None}

    def __call__(self, batch: Mapping[str, Any]) -> Json:
        """The batch's columns with `hash` and `embedding`."""
        if self._opened is None:
            self._opened = open_teacher(self.teacher, self.session).in_role(self.role)
        texts = [readers.normalize(str(text)) for text in batch[self.column]]
        embeddings = self._opened.embed(texts, device_of(self.session.device))
        if texts:
            check_float16(embeddings, texts)
        return {**batch, "hash": text_hashes(texts), "embedding": embeddings.astype(np.float16)}
