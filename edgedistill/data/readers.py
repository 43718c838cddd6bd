"""Read texts and table rows from files (input_file.KINDS, each also .gz) and from hub data sets. Here it is
decided how each is read.

Everything but documents with markup, .pdf and a .json array is streamed: memory does not grow with the file.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NoReturn

from edgedistill import files
from edgedistill.data import document_text, input_file
from edgedistill.data.input_file import MAX_LINE_BYTES, damage_as_user_error, lines
from edgedistill.errors import UserError, counted, require, unknown_name
from edgedistill.reading import Reading

MAX_TEXT_CHARACTERS = 100_000  # a longer text is a file without line ends
# bytes of a file that is read whole; its parsed form takes some fifty times as much memory
MAX_DOCUMENT = 8_000_000
BATCH = 64  # rows of a .parquet file: a dictionary may hold one long text, and every row of it name that text

LINES_JUDGED = 2_000  # of a .txt file, to see whether they are wrapped
# share of lines that end inside a sentence, from which on a file's lines are taken to be wrapped
WRAPPED = 0.5

MARK = "·"
BETWEEN = f" {MARK} "  # the texts of a row's columns
# A cell that is no text: empty, a number, true or false; export/web has the same.
NUMBER = re.compile(r"[-+.,\d\s%€$]*(?:\de[-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)|true|false", re.IGNORECASE)
QUOTED = re.compile(r'"(?:[^"]|"")*"')
DELIMITERS = ",;\t|"  # of .csv files
ROWS_JUDGED = 100  # to see by which its cells are divided
DIVIDED = re.compile(f"[{DELIMITERS}]")  # a header that another sign than the file's divides
SEPARATOR = re.compile(r"sep=(.)")  # the first line of a .csv file that Excel writes

Numbered = Iterator[tuple[int, str]]


def texts_in(path: Path, *options: Any, **named: Any) -> Iterator[str]:
    """The texts of one file, as `numbered_texts` reads them."""
    return (text for _, text in numbered_texts(path, *options, **named))


@cache
def documentation() -> tuple[str, ...]:
    """The sentences of Python's documentation, which are read once."""
    return tuple(texts_in(files.GENERAL_CORPUS))


def numbered_texts(
    path: Path,
    column: str | None = "text",
    field: str | None = None,
    unit: str = "line",
    longest: int = MAX_TEXT_CHARACTERS,
    reading: Reading | None = None,
) -> Numbered:
    """The texts of one file, unchanged, and the numbers of their lines, rows, items or pages: a .txt file's
    lines, the passages of a .md, .rst, .html or .pdf file, a column of any other, or several, as in
    `title,body`, joined; None stands for `text` or, in a table without it, for the columns with words, as
    export/web chooses them.

    `field` is the option that names the column, for errors. The unit `paragraph` joins the lines of a .txt
    file up to a blank one, `auto` does so where they are wrapped. `longest` is the most characters of a text.
    `reading` is told of pages without text, front matter, and of the columns that were chosen, and has the
    lines of a document as its `source`.
    Raises UserError, which names file and line or row: unknown file type, no such column, no text there,
    bytes that are not UTF-8, a damaged file, a text that is too long.
    """
    numbered: Numbered
    reading = reading or Reading()
    reading.source = []
    match input_file.kind(path):
        case ".txt" if unit == "paragraph" or (unit == "auto" and is_wrapped(path)):
            numbered = _paragraphs(path, longest, reading)
        case ".txt":
            numbered = lines(path, min(4 * longest, MAX_LINE_BYTES))
        case ".md" | ".rst" | ".html" | ".pdf" as kind:
            numbered = _passages(path, kind, reading)
        case _ if column is None and "text" not in (names := column_names(path)):
            numbered = _worded(path, names, reading)
        case _:
            columns = _named_columns(path, column or "text")
            if column is None and len(names) > 1:
                _chosen(path, columns, names, reading)
            cells = _cells(path, columns, field, reading, column is None)
            numbered = ((number, BETWEEN.join(texts)) for number, texts in cells)
    word = input_file.numbered(path)
    return ((number, checked(text, str(path), number, longest, word)) for number, text in numbered)


def columns_in(path: Path, columns: Sequence[str | int], field: str) -> Iterator[tuple[str, ...]]:
    """Those columns of the rows of a table file, normalized.

    Columns are names, or numbers from 0 where a .tsv or .csv file has no header. `field` is the option that
    names them, for errors. Raises UserError as `texts_in`, and for a file without columns.
    """
    if is_text_file(path):
        raise UserError(
            f"{path}: a text file has no columns; give {field} a .tsv, .csv, .jsonl or .parquet file"
        )
    word = input_file.numbered(path)
    for number, row in _cells(path, columns, field):
        yield tuple(normalize(checked(text, str(path), number, MAX_TEXT_CHARACTERS, word)) for text in row)


def _named_columns(path: Path, column: str) -> list[str]:
    """The columns that an option names: one, or several with commas between them."""
    names = column_names(path) if "," in column else [column]
    return [column] if column in names else [part.strip() for part in column.split(",")]


def _worded(path: Path, names: list[str], reading: Reading) -> Numbered:
    """The texts of a table without a column `text` among its `names`, whose column nobody named: its cells
    that are more than numbers, joined, those inside lists and objects too. Raises UserError where no column
    has a word."""
    header = [] if input_file.kind(path) in (".json", ".jsonl") else names
    if len(header) == 1 and DIVIDED.search(header[0]):
        _check_columns(path, ["text"], header, None)
    chosen = set[Any]()
    keys = dict.fromkeys(names)
    for _, row in _rows(path, [], None):
        cells = _cells_of(row)
        keys |= dict.fromkeys(row)
        chosen |= {column for column, text in cells if column not in chosen and not NUMBER.fullmatch(text)}
    if not chosen and next(_rows(path, [], None), None):
        raise UserError(f"{path}: no column with words; name one that has texts")
    shown = {column[0] for column in chosen}
    if header:
        _check_columns(path, [name for name in header if name in shown], header, None)
    for number, row in _rows(path, [], None, reading):
        yield number, BETWEEN.join(text for column, text in _cells_of(row) if text and column in chosen)
    if shown:
        _chosen(path, shown, keys, reading)


def _chosen(path: Path, columns: Container[str], names: Iterable[str], reading: Reading) -> None:
    """Note which of a table's columns are read, and which are not, as nobody named any."""
    for name in names:
        if name in columns:
            reading.columns.setdefault(str(path), []).append(name)
        else:
            reading.leave_out(str(path), "columns", name)


def _cells_of(value: Any, column: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    """(its keys, text) of every text in a row, whose cells may hold lists and objects."""
    value = _written(value)
    if isinstance(value, str):
        yield column, normalize(value)
    elif isinstance(value, dict | list | tuple):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _cells_of(part, (*column, key))


def is_text_file(path: Path) -> bool:
    """Whether all of this file is text; others have columns."""
    return input_file.kind(path) in input_file.WHOLE_TEXT


def is_wrapped(path: Path) -> bool:
    """Whether a .txt file is prose with wrapped lines: most that are followed by another one end inside a
    sentence, and blank lines divide paragraphs. What cannot be read is not, as its reader says.
    """
    judged = list[str]()
    with suppress(UserError, OSError):
        numbered = lines(path) if input_file.kind(path) == ".txt" else iter(())
        judged += (line.rstrip() for _, line in islice(numbered, LINES_JUDGED))
    followed = [line for line, after in pairwise(judged) if line and after]
    inside = sum(line[-1].isalnum() or line[-1] in ",;-" for line in followed)
    return "" in judged[:-1] and followed != [] and inside >= WRAPPED * len(followed)


def texts_in_every_column(path: Path) -> Iterator[str]:
    """Every text of a file, whatever its column and unit, and those of a row joined as they are read; for
    files of texts that must not be trained on. Raises UserError as `texts_in`."""
    if is_text_file(path):
        for unit in ("line", "paragraph") if input_file.kind(path) == ".txt" else ("line",):
            yield from texts_in(path, unit=unit)
        return
    for _, row in numbered_rows(path) or _rows(path, [], None):
        yield from (text for _, text in _cells_of(row))
    with suppress(UserError):  # no column has words
        yield from (text for _, text in _worded(path, column_names(path), Reading()))


def _rows(
    path: Path, columns: list[str], field: str | None, reading: Reading | None = None
) -> Iterator[tuple[int, dict[Any, Any]]]:
    """The numbered rows of a table by the names of its columns, at least of these; without any, of all."""
    table = numbered_rows(path)
    if table is not None:
        return _of_header(table, path, columns, field)
    is_parquet = input_file.numbered(path) == "row"
    return _parquet(path, columns or None, field) if is_parquet else objects(path, reading)


def column_names(path: Path) -> list[str]:
    """The names of the columns of a file, by its first row; a text file has none."""
    if is_text_file(path):
        return []
    with damage_as_user_error(str(path), lambda: "at its start"):
        rows: Iterator[tuple[int, Any]] = numbered_rows(path) or _rows(path, [], None)
        return list(next(rows, (0, ()))[1])


def checked(text: str, name: str, number: int, longest: int, word: str = "line") -> str:
    """The text. Raises UserError where it is too long, or holds half a surrogate pair, which no UTF-8 file
    can."""
    if len(text) > longest:
        raise UserError(
            f"{name}: {word} {number} is a text of {len(text):,} characters, the limit is {longest:,}; split "
            "it into sentences"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"half a surrogate pair (\\u{ord(text[error.start]):04x}), an emoji that was cut"
        raise UserError(f"{name}: {word} {number}: {half}; correct the text") from None
    return text


def normalize(text: str) -> str:
    """The text on one line: white space and control characters become single spaces, and the ends are
    trimmed."""
    return " ".join(text.replace("\0", " ").split())


def _paragraphs(path: Path, longest: int, reading: Reading) -> Numbered:
    """The lines up to a blank one, joined by spaces; a word that a hyphen divides at a line's end stays
    divided."""
    gathered: list[str] = []
    first = size = 0
    for number, line in lines(path, min(4 * longest, MAX_LINE_BYTES)):
        reading.source.append(line)
        if line.strip() and size <= longest + 1:  # a longer one is an error, and is not gathered to its end
            first = first if gathered else number
            gathered.append(line.strip())
            size += len(gathered[-1]) + 1
        elif gathered:
            yield first, " ".join(gathered)
            gathered = []
            size = 0
    if gathered:
        yield first, " ".join(gathered)


def _passages(path: Path, kind: str, reading: Reading) -> Numbered:
    """The passages of a document with markup, or of a PDF, which is read whole."""
    left_out = partial(reading.leave_out, str(path))
    most = MAX_DOCUMENT * 8 if kind == ".pdf" else MAX_DOCUMENT
    with input_file.opened(path) as file, damage_as_user_error(str(path), lambda: "its content"):
        data = file.read(most + 1)
    if len(data) > most:
        raise UserError(f"{path}: over {most:,} bytes, and a {kind} file is read whole; split it")
    if kind == ".pdf":
        yield from document_text.portable(io.BytesIO(data), str(path), MAX_DOCUMENT, left_out)
        return
    passages: dict[str, Callable[..., document_text.Passages]] = {
        ".md": document_text.markdown,
        ".rst": document_text.restructured,
        ".html": document_text.hypertext,
    }
    text = input_file.decoded(data, str(path), declared=kind == ".html")
    reading.source = text.split("\n")
    with damage_as_user_error(str(path), lambda: "its markup"):
        yield from passages[kind](text, left_out)


def _cells(
    path: Path,
    columns: Sequence[str | int],
    field: str | None,
    reading: Reading | None = None,
    note_others: bool = False,
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(number, the cells of those columns) of every row of a table. Numbers are those of a table without a
    header, as TED2020, WikiMatrix and Europarl are distributed. `reading` is told of the other columns where
    it is to `note_others`. Raises UserError for a cell without text."""
    table = numbered_rows(path)
    if not isinstance(columns[0], int):
        rows = _rows(path, [str(column) for column in columns], field, reading)
    elif table is None:
        fact = f"column numbers are for .tsv and .csv files, {path} names its columns"
        raise UserError(f"{field}: {fact}; give names")
    else:
        rows = ((number, dict(enumerate(cells))) for number, cells in table)
    counted = input_file.numbered(path)
    for number, row in rows:
        place = f"{path}: {counted} {number}"
        for column in columns:
            if column not in row:
                known = [str(name) for name, value in row.items() if isinstance(value, str)]
                _no_column(place, unknown_name("text column", str(column), known), field)
        for other in row.keys() - columns if note_others else ():
            (reading or Reading()).leave_out(str(path), "columns", other)
        yield number, tuple(_text(column, row[column], place) for column in columns)


def _text(column: str | int, value: Any, place: str) -> str:
    """The text of a cell, or its number. Raises UserError where it holds neither."""
    value = _written(value)
    if isinstance(value, str):
        return value
    if value is None:
        raise UserError(f"{place}: column {column!r} is null; give it a text, or remove the row")
    raise UserError(
        f"{place}: column {column!r} holds {type(value).__name__}, not text; choose another column"
    )


def _written(value: Any) -> Any:
    """A number, true or false as a text file has it, and bytes in UTF-8, as .parquet files hold texts whose
    writer gave no type; any other value unchanged."""
    if isinstance(value, int | float):
        return str(value).lower()
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def _no_column(name: object, fact: str, field: str | None) -> NoReturn:
    raise UserError(f"{name}: {fact}; {f'set {field}' if field else 'name another column'}")


def _check_columns(path: Path, columns: Sequence[str], known: Sequence[str], field: str | None) -> None:
    """Raise UserError for a column that is missing, or there twice."""
    for column in columns:
        if column not in known:
            divided = DIVIDED.search(known[0]) if len(known) == 1 else None
            if divided:
                fact = f"its one column is {known[0][:60]!r}: they seem to be divided by {divided[0]!r}"
                raise UserError(f"{path}: {fact}; save it with commas as .csv, or with tabs as .tsv")
            _no_column(path, unknown_name("column", column, known), field)
        if known.count(column) > 1:
            raise UserError(f"{path}: {known.count(column)} columns are named {column!r}; rename all but one")


def numbered_rows(path: Path) -> Iterator[tuple[int, list[str]]] | None:
    """The numbered rows of a .tsv or .csv file, a header included; None for other kinds of file."""
    kind = input_file.kind(path)
    if kind == ".tsv":
        return ((number, [_unquoted(cell) for cell in line.split("\t")]) for number, line in lines(path))
    return _csv_rows(path) if kind == ".csv" else None


def _unquoted(cell: str) -> str:
    """A cell of a .tsv file: in quotes where it begins and ends with one and those inside are doubled, as
    spreadsheets and csv modules write it; any other quote is a character. export/web reads them alike."""
    return cell[1:-1].replace('""', '"') if cell[:1] == '"' and QUOTED.fullmatch(cell) else cell


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows, each with the number of its first line. A quote that is not closed is an error, not the rest
    of the file."""
    csv.field_size_limit(MAX_LINE_BYTES)
    named = SEPARATOR.fullmatch(next(lines(path), (1, ""))[1])
    text = (line + "\n" for _, line in lines(path))
    reader = csv.reader(text, delimiter=named[1] if named else _delimiter(path), strict=True)
    first = 1
    with damage_as_user_error(str(path), lambda: f"line {first}"):
        for row in reader:
            if row and not (named and first == 1):
                yield first, row
            first = reader.line_num + 1


def _delimiter(path: Path) -> str:
    """What divides the cells of a .csv file: the sign by which its first rows have one width of several
    cells, else a comma. Raises UserError for several such signs."""
    head = [line for _, line in islice(lines(path), ROWS_JUDGED)]
    dividing = [sign for sign in DELIMITERS if _divides(head, sign)]
    if dividing[1:]:
        fact = " or ".join(map(repr, dividing))
        raise UserError(f"{path}: divided by {fact}; say which in a first line of its own, as in sep=,")
    return "".join(dividing) or ","


def _divides(head: list[str], sign: str) -> bool:
    """Whether a sign divides each of the first rows of a table into as many cells."""
    rows = list(filter(None, csv.reader(head, delimiter=sign)))
    widths = set(map(len, rows[:-1] if len(head) == ROWS_JUDGED else rows))  # the last may go on
    return len(widths) == 1 < max(widths)


def _of_header(
    rows: Iterator[tuple[int, list[str]]], path: Path, columns: list[str], field: str | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The numbered rows of a table whose first one names the columns."""
    _, header = next(rows, (0, []))
    if header:
        _check_columns(path, columns, header, field)
    for number, row in rows:
        if len(row) != len(header):
            raise UserError(
                f"{path}: line {number} has {counted(len(row), 'column')}, the header {len(header)}; "
                "correct the line"
            )
        yield number, dict(zip(header, row, strict=True))


def objects(path: Path, reading: Reading | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The numbered objects of a .jsonl file, blank lines skipped, or of a .json array, where a string is an
    object's `text`. An object that has one list of objects stands for these; `reading` is told of its
    other keys."""
    word = input_file.numbered(path)
    for number, item in _items(path, reading or Reading()) if word == "item" else _json_lines(path):
        row = {"text": item} if isinstance(item, str) and word == "item" else item
        if not isinstance(row, dict):
            fact = f"a JSON {type(item).__name__}; every {word} must be an object"
            raise UserError(f"{path}: {word} {number}: {fact}{' or a string' * (word == 'item')}")
        yield number, row


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    number = 0
    with damage_as_user_error(str(path), lambda: f"line {number}"):
        for number, line in lines(path):
            if line.strip():
                yield number, _parsed(line)


def _items(path: Path, reading: Reading) -> Iterator[tuple[int, Any]]:
    with input_file.opened(path) as file, damage_as_user_error(str(path), lambda: "its content"):
        data = file.read(MAX_LINE_BYTES + 1)
        if len(data) > MAX_LINE_BYTES:
            fact = f"over {MAX_LINE_BYTES:,} bytes, and a .json file is read whole"
            raise UserError(f"{path}: {fact}; save it as .jsonl, an object a line")
        content = _parsed(input_file.decoded(data, str(path)))
    if not isinstance(content, dict):
        return enumerate(content if isinstance(content, list) else [content], 1)
    lists = [key for key, value in content.items() if _are_objects(value)]
    if len(lists) != 1:
        return enumerate([content], 1)
    for key in content.keys() - lists:
        reading.leave_out(str(path), "keys", key)
    return enumerate(content[lists[0]], 1)


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(part, dict) for part in value)


# numbers as they are written
_parsed = partial(json.loads, parse_int=str, parse_float=str, object_pairs_hook=lambda items: _object(items))


def _object(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which a key that stands twice would hide the other."""
    value = dict(items)
    if len(value) < len(items):
        ((twice, _),) = Counter(key for key, _ in items).most_common(1)
        raise json.JSONDecodeError(f"an object with the key {twice!r} twice", "", 0)
    return value


def parquet_batches(
    path: Path, columns: list[str] | None, field: str | None, size: int = BATCH
) -> Iterator[Any]:
    """Batches of those columns of a .parquet file, pyarrow.RecordBatch each; None: of all columns.

    Raises UserError: no or damaged parquet file, no such column, pyarrow is not installed.
    """
    parquet = require("pyarrow.parquet", f"{path}: a .parquet file")
    done = 0
    with input_file.opened(path) as file:
        if file.read(4) != input_file.PARQUET:
            raise UserError(f"{path}: not a parquet file; fetch it again, or rename it")
        with damage_as_user_error(str(path), lambda: f"after row {done}" if done else "at its start"):
            table = parquet.ParquetFile(file)
            if columns is not None:
                _check_columns(path, columns, table.schema_arrow.names, field)
            for batch in table.iter_batches(batch_size=size, columns=columns):
                yield batch
                done += batch.num_rows


def _parquet(
    path: Path, columns: list[str] | None, field: str | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The numbered rows, of those columns or of all."""
    number = 0
    with damage_as_user_error(str(path), lambda: f"row {number + 1}"):
        for batch in parquet_batches(path, columns, field):
            names = batch.schema.names
            _check_columns(path, names, names, field)
            columns_of_batch = [
                column.cast("string") if _is_number(column.type) else column for column in batch.columns
            ]
            # value by value, so that the row of one that is not UTF-8 is known
            for scalars in zip(*columns_of_batch, strict=True):
                values = [scalar.as_py() for scalar in scalars]
                number += 1
                yield number, dict(zip(names, values, strict=True))


def _is_number(kind: Any) -> bool:
    """Whether a pyarrow.DataType is of numbers, or of true and false."""
    of = require("pyarrow", "a .parquet file").types
    return bool(of.is_boolean(kind) or of.is_integer(kind) or of.is_floating(kind) or of.is_decimal(kind))


def hub_columns(
    spec: Any, columns: Sequence[str], place: str, key: str, null: str | None = None
) -> Iterator[tuple[str, ...]]:
    """Those columns of the rows of a hub data set, streamed and not normalized; a class number by its name.

    The column `translation.de` is the key `de` inside the column `translation`. The recipe names the data set
    at `place`, with `dataset`, `config`, `split` and `revision`, and the columns at the `key` there. `null`
    is read where a cell is empty, if that is allowed. Raises UserError: no such data set, configuration,
    split, revision or column, no network, a cell without text.
    """
    datasets = require("datasets", "edgedistill train", "train")
    try:
        table = datasets.load_dataset(
            spec.dataset, spec.config, split=spec.split, revision=spec.revision, streaming=True
        )
        features = getattr(table, "features", None) or {}
        classes = [getattr(features.get(column), "names", None) for column in columns]
        for number, row in enumerate(table, 1):
            cells = []
            for column, names in zip(columns, classes, strict=True):
                value = _cell(row, column, spec.dataset, f"{place}.{key}")
                value = null if value is None else value
                if names and isinstance(value, int):
                    value = _class_name(value, names, f"{place}: row {number:,}")
                cells.append(_text(column, value, f"{spec.dataset}: row {number}"))
            yield tuple(cells)
    except (OSError, ValueError) as error:
        fact = " ".join(str(error).split())[:200]
        raise UserError(
            f"{place}.dataset: {spec.dataset!r} at {spec.revision!r}, split {spec.split!r}: {fact}; check "
            "all three, and the network"
        ) from None


def _class_name(number: int, names: list[str], place: str) -> str:
    if not 0 <= number < len(names):
        raise UserError(
            f"{place} has the label {number}: labels are hidden, as in GLUE's test sets; leave that split out"
        )
    return names[number]


def _cell(row: dict[str, Any], column: str, name: str, field: str) -> Any:
    """The value of a column, or of a key inside one."""
    value: Any = row
    for key in [column] if column in row else column.split("."):
        if not isinstance(value, dict) or key not in value:
            _no_column(name, unknown_name("column", column, value if isinstance(value, dict) else []), field)
        value = value[key]
    return value
