"""What every family of suites has: its section of suite.yaml, the files that this names, and the texts in
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from edgedistill.data import input_file, readers
from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Ints
from edgedistill.recipe import Section

Find = Callable[[str], Path]  # a name in suite.yaml -> its path
Rows = dict[str, int]  # every distinct text of a suite -> its row among them


class Task(Section):
    """What every task of a suite has."""

    name: str = Field(description="of the task")


class Family(NamedTuple):
    """One kind of suite: a task's section of suite.yaml, how its files are read, and how an encoder is
    scored.

    `read` adds the texts of a task to the rows of the suite, and returns what `score` takes; None where no
    suite.yaml can be of this kind. `score` takes a
    task and what embeds texts, and returns the task's measures: where a family has `roles` the whole
    `Encoder`, where it `shares_embeddings` the unit embeddings of all texts of the suite. The mean of the
    measure `averaged` over tasks is the suite's score; `title` is the name of that in tables and plots. A
    task's `samples`, where there are any, are what `bootstrap.scores` resamples, and `items` returns the
    texts of each, given the task and the texts of the suite.
    """

    task: type[Task]
    read: Callable[[Any, Find, Rows], Any] | None
    score: Callable[[Any, Any], dict[str, Any]]
    averaged: str = "accuracy"
    title: str = "accuracy × 100"
    shares_embeddings: bool = False
    roles: bool = False
    items: Callable[[Any, list[str]], list[tuple[str, ...]]] | None = None


def add_texts(texts: Iterable[str], rows: Rows) -> Ints:
    """Return the row of each text, (n,); a new text is added to `rows`."""
    return np.array([rows.setdefault(text, len(rows)) for text in texts], np.int64)


def pair_texts(pairs: Ints, texts: list[str]) -> list[tuple[str, ...]]:
    """Return the texts of pairs (n, 2), which are rows of a suite's texts."""
    return [(texts[first], texts[second]) for first, second in pairs.tolist()]


def locate(suite_path: Path, name: str, data: Path | None) -> Path:
    """Find a suite's file or folder: next to suite.yaml, else under the data folder. Raises UserError where
    it is not there."""
    neighbour = suite_path.parent / name
    if neighbour.exists():
        return neighbour
    way_out = "give --data DIR or set EDGEDISTILL_DATA, with the files that bench/README.md lists"
    if data is None:
        raise UserError(f"{suite_path}: {name} is not next to it; {way_out}")
    if not data.is_dir():
        raise UserError(f"{data}: no such folder; {way_out}")
    if not (data / name).exists():
        raise UserError(f"{data / name}: no such file, but {suite_path} needs it; {way_out}")
    return data / name


def either(folder: Path, *names: str) -> Path:
    """Return the first of several files that exists, each also .gz. Raises UserError where none does."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise UserError(f"{folder}: no {' or '.join(names)}; give --data DIR or set EDGEDISTILL_DATA")


def columns(path: Path, names: list[str], numeric: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield those columns of the rows of a table. Raises UserError as `readers.columns_in`."""
    return readers.columns_in(path, tuple(names), "the columns in suite.yaml", numeric)


def tabbed(path: Path, count: int) -> Iterator[list[str]]:
    """Yield the `count` fields of each line of a .tsv file without header or quoting. Raises UserError for a
    line with another number of them."""
    for number, line in input_file.lines(path):
        fields = line.split("\t")
        if len(fields) != count:
            raise UserError(f"{path}: line {number}: {len(fields)} fields, not {count}; fix the line")
        yield fields


def records(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (id, title, text) of the rows of a BEIR corpus or query file, or of a .tsv file without a header:
    corpus.tsv has id, title, text, queries.tsv id, text. Raises UserError for a line that is not one."""
    if ".tsv" in path.suffixes:
        for fields in tabbed(path, 3 if path.name.startswith("corpus") else 2):
            yield fields[0], " ".join(fields[1:-1]), fields[-1]
        return
    for number, row in readers.objects(path):
        if "_id" not in row:
            raise UserError(f"{path}: line {number}: no `_id`; BEIR's rows have _id, title, text")
        parts = [str(row["_id"])]
        for column in ("title", "text"):
            value = row.get(column)
            if not isinstance(value, str | None):
                raise UserError(
                    f"{path}: line {number}: {column} holds {type(value).__name__}, not text; fix the line"
                )
            parts.append(value or "")
        name, title, text = (
            readers.checked(part, str(path), number, input_file.MAX_LINE_BYTES) for part in parts
        )
        yield name, title, text
