"""Lines spooled to one temporary file, and sets of its rows as bits: ten million rows take 1.25 MB."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

BLOCK = 65_536  # rows processed at a time
BUFFER = 1 << 20  # bytes


def row_blocks(start: int, end: int) -> Iterator[slice]:
    """Consecutive slices of at most BLOCK rows that cover start … end − 1."""
    for at in range(start, end, BLOCK):
        yield slice(at, min(end, at + BLOCK))


def row_offsets(counts: list[int]) -> list[int]:
    """First row of each source, given the rows per source; the last entry is the total."""
    return [0, *accumulate(counts)]


class RowSet:
    """A set of row numbers below `size`, one bit per row."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.bits = np.zeros(-(-size // 8), np.uint8)

    def __len__(self) -> int:
        """The number of rows that could be in the set; `count` gives those that are."""
        return self.size

    def add(self, rows: np.ndarray) -> None:
        np.bitwise_or.at(self.bits, rows >> 3, np.left_shift(1, rows & 7).astype(np.uint8))

    def without(self, rows: np.ndarray) -> RowSet:
        """A copy that lacks these rows, (n,)."""
        copy = RowSet(self.size)
        copy.bits[:] = self.bits
        np.bitwise_and.at(copy.bits, rows >> 3, ~np.left_shift(1, rows & 7).astype(np.uint8))
        return copy

    def contains(self, rows: np.ndarray) -> np.ndarray:
        """Which of the rows are in the set, (n,) bool."""
        return (self.bits[rows >> 3] >> (rows & 7)) & 1 == 1

    def blocks(self, start: int = 0, end: int | None = None) -> Iterator[np.ndarray]:
        """The rows in the set from start to end − 1, ascending, a block at a time: (n,) int64 each."""
        for block in row_blocks(start, self.size if end is None else end):
            bits = np.unpackbits(self.bits[block.start >> 3 : -(-block.stop // 8)], bitorder="little")
            yield block.start + np.flatnonzero(
                bits[block.start & 7 : (block.start & 7) + block.stop - block.start]
            )

    def count(self, start: int = 0, end: int | None = None) -> int:
        return sum(len(rows) for rows in self.blocks(start, end))

    def at_ranks(self, ranks: np.ndarray) -> np.ndarray:
        """The rows at these ranks (0: the lowest row of the set), ascending, (n,) int64."""
        found, first = [np.zeros(0, np.int64)], 0
        for rows in self.blocks():
            found.append(rows[np.sort(ranks[(ranks >= first) & (ranks < first + len(rows))]) - first])
            first += len(rows)
        return np.concatenate(found)


def sample_evenly(rows: RowSet, spans: list[tuple[int, int, int]]) -> RowSet:
    """Of each span (start, end, limit), at most `limit` of its rows in the set, spread evenly over the
    span."""
    sample = RowSet(len(rows))
    for start, end, limit in spans:
        total, rank = rows.count(start, end), 0
        for block in rows.blocks(start, end):
            ranks = np.arange(rank, rank + len(block))
            nearest = (
                -(-ranks * limit // total) if total > limit else ranks
            )  # the only i for which i * total // limit can be this rank
            sample.add(block[nearest * total // limit == ranks] if total > limit else block)
            rank += len(block)
    return sample


class Spool(NamedTuple):
    """The usable lines of all sources in one file, in the order they were read; `counts`: lines per
    source."""

    path: Path
    counts: list[int]

    @property
    def size(self) -> int:
        """Lines in all."""
        return sum(self.counts)

    def spans(self) -> list[tuple[int, int]]:
        """(first row, row after the last) of each source."""
        return list(pairwise(row_offsets(self.counts)))

    def lines(self, rows: RowSet) -> Iterator[tuple[int, bytes]]:
        """(row, line without its newline) for every row in the set, ascending."""
        with self.path.open("rb", BUFFER) as file:
            numbered = enumerate(file)
            for block in rows.blocks():
                for row in block.tolist():
                    line = next(line for number, line in numbered if number == row)
                    yield row, line[:-1]
