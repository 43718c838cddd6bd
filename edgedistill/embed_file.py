"""Embed files of texts of any size in constant memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edgedistill import files, object_store
from edgedistill.data import input_file, readers
from edgedistill.errors import UserError, as_options, border, counted, unknown_name
from edgedistill.files import Json
from edgedistill.reading import Reading
from edgedistill.runtime.bundle import Bundle
from edgedistill.runtime.compact import Layout, layout
from edgedistill.session import QUIET, Session, progress_bar

CHUNK_TEXTS = 4_096  # read, embedded and written at a time
CHUNK_BYTES = 8 << 20
LONGEST_TEXT = 16_000_000  # characters; the student reads the first of them
FORMATS = (".npy", ".jsonl")

Embedded = Iterator[tuple[list[str], np.ndarray]]  # texts, and their (n, d) embeddings


@dataclass(frozen=True)
class TextFile:
    """A file of texts, or stdin where the path is `-`.

    A file is read as `readers.texts_in` reads it, by its ending. Stdin holds UTF-8 with one text per line,
    and an empty line is an empty text. `column` names the column of the texts in a table, by default as
    `readers.numbered_texts` chooses. `role` is that of `Bundle.encode`: text, query or document.
    """

    path: str | Path = "-"
    column: str | None = None
    role: str = "text"

    @property
    def name(self) -> str:
        return "stdin" if str(self.path) == "-" else str(self.path)

    def check(self) -> None:
        """Raise UserError where there is no such file, its type is not known, or a column is given for text
        that has none."""
        path = object_store.noted(self.path)
        stdin = str(self.path) == "-"
        if not (stdin or object_store.is_address(path)) and (path.is_dir() or not path.exists()):
            fact = "a folder" if path.is_dir() else "no such file"
            raise UserError(
                f"{path}: {fact}; give a file with one text per line, a .tsv, .csv, .jsonl or .parquet file, "
                "or - for stdin (one text: echo TEXT | edgedistill embed BUNDLE)"
            )
        kind = ".txt" if stdin else input_file.kind(path)
        if self.column is not None and kind in input_file.WHOLE_TEXT:
            raise UserError(f"--column {self.column}: {self.name} is no table; leave it out")

    def texts(self, reading: Reading | None = None) -> Iterator[str]:
        """Return the texts in their order. Raises UserError for damaged lines and an unknown column."""
        if str(self.path) != "-":
            path = object_store.noted(self.path)
            return readers.texts_in(path, self.column, "--column", longest=LONGEST_TEXT, reading=reading)
        numbered = input_file.stream_lines(sys.stdin.buffer, self.name, input_file.MAX_LINE_BYTES)
        return (readers.checked(text, self.name, number, LONGEST_TEXT) for number, text in numbered)


@dataclass(frozen=True)
class EmbeddingFile:
    """Where embeddings are written, and in which precision: to an .npy array, as JSON lines {"text",
    "embedding"}, or without a path as JSON lines to stdout.

    A file is written atomically; an existing one is replaced only where `overwrite` is set. `precision` is
    that of `Bundle.encode`.
    """

    path: Path | None = None
    overwrite: bool = False
    precision: str = "float32"

    def check(self, dim: int) -> None:
        """Raise UserError for an unknown format or precision, for one that `dim` dimensions do not have, and
        for a file that exists already."""
        layout(self.precision, dim, "--embeddings")
        if self.path is None:
            return
        if self.path.suffix not in FORMATS:
            raise UserError(f"--out {self.path}: {unknown_name('format', self.path.suffix, FORMATS)}")
        files.check_free(self.path, "--out", self.overwrite)

    def write(self, embedded: Embedded, dim: int) -> None:
        if self.path is None:
            for texts, rows in embedded:
                with border("stdout"):
                    sys.stdout.writelines(_json_lines(texts, rows))
                    sys.stdout.flush()
            return
        with files.new_file(self.path) as temporary, temporary.open("wb") as file:
            if self.path.suffix == ".npy":
                _write_npy(file, embedded, layout(self.precision, dim))
            else:
                for texts, rows in embedded:
                    file.writelines(line.encode("utf-8") for line in _json_lines(texts, rows))


def embed_file(
    opened: Bundle,
    source: TextFile,
    out: EmbeddingFile,
    dim: int | None = None,
    batch_tokens: int | None = None,
    session: Session = QUIET,
) -> Json:
    """Embed the texts of a file, a few thousand at a time; row i is text i.

    `dim` and `batch_tokens` are those of `Bundle.encode`. Returns {texts, dims, space, out, read}; `read` is
    a `Reading.report`, with the texts that are longer than the encoder reads. Raises UserError,
    and writes nothing, where there is no such file, column or format, no text, where `out` exists already,
    for a damaged line, and for a pair of encoders where the texts are neither queries nor documents.
    """
    source.check()
    dims = opened.embedding_dim(dim)
    encoder = opened.of(source.role)
    out.check(dims)
    count = 0
    reading = Reading(files=1)
    with progress_bar(None, session.progress) as advance:

        def embedded() -> Embedded:
            nonlocal count
            for texts in _chunks(source.texts(reading)):
                ids = encoder.tokenize(texts, source.role)
                reading.tokens(encoder.not_read(texts, ids, source.role, readers.MARK))
                with as_options({"^precision: ": f"{source.name}, from text {count} on: "}):
                    rows = encoder.encode_ids(ids, dim, batch_tokens, out.precision)
                count += len(texts)
                yield texts, rows
                advance(len(texts))
            if not count:
                way_out = "pipe lines in, or name a file" if source.name == "stdin" else "give another file"
                raise UserError(f"{source.name}: no text found; {way_out}")

        out.write(embedded(), dims)
    if out.path is not None:
        session.log(f"{out.path}: {counted(count, 'text')}, {dims} dimensions")
    session.log(reading.line)
    return {"texts": count, "dims": dims, "space": opened.space, "out": out.path, "read": reading.report}


def _chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    chunk = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if len(chunk) == CHUNK_TEXTS or size >= CHUNK_BYTES:
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk


def _write_npy(file: BinaryIO, embedded: Embedded, row: Layout) -> None:
    """Write the header, the rows, and the header again: the number of rows is known only at the end, and
    numpy's header has room for it to grow."""
    count = 0

    def write_header() -> None:
        np.lib.format.write_array_header_1_0(
            file, {"descr": row.dtype.str, "fortran_order": False, "shape": (count, row.width)}
        )

    write_header()
    body = file.tell()
    for _, rows in embedded:
        file.write(rows.astype(row.dtype, copy=False).tobytes())
        count += len(rows)
    file.seek(0)
    write_header()
    assert file.tell() == body


def _json_lines(texts: list[str], rows: np.ndarray) -> Iterator[str]:
    """Yield one {"text", "embedding"} per line; of float32 with seven decimals, its precision in a unit
    vector."""
    numbers = np.round(rows.astype(np.float64), 7) if rows.dtype.kind == "f" else rows
    for text, row in zip(texts, numbers.tolist(), strict=True):
        yield json.dumps({"text": text, "embedding": row}, ensure_ascii=False, allow_nan=False) + "\n"
