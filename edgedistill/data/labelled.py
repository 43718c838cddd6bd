"""Labelled tasks: a text, or a pair of texts, and its label; the splits of one checked against each other, and drawn from by seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import recipe
from edgedistill.data import readers
from edgedistill.errors import UserError, unknown

Item = tuple[str, ...]  # a text, or the two of a pair
Task = recipe.TaskFiles | recipe.TaskHub


class Rows(NamedTuple):
    """One split: its texts or pairs, and their labels."""

    items: list[Item]
    labels: list[str]

    def chosen(self, which: np.ndarray) -> Rows:
        """The rows where `which` (n,) is true."""
        at = np.flatnonzero(which).tolist()
        return Rows([self.items[row] for row in at], [self.labels[row] for row in at])


class Labelled(NamedTuple):
    """A whole task. `labels`: all of them, numbers by size, words by alphabet; a classifier's outputs come in this order."""

    train: Rows
    dev: Rows
    test: Rows | None
    labels: list[str]

    def numbers(self, rows: Rows) -> np.ndarray:
        """Each row's label as its place in `labels`, (n,) int64."""
        place = {label: at for at, label in enumerate(self.labels)}
        return np.array([place[label] for label in rows.labels], np.int64)


def read(spec: Task, data: Path | None, seed: int, fraction: float, place: str) -> Labelled:
    """Read a task's splits, set dev rows aside where it has no dev split, and draw the fraction of train.

    `place`: where the recipe names the task. Raises UserError: no such file or column, a blank label, one label only, label sets
    that differ between splits, too few rows.
    """
    train = split(spec, "train", data, place)
    dev = split(spec, "dev", data, place) if spec.dev is not None else None
    test = split(spec, "test", data, place) if spec.test is not None else None
    labels = ordered(train.labels, f"{place}.train")
    if dev is None:
        assert spec.dev_rows is not None
        if spec.dev_rows >= len(train.labels):
            raise UserError(f"{place}.dev_rows: {spec.dev_rows:,} of {len(train.labels):,} rows leave none to train on; lower it")
        aside = drawn(train.labels, spec.dev_rows / len(train.labels), seed)
        train, dev = train.chosen(~aside), train.chosen(aside)
    for name, rows in (("train", train), ("dev", dev), ("test", test)):
        if rows is not None:
            _same_labels(labels, rows.labels, f"{place}.{name}")
    return Labelled(train if fraction == 1 else train.chosen(drawn(train.labels, fraction, seed)), dev, test, labels)


def split(spec: Task, name: str, data: Path | None, place: str) -> Rows:
    """The rows of one split as they stand, texts normalised. Raises UserError: no row, a blank label, no such file or column."""
    found = _file_rows(spec, name, data, place) if isinstance(spec, recipe.TaskFiles) else _hub_rows(spec, name, place)
    items, labels = [], []
    for number, cells in enumerate(found, 1):
        if not cells[-1]:
            raise UserError(f"{place}.{name}: row {number:,} has a blank {spec.label!r}; give it a label, or take the row out")
        items.append(cells[:-1])
        labels.append(cells[-1])
    if not labels:
        raise UserError(f"{place}.{name}: no rows; give the whole set")
    return Rows(items, labels)


def of_file(path: Path, texts: list[str], label: str, place: str) -> Rows:
    """The rows of one table."""
    task = recipe.TaskFiles(train=[str(path.absolute())], dev_rows=2, texts=texts, label=label)
    return split(task, "train", None, place)


def ordered(labels: list[str], place: str) -> list[str]:
    """The distinct labels, numbers by size, words by alphabet. Raises UserError where a classifier has nothing to tell apart."""
    names = sorted(set(labels))
    if len(names) < 2:
        raise UserError(f"{place}: all {len(labels):,} rows have the label {names[0]!r}, and a classifier needs two; give the whole set")
    if 2 * len(names) > len(labels):
        raise UserError(f"{place}: {len(names):,} different labels in {len(labels):,} rows; name the column of the labels with `label`")
    try:
        return sorted(names, key=int)
    except ValueError:
        return names


def drawn(labels: list[str], fraction: float, seed: int) -> np.ndarray:
    """Which rows belong to a fraction of each label's, one at least: (n,) bool. A smaller fraction of the same seed lies in a larger."""
    names = np.array(labels)
    random, out = np.random.default_rng([seed, 2_002]), np.zeros(len(names), bool)
    for name in sorted(set(labels)):
        rows = random.permutation(np.flatnonzero(names == name))
        out[rows[: max(1, round(fraction * len(rows)))]] = True
    return out


def _same_labels(labels: list[str], found: list[str], place: str) -> None:
    for more, fewer, fact in ((found, labels, "which train has not"), (labels, found, "is missing, which train has")):
        odd = sorted(set(more) - set(fewer))
        if odd:
            what = f"the label {odd[0]!r} {fact}"
            raise UserError(
                f"{place}: {what} ({', '.join(labels)}); all splits must have the same labels: mend the files, or change `label`"
            )


def _file_rows(spec: recipe.TaskFiles, name: str, data: Path | None, place: str) -> Iterator[tuple[str, ...]]:
    patterns = spec.train if name == "train" else [str(getattr(spec, name))]
    for path in readers.matching(patterns, data, f"{place}.{name}"):
        yield from readers.columns_in(path, (*spec.texts, spec.label), f"{place}.texts and .label", (spec.label,))


def _hub_rows(spec: recipe.TaskHub, name: str, place: str) -> Iterator[tuple[str, ...]]:
    table = readers.hub_table(spec, getattr(spec, name), place)
    for column in (*spec.texts, spec.label):
        if column not in table.features:
            raise UserError(f"{place}: {spec.dataset}: {unknown('column', column, table.features)}; say which with `texts` and `label`")
    names = getattr(table.features[spec.label], "names", None)
    for number, row in enumerate(table, 1):
        yield (
            *(readers.normalise(str(row[column])) for column in spec.texts),
            _named(row[spec.label], names, f"{place}.{name}: row {number:,}"),
        )


def _named(value: Any, names: list[str] | None, place: str) -> str:
    """A label as a word; a class number by its name."""
    if names is None or value is None:
        return "" if value is None else readers.normalise(str(value))
    if not 0 <= value < len(names):
        raise UserError(f"{place} has the label {value}: hidden, as GLUE's tests are; leave that split out")
    return names[value]


def scores(found: np.ndarray, gold: np.ndarray, labels: list[str], positive: str | None) -> dict[str, float]:
    """{accuracy, f1, macro_f1} of label numbers (n,) against gold ones (n,).

    `f1` is of the label `positive`; by default the last of two labels, as in 0 and 1; of more than two labels the macro average.
    """
    each = {name: _f1(found == at, gold == at) for at, name in enumerate(labels)}
    macro = float(np.mean(list(each.values())))
    named = positive if positive is not None else labels[-1] if len(labels) == 2 else None
    return {"accuracy": float((found == gold).mean()), "f1": each[named] if named is not None else macro, "macro_f1": macro}


def _f1(found: np.ndarray, gold: np.ndarray) -> float:
    """2·hits / (found + gold); 0 where neither has any."""
    total = int(found.sum() + gold.sum())
    return 2 * int((found & gold).sum()) / total if total else 0.0


def about(rows: Rows) -> dict[str, Any]:
    """A split, for the record."""
    return {"rows": len(rows.labels), "labels": dict(sorted(Counter(rows.labels).items()))}
