"""Which rows each training step uses: a pure function of (seed, step), so that a resumed run needs the step
alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


class Lengths(Protocol):
    """Anything that knows how many tokens its rows have."""

    def lengths(self, rows: np.ndarray) -> np.ndarray: ...


class BatchSizes(Protocol):
    """The fields of a recipe's stage that batches are cut by."""

    @property
    def batch(self) -> int: ...
    @property
    def sorting_window(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...


RowsAndPasses = tuple[
    np.ndarray, np.ndarray
]  # rows (batch,), and which pass over the texts each belongs to, counted from 0

ROUNDS = 4
ODD = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93], np.uint64)


def shuffled(positions: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Map positions in 0…n−1 through a random permutation of 0…n−1 that is never stored.

    A Feistel network over the next even power of two, applied again until the result is below n (Black and
    Rogaway 2002, cycle walking). positions (m,) int. Returns (m,) int64.
    """
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    low = np.uint64((1 << int(half)) - 1)
    keys = np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64)
    out = positions.astype(np.uint64)
    outside = np.ones(len(out), bool)
    while outside.any():
        left, right = out[outside] >> half, out[outside] & low
        for key, odd in zip(keys, ODD, strict=True):
            with np.errstate(over="ignore"):
                mixed = (right + key) * odd
            left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(29))) & low)
        out[outside] = (left << half) | right
        outside = out >= n
    return out.astype(np.int64)


@dataclass(frozen=True)
class Groups:
    """Groups of similar texts in a batch. size: texts in a group. clusters: called when first needed, gives
    the cluster of every row."""

    size: int
    clusters: Callable[[], np.ndarray]


@dataclass
class BatchOrder:
    """The batches of a stage, in order; one pass over the rows follows the other without a gap.

    sizes: the stage. tokens: the lengths of all rows. texts: how many rows there are to draw from, rows 0 …
        texts−1, or with `rows`
    (texts,) those that it lists. groups: which texts in a row of a batch are similar, None for no such
    groups.
    """

    sizes: BatchSizes
    tokens: Lengths
    texts: int
    seed: int
    rows: np.ndarray | None = None
    groups: Groups | None = None
    _window: tuple[int, list[RowsAndPasses]] = field(default=(-1, []), init=False, repr=False)

    def at(self, step: int) -> RowsAndPasses:
        """The batch of a step."""
        number, within = divmod(step, self.sizes.sorting_window)
        if self._window[0] != number:
            self._window = (number, self.window(number))
        return self._window[1][within]

    def window(self, number: int) -> list[RowsAndPasses]:
        """The batches of one window: sorting_window × batch shuffled texts, sorted by length, cut into
        batches, the batches shuffled.

        Texts of like length share a batch, which saves padding; with `groups` it is groups of similar texts
        that are sorted. Returns
        `sorting_window` pairs of rows and passes.
        """
        batch, bucket = self.sizes.batch, self.sizes.sorting_window
        positions = np.arange(number * bucket * batch, (number + 1) * bucket * batch)
        passes = positions // self.texts
        parts = [
            shuffled(positions[passes == each] % self.texts, self.texts, self.seed + 7919 * int(each))
            for each in np.unique(passes)
        ]
        rows = np.concatenate(parts)
        if self.rows is not None:
            rows = self.rows[rows]
        if bucket == 1:
            return [(rows, passes)]
        lengths = np.minimum(self.tokens.lengths(rows), self.sizes.max_tokens)
        sort = (
            np.argsort(lengths, kind="stable")
            if self.groups is None
            else in_groups(self.groups, rows, lengths)
        )
        rows, passes = rows[sort], passes[sort]
        order = np.random.default_rng([self.seed, number]).permutation(bucket)
        return [(rows[i * batch : (i + 1) * batch], passes[i * batch : (i + 1) * batch]) for i in order]


def in_groups(groups: Groups, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The positions of rows (n,) in groups of the same cluster, or of two where one ends; the groups sorted
    by their longest text."""
    positions = np.argsort(groups.clusters()[rows], kind="stable").reshape(-1, groups.size)
    return positions[np.argsort(lengths[positions].max(1), kind="stable")].ravel()
