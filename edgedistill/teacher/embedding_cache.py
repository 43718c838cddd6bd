"""The teacher cache: a teacher's embeddings of a corpus, computed once and stored in shards on disk (keys:
`cache_key`).

Next to every shard are the hashes of its texts, so that a text that the same teacher has embedded for another
corpus is not embedded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.progress import Progress

from edgedistill import files
from edgedistill.data.cached_folder import is_unchanged, recorded
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError, quote
from edgedistill.session import QUIET, Log, Session
from edgedistill.teacher.cache_key import cache_key, encoder_key, text_hashes
from edgedistill.teacher.encoder import TeacherEncoder

SHARD = 32_768  # texts
PART = 1_024  # of them: the window that is sorted by length
MOST_FLOAT16 = float(np.finfo(np.float16).max)
RECORD = "shards.json"  # the sha256 of each of the folder's files
PART_SECONDS = (
    20.0  # of embedding, after which the texts done so far are kept; a killed process loses little more
)


class CachedEmbeddings:
    """Teacher embeddings of a corpus: (n, d) float16 rows in memory-mapped shards."""

    def __init__(self, folder: Path, shards: int) -> None:
        self.folder = folder
        self.parts = [np.load(_shard(folder, number), mmap_mode="r") for number in range(shards)]
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
    teacher: TeacherEncoder,
    corpus: Corpus,
    session: Session = QUIET,
    unit: bool = True,
    name: str = "teacher",
) -> CachedEmbeddings:
    """Embed every text of a corpus that is not cached yet. Finished shards survive a kill; a shard that was
    damaged is embedded again.

    `unit`: embeddings of unit length, otherwise as the model returns them before it normalizes them. `name`:
        the label of log and
    progress bar. Raises UserError when the disk is full.
    """
    folder = embeddings_folder(teacher, corpus, session, unit)
    shards = -(-len(corpus) // SHARD)
    done = _intact_shards(folder, session.log)
    if len(done) < shards:
        session.log(f"{name}: embedding {len(corpus):,} texts; {len(done)} of {shards} shards already done")
        mark, seconds, embedded = {"teacher": encoder_key(teacher, unit)}, 0.0, 0
        known = [
            path for path, sha256 in _other_shards(teacher, unit, but=folder) if is_unchanged(path, sha256)
        ]
        others = OtherCorpora([*known, *_parts(folder)])
        with Progress(disable=not session.progress, transient=True) as bar:
            task = bar.add_task(name, total=len(corpus))
            for number, texts in enumerate(corpus.chunks(SHARD)):
                if number not in done:
                    hashes = text_hashes(texts)
                    embeddings = np.empty((len(texts), teacher.dims), np.float16)
                    new = np.flatnonzero(~others.fill(hashes, embeddings))
                    if len(new):
                        teacher.prepare(session)
                        started = time.perf_counter()
                        filled = _Filled(_shard(folder, number), number * SHARD, texts, hashes, embeddings)
                        _embed_rows(
                            lambda rows: teacher.embed(
                                [texts[row] for row in rows],  # noqa: B023
                                session.device,
                                unit,
                            ),
                            new,
                            filled,
                        )
                        seconds, embedded = seconds + time.perf_counter() - started, embedded + len(new)
                    files.write_json(folder / "teacher.json", mark)
                    _write_shard(_shard(folder, number), hashes, embeddings)
                    _remove_parts(_shard(folder, number))
                bar.update(task, advance=len(texts))
        reused = f", {others.reused:,} reused from other corpora" if others.reused else ""
        session.log(
            f"{name}: {embedded:,} texts in {seconds:.0f} s, {embedded / max(seconds, 1e-9):,.0f} "
            f"texts/s{reused}"
        )
    return CachedEmbeddings(folder, shards)


class _Filled(NamedTuple):
    """A shard that is being embedded: its file, the row of its first text in the corpus, its texts and their
    hashes (n,), and the embeddings (n, d), which are filled.
    """

    path: Path
    first: int
    texts: list[str]
    hashes: np.ndarray
    embeddings: np.ndarray


def _embed_rows(embed: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, shard: _Filled) -> None:
    """Embed rows of a shard, PART at a time; what is done is kept in files of its own until the shard is
    written."""
    kept, since = 0, time.perf_counter()
    for start in range(0, len(rows), PART):
        end = start + PART
        shard.embeddings[rows[start:end]] = _checked(embed(rows[start:end]), rows[start:end], shard)
        if time.perf_counter() - since > PART_SECONDS and end < len(rows):
            new = rows[kept:end]
            number = len(list(shard.path.parent.glob(f"{shard.path.stem}.*.part.npy")))
            _write_shard(
                shard.path.with_suffix(f".{number:04d}.part.npy"), shard.hashes[new], shard.embeddings[new]
            )
            kept, since = end, time.perf_counter()


def _checked(embeddings: np.ndarray, rows: np.ndarray, shard: _Filled) -> np.ndarray:
    """The embeddings (m, d) of those rows of the shard. Raises UserError for one that float16 cannot hold."""
    largest = np.abs(embeddings).max(1)
    if not (good := largest <= MOST_FLOAT16).all():  # NaN is not
        at = int(np.argmin(good))
        too_large = f"holds {largest[at]:.4g}, and the cache's float16 ends at {MOST_FLOAT16:,.0f}"
        fact = too_large if np.isfinite(largest[at]) else "is not finite"
        text = f"text {shard.first + int(rows[at]) + 1:,} of the corpus ({quote(shard.texts[int(rows[at])])})"
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
    return embeddings


def _parts(folder: Path) -> list[Path]:
    """What a killed process had embedded of a shard."""
    hashes = _record(folder)
    parts = [folder / name for name in sorted(hashes) if name.endswith(".part.npy")]
    return [part for part in parts if is_unchanged(part, hashes[part.name]) and _has_keys(part)]


def _remove_parts(shard: Path) -> None:
    """Delete the parts of a shard that is written."""
    of_parts = f"{shard.stem}.*.part*.npy"
    files.write_json(
        shard.parent / RECORD,
        {name: sha for name, sha in _record(shard.parent).items() if not fnmatch(name, of_parts)},
    )
    for path in shard.parent.glob(of_parts):
        path.unlink()


def _write_shard(path: Path, hashes: np.ndarray, embeddings: np.ndarray) -> None:
    """Write a shard, next to it the hashes of its texts, and the hashes of both files into the folder's
    record."""
    written = {}
    for place, array in ((_hashes_of(path), hashes), (path, embeddings)):
        with files.new_file(place) as temporary, temporary.open("wb") as file:
            np.save(file, array)
        written[place.name] = files.sha256_file(place)
    files.write_json(path.parent / RECORD, _record(path.parent) | written)


def embeddings_folder(teacher: TeacherEncoder, corpus: Corpus, session: Session, unit: bool = True) -> Path:
    """The cache's folder for this teacher's embeddings of this corpus, which may not exist yet."""
    return session.cache / "teachers" / cache_key(teacher, corpus, unit)


def count_cached(teacher: TeacherEncoder, corpus: Corpus, session: Session, unit: bool = True) -> int:
    """The number of the corpus' texts whose embeddings are cached already."""
    folder = embeddings_folder(teacher, corpus, session, unit)
    done, others = _listed(folder), OtherCorpora(path for path, _ in _other_shards(teacher, unit, but=folder))
    return sum(
        len(texts) if number in done else int((others.index.find(text_hashes(texts)) >= 0).sum())
        for number, texts in enumerate(corpus.chunks(SHARD))
    )


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


class OtherCorpora:
    """The cached embeddings of other corpora, by the hashes of their texts. `reused`: how many were
    copied."""

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
            out[here] = np.load(self._shards[shard], mmap_mode="r")[found[here] - self._starts[shard]]
        self.reused += int((found >= 0).sum())
        return found >= 0


def _other_shards(teacher: TeacherEncoder, unit: bool, but: Path) -> Iterator[tuple[Path, str]]:
    """(shard, sha256) of every other corpus that the same teacher has embedded in the same way; the hashes of
    its texts are intact."""
    key = encoder_key(teacher, unit)  # computed once: it hashes the model
    for mark in sorted(but.parent.glob("*/teacher.json")):
        if mark.parent != but and recorded(mark) == {"teacher": key}:
            for number, sha256 in _listed(mark.parent).items():
                shard = _shard(mark.parent, number)
                if shard.exists() and _has_keys(shard):
                    yield shard, sha256


def _shard(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.npy"


def _hashes_of(shard: Path) -> Path:
    return shard.with_suffix(".keys.npy")


def _record(folder: Path) -> dict[str, str]:
    """The sha256 of the folder's files as they were written; records of earlier versions are of shards alone,
    by their number."""
    return {
        f"{int(name):05d}.npy" if name.isdecimal() else name: sha256
        for name, sha256 in recorded(folder / RECORD).items()
    }


def _listed(folder: Path) -> dict[int, str]:
    """The finished shards as they were written, number -> sha256."""
    return {int(name[:-4]): sha256 for name, sha256 in _record(folder).items() if name[:-4].isdecimal()}


def _has_keys(shard: Path) -> bool:
    """Whether the hashes of a shard's texts are as they were written."""
    keys = _hashes_of(shard)
    return is_unchanged(keys, _record(shard.parent).get(keys.name, ""))


def _intact_shards(folder: Path, log: Log) -> set[int]:
    """The numbers of the finished shards whose bytes have not changed since they were written."""
    intact = set()
    for number, sha256 in _listed(folder).items():
        if is_unchanged(_shard(folder, number), sha256):
            intact.add(number)
        else:
            log(f"{_shard(folder, number)}: damaged or missing; embedding its texts again")
    return intact
