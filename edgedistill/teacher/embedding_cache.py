"""The teacher cache: a teacher's embeddings of a corpus, computed once and stored in shards on disk.

A shard is a range of the corpus' rows, of the same length whoever embeds it: the rows are in the order of the
student's targets, so training maps the files as they are, and what a shard holds depends on its texts alone.
So processes that share a folder share the work, see `Share`, and leave the same bytes as one. A shard is
three files, the last of which marks it as whole: embeddings, the hashes of its texts, and the sha256 of both.
By the hashes, a text that the same teacher has embedded for another corpus is not embedded again. What a
killed process had embedded of a shard is kept in parts, which are shards of their own until the whole one is
written.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from edgedistill import files, object_store
from edgedistill.data.cached_folder import check_uncut, is_unchanged, mapped, recorded
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError, quote, require
from edgedistill.session import QUIET, Session, progress_bar

FORMAT = 1  # part of every key: raise it when the cached files change
SHARD = 32_768  # texts
PART = 1_024  # of them: the window that is sorted by length
MOST_FLOAT16 = float(np.finfo(np.float16).max)
# of embedding, after which the texts done so far are kept; a killed process loses little more
PART_SECONDS = 20.0


class Share(NamedTuple):
    """The shards `number`, `number` + `of`, … of a pass, which one of `of` processes embeds; by default
    all."""

    number: int = 0
    of: int = 1


ALL = Share()


class Embeds(Protocol):
    """A teacher, or a file of precomputed embeddings."""

    @property
    def dims(self) -> int: ...

    def in_role(self, role: str) -> Embeds: ...

    def identity(self) -> dict[str, Any]: ...

    def prepare(self, session: Session) -> None: ...

    def embed(self, texts: list[str], device: str, unit: bool) -> np.ndarray: ...


def cache_key(teacher: Embeds, corpus: Corpus, unit: bool = True) -> str:
    """The key of a teacher's embeddings of a corpus: the hash of the corpus and of everything that determines
    the embeddings. `unit` is that of `embed_corpus`."""
    how = {} if unit else {"unit": False}
    return files.cache_key(format=FORMAT, corpus=corpus.fingerprint, **how, **teacher.identity())


def encoder_key(teacher: Embeds, unit: bool) -> str:
    """The key of a teacher, whatever the corpus: corpora with equal encoder keys share the embeddings of the
    texts they share."""
    return files.cache_key(format=FORMAT, unit=unit, **teacher.identity())


def text_hashes(texts: Iterable[str]) -> np.ndarray:
    """A 64-bit hash of each text, (n,) uint64."""
    hashes = b"".join(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts
    )
    return np.frombuffer(hashes, np.uint64)


class CachedEmbeddings:
    """Teacher embeddings of a corpus: (n, d) float16 rows in memory-mapped shards."""

    def __init__(self, folder: Path, shards: int) -> None:
        self.folder = folder
        self.parts = [mapped(_shard(folder, number)) for number in range(shards)]
        self.shard = len(self.parts[0])  # the length of every shard but the last
        self.dims = int(self.parts[0].shape[1])

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """rows (n,) -> (n, d) float32."""
        out = np.empty((len(rows), self.dims), np.float32)
        shards = rows // self.shard
        for shard in np.unique(shards):
            here = shards == shard
            out[here] = self.parts[shard][rows[here] - shard * self.shard]
        if not np.isfinite(out).all():
            row = int(rows[np.argmin(np.isfinite(out).all(1))])
            raise UserError(
                f"{self.folder}: the embedding of text {row + 1:,} is not finite; delete that folder, it is "
                "made again"
            )
        return out


def embed_corpus(
    teacher: Embeds,
    corpus: Corpus,
    session: Session = QUIET,
    unit: bool = True,
    name: str = "teacher",
) -> CachedEmbeddings:
    """Embed every text of a corpus that is not cached yet, as `TeacherPass` does, and open its embeddings."""
    whole = TeacherPass(teacher, corpus, session, unit, name)
    whole.embed()
    return CachedEmbeddings(whole.folder, whole.shards)


class TeacherPass:
    """A pass of a teacher over a corpus. Finished shards survive a kill; a shard that was damaged is embedded
    again.

    Embeddings are of unit length, or with `unit` False as the model returns them before it normalizes them.
    `name` is the label of log and progress bar.
    """

    def __init__(
        self,
        teacher: Embeds,
        corpus: Corpus,
        session: Session = QUIET,
        unit: bool = True,
        name: str = "teacher",
    ) -> None:
        self.teacher, self.corpus, self.session, self.unit, self.name = teacher, corpus, session, unit, name
        self.folder = embeddings_folder(teacher, corpus, session, unit)
        self.key = encoder_key(teacher, unit)
        self.shards = -(-len(corpus) // SHARD)
        self.embedded, self.seconds = 0, 0.0  # texts, and how long they took

    @cached_property
    def pool(self) -> Pool:
        """What the same teacher has embedded: of other corpora, and the parts of this one. No text is in two
        of its shards."""
        return Pool(
            path
            for path, sha256 in _embedded(self.folder.parent, self.key)
            if (path.parent != self.folder or ".part" in path.name) and is_unchanged(path, sha256)
        )

    @cached_property
    def missing(self) -> int:
        """How many of the texts have no embedding in the cache yet."""
        return len(self.corpus) - count_cached(self.teacher, self.corpus, self.session, self.unit)

    @property
    def done(self) -> int:
        """How many shards are there, by their marks, here or in the cache's object store."""
        marked = {name.removesuffix(".npy") for name in _record(self.folder)}
        marked |= {name.removesuffix(".json") for name in object_store.names(self.folder)}
        return sum(name.isdecimal() for name in marked)

    @property
    def record(self) -> dict[str, Any]:
        """{name, folder, texts, shards, done}."""
        found = {"name": self.name, "folder": str(self.folder), "texts": len(self.corpus)}
        return {**found, "shards": self.shards, "done": self.done}

    def lacking(self, share: Share = ALL) -> list[int]:
        """The numbers of the share's shards that are not there as they were written; those that the cache's
        object store has are fetched."""
        wanted = range(share.number, self.shards, share.of)
        self._fetch(wanted)
        record = _record(self.folder)
        found = [each for each in wanted if not self._is_intact(each, record)]
        if found:
            done = f"{len(wanted) - len(found)} of {len(wanted)} shards already done"
            self.session.log(f"{self.name}: embedding {len(self.corpus):,} texts; {done}")
        return found

    def embed(self, share: Share = ALL) -> None:
        """Embed what is lacking of a share. Raises UserError when the disk is full."""
        if lacking := self.lacking(share):
            with progress_bar(len(lacking) * SHARD, self.session.progress, self.name) as advance:
                for number in lacking:
                    advance(self.embed_shard(number))
            reused = f", {self.pool.reused:,} reused from other corpora" if self.pool.reused else ""
            rate = self.embedded / max(self.seconds, 1e-9)
            spent = f"{self.embedded:,} texts in {self.seconds:.0f} s, {rate:,.0f} texts/s"
            self.session.log(f"{self.name}: {spent}{reused}")

    def embed_shard(self, number: int) -> int:
        """Embed the texts of a shard, but for those that the pool has, and write the shard. Returns how many
        texts it has."""
        texts = self.corpus.between(number * SHARD, (number + 1) * SHARD)
        path, hashes = _shard(self.folder, number), text_hashes(texts)
        embeddings = np.empty((len(texts), self.teacher.dims), np.float16)
        new = np.flatnonzero(~self.pool.fill(hashes, embeddings))
        if len(new):
            self.teacher.prepare(self.session)
        started = since = time.perf_counter()
        kept = 0
        for start in range(0, len(new), PART):
            end = start + PART
            rows = new[start:end]
            found = self.teacher.embed([texts[row] for row in rows], self.session.device, self.unit)
            check_float16(found, [texts[row] for row in rows], number * SHARD + rows)
            embeddings[rows] = found
            if time.perf_counter() - since > PART_SECONDS and end < len(new):
                part = new[kept:end]
                self._write(path.with_suffix(f".{part[0]:05d}.part.npy"), hashes[part], embeddings[part])
                kept, since = end, time.perf_counter()
        self.seconds += time.perf_counter() - started
        self.embedded += len(new)
        self._write(path, hashes, embeddings)
        for left in self.folder.glob(f"{path.stem}.*.part*"):
            left.unlink(missing_ok=True)  # another process may have embedded the same shard
        return len(texts)

    def write_parquet(self, folder: Path) -> None:
        """Write the embeddings into an empty folder: a file a shard, with the columns `hash`, uint64, and
        `embedding`, a fixed_size_list of float16. Raises UserError where shards are lacking."""
        arrow = require("pyarrow", "edgedistill cache --parquet", "train")
        parquet = require("pyarrow.parquet", "edgedistill cache --parquet", "train")
        if self.done < self.shards:
            fact = f"{self.done:,} of {self.shards:,} shards are there"
            raise UserError(f"--parquet: {self.name}: {fact}; fill the cache first, without --only")
        folder.mkdir(parents=True)
        self._fetch(range(self.shards))
        for number in range(self.shards):
            path = _shard(self.folder, number)
            rows = np.load(path)
            columns = {
                "hash": arrow.array(np.load(_hashes_of(path))),
                "embedding": arrow.FixedSizeListArray.from_arrays(arrow.array(rows.ravel()), rows.shape[1]),
            }
            parquet.write_table(arrow.table(columns), folder / f"{path.stem}.parquet")

    def _write(self, path: Path, hashes: np.ndarray, embeddings: np.ndarray) -> None:
        """Write a shard or a part, next to it the hashes of its texts, and last its mark; upload a shard."""
        check_uncut()
        files.write_json(self.folder / "teacher.json", {"teacher": self.key})
        written = {}
        for place, array in ((_hashes_of(path), hashes), (path, embeddings)):
            with files.new_file(place) as temporary, temporary.open("wb") as file:
                np.save(file, array)
            written[place.name] = files.sha256_file(place)
        files.write_json(path.with_suffix(".json"), written)
        if path.stem.isdecimal():
            object_store.upload([self.folder / "teacher.json", *_parts_of(path)])

    def _fetch(self, numbers: Iterable[int]) -> None:
        """Have here those shards that have their marks in the cache's object store."""
        there = object_store.names(self.folder)
        for number in numbers:
            shard = _parts_of(_shard(self.folder, number))
            for place in [self.folder / "teacher.json", *shard] if shard[-1].name in there else []:
                if not place.exists():
                    object_store.fetch(object_store.address_of(place), place)

    def _is_intact(self, number: int, record: dict[str, str]) -> bool:
        """Whether a shard is there with the bytes that were written; one that is damaged is named."""
        path = _shard(self.folder, number)
        if path.name in record and not is_unchanged(path, record[path.name]):
            self.session.log(f"{path}: damaged or missing; embedding its texts again")
            return False
        return path.name in record


def check_float16(embeddings: np.ndarray, texts: Sequence[str], rows: np.ndarray) -> None:
    """Raise UserError for embeddings (m, d) that float16 cannot hold, and where all are zeros.

    `rows` (m,) say where the texts are in the corpus, from 0.
    """
    largest = np.abs(embeddings).max(1)
    good = largest <= MOST_FLOAT16  # NaN is not
    if not good.all():
        at = int(np.argmin(good))
        fact = "is not finite"
        if np.isfinite(largest[at]):
            fact = f"holds {largest[at]:.4g}, and the cache's float16 ends at {MOST_FLOAT16:,.0f}"
        text = f"text {int(rows[at]) + 1:,} of the corpus ({quote(texts[at])})"
        raise UserError(
            f"teacher: the embedding of {text} {fact}; choose another teacher or dtype, or leave that text "
            "out"
        )
    if not largest.any():
        fact = f"the embeddings of {len(rows):,} texts are all zeros"
        raise UserError(
            f"teacher: {fact}, so there is nothing to learn from it; correct the weights of its last layers, "
            "or choose another"
        )


def embeddings_folder(teacher: Embeds, corpus: Corpus, session: Session, unit: bool = True) -> Path:
    """The cache's folder for this teacher's embeddings of this corpus, which may not exist yet."""
    return session.cache / "teachers" / cache_key(teacher, corpus, unit)


def count_cached(teacher: Embeds, corpus: Corpus, session: Session, unit: bool = True) -> int:
    """The number of the corpus' texts whose embeddings are cached already."""
    found = _embedded(session.cache / "teachers", encoder_key(teacher, unit))
    index = Pool(path for path, _ in found).index
    return sum(int((index.find(text_hashes(texts)) >= 0).sum()) for texts in corpus.chunks(SHARD))


class HashIndex:
    """The first position of each of some hashes (n,)."""

    def __init__(self, hashes: np.ndarray) -> None:
        self._hashes, self._first = np.unique(hashes, return_index=True)

    def find(self, wanted: np.ndarray) -> np.ndarray:
        """wanted (m,) -> positions (m,) int64; −1 where a hash is missing."""
        if not len(self._hashes):
            return np.full(len(wanted), -1)
        at = np.searchsorted(self._hashes, wanted).clip(max=len(self._hashes) - 1)
        return np.where(self._hashes[at] == wanted, self._first[at], -1)


class Pool:
    """The embeddings of shards, by the hashes of their texts. `reused` counts those that were copied."""

    def __init__(self, shards: Iterable[Path]) -> None:
        self.reused, self._shards = 0, list(shards)
        hashes = [np.load(_hashes_of(shard)) for shard in self._shards]
        self._starts = np.cumsum([0, *map(len, hashes)])
        self.index = HashIndex(np.concatenate([np.empty(0, np.uint64), *hashes]))

    def fill(self, wanted: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Copy the embeddings that are cached into the rows of `out` (n, d); wanted (n,). Returns which rows
        were filled, (n,) bool."""
        found = self.index.find(wanted)
        shards = np.searchsorted(self._starts, found, side="right") - 1  # −1 where a hash is missing
        for shard in np.unique(shards[found >= 0]):
            here = shards == shard
            out[here] = mapped(self._shards[shard])[found[here] - self._starts[shard]]
        self.reused += int((found >= 0).sum())
        return found >= 0


def _embedded(teachers: Path, key: str) -> Iterator[tuple[Path, str]]:
    """(shard or part, sha256) of everything that the encoder of this key has embedded; the hashes of its
    texts are intact."""
    for mark in sorted(teachers.glob("*/teacher.json")):
        if recorded(mark) == {"teacher": key}:
            record = _record(mark.parent)
            for name, sha256 in record.items():
                shard = mark.parent / name
                keys = _hashes_of(shard)
                if shard.exists() and is_unchanged(keys, record.get(keys.name, "")):
                    yield shard, sha256


def _shard(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.npy"


def _hashes_of(shard: Path) -> Path:
    return shard.with_suffix(".keys.npy")


def _parts_of(shard: Path) -> list[Path]:
    """The files of a shard, its mark last."""
    return [_hashes_of(shard), shard, shard.with_suffix(".json")]


def _record(folder: Path) -> dict[str, str]:
    """The sha256 of the folder's files as they were written: what its marks hold, together. Caches that are
    older than marks have one shards.json of all, which a shard's own mark overrides."""
    marks = sorted(folder.glob("*.json"), reverse=True)
    return {name: sha256 for mark in marks for name, sha256 in recorded(mark).items()}
