"""Labelled tasks: rows of a text or of two with a label each, checked split against split, and sampled by
label; and a rule-augmented transfer set, new texts made from a task's own, for its teacher to label (Tang et
al. 2019; the TS of SRA)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from edgedistill import files, recipe
from edgedistill.data import added_texts, deduplicate, readers, rows
from edgedistill.data.cached_folder import cached_folder
from edgedistill.data.deduplicate import Row
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.reading import Reading
from edgedistill.recipe import Augment, Table
from edgedistill.session import Session

ROUNDS = {1: 20, 2: 10}  # passes over texts, over pairs: d-bert's n_iter
LONGEST_NGRAM = 5


class LabelledTask(NamedTuple):
    """A whole task, whose splits have the same labels."""

    train: Rows
    dev: Rows
    test: Rows | None

    @property
    def labels(self) -> list[str]:
        """By name, in the order of a classifier's outputs."""
        return self.train.label_names

    @property
    def pair(self) -> bool:
        """Whether a label is of two texts."""
        return len(self.train.sides) == 2


def open_task(
    spec: recipe.Rows,
    session: Session,
    seed: int,
    fraction: float,
    place: str,
    measured: Set[int] = frozenset(),
) -> LabelledTask:
    """Open a task's splits, see `measured_splits`, and sample a fraction of its training rows. Training rows
    are distinct, and none is a text or a pair of dev or test or has a key in `measured`. Pairs may share one
    of their texts with others.

    Raises UserError, which names the recipe key `place`, where there is no such file or column, where a label
    is blank, where there is one label only, where the splits' labels differ, and where rows are too few.
    """
    splits = measured_splits(spec, session, seed, place)
    train = rows.build(spec, session, seed, measured | _keys(splits), place=place)
    _check_several(train.label_counts, f"{place}.files")
    for name, split in {"files": train, **splits}.items():
        _check_same(train.label_names, split, f"{place}.{name}")
    if fraction < 1:
        train = train.select(stratified_mask(train.labels, fraction, seed))
    return LabelledTask(train, splits["dev"], splits.get("test"))


def measured_splits(spec: recipe.Rows, session: Session, seed: int, place: str) -> dict[str, Rows]:
    """The rows of a task that are measured: dev and test, whole; or dev rows that are set aside where it has
    no dev split. Raises UserError as `open_task`."""
    splits = {
        name: rows.build(spec.of_split(name), session, seed, place=f"{place}.{name}", whole=True)
        for name in ("dev", "test")
        if getattr(spec, name) is not None
    }
    if spec.dev_rows is not None:
        uncounted = replace(session, reading=Reading())  # `open_task` reads the rows again
        train = rows.build(spec, uncounted, seed, _keys(splits), place=place)
        _check_several(train.label_counts, f"{place}.files")
        if spec.dev_rows >= len(train):
            raise UserError(
                f"{place}.dev_rows: {spec.dev_rows:,} of {len(train):,} rows leave none to train on; lower it"
            )
        splits["dev"] = train.select(stratified_mask(train.labels, spec.dev_rows / len(train), seed))
    return splits


def _keys(splits: Mapping[str, Rows]) -> set[int]:
    """The keys of what a task measures: of texts and their sentences, or of whole pairs."""
    texts = [" ".join(item) for split in splits.values() for item in split.items]
    pairs = any(len(split.sides) > 1 for split in splits.values())
    return set(map(deduplicate.key, texts)) if pairs else added_texts.measured(texts)


class LabelledRows(NamedTuple):
    """Rows in memory, to measure on: texts or pairs, and their labels."""

    items: list[Row]
    labels: list[str]


def read_test(spec: recipe.Rows, data: Path | None, place: str) -> LabelledRows:
    """The test rows that a recipe names, normalized. Raises UserError: no row, a blank label, no such file or
    column."""
    tables = rows.tables_of(spec.of_split("test"), data, f"{place}.test", whole=True)
    return _in_memory((cells for table in tables for cells in table.rows), f"{place}.test")


def read_table(path: Path, texts: list[str], label: str, place: str) -> LabelledRows:
    """The rows of one table file by the names of its columns. Raises UserError as `read_test`."""
    cells = readers.columns_in(path, (*texts, label), f"{place}.columns and .label")
    checked = rows.checked(cells, label, Table(), path.name, place)
    return _in_memory(checked, f"{place}: {path.name}")


def _in_memory(cells: Iterable[Row], place: str) -> LabelledRows:
    *columns, labels = list(zip(*cells, strict=True)) or [(), ()]
    if not labels:
        raise UserError(f"{place}: no rows; give the whole set")
    return LabelledRows(list(zip(*columns, strict=True)), [*labels])


def ordered_labels(labels: Iterable[str], place: str) -> list[str]:
    """The distinct labels, numbers by value, words by alphabet.

    Raises UserError for a single label, and for more distinct labels than half the rows.
    """
    counts = Counter(labels)
    _check_several(counts, place)
    return rows.in_order(set(counts))


def stratified_mask(labels: ndarray, fraction: float, seed: int) -> ndarray:
    """Draw a fraction of the rows of each label, at least one: (n,) bool. With one seed, a smaller fraction
    lies in a larger one."""
    random = np.random.default_rng([seed, 2_002])
    mask = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        mask[rows[: max(1, round(fraction * len(rows)))]] = True
    return mask


def _check_several(counts: Mapping[str, int], place: str) -> None:
    total = sum(counts.values())
    if len(counts) < 2:
        raise UserError(
            f"{place}: all {total:,} rows have the label {next(iter(counts))!r}, and a classifier "
            "needs two; give the whole set"
        )
    if 2 * len(counts) > total:
        raise UserError(
            f"{place}: {len(counts):,} different labels in {total:,} rows; name the column of the "
            "labels with `label`"
        )


def _check_same(labels: list[str], split: Rows, place: str) -> None:
    for more, fewer, fact in (
        (split.label_counts, labels, "does not occur in train"),
        (labels, split.label_counts, "is missing, and occurs in train"),
    ):
        if odd := sorted({*more} - {*fewer}):
            raise UserError(
                f"{place}: the label {odd[0]!r} {fact} ({', '.join(labels)}); all splits must have "
                "the same labels: correct the files, or change `label`"
            )


def most_rows(spec: Augment, task: Rows) -> int:
    """The most rows that a task's own and its transfer set can be together."""
    return max(len(task), min(spec.limit, len(task) * (1 + ROUNDS[len(task.sides)])))


def augmented(spec: Augment, task: Rows, mask: str, seed: int, session: Session, place: str) -> Rows:
    """A task's rows with their labels, then those of its transfer set, which have none; from the cache where
    it has them."""
    made_of = {"task": task.fingerprint, "mask": mask, "seed": seed, "how": spec.model_dump()}

    def write(folder: Path) -> None:
        items = task.items
        items += transfer_set(spec, items, mask, seed)
        rows.write_items(folder, items, task.labels, {"sources": task.sources, "labels": task.label_names})

    folder = session.cache / "rows" / files.cache_key(format=rows.FORMAT, **made_of)
    whole = Rows.open(cached_folder(folder, write, session.log))
    session.log(f"{place}: {len(whole) - len(task):,} new items from {len(task):,}")
    return whole


def transfer_set(spec: Augment, items: list[Row], mask: str, seed: int) -> list[Row]:
    """New texts or pairs made from `items`: no duplicates, none of `items`, at most `limit` with those. Rows
    are edited round by round.

    A pure function of its arguments. A third of the edits of pairs change the first text, a third the second,
    a third both. A text of which no word remains is dropped, and so is a pair with such a text.
    """
    rows = [[text.split() for text in item] for item in items]
    seen = set(items)
    out: list[Row] = []
    for number in range(ROUNDS[len(items[0])]):
        for row, texts in enumerate(rows):
            if len(items) + len(out) >= spec.limit:
                return out
            draw = np.random.default_rng([seed, number, row])
            which = range(len(texts)) if len(texts) == 1 else ((0,), (1,), (0, 1))[int(draw.integers(3))]
            edits: list[str | None] = [" ".join(text) for text in texts]
            for at in which:
                edits[at] = edited(spec, texts[at], mask, draw)
            item = tuple(text for text in edits if text is not None)
            if len(item) == len(texts) and item not in seen:
                seen.add(item)
                out.append(item)
    return out


def edited(spec: Augment, words: list[str], mask: str, draw: np.random.Generator) -> str | None:
    """One text edited: each word masked or left, then perhaps an n-gram of it; None where no word remains."""
    masked = draw.random(len(words)) < spec.mask
    out = [mask if hidden else word for word, hidden in zip(words, masked, strict=True)]
    kept = slice(None)
    if draw.random() < spec.ngram:
        size = min(len(out), int(draw.integers(1, LONGEST_NGRAM + 1)))
        start = int(draw.integers(len(out) - size + 1))
        kept = slice(start, start + size)
    return None if masked[kept].all() else " ".join(out[kept])
