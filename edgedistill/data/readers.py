"""Rows of files as they stand: .txt, .tsv, .csv, .jsonl, .parquet, each also .gz, and data sets of a hub."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from edgedistill import recipe
from edgedistill.errors import UserError, require, unknown

LONGEST_TEXT = 100_000  # characters; a longer one is a file without line ends, not a text

LONGEST_LINE = 16_000_000  # bytes of a .jsonl, .tsv or .csv row, which may carry more than the text

READABLE = (".txt", ".tsv", ".csv", ".jsonl", ".parquet")

NUMBERS = (str, int, float)  # what a column of scores or labels may hold


def texts_in(path: Path, column: str = "text", kinds: tuple[type, ...] = (str,)) -> Iterator[str]:
    """The texts of one file, as they stand: .txt, .tsv, .csv, .jsonl or .parquet, each also .gz; `kinds`: what the last two may hold."""
    return _READERS[_suffix(path)](path, column, kinds)


def columns_in(path: Path, columns: tuple[str, ...], field: str, numbers: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The rows of a table file, normalised, in those columns; `field`: where the recipe names them, for the error; `numbers`: columns
    that .jsonl and .parquet may hold as numbers (scores, labels)."""
    if _suffix(path) == ".txt":
        raise UserError(f"{path}: a text file has no columns; give {field} a .tsv, .csv, .jsonl or .parquet file")
    rows = zip(*(texts_in(path, column, NUMBERS if column in numbers else (str,)) for column in columns), strict=True)
    while True:
        try:
            row = next(rows, None)
        except UserError as error:
            raise UserError(*(problem.replace("corpus.column", field) for problem in error.problems)) from None
        if row is None:
            return
        yield tuple(normalise(text) for text in row)


def matching(patterns: list[str], data: Path | None, where: str) -> list[Path]:
    found: list[Path] = []
    for pattern in patterns:
        absolute = Path(pattern).is_absolute()
        if not absolute and data is None:
            raise UserError(f"{where}: {pattern!r} is relative, and there is no data folder; give --data DIR or set EDGEDISTILL_DATA")
        root, relative = (Path("/"), str(Path(pattern).relative_to("/"))) if absolute else (data or Path(), pattern)
        paths = sorted(p for p in root.glob(relative) if p.is_file())
        if not paths:
            raise UserError(f"{where}: no file matches {pattern!r} in {root}; check the pattern and --data")
        for path in paths:
            _suffix(path)
        found += [p for p in paths if p not in found]
    return found


def _suffix(path: Path) -> str:
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix not in READABLE:
        raise UserError(f"{path}: {unknown('file type', suffix, READABLE)}, each also .gz")
    return suffix


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _lines(path: Path, longest: int = LONGEST_LINE) -> Iterator[tuple[int, str]]:
    """Numbered lines, decoded; a bad byte or an endless line is named with its place."""
    with _open(path) as file:
        number = 0
        try:
            while line := file.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    raise UserError(f"{path}: line {number} is over {longest:,} bytes; is this the right file? split it into lines")
                yield number, line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            bad = error.object[error.start]
            raise UserError(f"{path}: line {number}: byte {bad:#04x} is not UTF-8; convert the file, for example with iconv") from None
        except (EOFError, gzip.BadGzipFile, OSError) as error:
            if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                raise
            raise UserError(f"{path}: damaged after line {number} ({error}); fetch it again") from None


def _txt(path: Path) -> Iterator[str]:
    for number, line in _lines(path, longest=4 * LONGEST_TEXT):
        yield _sized(line, path, number)


def _tsv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in _lines(path))


def rows_in(path: Path) -> Iterator[tuple[int, list[str]]] | None:
    """The numbered rows of a .tsv or .csv file, a header included; None for other kinds of file."""
    suffix = _suffix(path)
    return _tsv_rows(path) if suffix == ".tsv" else _csv_rows(path) if suffix == ".csv" else None


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader(line + "\n" for _, line in _lines(path))
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: {error}; is this a .csv file?") from None


def _table(rows: Iterator[tuple[int, list[str]]], path: Path, column: str) -> Iterator[str]:
    _, header = next(rows, (0, []))
    if column not in header:
        raise UserError(f"{path}: {unknown('column', column, header)}; say which with corpus.column")
    at = header.index(column)
    for number, row in rows:
        if len(row) != len(header):
            raise UserError(f"{path}: line {number} has {len(row)} columns, the header {len(header)}; mend the line")
        yield _sized(row[at], path, number)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The numbered objects of a .jsonl file; blank lines are passed over."""
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: line {number}: not JSON ({error.msg}); every line must be an object") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}: line {number}: a JSON {type(row).__name__}; every line must be an object")
        yield number, row


def _jsonl(path: Path, column: str, kinds: tuple[type, ...]) -> Iterator[str]:
    for number, row in _objects(path):
        if not isinstance(row.get(column), kinds):
            known = [k for k, v in row.items() if isinstance(v, kinds)]
            raise UserError(f"{path}: line {number}: {unknown('text column', column, known)}; say which with corpus.column")
        yield _sized(str(row[column]), path, number)


def parquet_table(file: IO[bytes] | Path, path: Path) -> Any:
    """pyarrow's reader of a parquet file, open or by path. Raises UserError where it is none; `path` is what it is called."""
    parquet = require("pyarrow.parquet", "train", "train")
    try:
        return parquet.ParquetFile(file)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise UserError(f"{path}: not a parquet file ({str(error).splitlines()[0]}); fetch it again") from None


def _parquet(path: Path, column: str, kinds: tuple[type, ...]) -> Iterator[str]:
    with _open(path) as file:
        table = parquet_table(file, path)
        if column not in table.schema_arrow.names:
            raise UserError(f"{path}: {unknown('column', column, table.schema_arrow.names)}; say which with corpus.column")
        number = 0
        for batch in table.iter_batches(batch_size=4096, columns=[column]):
            for value in batch.column(0).to_pylist():
                number += 1
                if value is not None and not isinstance(value, kinds):
                    raise UserError(f"{path}: column {column!r} holds {type(value).__name__}, not text; choose another column")
                yield _sized("" if value is None else str(value), path, number)


_READERS: dict[str, Callable[[Path, str, tuple[type, ...]], Iterator[str]]] = {
    ".txt": lambda path, column, kinds: _txt(path),
    ".tsv": lambda path, column, kinds: _table(_tsv_rows(path), path, column),
    ".csv": lambda path, column, kinds: _table(_csv_rows(path), path, column),
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}


def every_column(path: Path) -> Iterator[str]:
    """Every text in a file whatever its column: what must not leak into training."""
    suffix = _suffix(path)
    if suffix == ".txt":
        yield from _txt(path)
    elif suffix in (".tsv", ".csv"):
        for _, row in _tsv_rows(path) if suffix == ".tsv" else _csv_rows(path):
            yield from row
    elif suffix == ".jsonl":
        for _, found in _objects(path):
            yield from (value for value in found.values() if isinstance(value, str))
    else:
        with _open(path) as file:
            for batch in parquet_table(file, path).iter_batches(batch_size=4096):
                for values in batch.to_pydict().values():
                    yield from (value for value in values if isinstance(value, str))


def hub_rows(spec: Any, split: str, place: str) -> Iterator[dict[str, Any]]:
    """The rows of a hub data set (`dataset`, `config`, `revision`), streamed. Raises UserError: one of them is not there, no network."""
    try:
        yield from hub_table(spec, split, place, streaming=True)
    except OSError as error:  # on the way
        raise _not_fetched(spec, split, place, error) from None


def hub_table(spec: Any, split: str, place: str, streaming: bool = False) -> Any:
    """A hub data set, opened. Raises UserError as `hub_rows`."""
    datasets = require("datasets", "train", "train")
    try:
        return datasets.load_dataset(spec.dataset, spec.config, split=split, revision=spec.revision, streaming=streaming)
    except (OSError, ValueError) as error:
        raise _not_fetched(spec, split, place, error) from None


def _not_fetched(spec: Any, split: str, place: str, error: Exception) -> UserError:
    fact = " ".join(str(error).split())[:200]
    return UserError(f"{place}: {spec.dataset!r} at {spec.revision!r}, split {split!r}: {fact}; check all three, and the network")


def hub(spec: recipe.Hub) -> Iterator[str]:
    for number, row in enumerate(hub_rows(spec, spec.split, "corpus.dataset")):
        if not isinstance(row.get(spec.column), str):
            known = [k for k, v in row.items() if isinstance(v, str)]
            raise UserError(f"{spec.dataset}: row {number}: {unknown('text column', spec.column, known)}; say which with corpus.column")
        yield row[spec.column]


def _sized(text: str, path: Path, number: int) -> str:
    if len(text) > LONGEST_TEXT:
        raise UserError(f"{path}: line {number} is a text of {len(text):,} characters, at most {LONGEST_TEXT:,}; split it into sentences")
    return text


def normalise(text: str) -> str:
    """One line: white space and control characters folded to single spaces, ends trimmed."""
    return " ".join(text.replace("\0", " ").split())
