"""Corpora of distinct texts, kept on disk, so that ten million texts need no more memory than one.

A corpus is built in passes over files: usable texts are spooled as lines, their digests go to buckets on
    disk, each bucket is
deduplicated separately, and the remaining texts are written with their offsets. Held-out texts are the last
rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import files, recipe
from edgedistill.data import added_texts, file_patterns, readers
from edgedistill.data.added_texts import PassageCutter
from edgedistill.data.cached_folder import cached_folder
from edgedistill.data.deduplicate import EXCLUDED, DigestBuckets, digest, first_occurrences
from edgedistill.data.disk_spool import RowSet, Spool, sample_evenly
from edgedistill.errors import UserError
from edgedistill.session import Session, progress_bar

PROGRESS = 10_000  # texts read between two reports of the progress
FORMAT = 1  # part of every cache key: raise it when what is written changes
# Names of added texts in `Corpus.sources`.
PARAGRAPHS, PASSAGES, DOCUMENTATION = (
    "paragraphs of their lines",
    "passages of their texts",
    "Python's documentation",
)
ADDED = (PARAGRAPHS, PASSAGES, DOCUMENTATION)

Spec = recipe.Files | recipe.Hub | recipe.Documentation


class NothingToTrainOn(UserError):
    """As many texts are to be held out as there are. `texts`: how many there are."""

    def __init__(self, problem: str, texts: int) -> None:
        super().__init__(problem)
        self.texts = texts


class Corpus:
    """Distinct texts on disk. Rows 0 … training_count − 1 are for training, the rest are held out.

    `fingerprint` is the sha256 of the texts and the split; whatever is derived from a corpus is cached under
        it. `sources`: the
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
        with (
            (self.folder / "texts.bin").open("rb") as file,
            (self.folder / "offsets.bin").open("rb") as table,
        ):
            last = np.frombuffer(table.read(8), np.int64)
            while len(more := np.frombuffer(table.read(8 * size), np.int64)):
                offsets = np.concatenate([last[-1:], more])
                data = file.read(int(offsets[-1] - offsets[0]))
                yield [
                    data[start:end].decode("utf-8")
                    for start, end in pairwise((offsets - offsets[0]).tolist())
                ]
                last = offsets


class CorpusWriter:
    """Writes texts.bin and offsets.bin, and hashes the texts on the way."""

    def __init__(self, folder: Path) -> None:
        self.texts, self.offsets = (folder / "texts.bin").open("wb"), (folder / "offsets.bin").open("wb")
        self.sha256 = hashlib.sha256()
        self.offset = self.texts_written = 0
        self.offsets.write((0).to_bytes(8, "little"))

    def write(self, text: bytes) -> None:
        self.offset += len(text)
        self.texts.write(text)
        self.offsets.write(self.offset.to_bytes(8, "little"))
        self.sha256.update(text + b"\n")
        self.texts_written += 1

    def write_all(self, texts: Iterable[bytes]) -> int:
        """Write texts one by one; returns how many they were."""
        before = self.texts_written
        for text in texts:
            self.write(text)
        return self.texts_written - before

    def __enter__(self) -> CorpusWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with self.texts, self.offsets:  # closes both even where the disk is full
            pass


def write(
    folder: Path, texts: Iterable[str], training_count: int | None, sources: list[dict[str, Any]]
) -> None:
    """Write texts one by one in the layout that Corpus opens; without `training_count`, all of them are for
    training."""
    with CorpusWriter(folder) as writer:
        rows = writer.write_all(text.encode("utf-8", "replace") for text in texts)
    trained = rows if training_count is None else training_count
    writer.sha256.update(f"\0{trained}".encode())
    meta = {
        "format": FORMAT,
        "fingerprint": writer.sha256.hexdigest(),
        "texts": rows,
        "trained": trained,
        "sources": sources,
    }
    files.write_json(folder / "corpus.json", meta)


class Source(NamedTuple):
    """A stream of texts. `content_id` identifies its content; `excluded`: its texts must not be trained
    on."""

    name: str
    content_id: Any
    texts: Callable[[], Iterator[str]]
    excluded: bool = False


def build(spec: Spec, session: Session, seed: int) -> Corpus:
    """Open the corpus that a recipe describes; build it first where the cache has none of the same content,
    options and seed.

    Raises UserError: no file matches, unknown file type, missing column, bytes that are not UTF-8, a text
        over
    100,000 characters, nothing left to train on.
    """
    seed = seed if spec.seed is None else spec.seed
    sources = _sources(spec, session.data)
    options = spec.model_dump(mode="json", exclude={"seed", "licences"})
    general = spec.documentation_texts if isinstance(spec, recipe.Files) else 0
    content = [source.content_id for source in sources] + (
        [files.sha256_file(files.GENERAL_CORPUS)] if general else []
    )
    name = files.cache_key(format=FORMAT, spec=options, seed=seed, sources=content)
    folder = session.cache / "corpora" / name

    def write(temporary: Path) -> None:
        session.log(f"reading texts from {sum(1 for source in sources if not source.excluded)} source(s)")
        meta = _build(spec, sources, seed, temporary, session.progress)
        session.log(f"corpus {meta['fingerprint'][:12]}: {_summary(meta)}")

    return Corpus(cached_folder(folder, write, session.log))


def _summary(meta: dict[str, Any]) -> str:
    """A line for the log: how many texts were kept, added and held out."""
    added = sum(source["texts"] for source in meta["sources"] if source["name"] in ADDED)
    held_out = meta["texts"] - meta["trained"]
    more = f", {added:,} added" if added else ""
    return (
        f"{sum(source['texts'] for source in meta['sources']) - added:,} of {meta['read']:,} texts "
        f"kept{more}, {held_out:,} held out"
    )


def _sources(spec: Spec, data: Path | None) -> list[Source]:
    if isinstance(spec, recipe.Hub):
        return [
            Source(
                f"{spec.dataset}@{spec.revision}",
                [spec.dataset, spec.revision],
                lambda: readers.hub_texts(spec),
            )
        ]
    if isinstance(spec, recipe.Documentation):
        return [_file(files.GENERAL_CORPUS, "text")._replace(name="documentation")]
    return [
        *(
            _file(path, spec.column, spec.unit)
            for path in file_patterns.matching_files(spec.texts, data, "corpus.texts")
        ),
        *(_file(path, None) for path in file_patterns.matching_files(spec.exclude, data, "corpus.exclude")),
    ]


def _file(path: Path, column: str | list[str] | None, unit: str = "line") -> Source:
    """A file of texts, those of one column after the other; without a column, a file of excluded texts, in
    any of its columns."""
    content_id = files.sha256_file(path)
    if column is None:
        return Source(path.name, content_id, lambda: readers.texts_in_every_column(path), excluded=True)
    columns = [column] if isinstance(column, str) else column[:1] if readers.is_text_file(path) else column
    return Source(
        path.name,
        content_id,
        lambda: chain.from_iterable(readers.texts_in(path, each, "corpus.column", unit) for each in columns),
    )


def _build(spec: Spec, sources: list[Source], seed: int, folder: Path, progress: bool) -> dict[str, Any]:
    buckets = DigestBuckets(folder / "buckets")
    with progress_bar(None, progress, "reading") as advance:
        spool, read = _spool(spec, sources, folder / "spool", buckets, advance)
    distinct = first_occurrences(buckets, spool.size)
    names = [source.name for source in sources if not source.excluded]
    kept = _sample(spec, names, spool, distinct)
    count = kept.count()
    if count <= spec.held_out:
        fact = f"{count:,} of {read:,} texts are left after cleaning, {spec.held_out:,} are to be held out"
        raise NothingToTrainOn(
            f"corpus: nothing to train on: {fact}; add texts, or lower corpus.held_out", count
        )
    held_out = kept.at_ranks(
        np.random.default_rng(seed).choice(count, spec.held_out, replace=False, shuffle=False)
    )
    usable = distinct.without(held_out)
    added = dict[str, Iterator[bytes]]()
    if spec.paragraphs:
        added[PARAGRAPHS] = added_texts.joined_lines(spec.paragraphs, spool, kept, usable, seed)
    if isinstance(spec, recipe.Files) and spec.documentation_texts:
        added[DOCUMENTATION] = added_texts.general_sentences(spec.documentation_texts)
    split = _Split(spool, kept, set(held_out.tolist()))
    written = _write_split(split, _passages(spec, sources, seed), added, folder)
    per_source = [
        {"name": name, "texts": kept.count(*span)} for name, span in zip(names, spool.spans(), strict=True)
    ]
    meta = {
        "format": FORMAT,
        "fingerprint": written.fingerprint,
        "read": read,
        "texts": written.trained + written.held_out,
        "trained": written.trained,
        "sources": [
            *per_source,
            *({"name": name, "texts": texts} for name, texts in written.added.items() if texts),
        ],
    }
    spool.path.unlink()
    files.write_json(folder / "corpus.json", meta)
    return meta


def _passages(spec: Spec, sources: list[Source], seed: int) -> PassageCutter | None:
    """What cuts the texts into the passages that the recipe asks for; excluded texts are never a passage."""
    if not isinstance(spec, recipe.Files) or spec.passages is None:
        return None
    excluded = {
        digest(readers.normalize(text)) for source in sources if source.excluded for text in source.texts()
    }
    return PassageCutter(spec.passages, seed, excluded)


def _spool(
    spec: Spec, sources: list[Source], path: Path, buckets: DigestBuckets, advance: Callable[[int], None]
) -> tuple[Spool, int]:
    """Write every usable text as a line, and its digest into a bucket. Returns the spool, and how many texts
    were read."""
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
                if read % PROGRESS == 0:
                    advance(PROGRESS)
                if text and spec.min_words <= text.count(" ") + 1 <= max_words:
                    lines.write(text.encode("utf-8", "replace") + b"\n")
                    buckets.add(digest(text), row)
                    row += 1
            if not source.excluded:
                counts.append(row - start)
    return Spool(path, counts), read


def _sample(spec: Spec, names: list[str], spool: Spool, distinct: RowSet) -> RowSet:
    """Apply the limits per file and in all. Raises UserError for a limit of a file that is none of the
    corpus."""
    kept = distinct
    if isinstance(spec, recipe.Files) and (spec.limit_per_file or spec.limits):
        unknown = sorted(set(spec.limits) - set(names))
        if unknown:
            known = ", ".join(names[:8])
            raise UserError(
                f"corpus.limits: {unknown[0]} is none of the files of corpus.texts ({known}); correct the "
                "name, or leave it out"
            )
        limits = [
            spec.limits.get(name, spec.limit_per_file or count)
            for name, count in zip(names, spool.counts, strict=True)
        ]
        kept = sample_evenly(
            kept, [(*span, limit) for span, limit in zip(spool.spans(), limits, strict=True)]
        )
    return sample_evenly(kept, [(0, len(kept), spec.limit)]) if spec.limit else kept


class _Split(NamedTuple):
    """The lines of a spool that make a corpus, and which of them are held out."""

    spool: Spool
    kept: RowSet
    held_out: set[int]

    def lines(self, held_out: bool) -> Iterator[bytes]:
        return (line for row, line in self.spool.lines(self.kept) if (row in self.held_out) == held_out)


class _Written(NamedTuple):
    """What a corpus was written as. added: the number of added texts by their name, with held-out ones."""

    fingerprint: str
    trained: int
    held_out: int
    added: dict[str, int]


def _write_split(
    split: _Split, passages: PassageCutter | None, added: dict[str, Iterator[bytes]], folder: Path
) -> _Written:
    """Write the lines to train on and what is added to them, then the held-out lines. Both are followed by
    their passages."""
    with CorpusWriter(folder) as writer:
        for line in split.lines(held_out=False):
            writer.write(line)
        counts = {name: writer.write_all(texts) for name, texts in added.items()}
        if passages:
            counts[PASSAGES] = writer.write_all(passages.of(split.lines(held_out=False)))
        trained = writer.texts_written
        writer.sha256.update(b"\0held out\0")
        for line in split.lines(held_out=True):
            writer.write(line)
        if passages:
            counts[PASSAGES] += writer.write_all(passages.of(split.lines(held_out=True)))
    return _Written(writer.sha256.hexdigest(), trained, writer.texts_written - trained, counts)
