"""Vectors given as a file: a teacher without weights. Its texts are found again in the corpus, text by text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files, recipe
from edgedistill.data import readers
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError, require, unknown
from edgedistill.session import QUIET, Session
from edgedistill.teacher.embedding_cache import Index, Vectors, keys

FORMAT = 1
BLOCK = 8_192  # rows read together


class Given:
    """A file of texts and vectors: .parquet with both as columns, or .npy (n, d) beside a file of n texts.

    Raises UserError: no such file, another type of file, no such column, vectors that are no matrix of numbers.
    """

    def __init__(self, spec: recipe.Teacher, data: Path | None) -> None:
        assert spec.vectors is not None
        self.spec = spec
        self.path = _found(spec.vectors, data, "teacher.vectors")
        if self.path.suffix not in (".npy", ".parquet"):
            raise UserError(f"teacher.vectors: {unknown('file type of vectors', self.path.suffix, ('.npy', '.parquet'))}")
        if self.path.suffix == ".parquet":
            self.texts = self.path
        else:
            self.texts = _found(spec.texts or str(Path(spec.vectors).with_suffix(".txt")), data, "teacher.texts")
        self.dims = self._dims()

    def made_of(self) -> dict[str, Any]:
        """What decides its vectors: the files' bytes, and the columns read."""
        shas = {"vectors": files.sha256_file(self.path), "texts": files.sha256_file(self.texts)}
        return {**shas, "columns": [self.spec.text_column, self.spec.vector_column]}

    def _dims(self) -> int:
        rows = next(self.blocks(1), None)
        if rows is None:
            raise UserError(f"{self.path}: holds no vectors; give a file that does")
        return int(rows.shape[1])

    def blocks(self, size: int = BLOCK) -> Iterator[np.ndarray]:
        """The vectors in the file's order, up to `size` rows (m, d) float32 at a time."""
        if self.path.suffix == ".parquet":
            yield from _parquet(self.path, self.spec.vector_column, size)
            return
        try:
            rows = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise UserError(f"{self.path}: not an .npy file of numbers ({str(error).splitlines()[0]}); save it with numpy.save") from None
        if rows.ndim != 2 or rows.dtype.kind != "f":
            raise UserError(f"{self.path}: {rows.dtype} of shape {rows.shape}; vectors are a matrix (n, d) of floats")
        for start in range(0, len(rows), size):
            yield np.asarray(rows[start : start + size], np.float32)


def vectors(given: Given, texts: Corpus, session: Session = QUIET) -> Vectors:
    """Unit vectors of a corpus' texts out of the file, in the corpus' order, float16; made once, cached under the bytes of both.

    Texts of the file that the corpus left out are passed over; of equal texts the first counts. Raises UserError: a text of the
    corpus has no vector, counts or widths that differ, numbers that are not finite, a vector of zeros.
    """
    folder = session.cache / "teachers" / files.key(format=FORMAT, corpus=texts.fingerprint, given=given.made_of())
    if not folder.exists():
        session.log(f"teacher: {given.path.name}, {given.dims} numbers a text")
        with files.new_folder(folder) as temporary:
            rows, count = _places(given, texts)
            out = np.lib.format.open_memmap(temporary / "00000.npy", "w+", np.float16, (len(texts), given.dims))
            files.reserve(temporary / "00000.npy")
            _write(given, rows, count, out)
            out.flush()
    return Vectors(folder, 1)


def _places(given: Given, texts: Corpus) -> tuple[np.ndarray, int]:
    """((n,) the row of the file that holds each text of the corpus, how many rows the file has)."""
    theirs = keys(map(readers.normalise, readers.texts_in(given.texts, given.spec.text_column)))
    known = Index(theirs)
    out = np.empty(len(texts), np.int64)
    done, missing, example = 0, 0, ""
    for chunk in texts.chunks(BLOCK):
        at = known.find(keys(map(readers.normalise, chunk)))
        absent = at < 0
        if absent.any():
            example = example or chunk[int(np.argmax(absent))]
            missing += int(absent.sum())
        else:
            out[done : done + len(chunk)] = at
        done += len(chunk)
    if missing:
        way_out = "embed them too, or make the corpus of the file's own texts"
        raise UserError(
            f'{given.texts}: {missing:,} of {len(texts):,} texts of the corpus are not in it, first "{example[:60]}"; {way_out}'
        )
    return out, len(theirs)


def _write(given: Given, rows: np.ndarray, count: int, out: np.ndarray) -> None:
    """Each block of the file to its places in the corpus' order."""
    order = np.argsort(rows, kind="stable")
    ordered, at = rows[order], 0
    for block in given.blocks():
        norms = np.linalg.norm(block.astype(np.float64), axis=1, keepdims=True)
        for bad, what in ((~np.isfinite(norms), "a number that is not finite"), (norms == 0, "nothing but zeros")):
            if bad.any():
                raise UserError(f"{given.path}: row {at + 1 + int(np.argmax(bad))} holds {what}; embed that text again")
        low, high = np.searchsorted(ordered, [at, at + len(block)])
        out[order[low:high]] = (block / norms)[ordered[low:high] - at].astype(np.float16)
        at += len(block)
    if at != count:
        raise UserError(f"{given.path}: {at:,} vectors, but {count:,} texts in {given.texts.name}; row i must be the vector of text i")


def _parquet(path: Path, column: str, size: int) -> Iterator[np.ndarray]:
    compute = require("pyarrow.compute", "train", "train")
    table = readers.parquet_table(path, path)
    if column not in table.schema_arrow.names:
        raise UserError(f"{path}: {unknown('column', column, table.schema_arrow.names)}; say which with teacher.vector_column")
    done, width = 0, 0
    for batch in table.iter_batches(batch_size=size, columns=[column]):
        values = batch.column(0)
        if str(getattr(values.type, "value_type", "")) not in ("halffloat", "float", "double"):
            raise UserError(f"{path}: column {column!r} is {values.type}, not lists of floats; choose another with teacher.vector_column")
        lengths = compute.fill_null(compute.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        width = width or int(lengths[0])
        if (wrong := (lengths != width) | (lengths < 1)).any():
            at = int(np.argmax(wrong))
            raise UserError(f"{path}: row {done + at + 1} has {lengths[at]} numbers, the first {width}; one model's vectors only")
        yield np.asarray(values.flatten().to_numpy(zero_copy_only=False), np.float32).reshape(len(lengths), width)
        done += len(lengths)


def _found(name: str, data: Path | None, what: str) -> Path:
    path = Path(name)
    if not path.is_absolute() and data is None:
        raise UserError(f"{what}: {name!r} is relative, and there is no data folder; give --data DIR or set EDGEDISTILL_DATA")
    path = (data or Path()) / path
    if not path.is_file():
        raise UserError(f"{what}: no file {path}; check the name and --data")
    return path
