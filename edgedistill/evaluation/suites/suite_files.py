"""What every kind of suite has: its tasks' section of suite.yaml, the files that this names, and the texts in
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from edgedistill.data import input_file, readers
from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Encoder, Floats, Measures, unit
from edgedistill.recipe import Section
from edgedistill.runtime.compact import compact, expanded

Find = Callable[[str], Path]  # a name in suite.yaml -> its path


class Index(NamedTuple):
    """The ids of a collection's n texts, and their unit embeddings (n, d)."""

    names: list[str]
    embeddings: Floats


class Search(NamedTuple):
    """What is measured beside the ranking by cosine: BM25 with this weight, and the texts' embeddings in
    fewer bytes."""

    weight: float | None = None
    precisions: tuple[str, ...] = ()


class TaskData:
    """What is read of a task, and how an encoder is scored on it.

    `score` returns the task's measures; its `samples`, where there are any, are what `bootstrap.scores`
    resamples.
    """

    @property
    def texts(self) -> list[str]:
        """What is embedded in the role of a text, or as queries."""
        return []

    @property
    def timed(self) -> list[Any]:
        """What latencies may be measured on."""
        return self.texts

    def score(self, encoder: Encoder) -> Measures:
        raise NotImplementedError

    def rankings(self, encoder: Encoder, search: Search, averaged: str = "accuracy") -> dict[str, Measures]:
        """The measures by the title of a ranking; "" is the only one where nothing is ranked. Of embeddings
        in each of the search's precisions they have, as `embeddings`, the measure `averaged`."""
        measures = self.score(encoder)
        for precision in search.precisions:
            stored = encoder._replace(text=partial(_in_precision, encoder, precision))
            measures.setdefault("embeddings", {})[precision] = self.score(stored)[averaged]
        return {"": measures}


def _in_precision(encoder: Encoder, precision: str, texts: list[str]) -> Floats:
    """Embeddings as they come back from a precision of fewer bytes."""
    return expanded(compact(unit(encoder.text(texts)), precision, encoder.calibration))


class Task(Section):
    """The section of a task in suite.yaml, and how its files are read. The mean of the measure `averaged`
    over tasks is the suite's score; `title` is the name of that in tables and plots."""

    averaged: ClassVar[str] = "accuracy"
    title: ClassVar[str] = "accuracy × 100"

    name: str

    def read(self, find: Find) -> TaskData:
        raise NotImplementedError


def locate(suite_path: Path, name: str, data: Path | None) -> Path:
    """Find a suite's file or folder: next to suite.yaml, else under the data folder. Raises UserError where
    it is not there."""
    neighbour = suite_path.parent / name
    if neighbour.exists():
        return neighbour
    fact = f"{suite_path}: {name} is not next to it"
    if data is not None:
        if (data / name).exists():
            return data / name
        fact = f"{data / name}: no such file, but {suite_path} needs it"
        if not data.is_dir():
            fact = f"{data}: no such folder"
    raise UserError(
        f"{fact}; give --data DIR or set EDGEDISTILL_DATA, with the files that bench/README.md lists"
    )


def either(folder: Path, *names: str) -> Path:
    """Return the first of several files that exists, each also .gz. Raises UserError where none does."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise UserError(f"{folder}: no {' or '.join(names)}; give --data DIR or set EDGEDISTILL_DATA")


def columns(path: Path, names: list[str]) -> Iterator[tuple[str, ...]]:
    """Yield those columns of the rows of a table. Raises UserError as `readers.columns_in`."""
    return readers.columns_in(path, tuple(names), "the columns in suite.yaml")


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
        parts = [str(row["_id"]), row.get("title") or "", row.get("text") or ""]
        for part in parts:
            if not isinstance(part, str):
                raise UserError(
                    f"{path}: line {number}: a title or text holds {type(part).__name__}, not text; fix "
                    "the line"
                )
        name, title, text = (
            readers.checked(part, str(path), number, input_file.MAX_LINE_BYTES) for part in parts
        )
        yield name, title, text
