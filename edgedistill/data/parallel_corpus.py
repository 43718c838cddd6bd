"""Parallel corpora: texts that belong together, deduplicated, split and kept on disk. A row is a pair of a
text and its translation, or a triple of a text, one that means the same and one that does not.

The distinct texts of each column form a corpus of their own, so that a teacher embeds a source text once,
however many languages it was translated to; row i of the index names a text of each column. Held out are
texts of the first column, with all that belongs to them.
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
COLUMNS = ("first", "second", "third")  # folder names


class ParallelCorpus:
    """The distinct texts of each column, and rows that name one of each; rows 0 … training_count − 1 are for
    training, the rest are held out.

    `index` (n, columns) int64 holds for each row its text in each of the `columns`; `sources` holds name,
    part of the recipe, languages, pairs and training pairs of each table.
    """

    def __init__(self, folder: Path) -> None:
        meta = files.read_json(folder / "parallel.json")
        self.folder = folder
        self.columns = [Corpus(folder / name) for name in COLUMNS if (folder / name).exists()]
        self.fingerprint: str = meta["fingerprint"]
        self.sources: list[dict[str, Any]] = meta["sources"]
        self.training_count: int = meta["trained"]
        flat = np.memmap(folder / "index.bin", dtype=np.int64, mode="r")
        self.index = flat.reshape(-1, len(self.columns))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def source_side(self) -> Corpus:
        """The source texts of pairs."""
        return self.columns[0]

    @property
    def target_side(self) -> Corpus:
        """The target texts of pairs."""
        return self.columns[1]

    @property
    def held_out(self) -> np.ndarray:
        """The held-out rows, (n,) int64."""
        return np.arange(self.training_count, len(self))

    def side(self, name: str) -> Corpus:
        """The corpus of one side of pairs, `source` or `target`."""
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


class Table(NamedTuple):
    """A file or a hub data set of pairs or triples. `part` and `languages` are those of pairs; `content_id`
    identifies the content; at most `limit` rows are kept."""

    name: str
    content_id: Any
    rows: Iterator[Row]
    limit: int | None = None
    part: str = ""
    languages: tuple[str, str] = ("", "")


class _Rows(NamedTuple):
    """What a parallel corpus is made of, as the recipe describes it at `place`; `what` is the word for a
    row."""

    what: str
    place: str
    tables: list[Table]
    excluded: list[Path]
    usable: Callable[[Row], bool]
    limit: int | None
    held_out: int = 0


def build(spec: recipe.Parallel, session: Session, seed: int) -> ParallelCorpus:
    """Open the pairs that a recipe describes; build them first where the cache has none of the same content,
    options and seed.

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
    rows = _Rows("pair", "corpus", tables, excluded, usable, spec.limit, spec.held_out)
    options = {"spec": spec.model_dump(mode="json", exclude={"seed", "licences"}), "seed": seed}
    return _cached(rows, options, session, seed)


def build_triples(
    spec: recipe.TripleFiles | recipe.TripleHub, exclude: list[str], session: Session, place: str
) -> ParallelCorpus:
    """Open the triples that a stage names; build them first where the cache has none of the same content and
    options.

    `exclude` holds globs of files whose texts must not be trained on: a triple with one of them is left out.
    The recipe names the triples at `place`. Raises UserError: no file matches, a missing column, no triple
    is left.
    """
    tables = _triple_tables(spec, session.data, place)
    excluded = file_patterns.matching_files(exclude, session.data, "corpus.exclude")
    rows = _Rows("triple", place, tables, excluded, all, spec.limit)
    return _cached(rows, {"spec": spec.model_dump(mode="json", exclude={"licence"})}, session, 0)


def _cached(rows: _Rows, options: dict[str, Any], session: Session, seed: int) -> ParallelCorpus:
    """The corpus of these rows. `options` are the part of the cache's key that the recipe decides."""
    content = [
        [table.content_id for table in rows.tables],
        [files.sha256_file(path) for path in rows.excluded],
    ]
    folder = session.cache / "parallel" / files.cache_key(format=FORMAT, **options, made_of=content)

    def write(temporary: Path) -> None:
        session.log(f"reading {rows.what}s from {len(rows.tables)} table(s)")
        digests = deduplicate.excluded_digests(rows.excluded)
        read = (table.rows for table in rows.tables)
        spool = deduplicate.gather(read, rows.usable, digests, temporary / "spool")
        kept = spool.sample([table.limit for table in rows.tables], rows.limit)
        if len(kept) == 0:
            fact = f"no {rows.what} is left of {spool.read:,} read, {spool.leaked:,} of them with an excluded"
            raise UserError(f"{rows.place}: {fact} text; add tables, or check corpus.exclude")
        meta = _write(rows, spool, kept, seed, temporary)
        spool.path.unlink()
        files.write_json(temporary / "parallel.json", meta)
        session.log(
            f"parallel corpus {meta['fingerprint'][:12]}: {len(kept):,} of {spool.read:,} {rows.what}s kept, "
            f"{spool.leaked:,} excluded, {len(kept) - meta['trained']:,} held out"
        )

    return ParallelCorpus(cached_folder(folder, write, session.log))


def languages(spec: recipe.Parallel) -> list[str]:
    """Every language of the pairs, in the recipe's order."""
    return list(dict.fromkeys(language for part in spec.pairs for language in part.of_columns))


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


class _Column(NamedTuple):
    """One column of the kept rows.

    `rows` (n,) holds for each row its text in the corpus of the column; `first` (distinct texts,) holds for
    each text the first row with it. Texts from `training_count` on are held out.
    """

    rows: np.ndarray
    first: np.ndarray
    training_count: int


def _write(rows: _Rows, spool: Spool, kept: np.ndarray, seed: int, folder: Path) -> dict[str, Any]:
    """Write the corpus of each column, and index.bin with the training rows first. Returns the content of
    parallel.json. kept (n,): the lines of the spool that are the rows."""
    columns = _split(_digests(spool, kept), rows, seed)
    sources = [{"name": table.name} for table in rows.tables]
    fingerprint = hashlib.sha256()
    for number, column in enumerate(columns):
        own = folder / COLUMNS[number]
        own.mkdir()
        lines = [kept[part] for part in np.split(column.first, [column.training_count])]
        texts = chain.from_iterable(_texts(spool, part, number) for part in lines)
        corpus.write(own, texts, column.training_count, sources)
        fingerprint.update(files.read_json(own / "corpus.json")["fingerprint"].encode())
    is_late = columns[0].rows >= columns[0].training_count
    index = np.stack([column.rows for column in columns], 1)[np.argsort(is_late, kind="stable")].tobytes()
    fingerprint.update(index)
    (folder / "index.bin").write_bytes(index)
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
            for table, count, held in zip(rows.tables, counts, late, strict=True)
        ],
    }


def _texts(spool: Spool, lines: np.ndarray, column: int) -> Iterator[str]:
    """One column of these lines of the spool, ascending."""
    return (line.split(b"\t")[column].decode("utf-8") for line in spool.lines(lines))


def _digests(spool: Spool, kept: np.ndarray) -> np.ndarray:
    """A digest of each text of the kept rows: (n, columns) uint64."""
    found, columns = array("Q"), 0
    for line in spool.lines(kept):
        texts = line.split(b"\t")
        columns = len(texts)
        for text in texts:
            found.append(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))
    return np.array(found, np.uint64).reshape(-1, columns)


def _split(digests: np.ndarray, rows: _Rows, seed: int) -> list[_Column]:
    """Draw the held-out texts of the first column, and number the texts of all columns.

    A text of another column is for training where any training row has it.
    """
    first, text_of = _distinct(digests[:, 0])
    if len(first) <= rows.held_out:
        fact = f"{len(first):,} source texts are left, {rows.held_out:,} are to be held out"
        raise UserError(f"corpus: nothing to train on: {fact}; add pairs, or lower corpus.held_out")
    late = np.zeros(len(first), bool)
    late[np.random.default_rng(seed).choice(len(first), rows.held_out, replace=False, shuffle=False)] = True
    columns = [_numbered(first, text_of, late)]
    in_training = ~late[text_of]
    for column in digests.T[1:]:
        first, text_of = _distinct(column)
        late = np.ones(len(first), bool)
        late[text_of[in_training]] = False
        columns.append(_numbered(first, text_of, late))
    return columns


def _distinct(digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((m,) the first row with each distinct text, ascending; (n,) which of the texts each row has)."""
    _, first, text_of = np.unique(digests, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[text_of]


def _numbered(first: np.ndarray, text_of: np.ndarray, late: np.ndarray) -> _Column:
    """Number the distinct texts by first occurrence, those marked `late` (held out) after all others."""
    order = np.argsort(late, kind="stable")
    rows = np.empty_like(order)
    rows[order] = np.arange(len(order))
    return _Column(rows[text_of], first[order], len(late) - int(late.sum()))
