"""Parallel corpora: texts and their translations, deduplicated, split and kept on disk.

The distinct texts of each side form a corpus of their own, so that a teacher embeds a source text once,
however many languages it was translated to; pair i is a row of each side. Held out are source texts with all
their translations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import files, recipe
from edgedistill.data import corpus, deduplicate, file_patterns, pair_tables
from edgedistill.data.cached_folder import cached_folder
from edgedistill.data.corpus import Corpus
from edgedistill.data.deduplicate import DigestBuckets
from edgedistill.data.disk_spool import RowSet, Spool, row_blocks, row_offsets, sample_evenly
from edgedistill.data.pair_tables import PairTable
from edgedistill.errors import UserError
from edgedistill.session import Session

FORMAT = 1  # part of every cache key: raise it when what is written changes
SIDES = ("first", "second")  # folder names of the source and the target side


class ParallelCorpus:
    """Source texts, target texts and pairs of their rows; pairs 0 … training_count − 1 are for training, the
    rest are held out.

    `index` (n, 2) int64: for each pair, its row in `source_side` and in `target_side`. `sources`: name, part
        of the recipe,
    languages, pairs and training pairs of each table.
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
        offsets = row_offsets([source["trained"] for source in self.sources])
        spans = [
            span
            for source, span in zip(self.sources, pairwise(offsets), strict=True)
            if source["part"] in parts
        ]
        return np.concatenate([self.index[:0], *(self.index[start:end] for start, end in spans)])


def build(spec: recipe.Parallel, session: Session, seed: int) -> ParallelCorpus:
    """Open the parallel corpus that a recipe describes; build it first where the cache has none of the same
    content, options and seed.

    Raises UserError: no file matches, a missing column, a score that is no number, bytes that are not UTF-8,
        nothing left to train on.
    """
    seed = seed if spec.seed is None else spec.seed
    tables = pair_tables.open_tables(spec, session.data)
    excluded = file_patterns.matching_files(spec.exclude, session.data, "corpus.exclude")
    content = [[table.content_id for table in tables], [files.sha256_file(path) for path in excluded]]
    options = spec.model_dump(mode="json", exclude={"seed", "licences"})
    name = files.cache_key(format=FORMAT, spec=options, seed=seed, made_of=content)
    folder = session.cache / "parallel" / name

    def write(temporary: Path) -> None:
        session.log(f"reading pairs from {len(tables)} table(s)")
        meta = _build(spec, tables, excluded, seed, temporary)
        counts = f"{meta['pairs']:,} of {meta['read']:,} pairs kept, {meta['leaked']:,} excluded"
        session.log(
            f"parallel corpus {meta['fingerprint'][:12]}: {counts}, {meta['pairs'] - meta['trained']:,} held "
            "out"
        )

    return ParallelCorpus(cached_folder(folder, write, session.log))


def languages(spec: recipe.Parallel) -> list[str]:
    """Every language of the pairs, in the recipe's order."""
    return list(dict.fromkeys(language for part in spec.pairs for language in part.of_columns))


class _Side(NamedTuple):
    """One side of the kept pairs: `column` in the spooled lines, its distinct texts, and where they are in
    its corpus.

    `first_pair` (n,): for each pair, the first pair with the same text. `rows` (n,): for each pair, the row
        of its text.
    """

    column: int
    first_pair: np.ndarray
    rows: np.ndarray
    training_count: int


def _build(
    spec: recipe.Parallel, tables: list[PairTable], excluded: list[Path], seed: int, folder: Path
) -> dict[str, Any]:
    buckets = DigestBuckets(folder / "buckets")
    spool, read, leaked = _spool(
        spec, tables, deduplicate.excluded_digests(excluded), folder / "spool", buckets
    )
    kept = deduplicate.first_occurrences(buckets, spool.size)
    kept = sample_evenly(
        kept, [(*span, table.limit or len(kept)) for span, table in zip(spool.spans(), tables, strict=True)]
    )
    kept = sample_evenly(kept, [(0, len(kept), spec.limit or len(kept))])
    counts = [kept.count(*span) for span in spool.spans()]
    sides = _split(_first_pairs(spool, kept, sum(counts), folder), spec.held_out, seed, folder)
    held_out = sides[0].rows >= sides[0].training_count
    sources: list[dict[str, Any]] = [
        {"name": table.name, "part": table.part, "languages": list(table.languages)} for table in tables
    ]
    for side, name in zip(sides, SIDES, strict=True):
        (folder / name).mkdir()
        corpus.write(
            folder / name,
            _texts(spool, kept, side),
            side.training_count,
            [{"name": table.name} for table in tables],
        )
    fingerprint = _write_index(sides, held_out, folder)
    for source, (start, end) in zip(sources, pairwise(row_offsets(counts)), strict=True):
        source |= {"pairs": end - start, "trained": int((~held_out[start:end]).sum())}
    meta = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "read": read,
        "leaked": leaked,
        "pairs": len(held_out),
    }
    meta |= {"trained": int((~held_out).sum()), "sources": sources}
    for name in ("spool", *(f"{part}-{side}" for part in ("same", "rows") for side in SIDES)):
        (folder / name).unlink(missing_ok=True)
    files.write_json(folder / "parallel.json", meta)
    return meta


def _write_index(sides: list[_Side], held_out: np.ndarray, folder: Path) -> str:
    """Write index.bin, training pairs first. Returns the fingerprint: of the texts of both sides and of the
    index."""
    fingerprint = hashlib.sha256(
        "".join(files.read_json(folder / side / "corpus.json")["fingerprint"] for side in SIDES).encode()
    )
    with (folder / "index.bin").open("wb") as index:
        for wanted in (False, True):
            for block in row_blocks(0, len(held_out)):
                data = np.stack([side.rows[block] for side in sides], 1)[held_out[block] == wanted].tobytes()
                fingerprint.update(data)
                index.write(data)
    return fingerprint.hexdigest()


def _spool(
    spec: recipe.Parallel, tables: list[PairTable], excluded: set[bytes], path: Path, buckets: DigestBuckets
) -> tuple[Spool, int, int]:
    """Write every usable pair as a line, and its digest into a bucket. Returns the spool, pairs read, and
    pairs with an excluded text."""
    counts: list[int] = []
    read = leaked = row = 0
    with path.open("wb") as lines:
        for table in tables:
            start = row
            for pair in table.pairs():
                read += 1
                if not all(pair) or not all(_fits(text, spec) for text in pair):
                    continue
                if excluded and any(deduplicate.digest(text) in excluded for text in pair):
                    leaked += 1
                    continue
                line = "\t".join(pair)  # normalized texts hold no tabs
                lines.write(line.encode("utf-8", "replace") + b"\n")
                buckets.add(deduplicate.digest(line), row)
                row += 1
            counts.append(row - start)
    if row == 0:
        fact = f"no pair is left of {read:,} read, {leaked:,} of them with an excluded text"
        raise UserError(f"corpus: {fact}; add tables, or check corpus.exclude")
    return Spool(path, counts), read, leaked


def _fits(text: str, spec: recipe.Parallel) -> bool:
    return len(text) <= spec.max_chars and text.count(" ") + 1 >= spec.min_words


def _kept_pairs(spool: Spool, kept: RowSet) -> Iterator[tuple[int, list[bytes]]]:
    """(rank among the kept pairs, its two texts) of every kept pair."""
    return ((rank, line.split(b"\t")) for rank, (_, line) in enumerate(spool.lines(kept)))


def _first_pairs(spool: Spool, kept: RowSet, pairs: int, folder: Path) -> list[np.memmap]:
    """For each side, the rank of the first pair that has the same text: (pairs,) int64 each."""
    buckets = [DigestBuckets(folder / f"buckets-{side}") for side in SIDES]
    for rank, texts in _kept_pairs(spool, kept):
        for side, text in zip(buckets, texts, strict=True):
            side.add(hashlib.blake2b(text, digest_size=8).digest(), rank)
    return [
        deduplicate.first_row_of_each(side, pairs, folder / f"same-{name}")
        for side, name in zip(buckets, SIDES, strict=True)
    ]


def _split(first_pairs: list[np.memmap], held_out: int, seed: int, folder: Path) -> list[_Side]:
    """Draw the held-out source texts, and number the texts of both sides.

    A target text is for training where any training pair has it.
    """
    count = _distinct(first_pairs[0])
    if count <= held_out:
        fact = f"{count:,} source texts are left, {held_out:,} are to be held out"
        raise corpus.NothingToTrainOn(
            f"corpus: nothing to train on: {fact}; add pairs, or lower corpus.held_out", count
        )
    source_late = np.zeros(count, bool)
    source_late[np.random.default_rng(seed).choice(count, held_out, replace=False, shuffle=False)] = True
    source_rows = _number(first_pairs[0], source_late, folder / "rows-first")
    training = RowSet(len(source_rows))
    for block in row_blocks(0, len(source_rows)):
        training.add(np.asarray(first_pairs[1][block])[source_rows[block] < count - held_out])
    target_late = np.ones(_distinct(first_pairs[1]), bool)
    done = 0
    for block in row_blocks(0, len(source_rows)):
        new = _new_texts(first_pairs[1], block)
        target_late[done : done + len(new)] = ~training.contains(new)
        done += len(new)
    target_rows = _number(first_pairs[1], target_late, folder / "rows-second")
    return [
        _Side(0, first_pairs[0], source_rows, count - held_out),
        _Side(1, first_pairs[1], target_rows, len(target_late) - int(target_late.sum())),
    ]


def _new_texts(first_pair: np.ndarray, block: slice) -> np.ndarray:
    """The pairs of a block whose text no earlier pair has, (n,)."""
    ranks = np.arange(block.start, block.stop)
    return ranks[first_pair[ranks] == ranks]


def _distinct(first_pair: np.ndarray) -> int:
    """How many distinct texts a side has."""
    return sum(len(_new_texts(first_pair, block)) for block in row_blocks(0, len(first_pair)))


def _number(first_pair: np.ndarray, late: np.ndarray, path: Path) -> np.memmap:
    """Number the distinct texts by first occurrence, those marked `late` (held out) after all others.

    Returns the number of each pair's text: (n,) int64, memory-mapped at `path`.
    """
    rows = np.memmap(path, dtype=np.int64, mode="w+", shape=(len(first_pair),))
    done, next_row = 0, [0, int((~late).sum())]
    for block in row_blocks(0, len(first_pair)):
        new = _new_texts(first_pair, block)
        is_late = late[done : done + len(new)]
        for kind, chosen in enumerate((~is_late, is_late)):
            rows[new[chosen]] = next_row[kind] + np.arange(int(chosen.sum()))
            next_row[kind] += int(chosen.sum())
        rows[block] = rows[first_pair[block]]
        done += len(new)
    return rows


def _texts(spool: Spool, kept: RowSet, side: _Side) -> Iterator[str]:
    """The distinct texts of one side, in the order of their rows."""
    later: list[str] = []
    for rank, texts in _kept_pairs(spool, kept):
        if side.first_pair[rank] == rank:
            text = texts[side.column].decode("utf-8")
            if side.rows[rank] < side.training_count:
                yield text
            else:
                later.append(text)
    yield from later
