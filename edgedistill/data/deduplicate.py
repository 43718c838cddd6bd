"""Find duplicate texts on disk: digests go to buckets, and one bucket at a time is sorted in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from edgedistill.data import readers
from edgedistill.data.disk_spool import RowSet

BUCKETS = 256  # one per first byte of a digest
FLUSH = 200_000  # records held in memory
EXCLUDED = -1  # the row of a text that must not be trained on: it sorts before every row of a source
RECORD = [("digest", "<u8"), ("row", "<i8")]


def digest(text: str) -> bytes:
    """8 bytes that are equal for texts which are equal but for case."""
    return hashlib.blake2b(text.casefold().encode("utf-8", "surrogatepass"), digest_size=8).digest()


def excluded_digests(paths: list[Path]) -> set[bytes]:
    """Digests of every text in those files, whatever its column: texts that must not be trained on."""
    return {
        digest(readers.normalize(text)) for path in paths for text in readers.texts_in_every_column(path)
    } - {digest("")}


class DigestBuckets:
    """Records (digest, row) in a folder, one file per first byte of the digest."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.pending: list[list[bytes]] = [[] for _ in range(BUCKETS)]
        self.waiting = 0

    def add(self, digest: bytes, row: int) -> None:
        self.pending[digest[0]].append(digest + row.to_bytes(8, "little", signed=True))
        self.waiting += 1
        if self.waiting >= FLUSH:
            self._flush()

    def _flush(self) -> None:
        for bucket, records in enumerate(self.pending):
            if records:
                with (self.folder / str(bucket)).open("ab") as file:
                    file.write(b"".join(records))
                records.clear()
        self.waiting = 0

    def drain(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(records sorted by digest, then row; which of them is the first of its digest, bool) of each
        bucket.

        Each bucket's file is deleted once its records were used, and the folder at the end.
        """
        self._flush()
        for bucket in sorted(self.folder.iterdir()):
            records = np.fromfile(bucket, dtype=RECORD)
            records = records[np.lexsort((records["row"], records["digest"]))]
            first = np.ones(len(records), bool)
            first[1:] = records["digest"][1:] != records["digest"][:-1]
            yield records, first
            bucket.unlink()
        self.folder.rmdir()


def first_occurrences(buckets: DigestBuckets, rows: int) -> RowSet:
    """The first row of each digest, without the digests that also occur as EXCLUDED."""
    found = RowSet(rows)
    for records, first in buckets.drain():
        chosen = records["row"][first]
        found.add(chosen[chosen >= 0])
    return found


def first_row_of_each(buckets: DigestBuckets, rows: int, path: Path) -> np.memmap:
    """For every row, the first row with the same digest: (rows,) int64, memory-mapped at `path`."""
    found = np.memmap(path, dtype=np.int64, mode="w+", shape=(rows,))
    for records, first in buckets.drain():
        found[records["row"]] = records["row"][
            np.maximum.accumulate(np.where(first, np.arange(len(records)), 0))
        ]
    return found
