"""Corpora of distinct texts, kept on disk, so that ten million texts need no more memory than one.

A corpus is built in passes over files: usable texts are spooled as lines, their digests go to buckets on disk, each bucket is
deduplicated separately, and the remaining texts are written with their offsets. Held-out texts are the last rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import files, recipe
from edgedistill.data import joined_paragraphs, readers
from edgedistill.data.deduplicate import EXCLUDED, DigestBuckets, digest, first_occurrences
from edgedistill.data.disk_spool import RowSet, Spool, sample_evenly
from edgedistill.errors import UserError
from edgedistill.session import Session

FORMAT = 1  # part of every cache key: raise it when what is written changes
PARAGRAPHS = "paragraphs of their lines"  # the name of joined paragraphs in `Corpus.sources`

Spec = recipe.Files | recipe.Hub | recipe.Documentation


class NothingToTrainOn(UserError):
    """As many texts are to be held out as there are. `texts`: how many there are."""

    def __init__(self, problem: str, texts: int) -> None:
        super().__init__(problem)
        self.texts = texts


class Corpus:
    """Distinct texts on disk. Rows 0 … training_count − 1 are for training, the rest are held out.

    `fingerprint` is the sha256 of the texts and the split; whatever is derived from a corpus is cached under it. `sources`: the
    name of each source and how many texts came from it.
    """

    def __init__(self, folder: Path) -> None:
        meta = files.read_json(folder / "corpus.json")
        self.folder = folder
        self.fingerprint: str = meta["fingerprint"]
        self.sources: list[dict[str, Any]] = meta["sources"]
        self.training_count: int = meta["trained"]
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
        """The held-out rows, (n,) int64."""
        return np.arange(self.training_count, len(self))

    def chunks(self, size: int) -> Iterator[list[str]]:
        """All texts in order, `size` at a time, through plain reads: the file is not mapped into memory."""
        with (self.folder / "texts.bin").open("rb") as file, (self.folder / "offsets.bin").open("rb") as table:
            last = np.frombuffer(table.read(8), np.int64)
            while len(more := np.frombuffer(table.read(8 * size), np.int64)):
                offsets = np.concatenate([last[-1:], more])
                data = file.read(int(offsets[-1] - offsets[0]))
                yield [data[start:end].decode("utf-8") for start, end in pairwise((offsets - offsets[0]).tolist())]
                last = offsets


class CorpusWriter:
    """Writes texts.bin and offsets.bin, and hashes the texts on the way."""

    def __init__(self, folder: Path) -> None:
        self.texts, self.offsets = (folder / "texts.bin").open("wb"), (folder / "offsets.bin").open("wb")
        self.sha256 = hashlib.sha256()
        self.offset = 0
        self.offsets.write((0).to_bytes(8, "little"))

    def write(self, text: bytes) -> None:
        self.offset += len(text)
        self.texts.write(text)
        self.offsets.write(self.offset.to_bytes(8, "little"))
        self.sha256.update(text + b"\n")

    def __enter__(self) -> CorpusWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with self.texts, self.offsets:  # closes both even where the disk is full
            pass


def write(folder: Path, texts: Iterable[str], training_count: int | None, sources: list[dict[str, Any]]) -> None:
    """Write texts one by one in the layout that Corpus opens; without `training_count`, all of them are for training."""
    rows = 0
    with CorpusWriter(folder) as writer:
        for text in texts:
            writer.write(text.encode("utf-8", "replace"))
            rows += 1
    trained = rows if training_count is None else training_count
    writer.sha256.update(f"\0{trained}".encode())
    meta = {"format": FORMAT, "fingerprint": writer.sha256.hexdigest(), "texts": rows, "trained": trained, "sources": sources}
    files.write_json(folder / "corpus.json", meta)


class Source(NamedTuple):
    """A stream of texts. `content_id` identifies its content; `excluded`: its texts must not be trained on."""

    name: str
    content_id: Any
    texts: Callable[[], Iterator[str]]
    excluded: bool = False


def build(spec: Spec, session: Session, seed: int) -> Corpus:
    """Open the corpus that a recipe describes; build it first where the cache has none of the same content, options and seed.

    Raises UserError: no file matches, unknown file type, missing column, bytes that are not UTF-8, a text over
    100,000 characters, nothing left to train on.
    """
    seed = seed if spec.seed is None else spec.seed
    sources = _sources(spec, session.data)
    # Options at their default are left out of the key if they are younger than the caches.
    left_out = {"seed", "licences"} | {name for name in ("paragraphs", "limits") if not getattr(spec, name, True)}
    options = spec.cache_identity(exclude=left_out)
    name = files.cache_key(format=FORMAT, spec=options, seed=seed, sources=[source.content_id for source in sources])
    folder = session.cache / "corpora" / name
    if not (folder / "corpus.json").exists():
        session.log(f"reading texts from {sum(1 for source in sources if not source.excluded)} source(s)")
        with files.new_folder(folder) as temporary:
            _build(spec, sources, seed, temporary)
        meta = files.read_json(folder / "corpus.json")
        held_out = meta["texts"] - meta["trained"]
        session.log(f"corpus {meta['fingerprint'][:12]}: {meta['texts']:,} of {meta['read']:,} texts kept, {held_out:,} of them held out")
    return Corpus(folder)


def _sources(spec: Spec, data: Path | None) -> list[Source]:
    if isinstance(spec, recipe.Hub):
        return [Source(f"{spec.dataset}@{spec.revision}", [spec.dataset, spec.revision], lambda: readers.hub_texts(spec))]
    if isinstance(spec, recipe.Documentation):
        from edgedistill.data import documentation

        return [Source("documentation", documentation.content_id(spec.packages), lambda: documentation.sentences(spec.packages))]
    return [
        *(_file(path, spec.column) for path in readers.matching_files(spec.texts, data, "corpus.texts")),
        *(_file(path, None) for path in readers.matching_files(spec.exclude, data, "corpus.exclude")),
    ]


def _file(path: Path, column: str | None) -> Source:
    """A file of texts; without a column, a file of excluded texts, in any of its columns."""
    content_id = files.sha256_file(path)
    if column is None:
        return Source(path.name, content_id, lambda: readers.texts_in_every_column(path), excluded=True)
    return Source(path.name, content_id, lambda: readers.texts_in(path, column, "corpus.column"))


def _build(spec: Spec, sources: list[Source], seed: int, folder: Path) -> None:
    buckets = DigestBuckets(folder / "buckets")
    spool, read = _spool(spec, sources, folder / "spool", buckets)
    distinct = first_occurrences(buckets, spool.size)
    names = [source.name for source in sources if not source.excluded]
    kept = _sample(spec, names, spool, distinct)
    count = kept.count()
    if count <= spec.held_out:
        fact = f"{count:,} of {read:,} texts are left after cleaning, {spec.held_out:,} are to be held out"
        raise NothingToTrainOn(f"corpus: nothing to train on: {fact}; add texts, or lower corpus.held_out", count)
    held_out = kept.at_ranks(np.random.default_rng(seed).choice(count, spec.held_out, replace=False, shuffle=False))
    usable = distinct.without(held_out)
    joined = joined_paragraphs.joined_lines(spec.paragraphs, spool, kept, usable, seed) if spec.paragraphs else iter(())
    fingerprint, added = _write_split(spool, kept, set(held_out.tolist()), joined, folder)
    per_source = [{"name": name, "texts": kept.count(*span)} for name, span in zip(names, spool.spans(), strict=True)]
    meta = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "read": read,
        "texts": count + added,
        "trained": count + added - spec.held_out,
        "sources": [*per_source, *([{"name": PARAGRAPHS, "texts": added}] if added else [])],
    }
    spool.path.unlink()
    files.write_json(folder / "corpus.json", meta)


def _spool(spec: Spec, sources: list[Source], path: Path, buckets: DigestBuckets) -> tuple[Spool, int]:
    """Write every usable text as a line, and its digest into a bucket. Returns the spool, and how many texts were read."""
    counts: list[int] = []
    read = row = 0
    max_words = spec.max_words or readers.MAX_TEXT_CHARACTERS
    with path.open("wb") as lines:
        for source in sources:
            start = row
            for text in map(readers.normalize, source.texts()):
                if source.excluded:
                    buckets.add(digest(text), EXCLUDED)
                    continue
                read += 1
                if text and spec.min_words <= text.count(" ") + 1 <= max_words:
                    lines.write(text.encode("utf-8", "replace") + b"\n")
                    buckets.add(digest(text), row)
                    row += 1
            if not source.excluded:
                counts.append(row - start)
    return Spool(path, counts), read


def _sample(spec: Spec, names: list[str], spool: Spool, distinct: RowSet) -> RowSet:
    """Apply the limits per file and in all. Raises UserError for a limit of a file that is none of the corpus."""
    kept = distinct
    if isinstance(spec, recipe.Files) and (spec.limit_per_file or spec.limits):
        unknown = sorted(set(spec.limits) - set(names))
        if unknown:
            known = ", ".join(names[:8])
            raise UserError(
                f"corpus.limits: {unknown[0]} is none of the files of corpus.texts ({known}); correct the name, or leave it out"
            )
        limits = [spec.limits.get(name, spec.limit_per_file or count) for name, count in zip(names, spool.counts, strict=True)]
        kept = sample_evenly(kept, [(*span, limit) for span, limit in zip(spool.spans(), limits, strict=True)])
    return sample_evenly(kept, [(0, len(kept), spec.limit)]) if spec.limit else kept


def _write_split(spool: Spool, kept: RowSet, held_out: set[int], joined: Iterator[bytes], folder: Path) -> tuple[str, int]:
    """Write the kept lines, then the joined paragraphs, then the held-out lines. Returns the fingerprint and the number of paragraphs."""
    later: list[bytes] = []
    added = 0
    with CorpusWriter(folder) as writer:
        for row, line in spool.lines(kept):
            if row in held_out:
                later.append(line)
            else:
                writer.write(line)
        for text in joined:
            writer.write(text)
            added += 1
        writer.sha256.update(b"\0held out\0")
        for line in later:
            writer.write(line)
    return writer.sha256.hexdigest(), added
