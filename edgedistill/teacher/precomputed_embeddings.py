"""Precomputed embeddings: files of texts, or of their hashes, and embeddings in place of a teacher model. A
text is "embedded" by looking it up in them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy import ndarray

from edgedistill import files, recipe
from edgedistill.data import readers
from edgedistill.data.file_patterns import expanded, in_data
from edgedistill.data.input_file import damage_as_user_error
from edgedistill.errors import CheckFailed, UserError, first_line, quote, unknown_name
from edgedistill.files import Json
from edgedistill.reading import Reading
from edgedistill.session import QUIET, Session
from edgedistill.teacher.assistant import open_assistant
from edgedistill.teacher.embedding_cache import HashIndex, text_hashes
from edgedistill.teacher.encoder import TeacherEncoder

BLOCK = 8_192  # rows read at a time
SAMPLE = 64  # texts that are compared with the model
LEAST_COSINE = 0.99  # of each of them: bf16 gives above 0.9999, another prompt or pooling far less
# what a damaged .npy header raises, which numpy parses as Python
HEADER_ERRORS = (ValueError, OverflowError, TypeError, SyntaxError, TokenError)


class PrecomputedEmbeddings:
    """Files of texts and embeddings: .parquet with a column of each, or an .npy (n, d) next to a file of n
    texts. Where the recipe names a model too, a sample of the first texts is compared with its embeddings.

    Raises UserError: no such file, an unsupported file type, no such column, or embeddings that are not a
    matrix of floats.
    """

    def __init__(self, spec: recipe.Teacher, data: Path | None) -> None:
        self.spec = spec
        self.session = QUIET
        self.paths = _existing(str(spec.embeddings), data, "teacher.embeddings")
        self.path = self.texts = self.paths[0]
        suffixes = {path.suffix.lower() for path in self.paths}
        for suffix in sorted(suffixes - {".npy", ".parquet"}):
            fact = unknown_name("file type of embeddings", suffix, (".npy", ".parquet"))
            raise UserError(f"teacher.embeddings: {fact}")
        self.is_parquet = suffixes == {".parquet"}
        if not self.is_parquet:
            if len(self.paths) > 1:
                raise UserError(
                    f"teacher.embeddings: {len(self.paths)} files match {spec.embeddings!r}, and only "
                    ".parquet files may be several; name one .npy"
                )
            texts = spec.texts or str(Path(str(spec.embeddings)).with_suffix(".txt"))
            self.texts = _existing(texts, data, "teacher.texts")[0]
        first = next(self.blocks(self.path, 1), None)
        if first is None:
            raise UserError(f"{self.path}: holds no embeddings; give a file with embeddings")
        self.dims = int(first.shape[1])

    keeps_lengths = False

    def in_role(self, role: str) -> PrecomputedEmbeddings:
        """Itself: embeddings are read as they are, with whatever prompts they were computed."""
        return self

    def identity(self) -> Json:
        """Everything that determines the embeddings: the hashes of the files, and the columns that are
        read."""
        return {"precomputed": self._hashes, "columns": [self.spec.text_column, self.spec.embedding_column]}

    @cached_property
    def _hashes(self) -> list[str]:
        return [files.sha256_file(path) for path in (*self.paths, self.texts)]

    def prepare(self, session: Session = QUIET) -> None:
        """Read the file.

        Raises UserError: counts or dimensions that differ, values that are not finite, an embedding of zeros.
        """
        self.session = session
        session.log(f"teacher: {self.path.name}, {len(self._rows):,} {self.dims}-dimensional embeddings")

    def embed(self, texts: list[str], device: str = "cpu", unit: bool = True) -> ndarray:
        """The embeddings (n, d) float16 of texts, of unit length whatever is asked for; of equal texts in the
        file the first counts. Raises UserError as `prepare`, and for a text that is not in the file; and
        CheckFailed where they are not those of the recipe's model."""
        rows = self._index.find(text_hashes(texts))
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            raise UserError(
                f"{self.texts}: {len(missing):,} of {len(texts):,} texts that were looked up are not in it, "
                f"the first is {quote(texts[missing[0]])}; embed them too, or use the file's texts"
            )
        if self._model is not None:
            sample = np.unique(np.linspace(0, len(texts) - 1, SAMPLE).astype(int))
            chosen = [texts[row] for row in sample]
            self._compare(chosen, self._model.embed(chosen, device), self._rows[rows[sample]])
        return self._rows[rows]

    def _compare(self, texts: list[str], expected: ndarray, rows: ndarray) -> None:
        """Raise CheckFailed where embeddings (n, d) are not those that the model gives; once."""
        model = self.spec.model
        if expected.shape != rows.shape:
            raise UserError(
                f"teacher.embeddings: {self.dims} dimensions, and {model} has {expected.shape[1]}; name the "
                "model that they are of"
            )
        cosines = (expected * rows).sum(1)
        at = int(cosines.argmin())
        if cosines[at] < LEAST_COSINE:
            raise CheckFailed(
                f"{self.path}: the cosine of its embedding of {quote(texts[at])} to that of {model} is "
                f"{cosines[at]:.4f} (the mean of {len(texts)} texts {cosines.mean():.4f}, wanted "
                f"{LEAST_COSINE}); correct pooling, prompt or max_tokens, or embed them again"
            )
        self.session.log(f"teacher: {len(texts)} texts agree with {model} to {cosines[at]:.5f}")
        self._model = None

    @cached_property
    def _model(self) -> TeacherEncoder | None:
        """The model that the embeddings are to be of."""
        if self.spec.model is None:
            return None
        return open_assistant(self.spec.model_copy(update={"embeddings": None}), "teacher", self.session)

    @cached_property
    def _index(self) -> HashIndex:
        """Where the texts are, in the file's order."""
        texts = self.paths if self.is_parquet else [self.texts]
        hashes = np.concatenate([_hashes(path, self.spec.text_column) for path in texts])
        if len(hashes) != len(self._rows):
            raise UserError(
                f"{self.path}: {len(self._rows):,} embeddings, but {len(hashes):,} texts in "
                f"{self.texts.name}; row i must be the embedding of text i"
            )
        return HashIndex(hashes)

    @cached_property
    def _rows(self) -> ndarray:
        """(n, d) float16: the embeddings in the file's order, of unit length; a memory map of a temporary
        file, so that any number of them can be looked up."""
        total = 0
        with tempfile.TemporaryFile() as file:
            for path in self.paths:
                done = 0
                for block in self.blocks(path):
                    if block.shape[1] != self.dims:
                        raise UserError(
                            f"{path}: {block.shape[1]} dimensions, and {self.path.name} has {self.dims}; "
                            "give embeddings of one model"
                        )
                    norms = np.linalg.norm(block.astype(np.float64), axis=1, keepdims=True)
                    if not (good := np.isfinite(norms) & (norms != 0)).all():
                        raise UserError(
                            f"{path}: row {done + 1 + int(np.argmin(good))} holds only zeros, or a value "
                            "that is not finite; embed that text again"
                        )
                    file.write((block / norms).astype(np.float16).tobytes())
                    done += len(block)
                total += done
            file.flush()
            return np.memmap(file, np.float16, "r", shape=(total, self.dims))

    def blocks(self, path: Path, size: int = BLOCK) -> Iterator[ndarray]:
        """The embeddings of a file in its order, up to `size` rows (m, d) float32 at a time."""
        if self.is_parquet:
            yield from _parquet(path, self.spec.embedding_column, size)
            return
        try:
            with damage_as_user_error(str(path), lambda: "at its start"):
                # np.load would open zip archives and pickles too
                rows = np.lib.format.open_memmap(path, mode="r")
        except HEADER_ERRORS as error:
            raise UserError(
                f"{path}: not a numeric .npy file ({first_line(error)}); save it with numpy.save"
            ) from None
        if rows.ndim != 2 or rows.dtype.kind != "f":
            raise UserError(
                f"{path}: {rows.dtype} of shape {rows.shape}; save the embeddings as a matrix (n, d) of "
                "floats"
            )
        for start in range(0, len(rows), size):
            yield _float32(rows[start : start + size])


def _parquet(path: Path, column: str, size: int) -> Iterator[ndarray]:
    done = dims = 0
    for batch in readers.parquet_batches(path, [column], "teacher.embedding_column", size):
        values = batch.column(0)
        if str(getattr(values.type, "value_type", "")) not in ("halffloat", "float", "double"):
            raise UserError(
                f"{path}: column {column!r} is {values.type}, not lists of floats; set "
                "teacher.embedding_column to another"
            )
        lengths = np.array(values.value_lengths().fill_null(0))
        dims = dims or int(lengths[0])
        wrong = (lengths != dims) | (lengths < 1)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise UserError(
                f"{path}: row {done + at + 1} has {lengths[at]} dimensions, the first {dims}; give "
                "embeddings of one model"
            )
        yield _float32(values.flatten().to_numpy(zero_copy_only=False)).reshape(len(lengths), dims)
        done += len(lengths)


def _hashes(path: Path, column: str) -> ndarray:
    """The hashes (n,) of a file's texts: computed, or read where the column of a .parquet has them."""
    if path.suffix.lower() == ".parquet":
        hashes = []
        for batch in readers.parquet_batches(path, [column], "teacher.text_column", BLOCK):
            if str(batch.column(0).type) not in ("uint64", "int64"):
                break
            if batch.column(0).null_count:
                raise UserError(f"{path}: column {column!r} has a hash that is null; write that row again")
            hashes.append(batch.column(0).to_numpy().view(np.uint64))
        if hashes:
            return np.concatenate(hashes)
    return text_hashes(map(readers.normalize, readers.texts_in(path, column)))


def _float32(values: ndarray) -> ndarray:
    """Values too large become infinite, and their row is refused where embeddings are matched to texts."""
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32)


def _existing(name: str, data: Path | None, place: str) -> list[Path]:
    path = in_data(name, data, place)
    if not (paths := expanded(path, Reading())):
        raise UserError(f"{place}: no file {path}; check the name and --data")
    return paths
