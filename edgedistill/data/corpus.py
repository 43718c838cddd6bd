"""Texts: read, normalise, deduplicate, split, fingerprint; on disk, so that ten million need no more memory than one.

A corpus is built in passes over files, never in memory: texts are spooled as lines, their hashes go to buckets on disk, each
bucket is deduplicated on its own, and the texts kept are written with their offsets. Held-out texts are the last rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files, recipe
from edgedistill.data import readers
from edgedistill.errors import UserError
from edgedistill.session import Session

BUCKETS = 256
BLOCK = 65_536  # rows looked at together
FORMAT = 1  # part of every cache key: raise it when what is written changes
PARAGRAPHS = "paragraphs of their lines"  # what `sources` calls them
PUNCTUATION = ".,;:!?\"'()[]{}…“”‘’«»–—-/"  # what may stand at the ends of a word


class Corpus:
    """Distinct texts on disk. Rows 0 … trained−1 are for training, the rest are held out.

    `fingerprint` is the sha256 of the texts and the split; whatever is derived from a corpus is cached under it.
    """

    def __init__(self, folder: Path) -> None:
        meta = files.read_json(folder / "corpus.json")
        self.folder = folder
        self.fingerprint: str = meta["fingerprint"]
        self.sources: list[dict[str, Any]] = meta["sources"]
        self.trained: int = meta["trained"]
        self.offsets = np.memmap(folder / "offsets.bin", dtype=np.int64, mode="r")
        self.bytes = np.memmap(folder / "texts.bin", dtype=np.uint8, mode="r")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> str:
        return self.bytes[self.offsets[row] : self.offsets[row + 1]].tobytes().decode("utf-8")

    def texts(self, rows: Iterable[int]) -> list[str]:
        return [self[int(row)] for row in rows]

    @property
    def held_out(self) -> np.ndarray:
        return np.arange(self.trained, len(self))

    def chunks(self, size: int) -> Iterator[list[str]]:
        """All texts in order, `size` at a time, through plain reads: the file is not mapped into memory."""
        with (self.folder / "texts.bin").open("rb") as file, (self.folder / "offsets.bin").open("rb") as table:
            at = np.frombuffer(table.read(8), np.int64)
            while len(more := np.frombuffer(table.read(8 * size), np.int64)):
                ends = np.concatenate([at[-1:], more])
                data = file.read(int(ends[-1] - ends[0]))
                starts = (ends - ends[0]).tolist()
                yield [data[a:b].decode("utf-8") for a, b in pairwise(starts)]
                at = ends


def build(spec: recipe.Files | recipe.Hub | recipe.Prose, session: Session, seed: int) -> Corpus:
    """Open the corpus a recipe names; build it first where the cache has none made of the same bytes, options and seed.

    Raises UserError: no file matches, unknown file type, missing column, bytes that are not UTF-8, a text over
    100,000 characters, nothing left to train on.
    """
    seed = seed if spec.seed is None else spec.seed
    sources = _sources(spec, session.data)
    spared = {"seed", "licences"} | {name for name in ("paragraphs", "limits") if not getattr(spec, name, True)}  # as before there were any
    name = files.key(format=FORMAT, spec=spec.model_dump(mode="json", exclude=spared), seed=seed, sources=[s.made_of for s in sources])
    folder = session.cache / "corpora" / name
    if not (folder / "corpus.json").exists():
        session.log(f"reading {sum(1 for s in sources if not s.leak)} source(s) of texts")
        with files.new_folder(folder) as temporary:
            _write(spec, sources, seed, temporary)
        found = files.read_json(folder / "corpus.json")
        held = found["texts"] - found["trained"]
        session.log(f"corpus {found['fingerprint'][:12]}: {found['texts']:,} texts of {found['read']:,} read, {held:,} held out")
    return Corpus(folder)


def store(folder: Path, texts: Iterable[str], trained: int | None, sources: list[dict[str, Any]]) -> None:
    """Write texts as they come, in the layout that Corpus opens; without `trained` all of them are for training."""
    rows = 0
    with _Spelled(folder) as written:
        for text in texts:
            written.write(text.encode("utf-8", "replace"))
            rows += 1
    trained = rows if trained is None else trained
    written.total.update(f"\0{trained}".encode())
    meta = {"format": FORMAT, "fingerprint": written.total.hexdigest(), "texts": rows, "trained": trained, "sources": sources}
    files.write_json(folder / "corpus.json", meta)


class _Spelled:
    """texts.bin and offsets.bin as they grow, and the sha256 of the texts written so far."""

    def __init__(self, folder: Path) -> None:
        self.texts, self.offsets = (folder / "texts.bin").open("wb"), (folder / "offsets.bin").open("wb")
        self.total = hashlib.sha256()
        self.offset = 0
        self.offsets.write((0).to_bytes(8, "little"))

    def write(self, text: bytes) -> None:
        self.offset += len(text)
        self.texts.write(text)
        self.offsets.write(self.offset.to_bytes(8, "little"))
        self.total.update(text + b"\n")

    def __enter__(self) -> _Spelled:
        return self

    def __exit__(self, *_: object) -> None:
        with self.texts, self.offsets:  # both are closed even where the disk is full
            pass


class _Source:
    """A stream of texts, and what identifies its content."""

    def __init__(self, name: str, made_of: Any, texts: Callable[[], Iterator[str]], leak: bool = False) -> None:
        self.name, self.made_of, self.texts, self.leak = name, made_of, texts, leak


def _sources(spec: recipe.Files | recipe.Hub | recipe.Prose, data: Path | None) -> list[_Source]:
    if isinstance(spec, recipe.Hub):
        return [_Source(f"{spec.dataset}@{spec.revision}", [spec.dataset, spec.revision], lambda: readers.hub(spec))]
    if isinstance(spec, recipe.Prose):
        from edgedistill.data import documentation

        return [_Source("documentation", documentation.made_of(spec.packages), lambda: documentation.sentences(spec.packages))]
    return [
        *(_file(path, spec.column) for path in readers.matching(spec.texts, data, "corpus.texts")),
        *(_file(path, None) for path in readers.matching(spec.exclude, data, "corpus.exclude")),
    ]


def _file(path: Path, column: str | None) -> _Source:
    """A file of texts; without a column, a file of leaks: every column counts."""
    texts = (lambda: readers.every_column(path)) if column is None else (lambda: readers.texts_in(path, column))
    return _Source(path.name, files.sha256_file(path), texts, leak=column is None)


def leaked(paths: list[Path]) -> set[bytes]:
    """Digests of what must not be trained on: every text of those files, whatever its column."""
    return {digest(readers.normalise(text)) for path in paths for text in readers.every_column(path)} - {digest("")}


def digest(text: str) -> bytes:
    """What makes two texts the same: equal but for case."""
    return hashlib.blake2b(text.casefold().encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _write(spec: recipe.Files | recipe.Hub | recipe.Prose, sources: list[_Source], seed: int, folder: Path) -> None:
    spool, buckets = folder / "spool", folder / "buckets"
    buckets.mkdir()
    counts, read = _spool(spec, sources, spool, buckets)
    clean = distinct(buckets, sum(counts))
    names = [s.name for s in sources if not s.leak]
    keep = _limited(spec, names, counts, clean)
    kept = keep.count(0, len(keep))
    if kept <= spec.held_out:
        some = f"{kept:,} of {read:,} texts are left after cleaning, {spec.held_out:,} are to be held out"
        raise UserError(f"corpus: nothing to train on: {some}; add texts, or lower corpus.held_out")
    held = np.fromiter(_rows(keep, np.random.default_rng(seed).choice(kept, spec.held_out, replace=False, shuffle=False)), np.int64)
    more = [] if spec.paragraphs is None else _paragraphs(spec.paragraphs, spool, clean, keep, held, counts, seed)
    fingerprint, added = _keep(spool, keep, set(held.tolist()), more, folder)
    per_source = [(name, keep.count(a, b)) for name, (a, b) in zip(names, pairwise(ends(counts)), strict=True)]
    meta = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "read": read,
        "texts": kept + added,
        "trained": kept + added - spec.held_out,
        "sources": [{"name": n, "texts": t} for n, t in [*per_source, *([(PARAGRAPHS, added)] if added else [])]],
    }
    spool.unlink()
    buckets.rmdir()
    files.write_json(folder / "corpus.json", meta)


def ends(counts: list[int]) -> list[int]:
    """Where each source's rows begin, and where the last one's end."""
    return [0, *accumulate(counts)]


class Marks:
    """One bit a row, so that ten million rows weigh 1.25 MB."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.bits = np.zeros(-(-rows // 8), np.uint8)

    def __len__(self) -> int:
        return self.rows

    def set(self, rows: np.ndarray) -> None:
        np.bitwise_or.at(self.bits, rows >> 3, np.left_shift(1, rows & 7).astype(np.uint8))

    def has(self, rows: np.ndarray) -> np.ndarray:
        """Which of the rows are set, (n,) bool."""
        return (self.bits[rows >> 3] >> (rows & 7)) & 1 == 1

    def blocks(self, start: int, end: int) -> Iterator[np.ndarray]:
        """The rows that are set from start to end, ascending, a block at a time: (n,) int64 each."""
        for at in range(start, end, BLOCK):
            to = min(end, at + BLOCK)
            bits = np.unpackbits(self.bits[at >> 3 : -(-to // 8)], bitorder="little")
            yield at + np.flatnonzero(bits[at & 7 : (at & 7) + to - at])

    def count(self, start: int, end: int) -> int:
        return sum(len(rows) for rows in self.blocks(start, end))


def _spool(spec: recipe.Files | recipe.Hub | recipe.Prose, sources: list[_Source], spool: Path, buckets: Path) -> tuple[list[int], int]:
    """Write every usable text as a line, and (hash, row) into the bucket of its hash; a leak's row is −1.

    Returns how many lines each source gave, and how many texts were read.
    """
    counts: list[int] = []
    read = row = 0
    pending: list[list[bytes]] = [[] for _ in range(BUCKETS)]
    longest = spec.max_words or readers.LONGEST_TEXT

    def flush() -> None:
        for bucket, records in enumerate(pending):
            if records:
                with (buckets / str(bucket)).open("ab") as file:
                    file.write(b"".join(records))
                records.clear()

    with spool.open("wb") as lines:
        for source in sources:
            start = row
            for text in source.texts():
                text = readers.normalise(text)
                mark = digest(text)
                if source.leak:
                    pending[mark[0]].append(mark + b"\xff" * 8)
                    continue
                read += 1
                if not text or not spec.min_words <= text.count(" ") + 1 <= longest:
                    continue
                lines.write(text.encode("utf-8", "replace") + b"\n")
                pending[mark[0]].append(mark + row.to_bytes(8, "little"))
                row += 1
                if row % 200_000 == 0:
                    flush()
            if not source.leak:
                counts.append(row - start)
        flush()
    return counts, read


def distinct(buckets: Path, rows: int) -> Marks:
    """The first of each text, where no leak has the same hash. One bucket in memory at a time."""
    keep = Marks(rows)
    for bucket in sorted(buckets.iterdir()):
        records = np.fromfile(bucket, dtype=[("hash", "<u8"), ("row", "<i8")])
        records = records[np.lexsort((records["row"], records["hash"]))]  # a leak's −1 sorts first
        first = np.ones(len(records), bool)
        first[1:] = records["hash"][1:] != records["hash"][:-1]
        chosen = records["row"][first]
        keep.set(chosen[chosen >= 0])
        bucket.unlink()
    return keep


def _limited(spec: recipe.Files | recipe.Hub | recipe.Prose, names: list[str], counts: list[int], keep: Marks) -> Marks:
    if isinstance(spec, recipe.Files) and (spec.limit_per_file or spec.limits):
        unknown = sorted(set(spec.limits) - set(names))
        if unknown:
            known = ", ".join(names[:8])
            raise UserError(
                f"corpus.limits: {unknown[0]} is none of the files of corpus.texts ({known}); correct the name, or leave it out"
            )
        most = [spec.limits.get(name, spec.limit_per_file or count) for name, count in zip(names, counts, strict=True)]
        keep = evenly(keep, [(start, end, each) for (start, end), each in zip(pairwise(ends(counts)), most, strict=True)])
    return evenly(keep, [(0, len(keep), spec.limit)]) if spec.limit else keep


def evenly(keep: Marks, spans: list[tuple[int, int, int]]) -> Marks:
    """Of each span (start, end, limit) at most `limit` of what is kept, spread evenly over it."""
    thinned = Marks(len(keep))
    for start, end, limit in spans:
        total, rank = keep.count(start, end), 0
        for rows in keep.blocks(start, end):
            ranks = np.arange(rank, rank + len(rows))
            nearest = -(-ranks * limit // total) if total > limit else ranks  # the only i for which i * total // limit can be this rank
            thinned.set(rows[nearest * total // limit == ranks] if total > limit else rows)
            rank += len(rows)
    return thinned


def _rows(keep: Marks, ranks: np.ndarray) -> Iterator[int]:
    """The rows kept at these places among all that are kept, ascending."""
    first = 0
    for rows in keep.blocks(0, len(keep)):
        yield from rows[np.sort(ranks[(ranks >= first) & (ranks < first + len(rows))]) - first].tolist()
        first += len(rows)


def _paragraphs(
    spec: recipe.Paragraphs, spool: Path, clean: Marks, keep: Marks, held: np.ndarray, counts: list[int], seed: int
) -> Iterator[bytes]:
    """Lines that follow each other in a source, joined until they have as many words as was drawn; neither leaks nor held-out ones.

    They begin at lines that are kept, so that no source is all paragraphs, and go on with any. Where a source ends first,
    what has two lines is a text all the same.
    """
    drawn = np.random.default_rng([seed, 1])
    starts = evenly(keep, [(0, len(keep), spec.texts)])
    with spool.open("rb", 1 << 20) as lines:
        for start, end in pairwise(ends(counts)):
            growing: list[tuple[int, list[bytes]]] = []
            for at in range(start, end, BLOCK):
                rows = np.arange(at, min(end, at + BLOCK))
                usable, starting = clean.has(rows) & ~np.isin(rows, held), starts.has(rows)
                for good, first, line in zip(usable, starting, lines, strict=False):  # lines go on behind the block
                    if not good:
                        continue
                    if first:
                        growing.append((int(drawn.integers(*spec.words, endpoint=True)), []))
                    for _, parts in growing:
                        parts.append(line[:-1])
                    done = [sum(part.count(b" ") + 1 for part in parts) >= wanted for wanted, parts in growing]
                    yield from (b" ".join(parts) for (_, parts), whole in zip(growing, done, strict=True) if whole and len(parts) > 1)
                    growing = [each for each, whole in zip(growing, done, strict=True) if not whole]
            yield from (b" ".join(parts) for _, parts in growing if len(parts) > 1)


def _keep(spool: Path, keep: Marks, held: set[int], more: Iterable[bytes], folder: Path) -> tuple[str, int]:
    """Write the kept lines, `more` texts behind them, the held-out lines last, and where each begins.

    Returns the fingerprint, and how many were more.
    """
    later: list[bytes] = []
    added = 0
    with spool.open("rb", 1 << 20) as lines, _Spelled(folder) as written:
        numbered = enumerate(lines)
        for row in (row for rows in keep.blocks(0, len(keep)) for row in rows.tolist()):
            line = next(line for number, line in numbered if number == row)
            (later.append if row in held else written.write)(line[:-1])
        for text in more:
            written.write(text)
            added += 1
        written.total.update(b"\0held out\0")
        for line in later:
            written.write(line)
    return written.total.hexdigest(), added
