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
from collections.abc import Callable, Iterator, Set
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

FORMAT = 5  # part of every cache key: raise it when what is written changes
SIDES = ("first", "second")  # folder names
ROLES_OF_SIDES = ("query", "document")


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
        meta = files.read_json(folder / "parallel.json")
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
    def roles(self) -> tuple[str, ...]:
        """What the texts of each side are."""
        alike = self.translated or len(self.sides) == 1
        return ("text",) * len(self.sides) if alike else ROLES_OF_SIDES

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
    """A file or a hub data set of pairs or tuples. `part` and `languages` are those of pairs; `content_id`
    identifies the content; at most `limit` rows are kept."""

    name: str
    content_id: Any
    rows: Iterator[Row]
    limit: int | None = None
    part: str = ""
    languages: tuple[str, str] = ("", "")


class _Made(NamedTuple):
    """What a parallel corpus is made of, as the recipe describes it at `place`; `what` is the word for a
    row."""

    what: str
    place: str
    tables: list[Table]
    excluded: list[Path]
    usable: Callable[[Row], bool]
    left_out: Counter[str]  # rows that are not usable, by why, where that is known
    limit: int | None
    held_out: int = 0
    measured: Set[int] = frozenset()  # keys of what other sources hold out, which this one does not train on
    scores: int = 0  # how many cells at the end of a row are no texts but the scores of its documents


def build(spec: recipe.Corpus, session: Session, seed: int, measured: Set[int] = frozenset()) -> Rows:
    """Open the texts or the pairs that a recipe describes, see `corpus.build` and `build_pairs`."""
    if isinstance(spec, recipe.Parallel):
        return build_pairs(spec, session, seed, measured)
    return Rows.of_texts(corpus.build(spec, session, seed, measured))


def build_pairs(spec: recipe.Parallel, session: Session, seed: int, measured: Set[int] = frozenset()) -> Rows:
    """Open the pairs that a recipe describes; build them first where the cache has none of the same content,
    options and seed. No row to train on has a text whose key is `measured`.

    Raises UserError: no file matches, a missing column, a score that is no number, bytes that are not UTF-8,
    nothing left to train on.
    """

    def usable(pair: Row) -> bool:
        return all(
            text and len(text) <= spec.max_chars and text.count(" ") + 1 >= spec.min_words for text in pair
        )

    seed = seed if spec.seed is None else spec.seed
    entries = range(len(spec.pairs))
    tables = [table for entry in entries for table in _pair_tables(spec, entry, session.data)]
    excluded = file_patterns.matching_files(spec.exclude, session.data, "corpus.exclude")
    rows = _Made("pair", "corpus", tables, excluded, usable, Counter(), spec.limit, spec.held_out, measured)
    options = {"spec": spec.model_dump(mode="json", exclude={"seed", "licences"})}
    return _cached(rows, options, session, seed)


def build_tuples(
    spec: recipe.TupleFiles | recipe.TupleHub,
    exclude: list[str],
    session: Session,
    place: str,
    seed: int,
    measured: Set[int] = frozenset(),
) -> Rows:
    """Open the tuples that a stage's table holds; build them first where the cache has none of the same
    content, options and seed.

    `exclude` holds globs of files whose texts must not be trained on, `measured` the keys of what other
    sources hold out: a tuple with one of them is left out,
    and so is one with an empty text, or with the query or the positive among its other texts. The recipe
    names the tuples at `place`. Raises UserError: no file matches, a missing column, no tuple is left, all
    have one document, a score that is no finite number, scores that are all the same.
    """
    scores, texts = spec.scores.columns or [], len(spec.columns)
    left_out = Counter[str]()

    def usable(row: Row) -> bool:
        query, positive, *others = (text.casefold() for text in row[:texts])
        reasons = {
            "with an empty text": not all(row),
            "whose query is one of its documents": query in (positive, *others),
            "whose positive is one of its negatives": positive in others,
        }
        reason = next((each for each, holds in reasons.items() if holds), None)
        left_out.update([reason] if reason else [])
        return reason is None

    tables = _tuple_tables(spec, [*spec.columns, *scores], session.data, place)
    excluded = file_patterns.matching_files(exclude, session.data, "corpus.exclude")
    sizes = spec.limit, spec.held_out, measured, len(scores)
    rows = _Made("tuple", place, tables, excluded, usable, left_out, *sizes)
    read = {"kind", "columns", "limit", "held_out", "dataset", "config", "split", "revision"}
    options = {"spec": spec.model_dump(mode="json", include=read), "scores": scores}
    found = _cached(rows, options, session, seed)
    for reason, count in left_out.items():
        session.log(f"{place}: {count:,} tuples {reason} are left out")
    if len(found.sides[1]) == 1:
        fact = f"all {len(found):,} tuples have the same document"
        raise UserError(f"{place}: {fact}, and there is nothing to rank; add tuples with others")
    return found


def _cached(rows: _Made, options: dict[str, Any], session: Session, seed: int) -> Rows:
    """The corpus of these rows. `options` are the part of the cache's key that the recipe decides."""
    content = [
        [table.content_id for table in rows.tables],
        [input_file.content_id(path) for path in rows.excluded],
    ]
    made_of = {**options, "seed": seed, "made_of": content, "measured": sorted(rows.measured)}
    folder = session.cache / "parallel" / files.cache_key(format=FORMAT, **made_of)

    def write(temporary: Path) -> None:
        session.log(f"reading {rows.what}s from {counted(len(rows.tables), 'table')}")
        excluded = deduplicate.excluded_keys(rows.excluded)
        read = (table.rows for table in rows.tables)
        spool = deduplicate.gather(read, rows.usable, excluded, temporary / "spool")
        kept = spool.sample([table.limit for table in rows.tables], rows.limit)
        if len(kept) == 0:
            reasons = rows.left_out + Counter({"with an excluded text": spool.leaked})
            known = "".join(f", {count:,} {reason}" for reason, count in reasons.items())
            fact = f"no {rows.what} is left of {spool.read:,} read{known}"
            raise UserError(f"{rows.place}: {fact}; add tables, or check columns and corpus.exclude")
        meta = _write(rows, spool, kept, seed, temporary)
        spool.path.unlink()
        files.write_json(temporary / "parallel.json", meta)
        session.log(
            f"{meta['pairs']:,} of {spool.read:,} {rows.what}s kept, "
            f"{meta['leaked']:,} excluded, {meta['pairs'] - meta['trained']:,} held out"
        )

    return Rows.open(cached_folder(folder, write, session.log))


def _pair_tables(spec: recipe.Parallel, number: int, data: Path | None) -> Iterator[Table]:
    """The tables of one entry of a recipe's pairs; their rows are read on demand. Raises UserError: no file
    matches."""
    part, place = spec.pairs[number], f"corpus.pairs[{number}]"
    columns = [*part.columns] if part.score_column is None else [*part.columns, part.score_column]

    def table(name: str, content_id: Any, rows: Iterator[Row]) -> Table:
        limit = part.limit or spec.limit_per_file
        return Table(
            name, content_id, _well_scored(rows, part, name, place), limit, part.title, part.of_columns
        )

    if part.dataset is not None:
        names = [str(column) for column in columns]
        rows = readers.hub_columns(part, names, f"{place}.dataset", f"{place}.columns", names[2:], "")
        content_id = [part.dataset, part.config, part.split, part.revision]
        yield table(f"{part.dataset}@{part.revision}", content_id, rows)
    for path in file_patterns.matching_files(part.files, data, f"{place}.files"):
        rows = readers.columns_in(path, columns, f"{place}.columns", columns[2:])
        yield table(path.name, input_file.content_id(path), rows)


def _tuple_tables(
    spec: recipe.TupleFiles | recipe.TupleHub, columns: list[str], data: Path | None, place: str
) -> list[Table]:
    """The tables of a stage's tuples; their rows, the scores last, are read on demand. Raises UserError: no
    file matches."""
    field, numeric = f"{place}.columns", columns[len(spec.columns) :]
    if isinstance(spec, recipe.TupleHub):
        rows = readers.hub_columns(spec, columns, spec.dataset, field, numeric, null="")
        return [Table(spec.dataset, None, _normalized(rows))]
    return [
        Table(path.name, input_file.content_id(path), readers.columns_in(path, columns, field, numeric))
        for path in file_patterns.matching_files(spec.files, data, f"{place}.files")
    ]


def _normalized(rows: Iterator[Row]) -> Iterator[Row]:
    return (tuple(map(readers.normalize, row)) for row in rows)


def _well_scored(rows: Iterator[Row], part: recipe.Pairs, name: str, place: str) -> Iterator[Row]:
    """The two texts of each row whose score is high enough."""
    for number, row in enumerate(_normalized(rows), 1):
        if part.min_score is not None:
            try:
                good = float(row[2]) >= part.min_score
            except ValueError:
                fact = f"pair {number}: score {row[2][:40]!r} is not a number"
                raise UserError(f"{name}: {fact}; correct {place}.score_column") from None
            if not good:
                continue
        yield row[:2]


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
    content of parallel.json. kept (n,): the lines of the spool that are the rows."""
    digests, held, keys = _digests(spool, kept, rows.scores), np.zeros(len(kept), bool), None
    leaked = spool.leaked
    if rows.held_out or rows.measured:
        keys = _digests(spool, kept, rows.scores, lambda text: deduplicate.key(text.decode("utf-8")))
        held = _drawn(digests[:, 0], keys[:, 0], rows, seed)
        measured = rows.measured | set(keys[held, 0].tolist())
        clean = held | ~deduplicate.among(keys, measured).any(1)
        kept, digests, keys, held = (each[clean] for each in (kept, digests, keys, held))
        leaked += int((~clean).sum())
        if held.all():
            raise UserError(
                f"{rows.place}: nothing to train on: all its {rows.what}s are measured; add others"
            )
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
        "translated": rows.what == "pair",
        "sources": [
            {
                "name": table.name,
                "part": table.part,
                "languages": list(table.languages),
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
    place = f"{rows.place}.scores.columns"
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
    if len(text) <= rows.held_out:
        fact = f"{len(text):,} source texts are left, {rows.held_out:,} are to be held out"
        raise UserError(
            f"{rows.place}: nothing to train on: {fact}; add {rows.what}s, or lower {rows.place}.held_out"
        )
    drawn = np.random.default_rng(seed).choice(len(text), rows.held_out, replace=False, shuffle=False)
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
