"""Which rows each training step uses: a pure function of (seed, step), so that a resumed run needs the step
alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy import ndarray

from edgedistill import recipe
from edgedistill.runtime.similarity import unit_rows
from edgedistill.teacher.targets import EmbeddingRows

FITTED = 20_000  # rows that the centroids of similar texts are fitted to
ASSIGNED = 16_384  # rows that are assigned to centroids at a time
ITERATIONS = 10
GROUPS = 4  # of a cluster within a window, so that few groups straddle two clusters


class Lengths(Protocol):
    """Anything that knows how many tokens its rows have."""

    def lengths(self, rows: ndarray) -> ndarray: ...


# rows (batch,), and which pass over the texts each belongs to, counted from 0
RowsAndPasses = tuple[ndarray, ndarray]


@lru_cache(maxsize=2)  # one pass ends in the window in which the next begins
def order_of_pass(rows: int, seed: int, number: int) -> ndarray:
    """The order in which a pass reads so many rows: a random permutation (rows,)."""
    return np.random.default_rng([seed, number, 1]).permutation(rows)


class Groups(NamedTuple):
    """Groups of similar texts in a batch: how many texts are in a group, and the cluster of every row."""

    size: int
    clusters: ndarray

    def positions(self, rows: ndarray, lengths: ndarray) -> ndarray:
        """The positions of rows (n,) in groups of the same cluster, or of two where one ends; the groups
        are sorted by their longest text."""
        groups = np.argsort(self.clusters[rows], kind="stable").reshape(-1, self.size)
        return groups[np.argsort(lengths[groups].max(1), kind="stable")].ravel()


def similar_texts(stage: recipe.Stage, targets: EmbeddingRows, texts: int, seed: int) -> Groups:
    """The groups of a stage whose objective compares similar texts: a cluster has texts for a few groups in
    a window of batches."""
    size = stage.group or 1
    count = max(1, stage.sorting_window * stage.batch // (GROUPS * size))
    return Groups(size, clusters(targets, texts, count, seed))


def clusters(targets: EmbeddingRows, texts: int, count: int, seed: int) -> ndarray:
    """The k-means cluster of each of the first `texts` target embeddings, scaled to unit length: (texts,)
    int64, below `count`."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    drawn = np.random.default_rng(seed).choice(texts, min(texts, FITTED), replace=False, shuffle=False)
    means = KMeans(
        min(count, len(drawn)), init="random", n_init=1, max_iter=ITERATIONS, random_state=seed % 2**32
    )
    # Several threads would sum in any order, and a resumed run must find the same clusters.
    with threadpool_limits(1):
        means.fit(unit_rows(targets[np.sort(drawn)]))
        parts = [
            means.predict(unit_rows(targets[np.arange(at, min(at + ASSIGNED, texts))]))
            for at in range(0, texts, ASSIGNED)
        ]
    return np.concatenate(parts).astype(np.int64)


@dataclass
class BatchOrder:
    """The batches of a stage, in order; one pass over the rows follows the other without a gap.

    `tokens` knows the lengths of all rows; `rows` (n,) are those to draw from. With `groups` the texts in a
    row of a batch are similar.
    """

    stage: recipe.Stage
    tokens: Lengths
    rows: ndarray
    seed: int
    groups: Groups | None = None
    _window: tuple[int, list[RowsAndPasses]] = field(default=(-1, []), init=False, repr=False)

    def at(self, step: int) -> RowsAndPasses:
        """The batch of a step."""
        number, within = divmod(step, self.stage.sorting_window)
        if self._window[0] != number:
            self._window = (number, self.window(number))
        return self._window[1][within]

    def window(self, number: int) -> list[RowsAndPasses]:
        """The batches of one window: sorting_window × batch shuffled texts, sorted by length, cut into
        batches, the batches shuffled.

        Texts of like length share a batch, which saves padding; with `groups` it is groups of similar texts
        that are sorted. Returns `sorting_window` pairs of rows and passes.
        """
        batch = self.stage.batch
        bucket = self.stage.sorting_window
        texts = len(self.rows)
        positions = np.arange(number * bucket * batch, (number + 1) * bucket * batch)
        passes = positions // texts
        parts = [
            order_of_pass(texts, self.seed, int(part))[positions[passes == part] % texts]
            for part in np.unique(passes)
        ]
        rows = self.rows[np.concatenate(parts)]
        if bucket == 1:
            return [(rows, passes)]
        lengths = np.minimum(self.tokens.lengths(rows), self.stage.max_tokens)
        if self.groups is None:
            sort = np.argsort(lengths, kind="stable")
        else:
            sort = self.groups.positions(rows, lengths)
        order = np.random.default_rng([self.seed, number]).permutation(bucket)
        batches = sort.reshape(bucket, batch)[order]
        return [(rows[part], passes[part]) for part in batches]
