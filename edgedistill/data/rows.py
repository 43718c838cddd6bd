"""Rows of k text columns: texts, texts and their translations, or a query and documents, one that answers it
and others that do not; deduplicated, split and kept on disk.

The distinct texts of the first column form a corpus, those of all other columns another one, so that a
teacher embeds a source text once, however many languages it was translated to; row i of the index names its
texts. Held out are texts of the first column, with all that belongs to them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import files, recipe
from edgedistill.data import corpus, deduplicate, file_patterns, input_file, readers
from edgedistill.data.cached_folder import cached_folder, mapped
from edgedistill.data.corpus import Corpus
from edgedistill.data.deduplicate import Row, Spool
from edgedistill.errors import UserError, counted
from edgedistill.session import Session

FORMAT = 6  # part of every cache key: raise it when what is written changes
SIDES = ("first", "second")  # folder names
ROLES_OF_SIDES = ("query", "document")
# what a recipe says of rows that is not read here
NOT_READ = {"seed", "licences", "cross_encoder", "negatives", "exclude", "files"}


class Rows:
    """The distinct texts of the first column and of all others, the `sides`, and rows that name one of the
    first and any number of the second; rows 0 … training_count − 1 are for training, the rest are held out.

    `index` (n, k) int64 holds for each row its texts in their sides; `scores` (n, k − 1) float32 those of a
    query's documents, where its table has scores. `sources` holds name and number of each source, and of
    `translated` texts their part of the recipe, languages and training pairs.
    """

    def __init__(self, sides: list[Corpus], index: np.ndarray, meta: dict[str, Any]) -> None:
        self.sides, self.index = sides, index
        self.fingerprint: str = meta["fingerprint"]
        self.sources: list[dict[str, Any]] = meta["sources"]
        self.training_count: int = meta["trained"]
        self.translated: bool = meta.get("translated", False)
        self.scores: np.ndarray | None = None

    @classmethod
    def open(cls, folder: Path) -> Rows:
        """The rows that were written to a folder."""
        meta = files.read_json(folder / "rows.json")
        index = mapped(folder / "index.bin", np.int64).reshape(meta["pairs"], -1)
        rows = cls([Corpus(folder / name) for name in SIDES], index, meta)
        if (folder / "scores.bin").exists():
            rows.scores = np.fromfile(folder / "scores.bin", np.float32).reshape(meta["pairs"], -1)
        return rows

    @classmethod
    def of_texts(cls, texts: Corpus) -> Rows:
        """Rows of one column."""
        index = np.arange(len(texts))[:, None]
        counts = {"trained": texts.training_count, "sources": texts.sources}
        return cls([texts], index, {"fingerprint": texts.fingerprint, **counts})

    def __len__(self) -> int:
        return len(self.index)

    @property
    def ranked(self) -> bool:
        """Whether a row is a query with documents."""
        return len(self.sides) > 1 and not self.translated

    @property
    def roles(self) -> tuple[str, ...]:
        """What the texts of each side are."""
        return ROLES_OF_SIDES if self.ranked else ("text",) * len(self.sides)

    @property
    def held_out(self) -> np.ndarray:
        """The held-out rows, (n,) int64."""
        return np.arange(self.training_count, len(self))

    def training_rows(self, parts: list[str] | None = None) -> np.ndarray:
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


class Table(NamedTuple):
    """A file or a hub data set of rows with columns. `part` is the one of the recipe's tables that it belongs
    to, `content_id` identifies the content."""

    name: str
    content_id: Any
    rows: Iterator[Row]
    part: recipe.Table


class _Made(NamedTuple):
    """What rows are made of, as the recipe describes them at `place`."""

    spec: recipe.Rows
    place: str
    tables: list[Table]
    excluded: list[Path]
    usable: Callable[[Row], bool]
    left_out: Counter[str]  # rows that are not usable, by why
    measured: Set[int]  # keys of what other sources hold out, which this one does not train on

    @property
    def scores(self) -> int:
        """How many cells at the end of a row are no texts but the scores of its documents."""
        return len(self.spec.scores)


def build(
    spec: recipe.Rows,
    session: Session,
    seed: int,
    measured: Set[int] = frozenset(),
    exclude: Sequence[str] = (),
    place: str = "rows",
) -> Rows:
    """Open the rows that a recipe describes at `place`; build them first where the cache has none of the same
    content, options and seed.

    `exclude` holds globs of files beside those of the rows, `measured` the keys of what other sources hold
    out: no row to train on has a text of either. Of queries with documents a row with the query or the
    positive among its other texts is left out too. Raises UserError: no file matches, a missing column, a
    score that is no finite number, scores that are all the same, bytes that are not UTF-8, no row left to
    train on, queries that all have one document.
    """
    if spec.text_columns == 1:
        return Rows.of_texts(corpus.build(spec, session, seed, measured, exclude, place))
    seed = seed if spec.seed is None else spec.seed
    left_out = Counter[str]()
    tables = [table for number in range(len(spec.parts)) for table in _tables(spec, number, session, place)]
    excluded = file_patterns.matching_files(
        [*spec.exclude, *exclude], session.data, f"{place}.exclude", session.reading
    )
    found = _cached(
        _Made(spec, place, tables, excluded, _usable(spec, left_out), left_out, measured), session, seed
    )
    session.reading.add(found.fingerprint, {"files": sum(table.part.dataset is None for table in tables)})
    for reason, count in left_out.items():
        session.log(f"{place}: {count:,} rows {reason} are left out")
    if spec.ranked and len(found.sides[1]) == 1:
        fact = f"all {len(found):,} rows have the same document"
        raise UserError(f"{place}: {fact}, and there is nothing to rank; add rows with others")
    return found


def _usable(spec: recipe.Rows, left_out: Counter[str]) -> Callable[[Row], bool]:
    """Whether a row can be trained on; `left_out` counts why not."""
    longest = recipe.LONGEST_TRANSLATION if spec.translated else readers.MAX_TEXT_CHARACTERS
    most_chars, most_words = spec.max_chars or longest, spec.max_words or readers.MAX_TEXT_CHARACTERS
    texts = spec.text_columns

    def fits(text: str) -> bool:
        return len(text) <= most_chars and spec.min_words <= text.count(" ") + 1 <= most_words

    def reason(row: Row) -> str | None:
        if not all(row):
            return "with an empty text"
        if not all(map(fits, row[:texts])):
            return "with a text that is too short or too long"
        if not spec.ranked:
            return None
        query, positive, *others = (text.casefold() for text in row[:texts])
        if query in (positive, *others):
            return "whose query is one of its documents"
        return "whose positive is one of its negatives" if positive in others else None

    def usable(row: Row) -> bool:
        found = reason(row)
        left_out.update([found] if found else [])
        return found is None

    return usable


def _cached(rows: _Made, session: Session, seed: int) -> Rows:
    """These rows, from the cache where it has them."""
    spec = rows.spec
    content = [
        [table.content_id for table in rows.tables],
        [input_file.content_id(path) for path in rows.excluded],
    ]
    read = spec.model_dump(mode="json", exclude=NOT_READ, exclude_defaults=True)
    made_of = {"spec": read, "seed": seed, "made_of": content, "measured": sorted(rows.measured)}
    folder = session.cache / "rows" / files.cache_key(format=FORMAT, **made_of)

    def write(temporary: Path) -> None:
        session.log(f"reading rows from {counted(len(rows.tables), 'table')}")
        excluded = deduplicate.excluded_keys(rows.excluded)
        read = (table.rows for table in rows.tables)
        spool = deduplicate.gather(read, rows.usable, excluded, temporary / "spool")
        names = [table.name for table in rows.tables]
        most = [table.part.limit_per_file or spec.limit_per_file for table in rows.tables]
        kept = spool.sample(corpus.limits(spec, rows.place, names, most), spec.limit)
        if len(kept) == 0:
            reasons = rows.left_out + Counter({"with an excluded text": spool.leaked})
            known = "".join(f", {count:,} {reason}" for reason, count in reasons.items())
            fact = f"no row is left of {spool.read:,} read{known}"
            raise UserError(f"{rows.place}: {fact}; add tables, or check columns and exclude")
        meta = _write(rows, spool, kept, seed, temporary)
        spool.path.unlink()
        files.write_json(temporary / "rows.json", meta)
        session.log(
            f"{meta['pairs']:,} of {spool.read:,} rows kept, "
            f"{meta['leaked']:,} excluded, {meta['pairs'] - meta['trained']:,} held out"
        )

    return Rows.open(cached_folder(folder, write, session.log))


def _tables(spec: recipe.Rows, number: int, session: Session, place: str) -> Iterator[Table]:
    """The tables of one part of a recipe's rows; their rows, the scores last, are read on demand. The
    session's reading is told of what lies beside them. Raises UserError: no file matches."""
    part = spec.parts[number]
    at = f"{place}.tables[{number}]" if spec.tables else place
    quality = [] if part.score_column is None else [part.score_column]
    columns = [*part.columns, *spec.scores, *quality]
    if part.dataset is not None:
        names = [str(column) for column in columns]
        rows = readers.hub_columns(part, names, f"{at}.dataset", f"{at}.columns", "")
        content_id = [part.dataset, part.config, part.split, part.revision]
        name = f"{part.dataset}@{part.revision}"
        yield Table(name, content_id, _well_scored(rows, part, name, at), part)
    for path in file_patterns.matching_files(part.files, session.data, f"{at}.files", session.reading):
        rows = readers.columns_in(path, columns, f"{at}.columns")
        yield Table(path.name, input_file.content_id(path), _well_scored(rows, part, path.name, at), part)


def _well_scored(rows: Iterator[Row], part: recipe.Table, name: str, place: str) -> Iterator[Row]:
    """The rows whose quality is high enough, without its cell, the last one; normalized."""
    for number, row in enumerate(rows, 1):
        cells = tuple(map(readers.normalize, row))
        if part.min_score is None:
            yield cells
            continue
        try:
            good = float(cells[-1]) >= part.min_score
        except ValueError:
            fact = f"row {number}: score {cells[-1][:40]!r} is not a number"
            raise UserError(f"{name}: {fact}; correct {place}.score_column") from None
        if good:
            yield cells[:-1]


class _Side(NamedTuple):
    """One side of the kept rows: the first column, or all others.

    `rows` (n, m) holds for each row its texts in the corpus of the side; `first` (distinct texts,) holds for
    each text the first cell with it, counted along the rows of `rows`. Texts from `training_count` on are
    held out.
    """

    rows: np.ndarray
    first: np.ndarray
    training_count: int


def _write(rows: _Made, spool: Spool, kept: np.ndarray, seed: int, folder: Path) -> dict[str, Any]:
    """Write the corpus of each side, index.bin with the training rows first, and scores.bin. Returns the
    content of rows.json. kept (n,): the lines of the spool that are the rows."""
    digests, held, keys = _digests(spool, kept, rows.scores), np.zeros(len(kept), bool), None
    leaked = spool.leaked
    if rows.spec.held_out or rows.measured:
        keys = _digests(spool, kept, rows.scores, lambda text: deduplicate.key(text.decode("utf-8")))
        held = _drawn(digests[:, 0], keys[:, 0], rows, seed)
        measured = rows.measured | set(keys[held, 0].tolist())
        clean = held | ~deduplicate.among(keys, measured).any(1)
        kept, digests, keys, held = (each[clean] for each in (kept, digests, keys, held))
        leaked += int((~clean).sum())
        if held.all():
            raise UserError(f"{rows.place}: nothing to train on: all its rows are held out; add others")
    sides = _split(digests, keys, held)
    sources = [{"name": table.name} for table in rows.tables]
    for number, side in enumerate(sides):
        own = folder / SIDES[number]
        own.mkdir()
        cells = np.split(side.first, [side.training_count])
        texts = chain.from_iterable(_texts(spool, kept, part, side.rows.shape[1], number) for part in cells)
        corpus.write(own, texts, side.training_count, sources)
    order = np.argsort(held, kind="stable")
    index = np.concatenate([side.rows for side in sides], 1)[order]
    fingerprint = write_rows(folder, index, _scores(spool, kept, rows)[order] if rows.scores else None)
    counts = spool.counts(kept)
    late = [int(part.sum()) for part in np.split(held, np.cumsum(counts)[:-1])]
    return {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "read": spool.read,
        "leaked": leaked,
        "pairs": len(kept),
        "trained": len(kept) - int(held.sum()),
        "translated": rows.spec.translated,
        "sources": [
            {
                "name": table.name,
                "part": table.part.title,
                "languages": table.part.languages,
                "pairs": count,
                "trained": count - held,
            }
            for table, count, held in zip(rows.tables, counts, late, strict=True)
        ],
    }


def write_rows(folder: Path, index: np.ndarray, scores: np.ndarray | None = None) -> str:
    """Write index.bin and scores.bin beside the corpora of both sides. Returns the fingerprint of all."""
    fingerprint = hashlib.sha256()
    for side in SIDES:
        fingerprint.update(files.read_json(folder / side / "corpus.json")["fingerprint"].encode())
    for name, values in (("index.bin", index), ("scores.bin", scores)):
        if values is not None:
            fingerprint.update(content := values.tobytes())
            (folder / name).write_bytes(content)
    return fingerprint.hexdigest()


def _texts(spool: Spool, kept: np.ndarray, cells: np.ndarray, width: int, side: int) -> Iterator[str]:
    """The texts of these cells of a side, (k,) ascending, of which each row has `width`."""
    rows, counts = np.unique(cells // width, return_counts=True)
    columns = iter((cells % width + side).tolist())
    for line, count in zip(spool.lines(kept[rows]), counts.tolist(), strict=True):
        texts = line.split(b"\t")
        yield from (texts[column].decode("utf-8") for column in islice(columns, count))


def _digest(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _digests(
    spool: Spool, kept: np.ndarray, scores: int, digest: Callable[[bytes], int] = _digest
) -> np.ndarray:
    """A digest of each text of the kept rows: (n, columns) uint64, without the scores at their ends."""
    found, columns = array("Q"), 0
    for line in spool.lines(kept):
        texts = line.split(b"\t")
        columns = len(texts) - scores
        found.extend(map(digest, texts[:columns]))
    return np.array(found, np.uint64).reshape(-1, columns)


def _scores(spool: Spool, kept: np.ndarray, rows: _Made) -> np.ndarray:
    """The scores at the ends of the kept rows, (n, m) float32. Raises UserError for one that is no finite
    number, and where all are the same."""
    cells = [line.decode("utf-8").split("\t")[-rows.scores :] for line in spool.lines(kept)]
    place = f"{rows.place}.scores"
    found = np.empty((len(cells), rows.scores), np.float32)
    for number, row in enumerate(cells):
        try:
            found[number] = [float(cell) for cell in row]
        except ValueError:
            raise UserError(f"{place}: {', '.join(row)[:60]!r} are not all numbers; correct them") from None
        if not np.isfinite(found[number]).all():
            raise UserError(f"{place}: the scores {', '.join(row)[:60]!r} are not all finite; correct them")
    if np.ptp(found) == 0:
        raise UserError(f"{place}: all scores are {found.flat[0]:g}, and rank nothing; name other columns")
    return found


def _drawn(digests: np.ndarray, keys: np.ndarray, rows: _Made, seed: int) -> np.ndarray:
    """Draw the held-out texts of the first column, (n,) digests and keys. Texts that only letters tell apart
    go together. Returns which rows have one, (n,) bool."""
    _, first, text_of = np.unique(digests, return_index=True, return_inverse=True)
    _, text, group_of = np.unique(keys[first], return_index=True, return_inverse=True)
    if len(text) <= rows.spec.held_out:
        fact = f"{len(text):,} source texts are left, {rows.spec.held_out:,} are to be held out"
        raise UserError(
            f"{rows.place}: nothing to train on: {fact}; add rows, or lower {rows.place}.held_out"
        )
    drawn = np.random.default_rng(seed).choice(len(text), rows.spec.held_out, replace=False, shuffle=False)
    number = np.argsort(np.argsort(text))  # of a group among all, by its first text
    return np.asarray(np.isin(number[group_of], drawn)[text_of])


def _split(digests: np.ndarray, keys: np.ndarray | None, held: np.ndarray) -> list[_Side]:
    """Number the texts of both sides of rows of which these are `held` out, (n,) bool.

    digests (n, 1 + m); keys alike, None where nothing is held out. A text of the second side is for training
    where any training row has it.
    """
    _, first, text_of = np.unique(digests[:, 0], return_index=True, return_inverse=True)
    one_side = _numbered(first, text_of[:, None], held[first])
    _, first, text_of = np.unique(digests[:, 1:].ravel(), return_index=True, return_inverse=True)
    late = np.zeros(len(first), bool)
    if keys is not None:
        late = ~np.isin(keys[:, 1:].ravel()[first], keys[~held, 1:])
    return [one_side, _numbered(first, text_of.reshape(len(digests), -1), late)]


def _numbered(first: np.ndarray, text_of: np.ndarray, late: np.ndarray) -> _Side:
    """Number the distinct texts by their first cells, those marked `late` (held out) after all others."""
    order = np.lexsort((first, late))
    rows = np.empty_like(order)
    rows[order] = np.arange(len(order))
    return _Side(rows[text_of], first[order], len(late) - int(late.sum()))
