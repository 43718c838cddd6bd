"""Precomputed embeddings: a file of texts and their embeddings in place of a teacher model, matched to the
corpus text by text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from edgedistill import files, recipe
from edgedistill.data import readers
from edgedistill.data.cached_folder import cached_folder
from edgedistill.data.corpus import Corpus
from edgedistill.data.input_file import damage_as_user_error
from edgedistill.errors import UserError, first_line, unknown_name
from edgedistill.session import QUIET, Session
from edgedistill.teacher.embedding_cache import FORMAT, CachedEmbeddings, HashIndex, text_hashes

BLOCK = 8_192  # rows read at a time
# what a damaged .npy header raises, which numpy parses as Python
HEADER_ERRORS = (ValueError, OverflowError, TypeError, SyntaxError, TokenError)


class PrecomputedEmbeddings:
    """A file of texts and embeddings: a .parquet with a column of each, or an .npy (n, d) next to a file of n
    texts.

    Raises UserError: no such file, an unsupported file type, no such column, or embeddings that are not a
    matrix of floats.
    """

    def __init__(self, spec: recipe.Teacher, data: Path | None) -> None:
        assert spec.embeddings is not None
        self.spec = spec
        self.path = _existing(spec.embeddings, data, "teacher.embeddings")
        suffix = self.path.suffix.lower()
        if suffix not in (".npy", ".parquet"):
            raise UserError(
                f"teacher.embeddings: {unknown_name('file type of embeddings', suffix, ('.npy', '.parquet'))}"
            )
        self.is_parquet, self.texts = suffix == ".parquet", self.path
        if not self.is_parquet:
            texts = spec.texts or str(Path(spec.embeddings).with_suffix(".txt"))
            self.texts = _existing(texts, data, "teacher.texts")
        first = next(self.blocks(1), None)
        if first is None:
            raise UserError(f"{self.path}: holds no embeddings; give a file with embeddings")
        self.dims = int(first.shape[1])

    def identity(self) -> dict[str, Any]:
        """Everything that determines the embeddings: the hashes of the files, and the columns that are
        read."""
        shas = {"vectors": files.sha256_file(self.path), "texts": files.sha256_file(self.texts)}
        return {**shas, "columns": [self.spec.text_column, self.spec.embedding_column]}

    def blocks(self, size: int = BLOCK) -> Iterator[np.ndarray]:
        """The embeddings in the file's order, up to `size` rows (m, d) float32 at a time."""
        if self.is_parquet:
            yield from _parquet(self.path, self.spec.embedding_column, size)
            return
        try:
            with damage_as_user_error(str(self.path), lambda: "at its start"):
                # np.load would open zip archives and pickles too
                rows = np.lib.format.open_memmap(self.path, mode="r")
        except HEADER_ERRORS as error:
            raise UserError(
                f"{self.path}: not a numeric .npy file ({first_line(error)}); save it with numpy.save"
            ) from None
        if rows.ndim != 2 or rows.dtype.kind != "f":
            raise UserError(
                f"{self.path}: {rows.dtype} of shape {rows.shape}; save the embeddings as a matrix (n, d) of "
                "floats"
            )
        for start in range(0, len(rows), size):
            yield _float32(rows[start : start + size])


def corpus_embeddings(
    precomputed: PrecomputedEmbeddings, corpus: Corpus, session: Session = QUIET
) -> CachedEmbeddings:
    """The unit embeddings of a corpus' texts, float16 in the corpus' order, read from the file once and
    cached.

    Texts of the file that are not in the corpus are ignored; of equal texts the first counts. Raises
    UserError: a text of the corpus without embedding, counts or dimensions that differ, values that are not
    finite, an embedding of zeros.
    """
    key = files.cache_key(format=FORMAT, corpus=corpus.fingerprint, given=precomputed.identity())
    folder = session.cache / "teachers" / key

    def write(temporary: Path) -> None:
        session.log(f"teacher: {precomputed.path.name}, {precomputed.dims}-dimensional embeddings")
        rows, count = _match_texts(precomputed, corpus)
        out = np.lib.format.open_memmap(
            temporary / "00000.npy", "w+", np.float16, (len(corpus), precomputed.dims)
        )
        files.reserve(temporary / "00000.npy")
        _write(precomputed, rows, count, out)
        out.flush()

    return CachedEmbeddings(cached_folder(folder, write, session.log), 1)


def _match_texts(precomputed: PrecomputedEmbeddings, corpus: Corpus) -> tuple[np.ndarray, int]:
    """((n,) the row of the file that holds each text of the corpus, the number of texts in the file)."""
    texts = readers.texts_in(precomputed.texts, precomputed.spec.text_column)
    hashes = text_hashes(map(readers.normalize, texts))
    index = HashIndex(hashes)
    rows = np.concatenate([index.find(text_hashes(chunk)) for chunk in corpus.chunks(BLOCK)])
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        fact = f"{len(missing):,} of {len(corpus):,} texts of the corpus are not in it, the first is"
        raise UserError(
            f'{precomputed.texts}: {fact} "{corpus[missing[0]][:60]}"; embed them too, or use the file\'s '
            "texts as the corpus"
        )
    return rows, len(hashes)


def _write(precomputed: PrecomputedEmbeddings, rows: np.ndarray, count: int, out: np.ndarray) -> None:
    """Copy each block of the file, at unit length, to its rows in the corpus' order."""
    order = np.argsort(rows, kind="stable")
    ordered, at = rows[order], 0
    for block in precomputed.blocks():
        norms = np.linalg.norm(block.astype(np.float64), axis=1, keepdims=True)
        for bad, what in ((~np.isfinite(norms), "a value that is not finite"), (norms == 0, "only zeros")):
            if bad.any():
                fact = f"row {at + 1 + int(np.argmax(bad))} holds {what}"
                raise UserError(f"{precomputed.path}: {fact}; embed that text again")
        low, high = np.searchsorted(ordered, [at, at + len(block)])
        out[order[low:high]] = (block / norms)[ordered[low:high] - at].astype(np.float16)
        at += len(block)
    if at != count:
        fact = f"{at:,} embeddings, but {count:,} texts in {precomputed.texts.name}"
        raise UserError(f"{precomputed.path}: {fact}; row i must be the embedding of text i")


def _parquet(path: Path, column: str, size: int) -> Iterator[np.ndarray]:
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
            fact = f"row {done + at + 1} has {lengths[at]} dimensions, the first {dims}"
            raise UserError(f"{path}: {fact}; give embeddings of one model")
        yield _float32(values.flatten().to_numpy(zero_copy_only=False)).reshape(len(lengths), dims)
        done += len(lengths)


def _float32(values: np.ndarray) -> np.ndarray:
    """Values too large become infinite, and their row is refused where embeddings are matched to texts."""
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32)


def _existing(name: str, data: Path | None, place: str) -> Path:
    path = Path(name)
    if not path.is_absolute() and data is None:
        raise UserError(
            f"{place}: {name!r} is a relative path, and there is no data folder; give --data DIR or set "
            "EDGEDISTILL_DATA"
        )
    path = (data or Path()) / path
    if not path.is_file():
        raise UserError(f"{place}: no file {path}; check the name and --data")
    return path
