"""Rows of k text columns: texts, texts and their translations, labelled texts, or a query and documents, one
that answers it and others that do not; deduplicated, split and kept on disk.

The distinct texts of the first column form a corpus, those of all other columns another one, so that a
teacher embeds a source text once, however many languages it was translated to; row i of the index names its
texts. Held out are texts of the first column, with all that belongs to them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from edgedistill import files, recipe
from edgedistill.data import corpus, deduplicate, file_patterns, input_file, readers
from edgedistill.data.cached_folder import mapped
from edgedistill.data.corpus import Corpus, Making, Table
from edgedistill.data.deduplicate import Row, Spool
from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.reading import Reading
from edgedistill.session import Session

FORMAT = 9  # of what is written
SIDES = ("first", "second")  # folder names
ROLES_OF_SIDES = ("query", "document")
# what a recipe says of rows that is not read here
NOT_READ = {"seed", "licences", "negatives", "exclude", "files", "dev", "dev_rows", "test"}


@dataclass(eq=False)
class Rows:
    """The distinct texts of the first column and of all others, the `sides`, and rows that name one of the
    first and any number of the second; rows 0 … training_count − 1 are for training, the rest are held out.

    `index` (n, k) int64 holds for each row its texts in their sides; `scores` (n, k − 1) float32 those of a
    query's documents, where its table has scores; `labels` (n,) int64 those of labelled texts, in
    `label_names`, numbers by value and words by alphabet. `sources` holds name and number of each source, and
    of `translated` texts their part of the recipe, languages and training pairs.
    """

    sides: list[Corpus]
    index: ndarray
    fingerprint: str
    sources: list[Json]
    training_count: int
    translated: bool = False
    label_names: list[str] = field(default_factory=list)
    scores: ndarray | None = None
    labels: ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    reading: Json = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> Rows:
        """The rows that were written to a folder."""
        meta = files.read_json(folder / "rows.json")
        index = mapped(folder / "index.bin", np.int64).reshape(meta["pairs"], -1)
        sides = [Corpus(folder / name) for name in SIDES[: index.shape[1]]]
        rows = cls(sides, index, meta["fingerprint"], meta["sources"], meta["trained"])
        rows.reading = meta.get("reading", {})
        rows.translated = meta.get("translated", False)
        if labels := meta.get("labels"):
            rows.label_names = labels
            rows.labels = np.fromfile(folder / "labels.bin", np.int64)
        if (folder / "scores.bin").exists():
            rows.scores = np.fromfile(folder / "scores.bin", np.float32).reshape(meta["pairs"], -1)
        return rows

    @classmethod
    def of_texts(cls, texts: Corpus) -> Rows:
        """Rows of one column."""
        index = np.arange(len(texts))[:, None]
        return cls([texts], index, texts.fingerprint, texts.sources, texts.training_count)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def ranked(self) -> bool:
        """Whether a row is a query with documents."""
        return len(self.sides) > 1 and not (self.translated or self.label_names)

    @property
    def roles(self) -> tuple[str, ...]:
        """What the texts of each side are."""
        return ROLES_OF_SIDES if self.ranked else ("text",) * len(self.sides)

    @property
    def held_out(self) -> ndarray:
        """The held-out rows, (n,) int64."""
        return np.arange(self.training_count, len(self))

    @property
    def items(self) -> list[Row]:
        """The texts of every row."""
        columns = [side.texts(column) for side, column in zip(self.sides, self.index.T, strict=True)]
        return list(zip(*columns, strict=True))

    @property
    def label_counts(self) -> dict[str, int]:
        """How many rows have each label that any has."""
        counts = np.bincount(self.labels, minlength=len(self.label_names)).tolist()
        return {name: count for name, count in zip(self.label_names, counts, strict=True) if count}

    def select(self, mask: ndarray) -> Rows:
        """The labelled rows where `mask`, (n,) bool, is true."""
        chosen = np.flatnonzero(mask)
        key = files.cache_key(rows=self.fingerprint, chosen=chosen.tolist())
        index = self.index[chosen]
        labels = self.labels[chosen]
        return replace(self, index=index, labels=labels, fingerprint=key, training_count=len(chosen))

    def training_rows(self, parts: list[str] | None = None) -> ndarray:
        """The `index` rows (m, k) to train on, of those parts of the recipe; None: of all parts."""
        if parts is None:
            return self.index[: self.training_count]
        offsets = accumulate((source["trained"] for source in self.sources), initial=0)
        spans = [
            self.index[start:end]
            for source, (start, end) in zip(self.sources, pairwise(offsets), strict=True)
            if source["part"] in parts
        ]
        return np.concatenate([self.index[:0], *spans])


def build(
    spec: recipe.Rows,
    session: Session,
    seed: int,
    measured: Set[int] = frozenset(),
    exclude: Sequence[str] = (),
    place: str = "rows",
    whole: bool = False,
) -> Rows:
    """Open the rows that a recipe describes at `place`; build them first where the cache has none of the same
    content, options and seed.

    `exclude` holds globs of files beside those of the rows, `measured` the keys of what other sources hold
    out: no row to train on has a text of either. Of queries with documents a row with the query or the
    positive among its other texts is left out too. Rows that are measured are kept `whole`, empty ones and
    duplicates too. Raises UserError: no file matches, a missing column, a score that is no finite number,
    scores that are all the same, a blank label, bytes that are not UTF-8, no row left to train on, queries
    that all have one document.
    """
    if spec.text_columns == 1 and spec.label is None:
        return Rows.of_texts(corpus.build(spec, session, seed, measured, exclude, place))
    tables = tables_of(spec, session.data, place, whole, session.reading)
    making = Making(spec, session, seed, measured, exclude, place, list(tables))

    def write(spool: Spool, folder: Path) -> str:
        kept = np.arange(spool.offsets[-1]) if whole else making.sampled(spool)
        if len(kept) == 0:
            known = "".join(f", {count:,} {reason}" for reason, count in (+spool.left_out).items())
            raise UserError(
                f"{place}: no row is left of {spool.read:,} read{known}; add tables, or check columns "
                "and exclude"
            )
        trained = _write(making, spool, kept, folder, whole)
        return f"{len(kept):,} rows kept, of these {len(kept) - trained:,}"

    rows = Rows.open(making.folder(session.cache / "rows" / making.key(NOT_READ, whole), write, whole))
    session.reading.add(making.files, rows.reading)
    if spec.ranked and len(rows.sides[1]) == 1:
        raise UserError(
            f"{place}: all {len(rows):,} rows have the same document, and there is nothing to "
            "rank; add rows with others"
        )
    return rows


def tables_of(
    spec: recipe.Rows, data: Path | None, place: str, whole: bool = False, reading: Reading | None = None
) -> Iterator[Table]:
    """The tables of a recipe's rows. Their rows are read on demand: texts, then scores or a label. `reading`
    is told of what lies beside them. Raises UserError: no file matches."""
    behind = spec.score_columns if spec.label is None else [spec.label]
    for number, part in enumerate(spec.parts):
        at = f"{place}.tables[{number}]" if spec.tables else place
        key = at if whole else f"{at}.files"
        quality = [] if part.score_column is None else [part.score_column]
        columns = [*part.columns, *behind, *quality]
        if part.dataset is not None:
            content_id = [part.dataset, part.config, part.split, part.revision]
            name = f"{part.dataset}@{part.revision}"
            rows = readers.hub_columns(part, [*map(str, columns)], at, "columns", "")
            yield Table(name, content_id, checked(rows, spec.label, part, name, key), part)
            continue
        for path in file_patterns.matching_files(part.files, data, key, reading):
            rows = readers.columns_in(path, columns, f"{at}.columns")
            yield Table(
                path.name, input_file.content_id(path), checked(rows, spec.label, part, path.name, key), part
            )


def checked(
    rows: Iterator[Row], label: str | None, part: recipe.Table, name: str, place: str
) -> Iterator[Row]:
    """The rows whose quality is high enough, without its cell, the last one; normalized. Raises UserError for
    a blank label, and for a quality that is no number."""
    for number, row in enumerate(rows, 1):
        cells = tuple(map(readers.normalize, row))
        if label is not None and not cells[-1]:
            raise UserError(
                f"{place}: {name}: row {number:,} has a blank {label!r}; give it a label, or remove the row"
            )
        if part.min_score is None:
            yield cells
            continue
        try:
            good = float(cells[-1]) >= part.min_score
        except ValueError:
            raise UserError(
                f"{name}: row {number}: score {cells[-1][:40]!r} is not a number; correct {place} and "
                "its score_column"
            ) from None
        if good:
            yield cells[:-1]


class _Side(NamedTuple):
    """One side of the kept rows: the first column, or all others.

    `rows` (n, m) holds for each row its texts in the corpus of the side; `first` (distinct texts,) holds for
    each text the first cell with it, counted along the rows of `rows`. Texts from `training_count` on are
    held out.
    """

    rows: ndarray
    first: ndarray
    training_count: int


def _write(making: Making, spool: Spool, kept: ndarray, folder: Path, whole: bool) -> int:
    """Write the corpus of each side, then the training rows and those that are held out, with what stands
    behind their texts. Returns how many are to be trained on. kept (n,): the lines of the spool that are the
    rows."""
    spec = making.spec
    keys = None
    digests = _digests(spool, kept, spec.text_columns)
    held = np.zeros(len(kept), bool)
    if spec.held_out or making.measured:
        keys = _digests(spool, kept, spec.text_columns, lambda text: deduplicate.key(text.decode("utf-8")))
        held = _drawn(digests[:, 0], keys[:, 0], making)
        measured = making.measured | set(keys[held, 0].tolist())
        clean = held | ~deduplicate.among(keys, measured).any(1)
        kept, digests, keys, held = (array[clean] for array in (kept, digests, keys, held))
        spool.left_out[deduplicate.MEASURED] += int((~clean).sum())
        if held.all():
            raise UserError(
                f"{making.place}: nothing to train on: all its rows are measured or held out; add others"
            )
    sides = _split(digests, keys, held)
    sources = [{"name": table.name} for table in making.tables]
    for number, side in enumerate(sides):
        cells = np.split(side.first, [side.training_count])
        texts = [_texts(spool, kept, part, side.rows.shape[1], number) for part in cells]
        write_side(folder, number, sources, *texts)
    order = np.argsort(held, kind="stable")
    index = np.concatenate([side.rows for side in sides], 1)[order]
    behind = {}
    names = list[str]()
    if spec.score_columns:
        behind["scores"] = _scores(spool, kept, making)[order]
    if spec.label is not None:
        names, behind["labels"] = _labels(spool, kept)
    counts = spool.counts(kept)
    late = [int(part.sum()) for part in np.split(held, np.cumsum(counts)[:-1])]
    read = sum(table.part.dataset is None for table in making.tables)
    trained = len(kept) - int(held.sum())
    meta = {
        "trained": trained,
        "translated": spec.translated,
        "labels": names,
        "sources": [
            {
                "name": table.name,
                "part": table.part.title,
                "languages": table.part.languages,
                "pairs": count,
                "trained": count - held_out,
            }
            for table, count, held_out in zip(making.tables, counts, late, strict=True)
        ],
        "reading": {"files": read, "rows_left_out": {} if whole else +spool.left_out},
    }
    write_rows(folder, index, meta, **behind)
    return trained


def write_side(
    folder: Path, number: int, sources: list[Json], training: Iterable[str], held_out: Iterable[str] = ()
) -> None:
    """Write the corpus of a side."""
    side = folder / SIDES[number]
    side.mkdir()
    parts = ((text.encode("utf-8", "replace") for text in texts) for texts in (training, held_out))
    files.write_json(side / "corpus.json", {**corpus.write(side, *parts), "sources": sources})


def write_rows(folder: Path, index: ndarray, meta: Json, **behind: ndarray) -> None:
    """Write rows.json, index.bin, and scores.bin or labels.bin, beside the corpora of all sides. `meta` has
    the `sources`."""
    fingerprint = hashlib.sha256()
    for side in SIDES[: index.shape[1]]:
        fingerprint.update(files.read_json(folder / side / "corpus.json")["fingerprint"].encode())
    for name, values in {"index": index, **behind}.items():
        fingerprint.update(content := values.tobytes())
        (folder / f"{name}.bin").write_bytes(content)
    counts = {"format": FORMAT, "pairs": len(index), "trained": len(index)}
    files.write_json(folder / "rows.json", {**counts, "fingerprint": fingerprint.hexdigest(), **meta})


def write_items(folder: Path, items: list[Row], labels: ndarray, meta: Json) -> None:
    """Write labelled rows that are in memory; `meta` has the `sources` and the `labels` by name."""
    columns = list(zip(*items, strict=True))
    index = np.empty((len(items), len(columns)), np.int64)
    for number, texts in enumerate(columns):
        numbers = {text: at for at, text in enumerate(dict.fromkeys(texts))}
        index[:, number] = [numbers[text] for text in texts]
        write_side(folder, number, meta["sources"], numbers)
    write_rows(folder, index, meta, labels=labels)


def _texts(spool: Spool, kept: ndarray, cells: ndarray, width: int, side: int) -> Iterator[str]:
    """The texts of these cells of a side, (k,) ascending, of which each row has `width`."""
    lines = spool.lines(kept[np.unique(cells // width)])
    rows = groupby(cells.tolist(), lambda cell: cell // width)
    for line, (_, cells_of_row) in zip(lines, rows, strict=True):
        texts = line.split(b"\t")
        for cell in cells_of_row:
            yield texts[cell % width + side].decode("utf-8")


def _digest(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _digests(spool: Spool, kept: ndarray, columns: int, digest: Callable[[bytes], int] = _digest) -> ndarray:
    """A digest of each text of the kept rows, which so many cells are: (n, columns) uint64."""
    digests = array("Q")
    for line in spool.lines(kept):
        digests.extend(map(digest, line.split(b"\t")[:columns]))
    return np.array(digests, np.uint64).reshape(-1, columns)


def _labels(spool: Spool, kept: ndarray) -> tuple[list[str], ndarray]:
    """(the labels at the ends of the kept rows by name, in order; that of each row, (n,) int64)."""
    cells = [line.rpartition(b"\t")[2].decode("utf-8") for line in spool.lines(kept)]
    names = in_order(set(cells))
    return names, np.array([*map(names.index, cells)], np.int64)


def in_order(labels: Set[str]) -> list[str]:
    """Labels in order: numbers by value, words by alphabet; so are a classifier's outputs."""
    try:
        return sorted(sorted(labels), key=int)
    except ValueError:
        return sorted(labels)


def _scores(spool: Spool, kept: ndarray, making: Making) -> ndarray:
    """The scores at the ends of the kept rows, (n, m) float32. Raises UserError for one that is no finite
    number, and where all are the same."""
    scores = np.empty((len(kept), len(making.spec.score_columns)), np.float32)
    place = f"{making.place}.scores"
    for number, line in enumerate(spool.lines(kept)):
        cells = line.decode("utf-8").split("\t")[making.spec.text_columns :]
        written = ", ".join(cells)[:60]
        try:
            scores[number] = [float(cell) for cell in cells]
        except ValueError:
            raise UserError(f"{place}: {written!r} are not all numbers; correct them") from None
        if not np.isfinite(scores[number]).all():
            raise UserError(f"{place}: the scores {written!r} are not all finite; correct them")
    if np.ptp(scores) == 0:
        raise UserError(f"{place}: all scores are {scores.flat[0]:g}, and rank nothing; name other columns")
    return scores


def _drawn(digests: ndarray, keys: ndarray, making: Making) -> ndarray:
    """Draw the held-out texts of the first column, (n,) digests and keys. Texts that only letters tell apart
    go together. Returns which rows have one, (n,) bool."""
    _, first, text_of = np.unique(digests, return_index=True, return_inverse=True)
    _, text, group_of = np.unique(keys[first], return_index=True, return_inverse=True)
    count = making.spec.held_out
    place = making.place
    if len(text) <= count:
        raise UserError(
            f"{place}: nothing to train on: {len(text):,} source texts are left, {count:,} are to "
            f"be held out; add rows, or lower {place}.held_out"
        )
    drawn = np.random.default_rng(making.seed).choice(len(text), count, replace=False, shuffle=False)
    number = np.argsort(np.argsort(text))  # of a group among all, by its first text
    return np.asarray(np.isin(number[group_of], drawn)[text_of])


def _split(digests: ndarray, keys: ndarray | None, held: ndarray) -> list[_Side]:
    """Number the texts of the sides of rows of which these are `held` out, (n,) bool.

    digests (n, k); keys alike, None where nothing is held out. A text of the second side is for training
    where any training row has it.
    """
    _, first, text_of = np.unique(digests[:, 0], return_index=True, return_inverse=True)
    sides = [_numbered(first, text_of[:, None], held[first])]
    others = digests[:, 1:]
    if others.size:
        _, first, text_of = np.unique(others, return_index=True, return_inverse=True)
        late = np.zeros(len(first), bool)
        if keys is not None:
            late = ~np.isin(keys[:, 1:].ravel()[first], keys[~held, 1:])
        sides.append(_numbered(first, text_of.reshape(others.shape), late))
    return sides


def _numbered(first: ndarray, text_of: ndarray, late: ndarray) -> _Side:
    """Number the distinct texts by their first cells, those marked `late` (held out) after all others."""
    order = np.lexsort((first, late))
    rows = np.empty_like(order)
    rows[order] = np.arange(len(order))
    return _Side(rows[text_of], first[order], len(late) - int(late.sum()))
