"""Tables of texts and their translations, read pair by pair: files with one column per language, and hub data
sets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from edgedistill import files, recipe
from edgedistill.data import file_patterns, readers
from edgedistill.errors import UserError, unknown_name

Pair = tuple[str, str]


class PairTable(NamedTuple):
    """One table of pairs. `part`: its entry in the recipe; `content_id` identifies its content; `limit`: the
    most pairs to keep."""

    name: str
    part: str
    languages: tuple[str, str]
    content_id: Any
    pairs: Callable[[], Iterator[Pair]]
    limit: int | None


def open_tables(spec: recipe.Parallel, data: Path | None) -> list[PairTable]:
    """Every table that a recipe names; rows are read on demand. Raises UserError: no file matches."""
    found: list[PairTable] = []
    for number, part in enumerate(spec.pairs):
        place, name, limit = f"corpus.pairs[{number}]", part.title, part.limit or spec.limit_per_file
        if part.dataset is not None:
            content_id = [part.dataset, part.config, part.split, part.revision]
            pairs = functools.partial(_hub_pairs, part, place)
            found.append(
                PairTable(f"{part.dataset}@{part.revision}", name, part.of_columns, content_id, pairs, limit)
            )
        for path in file_patterns.matching_files(part.files, data, f"{place}.files"):
            pairs = functools.partial(_file_pairs, path, part, place)
            found.append(PairTable(path.name, name, part.of_columns, files.sha256_file(path), pairs, limit))
    return found


def _columns(part: recipe.Pairs) -> list[str | int]:
    """The columns to read: source, target and, where the recipe names one, score."""
    return [*part.columns] if part.score_column is None else [*part.columns, part.score_column]


def _file_pairs(path: Path, part: recipe.Pairs, place: str) -> Iterator[Pair]:
    columns = _columns(part)
    if any(isinstance(column, int) for column in columns):
        rows = _rows_by_number(path, columns, place)
    else:
        _check_width(path, place)
        numeric = () if part.score_column is None else (str(part.score_column),)
        rows = readers.columns_in(path, tuple(str(column) for column in columns), f"{place}.columns", numeric)
    return _above_min_score(rows, part, str(path), place)


def _check_width(path: Path, place: str) -> None:
    """Raise UserError for a table of one column: it holds texts, not pairs."""
    rows = readers.numbered_rows(path)
    header = [] if rows is None else next(rows, (0, []))[1]
    if len(header) == 1:
        fact = f"one column ({header[0][:40]!r}), and a pair is a text and its translation"
        raise UserError(f"{path}: {fact}; give {place} a table with a column of each")


def _rows_by_number(path: Path, columns: list[str | int], place: str) -> Iterator[tuple[str, ...]]:
    """Rows of a table without a header, as TED2020, WikiMatrix, News Commentary and Europarl are
    distributed."""
    rows = readers.numbered_rows(path)
    if rows is None:
        raise UserError(
            f"{place}.columns: column numbers are for .tsv and .csv files, {path} names its columns; give "
            "names"
        )
    last = max(int(column) for column in columns)
    for number, cells in rows:
        if len(cells) <= last:
            fact = (
                f"line {number} has {len(cells)} column(s), and column {last}, counted from 0, was requested"
            )
            raise UserError(f"{path}: {fact}; correct the line, or {place}.columns")
        yield tuple(readers.normalize(cells[int(column)]) for column in columns)


def _hub_pairs(part: recipe.Pairs, place: str) -> Iterator[Pair]:
    rows = readers.hub_rows(part, part.split, f"{place}.dataset")
    cells = (
        tuple(_cell(row, str(column), f"{part.dataset}", place) for column in _columns(part)) for row in rows
    )
    return _above_min_score(cells, part, str(part.dataset), place)


def _cell(row: dict[str, Any], column: str, name: str, place: str) -> str:
    """A column of a hub row, normalized; `translation.de` is the key `de` inside the column `translation`."""
    value: Any = row
    for key in [column] if column in row else column.split("."):
        if not isinstance(value, dict) or key not in value:
            known = value if isinstance(value, dict) else []
            raise UserError(f"{name}: {unknown_name('column', column, known)}; set {place}.columns")
        value = value[key]
    return readers.normalize("" if value is None else str(value))


def _above_min_score(
    rows: Iterable[tuple[str, ...]], part: recipe.Pairs, name: str, place: str
) -> Iterator[Pair]:
    """The two texts of each row whose score is high enough."""
    for number, row in enumerate(rows, 1):
        if part.score_column is not None and part.min_score is not None:
            try:
                good = float(row[2]) >= part.min_score
            except ValueError:
                fact = f"pair {number}: score {row[2][:40]!r} is not a number"
                raise UserError(f"{name}: {fact}; correct {place}.score_column") from None
            if not good:
                continue
        yield row[0], row[1]
