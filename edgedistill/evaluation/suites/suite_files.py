"""The data files of a suite: finding them, and reading their rows as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from edgedistill.data import input_file, readers
from edgedistill.errors import UserError, unknown_name

Find = Callable[[str], Path]  # a name in suite.yaml -> its path


class Part(BaseModel):
    """A frozen section of suite.yaml; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def locate(suite_path: Path, name: str, data: Path | None) -> Path:
    """Find a suite's file or folder: next to suite.yaml, else under the data folder. Raises UserError where
    it is not there."""
    neighbour = suite_path.parent / name
    if neighbour.exists():
        return neighbour
    if data is None:
        raise UserError(f"{suite_path}: {name} is not next to it; give --data DIR or set EDGEDISTILL_DATA")
    if not data.is_dir():
        raise UserError(f"{data}: no such folder; give --data DIR or set EDGEDISTILL_DATA")
    if not (data / name).exists():
        raise UserError(
            f"{data / name}: no such file, but {suite_path} needs it; give --data DIR or set EDGEDISTILL_DATA"
        )
    return data / name


def either(folder: Path, *names: str) -> Path:
    """The first of several files that exists. Raises UserError where none does."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder}: no {' or '.join(names)}; give --data DIR or set EDGEDISTILL_DATA")


def tsv(path: Path, columns: list[str], optional: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (line number, cells of the named columns) of a .tsv or .csv file with a header; `optional`
    columns may be missing."""
    numbered = readers.numbered_rows(path)
    if numbered is None:
        raise UserError(f"{path}: no table with tabs or commas; name a .tsv or .csv file in suite.yaml")
    _, header = next(numbered, (0, []))
    for column in columns:
        if column not in header:
            raise UserError(
                f"{path}: {unknown_name('column', column, header)}; name the column in suite.yaml, or give "
                "another --data"
            )
    at = {column: header.index(column) for column in [*columns, *optional] if column in header}
    for number, cells in numbered:
        if cells == [""]:
            continue
        if len(cells) < len(header):
            raise UserError(
                f"{path}: line {number}: {len(cells)} cells, the header has {len(header)}; fix the line"
            )
        yield number, {column: cells[i] for column, i in at.items()}


def jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a BEIR corpus or query file. Raises UserError for a line that is not one."""
    for number, row in readers.objects(path):
        if "_id" not in row:
            raise UserError(f"{path}: line {number}: no `_id`; BEIR's rows have _id, title, text")
        for column in ("_id", "title", "text"):
            if column != "_id" and not isinstance(row.get(column, ""), str | None):
                raise UserError(
                    f"{path}: line {number}: {column} holds {type(row[column]).__name__}, not text; fix the "
                    "line"
                )
            readers.checked(str(row.get(column)), str(path), number, input_file.MAX_LINE_BYTES)
        yield row


def clean(text: str) -> str:
    """Collapse whitespace."""
    return " ".join(text.split())
