"""A teacher's vectors of a corpus: embedded once, in shards on disk, under the hash of what made them.

A text that the same teacher has read for another corpus is not read again: beside every shard lie the hashes of its texts.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from rich.progress import Progress

from edgedistill import files
from edgedistill.data.corpus import Corpus
from edgedistill.session import QUIET, Log, Session
from edgedistill.teacher.encoder import Teacher

SHARD = 32_768  # texts: what a kill can cost, and the window that is sorted by length
FORMAT = 1


class Vectors:
    """Teacher embeddings of a corpus: (n, d) float16 rows in memory-mapped shards."""

    def __init__(self, folder: Path, shards: int) -> None:
        self.folder = folder
        self.parts = [np.load(_shard(folder, number), mmap_mode="r") for number in range(shards)]
        self.shard = len(self.parts[0])  # all but the last are of this length
        self.dims = int(self.parts[0].shape[1])

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """rows (n,) -> (n, d) float32."""
        out = np.empty((len(rows), self.dims), np.float32)
        numbers = rows // self.shard
        for number in np.unique(numbers):
            here = numbers == number
            out[here] = self.parts[number][rows[here] - number * self.shard]
        return out


def embed_corpus(
    teacher: Teacher,
    corpus: Corpus,
    session: Session = QUIET,
    unit: bool = True,
    name: str = "teacher",
) -> Vectors:
    """Embed every text of a corpus once; finished shards are kept through a kill and shared by all who ask the same.

    `unit`: at unit length; else as the model gives them before it scales them; `name`: what progress calls it. A shard whose bytes have
    changed since is embedded again.
    Raises UserError when the disk is full.
    """
    folder = vectors_folder(teacher, corpus, session, unit)
    shards = -(-len(corpus) // SHARD)
    done = _sound_shards(folder, session.log)
    if len(done) < shards:
        session.log(f"{name}: embedding {len(corpus):,} texts in {shards} shards, {len(done)} of them done before")
        files.write_json(folder / "teacher.json", {"teacher": _reader(teacher, unit)})
        started, embedded = time.perf_counter(), 0
        known = Known(path for path, sha in _read_before(teacher, unit, but=folder) if files.sha256_file(path) == sha)
        with Progress(disable=not session.progress, transient=True) as bar:
            task = bar.add_task(name, total=len(corpus))
            for number, texts in enumerate(corpus.chunks(SHARD)):
                if number not in done:
                    embedded += _embed(teacher, texts, known, _shard(folder, number), session.device, unit)
                    done[number] = files.sha256_file(_shard(folder, number))
                    files.write_json(folder / "shards.json", {str(n): sha for n, sha in sorted(done.items())})
                bar.update(task, advance=len(texts))
        seconds = time.perf_counter() - started
        taken = f", {known.given:,} known from other corpora" if known.given else ""
        session.log(f"{name}: {embedded:,} texts in {seconds:.0f} s, {embedded / seconds:,.0f} texts/s{taken}")
    return Vectors(folder, shards)


def _embed(teacher: Teacher, texts: list[str], known: Known, path: Path, device: str, unit: bool) -> int:
    """Write a shard, and beside it what its texts are. Returns how many of them had to be read."""
    own = keys(texts)
    vectors = np.empty((len(texts), teacher.dims), np.float16)
    new = np.flatnonzero(~known.fill(own, vectors))
    if len(new):
        vectors[new] = teacher.embed([texts[row] for row in new], device, unit)
    for place, array in ((_keys_of(path), own), (path, vectors)):
        with files.new_file(place) as temporary, temporary.open("wb") as file:
            np.save(file, array)
    return len(new)


def vectors_folder(teacher: Teacher, corpus: Corpus, session: Session, unit: bool = True) -> Path:
    """Where the cache keeps, or will keep, this teacher's vectors of this corpus."""
    how = {} if unit else {"unit": False}
    return session.cache / "teachers" / files.key(format=FORMAT, corpus=corpus.fingerprint, **how, **teacher.made_of())


def embedded(teacher: Teacher, corpus: Corpus, session: Session, unit: bool = True) -> int:
    """How many texts of the corpus the cache holds vectors of already."""
    folder = vectors_folder(teacher, corpus, session, unit)
    done, known = _listed(folder), Known(path for path, _ in _read_before(teacher, unit, but=folder))
    return sum(
        len(texts) if number in done else int((known.index.find(keys(texts)) >= 0).sum())
        for number, texts in enumerate(corpus.chunks(SHARD))
    )


def keys(texts: Iterable[str]) -> np.ndarray:
    """A hash of each text, (n,) uint64."""
    found = b"".join(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(found, np.uint64)


class Index:
    """Where each of some keys (n,) stands first."""

    def __init__(self, keys: np.ndarray) -> None:
        self._keys, self._first = np.unique(keys, return_index=True)

    def find(self, wanted: np.ndarray) -> np.ndarray:
        """(m,) int64; −1: nowhere."""
        if not len(self._keys):
            return np.full(len(wanted), -1)
        at = np.searchsorted(self._keys, wanted).clip(max=len(self._keys) - 1)
        return np.where(self._keys[at] == wanted, self._first[at], -1)


class Known:
    """The vectors of other corpora, by the hashes of their texts; `given`: how many were taken."""

    def __init__(self, shards: Iterable[Path]) -> None:
        self.given, self._shards = 0, list(shards)
        every = [np.load(_keys_of(shard)) for shard in self._shards]
        self._starts = np.cumsum([0, *map(len, every)])
        self.index = Index(np.concatenate([np.empty(0, np.uint64), *every]))

    def fill(self, wanted: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Put the vectors that are there into the rows of `out`, (n, d). Returns which were, (n,) bool."""
        found = self.index.find(wanted)
        shards = np.searchsorted(self._starts, found, side="right") - 1  # −1 where nowhere
        for shard in np.unique(shards[found >= 0]):
            here = shards == shard
            out[here] = np.load(self._shards[shard], mmap_mode="r")[found[here] - self._starts[shard]]
        self.given += int((found >= 0).sum())
        return found >= 0


def _reader(teacher: Teacher, unit: bool) -> str:
    """Who embeds, whatever the corpus."""
    return files.key(format=FORMAT, unit=unit, **teacher.made_of())


def _read_before(teacher: Teacher, unit: bool, but: Path) -> Iterator[tuple[Path, str]]:
    """(shard, sha256) of all other corpora that the teacher has read, so."""
    reader = _reader(teacher, unit)  # once: it hashes the model
    for mark in sorted(but.parent.glob("*/teacher.json")):
        if mark.parent != but and files.read_json(mark) == {"teacher": reader}:
            for number, sha in _listed(mark.parent).items():
                path = _shard(mark.parent, number)
                if path.exists() and _keys_of(path).exists():
                    yield path, sha


def _shard(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.npy"


def _keys_of(shard: Path) -> Path:
    return shard.with_suffix(".keys.npy")


def _listed(folder: Path) -> dict[int, str]:
    """The finished shards as they were written, number -> sha256."""
    index = folder / "shards.json"
    return {int(number): sha for number, sha in files.read_json(index).items()} if index.exists() else {}


def _sound_shards(folder: Path, log: Log) -> dict[int, str]:
    """The finished shards whose bytes are still those written, number -> sha256."""
    sound = {}
    for number, sha in _listed(folder).items():
        path = _shard(folder, number)
        if path.exists() and files.sha256_file(path) == sha:
            sound[number] = sha
        else:
            log(f"{path}: damaged or gone; embedding its texts again")
    return sound
