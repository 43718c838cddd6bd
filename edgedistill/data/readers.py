"""Read texts and table rows from files (.txt, .md, .tsv, .csv, .jsonl, .parquet, each also .gz) and from hub data sets.

Everything but .md is streamed: memory does not grow with the file.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any

from edgedistill import recipe
from edgedistill.errors import UserError, require, unknown_name

MAX_TEXT_CHARACTERS = 100_000  # a longer text is a file without line ends

MAX_LINE_BYTES = 16_000_000  # of a .jsonl, .tsv or .csv row, which may hold more than the text

SUFFIXES = (".txt", ".md", ".tsv", ".csv", ".jsonl", ".parquet")

PUNCTUATION = ".,;:!?\"'()[]{}…“”‘’«»–—-/"  # at the ends of a word

LINES_JUDGED = 2_000  # of a .txt file, to see whether they are wrapped
WRAPPED = 0.5  # share of lines that end inside a sentence, from which on a file's lines are taken to be wrapped

_TEXT: tuple[type, ...] = (str,)  # what a column of a .jsonl or .parquet file may hold
_TEXT_OR_NUMBER = (str, int, float)


def texts_in(path: Path, column: str = "text", field: str | None = None, unit: str = "line") -> Iterator[str]:
    """The texts of one file, unchanged: the lines of a .txt file, the passages of a .md file, one column of any other.

    `field`: the option that names the column, for errors. `unit`: `paragraph` joins the lines of a .txt file up to a blank one, `auto`
    does where they are wrapped. Raises UserError: unknown file type, no such column, bytes that are not UTF-8, a damaged file, a text
    over 100,000 characters.
    """
    if _suffix(path) == ".txt" and (unit == "paragraph" or (unit == "auto" and is_wrapped(path))):
        return _paragraphs(path)
    return _READERS[_suffix(path)](path, column, _TEXT, field)


def columns_in(path: Path, columns: tuple[str, ...], field: str, numeric: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Those columns of the rows of a table file, normalized.

    `field`: the option that names the columns, for errors. `numeric`: columns that .jsonl and .parquet files may hold as numbers
    (scores, labels). Raises UserError as `texts_in`, and for a .txt or .md file.
    """
    if is_text_file(path):
        raise UserError(f"{path}: a text file has no columns; give {field} a .tsv, .csv, .jsonl or .parquet file")
    read = _READERS[_suffix(path)]
    rows = zip(*(read(path, column, _TEXT_OR_NUMBER if column in numeric else _TEXT, field) for column in columns), strict=True)
    return (tuple(normalize(text) for text in row) for row in rows)


def is_text_file(path: Path) -> bool:
    """Whether this is a .txt or .md file, which is all text; others have columns."""
    return _suffix(path) in (".txt", ".md")


def is_wrapped(path: Path) -> bool:
    """Whether a .txt file is prose with wrapped lines: most that are followed by another one end inside a sentence, and blank lines
    divide paragraphs.
    """
    followed = inside = blank = 0
    for line, after in pairwise(islice(_txt(path), LINES_JUDGED) if _suffix(path) == ".txt" else ()):
        blank += not line.strip()
        if line.strip() and after.strip():
            followed += 1
            inside += line.rstrip()[-1].isalnum() or line.rstrip()[-1] in ",;-"
    return blank > 0 and followed > 0 and inside >= WRAPPED * followed


def matching_files(patterns: list[str], data: Path | None, place: str) -> list[Path]:
    """The files that match any of the globs, in order, each once. `data`: the folder that relative globs start from.

    `place`: the option that names the globs, for errors. Raises UserError: no file matches, unknown file type, no data folder.
    """
    found: list[Path] = []
    for pattern in patterns:
        absolute = Path(pattern).is_absolute()
        if not absolute and data is None:
            raise UserError(f"{place}: {pattern!r} is relative, and there is no data folder; give --data DIR or set EDGEDISTILL_DATA")
        root, relative = (Path("/"), str(Path(pattern).relative_to("/"))) if absolute else (data or Path(), pattern)
        paths = sorted(path for path in root.glob(relative) if path.is_file())
        if not paths:
            if (root / relative).is_dir():
                raise UserError(f"{place}: {pattern!r} is a folder; give a pattern of files, such as {str(Path(pattern) / '**/*.txt')!r}")
            where, also = ("", "") if absolute else (f" in {root}", " and --data")
            raise UserError(f"{place}: no file matches {pattern!r}{where}; check the pattern{also}")
        for path in paths:
            _suffix(path)
        found += [path for path in paths if path not in found]
    return found


def from_here(patterns: list[str]) -> list[str]:
    """Globs that start from the current folder, absolute: a recipe's relative ones start from --data."""
    return [os.path.abspath(each) for each in patterns]


def _no_column(path: Path, fact: str, field: str | None) -> UserError:
    return UserError(f"{path}: {fact}; {f'set {field}' if field else 'name another column'}")


def _suffix(path: Path) -> str:
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix not in SUFFIXES:
        raise UserError(f"{path}: {unknown_name('file type', suffix, SUFFIXES)}, each also .gz")
    return suffix


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _lines(path: Path, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, str]]:
    """Numbered lines, decoded. Raises UserError, with the line's number, for a byte that is not UTF-8 and for a line that never ends."""
    with _open(path) as file:
        number = 0
        try:
            while line := file.readline(max_bytes + 1):
                number += 1
                if len(line) > max_bytes:
                    raise UserError(f"{path}: line {number} is over {max_bytes:,} bytes; split the file into lines")
                yield number, line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise UserError(f"{path}: line {number}: byte {byte:#04x} is not UTF-8; convert the file, for example with iconv") from None
        except (EOFError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                raise
            raise UserError(f"{path}: damaged after line {number} ({error}); fetch it again") from None


def _txt(path: Path) -> Iterator[str]:
    for number, line in _lines(path, max_bytes=4 * MAX_TEXT_CHARACTERS):
        yield _checked(line, path, number)


def _paragraphs(path: Path) -> Iterator[str]:
    """The lines up to a blank one, joined by spaces; a word that a hyphen divides at a line's end stays divided."""
    gathered: list[str] = []
    for number, line in _lines(path, max_bytes=4 * MAX_TEXT_CHARACTERS):
        if line.strip():
            gathered.append(line.strip())
        elif gathered:
            yield _checked(" ".join(gathered), path, number)
            gathered = []
    if gathered:
        yield _checked(" ".join(gathered), path, number)


def _markdown(path: Path) -> Iterator[str]:
    from edgedistill.data import markdown_text

    document = "\n".join(line for _, line in _lines(path, max_bytes=4 * MAX_TEXT_CHARACTERS))
    return (_checked(text, path, number) for number, text in markdown_text.passages(document))


def _tsv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in _lines(path))


def numbered_rows(path: Path) -> Iterator[tuple[int, list[str]]] | None:
    """The numbered rows of a .tsv or .csv file, a header included; None for other kinds of file."""
    suffix = _suffix(path)
    return _tsv_rows(path) if suffix == ".tsv" else _csv_rows(path) if suffix == ".csv" else None


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(line + "\n" for _, line in _lines(path))
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: {error}; is this a .csv file?") from None


def _table(rows: Iterator[tuple[int, list[str]]], path: Path, column: str, field: str | None) -> Iterator[str]:
    _, header = next(rows, (0, []))
    if column not in header:
        raise _no_column(path, unknown_name("column", column, header), field)
    at = header.index(column)
    for number, row in rows:
        if len(row) != len(header):
            raise UserError(f"{path}: line {number} has {len(row)} columns, the header {len(header)}; correct the line")
        yield _checked(row[at], path, number)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The numbered objects of a .jsonl file; blank lines are skipped."""
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


def _jsonl(path: Path, column: str, kinds: tuple[type, ...], field: str | None) -> Iterator[str]:
    for number, row in _objects(path):
        if not isinstance(row.get(column), kinds):
            known = [name for name, value in row.items() if isinstance(value, kinds)]
            raise _no_column(path, f"line {number}: {unknown_name('text column', column, known)}", field)
        yield _checked(str(row[column]), path, number)


def parquet_file(file: IO[bytes] | Path, path: Path) -> Any:
    """A pyarrow.parquet.ParquetFile, from an open file or a path. `path`: the file's name, for errors.

    Raises UserError where it is no parquet file, or pyarrow is not installed.
    """
    parquet = require("pyarrow.parquet", "with .parquet files", "train")
    try:
        return parquet.ParquetFile(file)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise UserError(f"{path}: not a parquet file ({str(error).splitlines()[0]}); fetch it again") from None


def _parquet(path: Path, column: str, kinds: tuple[type, ...], field: str | None) -> Iterator[str]:
    with _open(path) as file:
        table = parquet_file(file, path)
        if column not in table.schema_arrow.names:
            raise _no_column(path, unknown_name("column", column, table.schema_arrow.names), field)
        number = 0
        for batch in table.iter_batches(batch_size=4096, columns=[column]):
            for value in batch.column(0).to_pylist():
                number += 1
                if value is not None and not isinstance(value, kinds):
                    raise UserError(f"{path}: column {column!r} holds {type(value).__name__}, not text; choose another column")
                yield _checked("" if value is None else str(value), path, number)


_READERS: dict[str, Callable[[Path, str, tuple[type, ...], str | None], Iterator[str]]] = {
    ".txt": lambda path, column, kinds, field: _txt(path),
    ".md": lambda path, column, kinds, field: _markdown(path),
    ".tsv": lambda path, column, kinds, field: _table(_tsv_rows(path), path, column, field),
    ".csv": lambda path, column, kinds, field: _table(_csv_rows(path), path, column, field),
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}


def texts_in_every_column(path: Path) -> Iterator[str]:
    """Every text of a file, whatever its column; for files of texts that must not be trained on. Raises UserError as `texts_in`."""
    suffix = _suffix(path)
    if is_text_file(path):
        yield from texts_in(path)
    elif suffix in (".tsv", ".csv"):
        for _, row in _tsv_rows(path) if suffix == ".tsv" else _csv_rows(path):
            yield from row
    elif suffix == ".jsonl":
        for _, found in _objects(path):
            yield from (value for value in found.values() if isinstance(value, str))
    else:
        with _open(path) as file:
            for batch in parquet_file(file, path).iter_batches(batch_size=4096):
                for values in batch.to_pydict().values():
                    yield from (value for value in values if isinstance(value, str))


def hub_rows(spec: Any, split: str, place: str) -> Iterator[dict[str, Any]]:
    """The rows of a hub data set, streamed. `spec` has `dataset`, `config` and `revision`; `place`: where the recipe names it.

    Raises UserError: no such data set, configuration, split or revision, no network.
    """
    try:
        yield from hub_table(spec, split, place, streaming=True)
    except OSError as error:  # while streaming
        raise _not_fetched(spec, split, place, error) from None


def hub_table(spec: Any, split: str, place: str, streaming: bool = False) -> Any:
    """A `datasets` data set, opened. Arguments and errors are those of `hub_rows`."""
    datasets = require("datasets", "train", "train")
    try:
        return datasets.load_dataset(spec.dataset, spec.config, split=split, revision=spec.revision, streaming=streaming)
    except (OSError, ValueError) as error:
        raise _not_fetched(spec, split, place, error) from None


def _not_fetched(spec: Any, split: str, place: str, error: Exception) -> UserError:
    fact = " ".join(str(error).split())[:200]
    return UserError(f"{place}: {spec.dataset!r} at {spec.revision!r}, split {split!r}: {fact}; check all three, and the network")


def hub_texts(spec: recipe.Hub) -> Iterator[str]:
    """The texts of a hub data set, streamed. Raises UserError as `hub_rows`, and for a row without a text in `spec.column`."""
    for number, row in enumerate(hub_rows(spec, spec.split, "corpus.dataset")):
        if not isinstance(row.get(spec.column), str):
            known = [name for name, value in row.items() if isinstance(value, str)]
            raise UserError(f"{spec.dataset}: row {number}: {unknown_name('text column', spec.column, known)}; set corpus.column")
        yield row[spec.column]


def _checked(text: str, path: Path, number: int) -> str:
    """The text. Raises UserError where it is too long."""
    if len(text) > MAX_TEXT_CHARACTERS:
        fact = f"line {number} is a text of {len(text):,} characters, the limit is {MAX_TEXT_CHARACTERS:,}"
        raise UserError(f"{path}: {fact}; split it into sentences")
    return text


def normalize(text: str) -> str:
    """The text on one line: white space and control characters become single spaces, and the ends are trimmed."""
    return " ".join(text.replace("\0", " ").split())
