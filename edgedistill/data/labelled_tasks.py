"""Labelled tasks: texts or pairs of texts with a label each; read, checked split against split, and sampled
by label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import recipe
from edgedistill.data import file_patterns, readers
from edgedistill.errors import UserError, unknown_name

Item = tuple[str, ...]  # a text, or the two texts of a pair


class LabelledRows(NamedTuple):
    """The rows of one split: texts or pairs, and their labels."""

    items: list[Item]
    labels: list[str]

    def select(self, mask: np.ndarray) -> LabelledRows:
        """The rows where `mask`, (n,) bool, is true."""
        rows = np.flatnonzero(mask).tolist()
        return LabelledRows([self.items[row] for row in rows], [self.labels[row] for row in rows])


class LabelledTask(NamedTuple):
    """A whole task. Its labels are in order, numbers by value and words by alphabet; so are a classifier's
    outputs."""

    train: LabelledRows
    dev: LabelledRows
    test: LabelledRows | None
    labels: list[str]

    def label_ids(self, rows: LabelledRows) -> np.ndarray:
        """The index in `labels` of each row's label, (n,) int64."""
        ids = {label: number for number, label in enumerate(self.labels)}
        return np.array([ids[label] for label in rows.labels], np.int64)


def read_task(spec: recipe.Rows, data: Path | None, seed: int, fraction: float, place: str) -> LabelledTask:
    """Read a task's splits, set dev rows aside where it has no dev split, and sample a fraction of its
    training rows.

    Raises UserError, which names the recipe key `place`, where there is no such file or column, where a label
    is blank, where there is one label only, where the splits' labels differ, and where rows are too few.
    """
    train = read_split(spec, "train", data, place)
    dev = read_split(spec, "dev", data, place) if spec.dev is not None else None
    test = read_split(spec, "test", data, place) if spec.test is not None else None
    labels = ordered_labels(train.labels, f"{place}.files")
    if dev is None:
        count = spec.dev_rows or 0
        if count >= len(train.labels):
            raise UserError(
                f"{place}.dev_rows: {count:,} of {len(train.labels):,} rows leave none to train on; lower it"
            )
        is_dev = stratified_mask(train.labels, count / len(train.labels), seed)
        train, dev = train.select(~is_dev), train.select(is_dev)
    for name, rows in (("files", train), ("dev", dev), ("test", test)):
        if rows is not None:
            _check_labels(labels, rows.labels, f"{place}.{name}")
    sample = train if fraction == 1 else train.select(stratified_mask(train.labels, fraction, seed))
    return LabelledTask(sample, dev, test, labels)


def read_split(spec: recipe.Rows, name: str, data: Path | None, place: str) -> LabelledRows:
    """All rows of one split, texts normalized. Raises UserError: no row, a blank label, no such file or
    column."""
    columns, label = list(map(str, spec.columns)), str(spec.label)
    at = f"{place}.{'files' if name == 'train' else name}"
    if spec.dataset is not None:
        split = spec.split if name == "train" else str(getattr(spec, name))
        return _labelled(_hub_rows(spec, columns, label, split, at), label, at)
    patterns = spec.files if name == "train" else [str(getattr(spec, name))]
    paths = file_patterns.matching_files(patterns, data, at)
    rows = (row for path in paths for row in _table_rows(path, columns, label, place))
    return _labelled(rows, label, at)


def read_table(path: Path, texts: list[str], label: str, place: str) -> LabelledRows:
    """Read the rows of one table file by the names of its columns. Raises UserError as `read_split`."""
    return _labelled(_table_rows(path, texts, label, place), label, f"{place}: {path.name}")


def _table_rows(path: Path, texts: list[str], label: str, place: str) -> Iterator[tuple[str, ...]]:
    return readers.columns_in(path, (*texts, label), f"{place}.columns and .label")


def _labelled(rows: Iterable[tuple[str, ...]], label: str, place: str) -> LabelledRows:
    items, labels = [], []
    for number, cells in enumerate(rows, 1):
        if not cells[-1]:
            raise UserError(
                f"{place}: row {number:,} has a blank {label!r}; give it a label, or remove the row"
            )
        items.append(cells[:-1])
        labels.append(cells[-1])
    if not labels:
        raise UserError(f"{place}: no rows; give the whole set")
    return LabelledRows(items, labels)


def ordered_labels(labels: list[str], place: str) -> list[str]:
    """The distinct labels, numbers by value, words by alphabet.

    Raises UserError for a single label, and for more distinct labels than half the rows.
    """
    names = sorted(set(labels))
    if len(names) < 2:
        raise UserError(
            f"{place}: all {len(labels):,} rows have the label {names[0]!r}, and a classifier needs two; "
            "give the whole set"
        )
    if 2 * len(names) > len(labels):
        raise UserError(
            f"{place}: {len(names):,} different labels in {len(labels):,} rows; name the column of the "
            "labels with `label`"
        )
    try:
        return sorted(names, key=int)
    except ValueError:
        return names


def stratified_mask(labels: list[str], fraction: float, seed: int) -> np.ndarray:
    """Draw a fraction of the rows of each label, at least one: (n,) bool. With one seed, a smaller fraction
    lies in a larger one."""
    names = np.array(labels)
    random, mask = np.random.default_rng([seed, 2_002]), np.zeros(len(names), bool)
    for name in sorted(set(labels)):
        rows = random.permutation(np.flatnonzero(names == name))
        mask[rows[: max(1, round(fraction * len(rows)))]] = True
    return mask


def _check_labels(labels: list[str], found: list[str], place: str) -> None:
    for more, fewer, fact in (
        (found, labels, "does not occur in train"),
        (labels, found, "is missing, and occurs in train"),
    ):
        odd = sorted(set(more) - set(fewer))
        if odd:
            what = f"the label {odd[0]!r} {fact}"
            raise UserError(
                f"{place}: {what} ({', '.join(labels)}); all splits must have the same labels: correct the "
                "files, or change `label`"
            )


def _hub_rows(
    spec: recipe.Rows, columns: list[str], label: str, split: str, place: str
) -> Iterator[tuple[str, ...]]:
    table = readers.hub_table(spec, split, place)
    for column in (*columns, label):
        if column not in table.features:
            raise UserError(
                f"{place}: {spec.dataset}: {unknown_name('column', column, table.features)}; set `columns` "
                "and `label`"
            )
    names = getattr(table.features[label], "names", None)
    for number, row in enumerate(table, 1):
        yield (
            *(readers.normalize(str(row[column])) for column in columns),
            _label_name(row[label], names, f"{place}: row {number:,}"),
        )


def _label_name(value: Any, names: list[str] | None, place: str) -> str:
    """A label as text; a class number by its name."""
    if names is None or value is None:
        return "" if value is None else readers.normalize(str(value))
    if not 0 <= value < len(names):
        raise UserError(
            f"{place} has the label {value}: labels are hidden, as in GLUE's test sets; leave that split out"
        )
    return names[value]


def summary(rows: LabelledRows) -> dict[str, Any]:
    """A split for a run's record: {rows, labels: {label: rows}}."""
    return {"rows": len(rows.labels), "labels": dict(sorted(Counter(rows.labels).items()))}
