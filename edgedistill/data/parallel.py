"""Parallel corpora: texts and their translations, deduplicated and split; on disk, as corpora are.

Distinct texts of either side are a corpus of their own, so that a teacher reads an English text once whatever number of languages it
was translated to; pair i is a row of each. Held out are texts of the first side with all their translations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files, recipe
from edgedistill.data import corpus, pair_tables, readers
from edgedistill.data.corpus import BLOCK, BUCKETS, Corpus, Marks
from edgedistill.data.pair_tables import Table
from edgedistill.errors import UserError
from edgedistill.session import Session

FORMAT = 1  # part of every cache key: raise it when what is written changes
SIDES = ("first", "second")
RECORD = [("hash", "<u8"), ("row", "<i8")]


class Pairs:
    """Pairs 0 … trained−1 are for training, the rest are held out; `index` (n, 2): the rows of `first` and `second` of each."""

    def __init__(self, folder: Path) -> None:
        meta = files.read_json(folder / "parallel.json")
        self.folder = folder
        self.first, self.second = (Corpus(folder / side) for side in SIDES)
        self.fingerprint: str = meta["fingerprint"]
        self.sources: list[dict[str, Any]] = meta["sources"]
        self.trained: int = meta["trained"]
        self.index = np.memmap(folder / "index.bin", dtype=np.int64, mode="r").reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def held_out(self) -> np.ndarray:
        return np.arange(self.trained, len(self))

    def of(self, names: list[str] | None) -> np.ndarray:
        """(m, 2) rows of the pairs to train on, of the parts with those names; without names of all."""
        if names is None:
            return self.index[: self.trained]
        ends = corpus.ends([source["trained"] for source in self.sources])
        spans = [span for source, span in zip(self.sources, pairwise(ends), strict=True) if source["part"] in names]
        return np.concatenate([self.index[:0], *(self.index[start:end] for start, end in spans)])


def build(spec: recipe.Parallel, session: Session, seed: int) -> Pairs:
    """Open the pairs a recipe names; build them first where the cache has none made of the same bytes, options and seed.

    Raises UserError: no file matches, a missing column, a score that is no number, bytes that are not UTF-8, nothing left to train on.
    """
    seed = seed if spec.seed is None else spec.seed
    tables, leaks = pair_tables.tables(spec, session.data), readers.matching(spec.exclude, session.data, "corpus.exclude")
    made_of = [[table.made_of for table in tables], [files.sha256_file(path) for path in leaks]]
    name = files.key(format=FORMAT, spec=spec.model_dump(mode="json", exclude={"seed"}), seed=seed, made_of=made_of)
    folder = session.cache / "parallel" / name
    if not (folder / "parallel.json").exists():
        session.log(f"reading {len(tables)} table(s) of pairs")
        with files.new_folder(folder) as temporary:
            meta = _write(spec, tables, leaks, seed, temporary)
        held = meta["pairs"] - meta["trained"]
        session.log(
            f"pairs {meta['fingerprint'][:12]}: {meta['pairs']:,} of {meta['read']:,} read, {meta['leaked']:,} leaks, {held:,} held out"
        )
    return Pairs(folder)


def languages(spec: recipe.Parallel) -> list[str]:
    """Every language of the pairs, in the recipe's order."""
    return list(dict.fromkeys(language for part in spec.pairs for language in part.of_columns))


def _write(spec: recipe.Parallel, tables: list[Table], leaks: list[Path], seed: int, folder: Path) -> dict[str, Any]:
    spool, buckets = folder / "spool", folder / "buckets"
    buckets.mkdir()
    counts, read, leaked = _spool(spec, tables, corpus.leaked(leaks), spool, buckets)
    spans = list(pairwise(corpus.ends(counts)))
    keep = corpus.distinct(buckets, sum(counts))
    keep = corpus.evenly(keep, [(*span, table.limit or len(keep)) for span, table in zip(spans, tables, strict=True)])
    keep = corpus.evenly(keep, [(0, len(keep), spec.limit or len(keep))])
    kept = [keep.count(*span) for span in spans]
    same = _same(spool, keep, sum(kept), folder)
    rows, texts = _split(same, spec.held_out, seed, folder)
    held = rows[0] >= texts[0][1]
    named: list[dict[str, Any]] = [{"name": table.name, "part": table.part, "languages": list(table.languages)} for table in tables]
    for at, side in enumerate(SIDES):
        (folder / side).mkdir()
        lines = _side(spool, keep, at, same[at], rows[at], texts[at][1])
        corpus.store(folder / side, lines, texts[at][1], [{"name": each["name"]} for each in named])
    fingerprint = hashlib.sha256("".join(files.read_json(folder / side / "corpus.json")["fingerprint"] for side in SIDES).encode())
    with (folder / "index.bin").open("wb") as index:
        for wanted in (False, True):
            for at in range(0, len(held), BLOCK):
                block = slice(at, at + BLOCK)
                part = np.stack([side[block] for side in rows], 1)[held[block] == wanted].tobytes()
                fingerprint.update(part)
                index.write(part)
    for each, (start, end) in zip(named, pairwise(corpus.ends(kept)), strict=True):
        each |= {"pairs": end - start, "trained": int((~held[start:end]).sum())}
    trained = int((~held).sum())
    meta = {"format": FORMAT, "fingerprint": fingerprint.hexdigest(), "read": read, "leaked": leaked, "pairs": len(held)}
    meta |= {"trained": trained, "sources": named}
    _tidy(folder)
    files.write_json(folder / "parallel.json", meta)
    return meta


def _tidy(folder: Path) -> None:
    (folder / "buckets").rmdir()
    for name in ("spool", *(f"{what}-{side}" for what in ("same", "rows") for side in SIDES)):
        (folder / name).unlink(missing_ok=True)


class _Buckets:
    """Records (hash, row) on disk, in as many files as there are first bytes of a hash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pending: list[list[bytes]] = [[] for _ in range(BUCKETS)]
        self.waiting = 0

    def add(self, mark: bytes, row: int) -> None:
        self.pending[mark[0]].append(mark + row.to_bytes(8, "little"))
        self.waiting += 1
        if self.waiting >= 200_000:
            self.flush()

    def flush(self) -> None:
        for bucket, records in enumerate(self.pending):
            if records:
                with (self.folder / str(bucket)).open("ab") as file:
                    file.write(b"".join(records))
                records.clear()
        self.waiting = 0


def _spool(spec: recipe.Parallel, tables: list[Table], leaks: set[bytes], spool: Path, buckets: Path) -> tuple[list[int], int, int]:
    """Write every usable pair as a line, and its hash into a bucket. Returns the lines of each table, pairs read, and leaks."""
    counts: list[int] = []
    read = leaked = row = 0
    marks = _Buckets(buckets)
    with spool.open("wb") as lines:
        for table in tables:
            start = row
            for pair in table.rows():
                read += 1
                if not all(pair) or not all(_fits(text, spec) for text in pair):
                    continue
                if leaks and any(corpus.digest(text) in leaks for text in pair):
                    leaked += 1
                    continue
                line = "\t".join(pair)  # white space is folded to single spaces, so a tab parts the two
                lines.write(line.encode("utf-8", "replace") + b"\n")
                marks.add(corpus.digest(line), row)
                row += 1
            counts.append(row - start)
    marks.flush()
    if row == 0:
        raise UserError(f"corpus: no pair is left of {read:,} read, {leaked:,} of them leaks; add tables, or look at corpus.exclude")
    return counts, read, leaked


def _fits(text: str, spec: recipe.Parallel) -> bool:
    return len(text) <= spec.max_chars and text.count(" ") + 1 >= spec.min_words


def _kept(spool: Path, keep: Marks) -> Iterator[tuple[int, list[bytes]]]:
    """(rank among those kept, the two texts) of every kept pair."""
    rank = 0
    with spool.open("rb", 1 << 20) as lines:
        numbered = enumerate(lines)
        for rows in keep.blocks(0, len(keep)):
            for row in rows.tolist():
                line = next(line for number, line in numbered if number == row)
                yield rank, line[:-1].split(b"\t")
                rank += 1


def _same(spool: Path, keep: Marks, pairs: int, folder: Path) -> list[np.memmap]:
    """Of either side, the rank of the first pair that has the same text: (n,) each."""
    folders = [folder / "buckets" / side for side in SIDES]
    for each in folders:
        each.mkdir()
    marks = [_Buckets(each) for each in folders]
    for rank, texts in _kept(spool, keep):
        for side, text in zip(marks, texts, strict=True):
            side.add(hashlib.blake2b(text, digest_size=8).digest(), rank)
    found = []
    for side, name in zip(marks, SIDES, strict=True):
        side.flush()
        first = np.memmap(folder / f"same-{name}", dtype=np.int64, mode="w+", shape=(pairs,))
        for bucket in sorted(side.folder.iterdir()):
            records = np.fromfile(bucket, dtype=RECORD)
            records = records[np.lexsort((records["row"], records["hash"]))]
            new = np.ones(len(records), bool)
            new[1:] = records["hash"][1:] != records["hash"][:-1]
            first[records["row"]] = records["row"][np.maximum.accumulate(np.where(new, np.arange(len(records)), 0))]
            bucket.unlink()
        side.folder.rmdir()
        found.append(first)
    return found


def _split(same: list[np.memmap], held_out: int, seed: int, folder: Path) -> tuple[list[np.memmap], list[tuple[int, int]]]:
    """(of either side, the row of each pair's text in that side's corpus (n,); its (distinct texts, those to train on)).

    A text of the second side is trained on where any pair to train on has it.
    """
    count = _texts(same[0])
    if count <= held_out:
        some = f"{count:,} texts of the first side are left, {held_out:,} are to be held out"
        raise UserError(f"corpus: nothing to train on: {some}; add pairs, or lower corpus.held_out")
    held = np.zeros(count, bool)
    held[np.random.default_rng(seed).choice(count, held_out, replace=False, shuffle=False)] = True
    first = _rows(same[0], held, folder / "rows-first")
    trained = Marks(len(first))
    for at in range(0, len(first), BLOCK):
        block = slice(at, at + BLOCK)
        trained.set(np.asarray(same[1][block])[first[block] < count - held_out])
    other = _texts(same[1])
    late = np.ones(other, bool)
    done = 0
    for at in range(0, len(first), BLOCK):
        ranks = np.arange(at, min(len(first), at + BLOCK))
        new = ranks[same[1][ranks] == ranks]
        late[done : done + len(new)] = ~trained.has(new)
        done += len(new)
    second = _rows(same[1], late, folder / "rows-second")
    return [first, second], [(count, count - held_out), (other, other - int(late.sum()))]


def _texts(same: np.ndarray) -> int:
    """How many distinct texts a side has."""
    return sum(int((same[at : at + BLOCK] == np.arange(at, min(len(same), at + BLOCK))).sum()) for at in range(0, len(same), BLOCK))


def _rows(same: np.ndarray, late: np.ndarray, path: Path) -> np.memmap:
    """Number the texts in the order they first occur, the late ones behind all others. Returns the number of each pair's text."""
    rows = np.memmap(path, dtype=np.int64, mode="w+", shape=(len(same),))
    done, next_row = 0, [0, int((~late).sum())]
    for at in range(0, len(same), BLOCK):
        ranks = np.arange(at, min(len(same), at + BLOCK))
        new = ranks[same[ranks] == ranks]
        for kind, here in enumerate((~late[done : done + len(new)], late[done : done + len(new)])):
            rows[new[here]] = next_row[kind] + np.arange(int(here.sum()))
            next_row[kind] += int(here.sum())
        rows[ranks] = rows[same[ranks]]
        done += len(new)
    return rows


def _side(spool: Path, keep: Marks, at: int, same: np.ndarray, rows: np.ndarray, trained: int) -> Iterator[str]:
    """The distinct texts of one side, in the order of their rows."""
    later: list[str] = []
    for rank, texts in _kept(spool, keep):
        if same[rank] == rank:
            text = texts[at].decode("utf-8")
            if rows[rank] < trained:
                yield text
            else:
                later.append(text)
    yield from later
