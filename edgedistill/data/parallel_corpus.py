"""Texts that belong together, deduplicated and kept on disk: pairs of a text and its translation, and triples
of a text, one that means the same and one that does not.

Pairs are split too. The distinct texts of each side form a corpus of their own, so that a teacher embeds a
source text once, however many languages it was translated to; pair i is a row of each side. Held out are
source texts with all their translations.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import files, recipe
from edgedistill.data import corpus, deduplicate, file_patterns, readers
from edgedistill.data.cached_folder import cached_folder
from edgedistill.data.corpus import Corpus
from edgedistill.data.deduplicate import Row, Spool
from edgedistill.errors import UserError
from edgedistill.session import Session

FORMAT = 1  # part of every cache key: raise it when what is written changes
SIDES = ("first", "second")  # folder names of the source and the target side
COLUMNS = ("anchor", "entailment", "contradiction")  # folder names of the columns of triples


class ParallelCorpus:
    """Source texts, target texts and pairs of their rows; pairs 0 … training_count − 1 are for training, the
    rest are held out.

    `index` (n, 2) int64 holds for each pair its row in `source_side` and in `target_side`; `sources` holds
    name, part of the recipe, languages, pairs and training pairs of each table.
    """

    def __init__(self, folder: Path) -> None:
        meta = files.read_json(folder / "parallel.json")
        self.folder = folder
        self.source_side, self.target_side = (Corpus(folder / side) for side in SIDES)
        self.fingerprint: str = meta["fingerprint"]
        self.sources: list[dict[str, Any]] = meta["sources"]
        self.training_count: int = meta["trained"]
        self.index = np.memmap(folder / "index.bin", dtype=np.int64, mode="r").reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def held_out(self) -> np.ndarray:
        """The held-out pairs, (n,) int64."""
        return np.arange(self.training_count, len(self))

    def side(self, name: str) -> Corpus:
        """The corpus of one side, `source` or `target`."""
        return {"source": self.source_side, "target": self.target_side}[name]

    def training_pairs(self, parts: list[str] | None) -> np.ndarray:
        """The `index` rows (m, 2) of the training pairs of those parts of the recipe; None: of all parts."""
        if parts is None:
            return self.index[: self.training_count]
        offsets = accumulate((source["trained"] for source in self.sources), initial=0)
        spans = [
            self.index[start:end]
            for source, (start, end) in zip(self.sources, pairwise(offsets), strict=True)
            if source["part"] in parts
        ]
        return np.concatenate([self.index[:0], *spans])


class Triples:
    """Three corpora of equal length, in the order of COLUMNS: row i of each belongs to triple i."""

    def __init__(self, folder: Path) -> None:
        self.columns = [Corpus(folder / name) for name in COLUMNS]

    def __len__(self) -> int:
        return len(self.columns[0])


class Table(NamedTuple):
    """A file or a hub data set of pairs or triples. `part` and `languages` are those of pairs; `content_id`
    identifies the content; at most `limit` rows are kept."""

    name: str
    content_id: Any
    rows: Iterator[Row]
    limit: int | None = None
    part: str = ""
    languages: tuple[str, str] = ("", "")


def build(spec: recipe.Parallel, session: Session, seed: int) -> ParallelCorpus:
    """Open the parallel corpus that a recipe describes; build it first where the cache has none of the same
    content, options and seed.

    Raises UserError: no file matches, a missing column, a score that is no number, bytes that are not UTF-8,
    nothing left to train on.
    """
    seed = seed if spec.seed is None else spec.seed
    tables = [
        table for number in range(len(spec.pairs)) for table in _pair_tables(spec, number, session.data)
    ]
    excluded = file_patterns.matching_files(spec.exclude, session.data, "corpus.exclude")
    options = spec.model_dump(mode="json", exclude={"seed", "licences"})
    name = files.cache_key(format=FORMAT, spec=options, seed=seed, made_of=_content(tables, excluded))

    def usable(pair: Row) -> bool:
        return all(
            text and len(text) <= spec.max_chars and text.count(" ") + 1 >= spec.min_words for text in pair
        )

    def write(temporary: Path) -> None:
        session.log(f"reading pairs from {len(tables)} table(s)")
        spool = _gathered(tables, usable, excluded, temporary)
        kept = _kept(tables, spool, spec.limit, "pair", "corpus")
        meta = _write_pairs(spec.held_out, tables, spool, kept, seed, temporary)
        files.write_json(temporary / "parallel.json", meta)
        session.log(
            f"parallel corpus {meta['fingerprint'][:12]}: {len(kept):,} of {spool.read:,} pairs kept, "
            f"{spool.leaked:,} excluded, {len(kept) - meta['trained']:,} held out"
        )

    return ParallelCorpus(cached_folder(session.cache / "parallel" / name, write, session.log))


def build_triples(
    spec: recipe.TripleFiles | recipe.TripleHub, exclude: list[str], session: Session, place: str
) -> Triples:
    """Open the triples that a stage names; build them first where the cache has none of the same content and
    options.

    `exclude` holds globs of files whose texts must not be trained on: a triple with one of them is left out.
    The recipe names the triples at `place`. Raises UserError: no file matches, a missing column, no triple
    is left.
    """
    tables = _triple_tables(spec, session.data, place)
    excluded = file_patterns.matching_files(exclude, session.data, "corpus.exclude")
    content = _content([table for table in tables if table.content_id], excluded)
    name = files.cache_key(format=FORMAT, spec=spec.model_dump(mode="json"), made_of=content)

    def write(temporary: Path) -> None:
        spool = _gathered(tables, all, excluded, temporary)
        kept = _kept(tables, spool, spec.limit, "triple", place)
        for number, column in enumerate(COLUMNS):
            (temporary / column).mkdir()
            texts = _column(spool, kept, number)
            corpus.write(temporary / column, texts, None, [{"name": table.name} for table in tables])
        spool.path.unlink()
        meta = {"format": FORMAT, "read": spool.read, "leaked": spool.leaked, "kept": len(kept)}
        files.write_json(temporary / "triples.json", meta)
        session.log(f"triples: {len(kept):,} of {spool.read:,} kept, {spool.leaked:,} with an excluded text")

    return Triples(cached_folder(session.cache / "triples" / name, write, session.log))


def languages(spec: recipe.Parallel) -> list[str]:
    """Every language of the pairs, in the recipe's order."""
    return list(dict.fromkeys(language for part in spec.pairs for language in part.of_columns))


def _content(tables: list[Table], excluded: list[Path]) -> list[list[Any]]:
    """What the rows are made of, for the cache's key."""
    return [[table.content_id for table in tables], [files.sha256_file(path) for path in excluded]]


def _gathered(
    tables: list[Table], usable: Callable[[Row], bool], excluded: list[Path], folder: Path
) -> Spool:
    digests = deduplicate.excluded_digests(excluded)
    return deduplicate.gather((table.rows for table in tables), usable, digests, folder / "spool")


def _kept(tables: list[Table], spool: Spool, limit: int | None, what: str, place: str) -> np.ndarray:
    """The distinct rows within the limits. Raises UserError where none is left."""
    kept = spool.sample([table.limit for table in tables], limit)
    if len(kept) == 0:
        fact = f"no {what} is left of {spool.read:,} read, {spool.leaked:,} of them with an excluded text"
        raise UserError(f"{place}: {fact}; add tables, or check corpus.exclude")
    return kept


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
        yield table(path.name, files.sha256_file(path), rows)


def _triple_tables(spec: recipe.TripleFiles | recipe.TripleHub, data: Path | None, place: str) -> list[Table]:
    """The tables of a stage's triples; their rows are read on demand. Raises UserError: no file matches."""
    field = f"{place}.columns"
    if isinstance(spec, recipe.TripleHub):
        rows = readers.hub_columns(spec, spec.columns, f"{place}.dataset", field, null="")
        return [Table(spec.dataset, None, _normalized(rows))]
    return [
        Table(path.name, files.sha256_file(path), readers.columns_in(path, spec.columns, field))
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
    """One side of the kept pairs.

    `rows` (n,) holds for each pair the row of its text in the corpus of the side; `first_pairs` (distinct
    texts,) holds for each row the first pair with that text. Rows from `training_count` on are held out.
    """

    rows: np.ndarray
    first_pairs: np.ndarray
    training_count: int


def _write_pairs(
    held_out: int, tables: list[Table], spool: Spool, kept: np.ndarray, seed: int, folder: Path
) -> dict[str, Any]:
    """Write the corpus of each side, and index.bin with the training pairs first. Returns the content of
    parallel.json. kept (n,): the lines of the spool that are the pairs."""
    sides = _split(_digests(spool, kept), held_out, seed)
    fingerprint = hashlib.sha256()
    for number, (side, name) in enumerate(zip(sides, SIDES, strict=True)):
        (folder / name).mkdir()
        texts = chain(
            _column(spool, kept[side.first_pairs[: side.training_count]], number),
            _column(spool, kept[side.first_pairs[side.training_count :]], number),
        )
        sources = [{"name": table.name} for table in tables]
        corpus.write(folder / name, texts, side.training_count, sources)
        fingerprint.update(files.read_json(folder / name / "corpus.json")["fingerprint"].encode())
    is_late = sides[0].rows >= sides[0].training_count
    index = np.stack([side.rows for side in sides], 1)[np.argsort(is_late, kind="stable")].tobytes()
    fingerprint.update(index)
    (folder / "index.bin").write_bytes(index)
    spool.path.unlink()
    counts = spool.counts(kept)
    late = [int(part.sum()) for part in np.split(is_late, np.cumsum(counts)[:-1])]
    return {
        "format": FORMAT,
        "fingerprint": fingerprint.hexdigest(),
        "read": spool.read,
        "leaked": spool.leaked,
        "pairs": len(kept),
        "trained": len(kept) - int(is_late.sum()),
        "sources": [
            {
                "name": table.name,
                "part": table.part,
                "languages": list(table.languages),
                "pairs": count,
                "trained": count - held,
            }
            for table, count, held in zip(tables, counts, late, strict=True)
        ],
    }


def _column(spool: Spool, lines: np.ndarray, number: int) -> Iterator[str]:
    """One column of these lines of the spool, ascending."""
    return (line.split(b"\t")[number].decode("utf-8") for line in spool.lines(lines))


def _digests(spool: Spool, kept: np.ndarray) -> list[np.ndarray]:
    """For each side, a digest of the text of every kept pair: (n,) uint64 each."""
    found = [array("Q") for _ in SIDES]
    for line in spool.lines(kept):
        for side, text in zip(found, line.split(b"\t"), strict=True):
            side.append(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))
    return [np.array(side, np.uint64) for side in found]


def _split(digests: list[np.ndarray], held_out: int, seed: int) -> list[_Side]:
    """Draw the held-out source texts, and number the texts of both sides.

    A target text is for training where any training pair has it.
    """
    (source_first, source_of), (target_first, target_of) = map(_distinct, digests)
    count = len(source_first)
    if count <= held_out:
        fact = f"{count:,} source texts are left, {held_out:,} are to be held out"
        raise corpus.NothingToTrainOn(
            f"corpus: nothing to train on: {fact}; add pairs, or lower corpus.held_out", count
        )
    source_late = np.zeros(count, bool)
    source_late[np.random.default_rng(seed).choice(count, held_out, replace=False, shuffle=False)] = True
    target_late = np.ones(len(target_first), bool)
    target_late[target_of[~source_late[source_of]]] = False
    return [
        _numbered(source_first, source_of, source_late),
        _numbered(target_first, target_of, target_late),
    ]


def _distinct(digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((m,) the first pair with each distinct text, ascending; (n,) which of them each pair has)."""
    _, first, text_of = np.unique(digests, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[text_of]


def _numbered(first: np.ndarray, text_of: np.ndarray, late: np.ndarray) -> _Side:
    """Number the distinct texts by first occurrence, those marked `late` (held out) after all others."""
    order = np.argsort(late, kind="stable")
    rows = np.empty_like(order)
    rows[order] = np.arange(len(order))
    return _Side(rows[text_of], first[order], len(late) - int(late.sum()))
