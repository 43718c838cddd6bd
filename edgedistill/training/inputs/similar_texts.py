"""Which texts are similar: k-means clusters of their target embeddings."""

from __future__ import annotations

import numpy as np

from edgedistill.runtime.similarity import unit_rows
from edgedistill.teacher.targets import EmbeddingRows

SAMPLE = 20_000  # rows that the centroids are fitted to
ROWS = 16_384  # assigned at a time
ITERATIONS = 10
GROUPS = 4  # of a cluster within a window, so that few groups straddle two clusters


def clusters(targets: EmbeddingRows, texts: int, count: int, seed: int) -> np.ndarray:
    """The cluster of each of the first `texts` target embeddings, scaled to unit length: (texts,) int64,
    below `count`."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    drawn = np.random.default_rng(seed).choice(texts, min(texts, SAMPLE), replace=False, shuffle=False)
    means = KMeans(
        min(count, len(drawn)), init="random", n_init=1, max_iter=ITERATIONS, random_state=seed % 2**32
    )
    with threadpool_limits(
        1
    ):  # several threads would sum in any order, and a resumed run must find the same clusters
        means.fit(unit_rows(targets[np.sort(drawn)]))
        parts = [
            means.predict(unit_rows(targets[np.arange(at, min(at + ROWS, texts))]))
            for at in range(0, texts, ROWS)
        ]
    return np.concatenate(parts).astype(np.int64)


def count(window: int, batch: int, group: int) -> int:
    """How many clusters a window of so many batches is to have texts of."""
    return max(1, window * batch // (GROUPS * group))
