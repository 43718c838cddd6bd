"""Tables of texts and their translations: files of rows and hub data sets, column by column, row by row."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from edgedistill import files, recipe
from edgedistill.data import readers
from edgedistill.errors import UserError, unknown

Pair = tuple[str, str]


class Table(NamedTuple):
    """A table of pairs: what it is called, its part of the recipe, what identifies its content, its rows, the most to keep."""

    name: str
    part: str
    languages: tuple[str, str]
    made_of: Any
    rows: Callable[[], Iterator[Pair]]
    limit: int | None


def tables(spec: recipe.Parallel, data: Path | None) -> list[Table]:
    """Every table that a recipe names, not read yet. Raises UserError: no file matches."""
    found: list[Table] = []
    for number, part in enumerate(spec.pairs):
        place, name, limit = f"corpus.pairs[{number}]", part.title, part.limit or spec.limit_per_file
        if part.dataset is not None:
            made_of = [part.dataset, part.config, part.split, part.revision]
            rows = functools.partial(_hub, part, place)
            found.append(Table(f"{part.dataset}@{part.revision}", name, part.of_columns, made_of, rows, limit))
        for path in readers.matching(part.files, data, f"{place}.files"):
            rows = functools.partial(_file, path, part, place)
            found.append(Table(path.name, name, part.of_columns, files.sha256_file(path), rows, limit))
    return found


def _file(path: Path, part: recipe.Pairs, place: str) -> Iterator[Pair]:
    columns = _asked(part)
    if any(isinstance(column, int) for column in columns):
        rows = _by_number(path, columns, place)
    else:
        _more_than_one(path, place)
        numbers = () if part.score is None else (str(part.score),)
        rows = readers.columns_in(path, tuple(str(column) for column in columns), f"{place}.columns", numbers)
    return _scored(rows, part, str(path), place)


def _asked(part: recipe.Pairs) -> list[str | int]:
    return [*part.columns] if part.score is None else [*part.columns, part.score]


def _more_than_one(path: Path, place: str) -> None:
    """Raise UserError for a table of one column: it holds texts, not pairs."""
    rows = readers.rows_in(path)
    header = [] if rows is None else next(rows, (0, []))[1]
    if len(header) == 1:
        fact = f"one column ({header[0][:40]!r}), and a pair is a text and its translation"
        raise UserError(f"{path}: {fact}; give {place} a table with a column of each")


def _by_number(path: Path, columns: list[str | int], place: str) -> Iterator[tuple[str, ...]]:
    """Rows of a table without a header, as TED2020, WikiMatrix, News Commentary and Europarl are handed out."""
    rows = readers.rows_in(path)
    if rows is None:
        raise UserError(f"{place}.columns: numbers count the columns of .tsv and .csv files, {path} names its own; give names")
    most = max(int(column) for column in columns)
    for number, cells in rows:
        if len(cells) <= most:
            fact = f"line {number} has {len(cells)} column(s), and column {most} is asked for, counted from 0"
            raise UserError(f"{path}: {fact}; mend the line, or look at {place}.columns")
        yield tuple(readers.normalise(cells[int(column)]) for column in columns)


def _hub(part: recipe.Pairs, place: str) -> Iterator[Pair]:
    rows = readers.hub_rows(part, part.split, f"{place}.dataset")
    found = (tuple(_cell(row, str(column), f"{part.dataset}", place) for column in _asked(part)) for row in rows)
    return _scored(found, part, str(part.dataset), place)


def _cell(row: dict[str, Any], column: str, name: str, place: str) -> str:
    """A column of a hub row; `translation.de` is a key inside a column."""
    at: Any = row
    for key in [column] if column in row else column.split("."):
        if not isinstance(at, dict) or key not in at:
            raise UserError(f"{name}: {unknown('column', column, at if isinstance(at, dict) else [])}; say which with {place}.columns")
        at = at[key]
    return readers.normalise("" if at is None else str(at))


def _scored(rows: Iterable[tuple[str, ...]], part: recipe.Pairs, name: str, place: str) -> Iterator[Pair]:
    """The two texts of each row whose score is high enough."""
    for number, row in enumerate(rows, 1):
        if part.score is not None and part.least is not None:
            try:
                good = float(row[2]) >= part.least
            except ValueError:
                raise UserError(f"{name}: pair {number}: score {row[2][:40]!r} is not a number; look at {place}.score") from None
            if not good:
                continue
        yield row[0], row[1]
