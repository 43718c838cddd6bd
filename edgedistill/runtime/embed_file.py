"""Files of texts of any size become vectors, in constant memory."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from edgedistill import files
from edgedistill.errors import UserError, unknown
from edgedistill.runtime import bundle

CHUNK_TEXTS = 4_096  # read, embedded and written at a time

CHUNK_BYTES = 8 << 20

LONGEST_LINE = 64 << 20


def embed(
    name: str | Path,
    source: str | Path = "-",
    out: str | Path | None = None,
    threads: int | None = None,
    dim: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Embed a file (also .gz), a text a line, or stdin (`-`), into X.npy, X.jsonl or, without `out`, JSON lines on stdout.

    Row i is line i, empty lines included. `out` appears whole or not at all. Returns {texts, dims, out}. Raises UserError:
    no such file, a line that is not UTF-8, a suffix that is not known.
    """
    target = None if out is None else Path(out)
    if target is not None and target.suffix not in (".npy", ".jsonl"):
        raise UserError(f"--out {target}: {unknown('format', target.suffix, ('.npy', '.jsonl'))}")
    if str(source) != "-" and not Path(source).is_file():
        raise UserError(f"{source}: no such file; give a file of texts, one a line, or - for stdin")
    opened = bundle.load(name, threads=threads)
    dims = opened._dim(dim)
    count = 0

    def vectors() -> Iterator[tuple[list[str], np.ndarray]]:
        nonlocal count
        with bundle.counting(None, progress) as done:
            for texts in _chunks(source):
                count += len(texts)
                yield texts, opened.encode(texts, dim)
                done(len(texts))

    if target is None:
        for texts, rows in vectors():
            sys.stdout.writelines(_json_lines(texts, rows))
        sys.stdout.flush()
    else:
        with files.new_file(target) as temporary, temporary.open("wb") as file:
            (_write_npy if target.suffix == ".npy" else _write_jsonl)(file, vectors(), dims)
    return {"texts": count, "dims": dims, "out": None if target is None else str(target)}


def _write_npy(file: BinaryIO, vectors: Iterator[tuple[list[str], np.ndarray]], dims: int) -> None:
    """An array whose height is known at the end: numpy's header leaves room for it to grow, and is written again."""
    count = 0

    def header() -> None:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (count, dims)})

    header()
    body = file.tell()
    for _, rows in vectors:
        file.write(rows.astype("<f4", copy=False).tobytes())
        count += len(rows)
    file.seek(0)
    header()
    assert file.tell() == body


def _write_jsonl(file: BinaryIO, vectors: Iterator[tuple[list[str], np.ndarray]], dims: int) -> None:
    for texts, rows in vectors:
        file.writelines(line.encode("utf-8") for line in _json_lines(texts, rows))


def _json_lines(texts: list[str], rows: np.ndarray) -> Iterator[str]:
    """{"text", "embedding"} a line; seven decimals, which is all that float32 holds of a unit vector."""
    for text, row in zip(texts, np.round(rows.astype(np.float64), 7).tolist(), strict=True):
        yield json.dumps({"text": text, "embedding": row}, ensure_ascii=False) + "\n"


def _chunks(source: str | Path) -> Iterator[list[str]]:
    """The lines of a file or of stdin, some thousand at a time."""
    with _open(source) as file:
        number, chunk, size = 0, [], 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            chunk.append(_decode(line, source, number))
            size += len(line)
            if len(chunk) == CHUNK_TEXTS or size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk


@contextmanager
def _open(source: str | Path) -> Iterator[BinaryIO]:
    if str(source) == "-":
        yield sys.stdin.buffer
        return
    opener: Any = gzip.open if Path(source).suffix == ".gz" else open
    try:
        with opener(source, "rb") as file:
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{source}: not whole gzip ({error}); fetch the file again") from None


def _decode(line: bytes, source: str | Path, number: int) -> str:
    place = "stdin" if str(source) == "-" else source
    if len(line) > LONGEST_LINE:
        raise UserError(f"{place}: line {number}: longer than {LONGEST_LINE >> 20} MB; is this a file of texts, one a line?")
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: line {number}: not UTF-8 (byte {error.start + 1}: {error.reason}); convert the file first") from None
