"""The teacher cache: a teacher's embeddings of a corpus, computed once and stored in shards on disk.

A shard is that of a `CorpusPass`: its rows are in the order of the student's targets, so training maps the
files as they are. It holds the embeddings, and the hashes of its texts.
By the hashes, a text that the same teacher has embedded for another corpus is not embedded again. What a
killed process had embedded of a shard is kept in parts, which are shards of their own until the whole one is
written.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy import ndarray

from edgedistill import files
from edgedistill.data.cached_folder import RECORD, intact, mapped, written
from edgedistill.data.corpus import Corpus, CorpusPass
from edgedistill.errors import UserError, quote, require
from edgedistill.files import Json
from edgedistill.session import QUIET, Session, silent

FORMAT = 2  # part of every key: raise it when the cached files change
# the files of a shard
HASHES = "hashes.npy"  # (n,) uint64
EMBEDDINGS = "embeddings.npy"  # (n, d) float16
PART = 1_024  # texts of a shard: the window that is sorted by length
MOST_FLOAT16 = float(np.finfo(np.float16).max)
# of embedding, after which the texts done so far are kept; a killed process loses little more
PART_SECONDS = 20.0


class Embeds(Protocol):
    """A teacher, or a file of precomputed embeddings."""

    keeps_lengths: bool

    @property
    def dims(self) -> int: ...

    def identity(self) -> Json: ...

    def prepare(self, session: Session) -> None: ...

    def embed(self, texts: list[str], device: str, unit: bool) -> ndarray: ...


def text_hashes(texts: Iterable[str]) -> ndarray:
    """A 64-bit hash of each text, (n,) uint64."""
    hashes = b"".join(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts
    )
    return np.frombuffer(hashes, np.uint64)


class CachedEmbeddings:
    """Teacher embeddings of a corpus: (n, d) float16 rows in memory-mapped shards."""

    def __init__(self, folder: Path, shards: int) -> None:
        self.folder = folder
        self.parts = [mapped(folder / f"{number:05d}" / EMBEDDINGS) for number in range(shards)]
        self.shard = len(self.parts[0])  # the length of every shard but the last
        self.dims = int(self.parts[0].shape[1])

    def __getitem__(self, rows: ndarray) -> ndarray:
        """rows (n,) -> (n, d) float32."""
        out = np.empty((len(rows), self.dims), np.float32)
        shards = rows // self.shard
        for shard in np.unique(shards):
            here = shards == shard
            out[here] = self.parts[shard][rows[here] - shard * self.shard]
        return out


class TeacherPass(CorpusPass):
    """A pass of a teacher over a corpus. Embeddings are of unit length, or with `unit` False as the model
    returns them before it normalizes them."""

    work = "embedding"

    def __init__(
        self,
        teacher: Embeds,
        corpus: Corpus,
        session: Session = QUIET,
        unit: bool = True,
        name: str = "teacher",
    ) -> None:
        # of all that determines its embeddings: corpora share those of the texts they share
        key = files.cache_key(format=FORMAT, unit=unit, **teacher.identity())
        folder = session.cache / "teachers" / key / corpus.fingerprint[:24]
        super().__init__(name, corpus, session, folder)
        self.teacher = teacher
        self.unit = unit
        self.embedded = 0  # texts
        self.parts = self.folder.with_suffix(".parts")

    def open(self) -> CachedEmbeddings:
        """The embeddings; what is not cached is embedded first."""
        self.run()
        return CachedEmbeddings(self.folder, self.shards)

    @cached_property
    def pool(self) -> Pool:
        """What the same teacher has embedded: of other corpora, and the parts of this one. No text is in two
        of its shards."""
        shards = (mark.parent for mark in sorted(self.folder.parent.glob(f"*/*/{RECORD}")))
        return Pool(shard for shard in shards if shard.parent != self.folder and intact(shard, silent))

    @cached_property
    def missing(self) -> int:
        """How many of the texts have no embedding in the cache yet."""
        missing = 0
        for number in set(range(self.shards)) - self.made:
            positions = self.pool.index.find(text_hashes(self.texts(number)))
            missing += int((positions < 0).sum())
        return missing

    @property
    def done(self) -> str:
        reused = f", {self.pool.reused:,} reused from other corpora" if self.pool.reused else ""
        return f"{self.embedded:,} texts{reused}"

    def computed(self, number: int) -> Callable[[Path], None]:
        """Embed the texts of a shard, but for those that the pool has."""
        texts = self.texts(number)
        hashes = text_hashes(texts)
        embeddings = np.empty((len(texts), self.teacher.dims), np.float16)
        new = np.flatnonzero(~self.pool.fill(hashes, embeddings))
        if len(new):
            self.teacher.prepare(self.session)
        since = time.perf_counter()
        kept = 0
        for start in range(0, len(new), PART):
            end = start + PART
            rows = new[start:end]
            chosen = [texts[row] for row in rows]
            embedded = self.teacher.embed(chosen, self.session.device, self.unit)
            check_float16(embedded, chosen)
            embeddings[rows] = embedded
            if time.perf_counter() - since > PART_SECONDS and end < len(new):
                part = new[kept:end]
                place = self.parts / f"{number:05d}.{part[0]:05d}"
                written(place, partial(_write, hashes[part], embeddings[part]), uploaded=False)
                kept = end
                since = time.perf_counter()
        self.embedded += len(new)
        return partial(_write, hashes, embeddings)

    def make(self, number: int) -> int:
        texts = super().make(number)
        for part in self.parts.glob(f"{number:05d}.*"):
            shutil.rmtree(part, True)  # another process may have embedded the same shard
        return texts

    def write_parquet(self, folder: Path) -> None:
        """Write the embeddings into an empty folder: a file a shard, with the columns `hash`, uint64, and
        `embedding`, a fixed_size_list of float16. Raises UserError where shards are lacking."""
        parquet = require("pyarrow.parquet", "edgedistill cache --parquet", "train")
        arrow = require("pyarrow", "edgedistill cache --parquet", "train")
        if lacking := self.lacking():
            raise UserError(
                f"--parquet: {self.name}: {len(lacking):,} of {self.shards:,} shards are lacking; fill the "
                "cache first, without --only"
            )
        folder.mkdir(parents=True)
        for shard in map(self.shard, range(self.shards)):
            rows = np.load(shard / EMBEDDINGS)
            columns = {
                "hash": arrow.array(np.load(shard / HASHES)),
                "embedding": arrow.FixedSizeListArray.from_arrays(arrow.array(rows.ravel()), rows.shape[1]),
            }
            parquet.write_table(arrow.table(columns), folder / f"{shard.name}.parquet")


def _write(hashes: ndarray, embeddings: ndarray, folder: Path) -> None:
    np.save(folder / HASHES, hashes)
    np.save(folder / EMBEDDINGS, embeddings)


def check_float16(embeddings: ndarray, texts: Sequence[str]) -> None:
    """Raise UserError for embeddings (n, d) of texts that float16 cannot hold, and where all are zeros."""
    largest = np.abs(embeddings).max(1)
    good = largest <= MOST_FLOAT16  # NaN is not
    if not good.all():
        at = int(np.argmin(good))
        fact = "is not finite"
        if np.isfinite(largest[at]):
            fact = f"holds {largest[at]:.4g}, and the cache's float16 ends at {MOST_FLOAT16:,.0f}"
        raise UserError(
            f"teacher: the embedding of {quote(texts[at])} {fact}; choose another teacher or dtype, or leave "
            "that text out"
        )
    if not largest.any():
        raise UserError(
            f"teacher: the embeddings of {len(texts):,} texts are all zeros, so there is nothing to learn "
            "from it; correct the weights of its last layers, or choose another"
        )


class HashIndex:
    """The first position of each of some hashes (n,)."""

    def __init__(self, hashes: ndarray) -> None:
        self._hashes, self._first = np.unique(hashes, return_index=True)

    def find(self, wanted: ndarray) -> ndarray:
        """wanted (m,) -> positions (m,) int64; −1 where a hash is missing."""
        if not len(self._hashes):
            return np.full(len(wanted), -1)
        at = np.searchsorted(self._hashes, wanted).clip(max=len(self._hashes) - 1)
        return np.where(self._hashes[at] == wanted, self._first[at], -1)


class Pool:
    """The embeddings of shards, by the hashes of their texts. `reused` counts those that were copied."""

    def __init__(self, shards: Iterable[Path]) -> None:
        self.reused = 0
        self._shards = list(shards)
        hashes = [np.load(shard / HASHES) for shard in self._shards]
        self._starts = np.cumsum([0, *map(len, hashes)])
        self.index = HashIndex(np.concatenate([np.empty(0, np.uint64), *hashes]))

    def fill(self, wanted: ndarray, out: ndarray) -> ndarray:
        """Copy the embeddings that are cached into the rows of `out` (n, d); wanted (n,). Returns which rows
        were filled, (n,) bool."""
        positions = self.index.find(wanted)
        shards = np.searchsorted(self._starts, positions, side="right") - 1  # −1 where a hash is missing
        for shard in np.unique(shards[positions >= 0]):
            here = shards == shard
            out[here] = mapped(self._shards[shard] / EMBEDDINGS)[positions[here] - self._starts[shard]]
        self.reused += int((positions >= 0).sum())
        return positions >= 0
