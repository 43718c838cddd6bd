"""The order of training: a pure function of (seed, position), so that resuming needs one number and no memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Lengths(Protocol):
    """Whatever knows how many tokens its rows have."""

    def lengths(self, rows: np.ndarray) -> np.ndarray: ...


ROUNDS = 4
ODD = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93], np.uint64)


def shuffled(positions: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Send positions in 0…n−1 through a random permutation of 0…n−1 that is never written down.

    A Feistel network over the next even power of two, walked until it lands inside (Black and Rogaway 2002, cycle walking).
    positions (m,) int. Returns (m,) int64.
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


def window(
    number: int, texts: int, among: np.ndarray | None, tokens: Lengths, batch: int, bucket: int, max_tokens: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The batches of one window: bucket × batch shuffled texts, sorted by length, cut, the cuts shuffled.

    `texts`: how many texts there are to draw from, rows 0 … texts−1, or with `among` (texts,) the rows it lists; passes follow
    each other without a seam.
    Returns `bucket` pairs of arrays (batch,): rows, and which pass over the texts each belongs to, counted from 0.
    """
    positions = np.arange(number * bucket * batch, (number + 1) * bucket * batch)
    passes = positions // texts
    rows = np.concatenate([shuffled(positions[passes == each] % texts, texts, seed + 7919 * int(each)) for each in np.unique(passes)])
    if among is not None:
        rows = among[rows]
    if bucket == 1:
        return [(rows, passes)]
    lengths = np.minimum(tokens.lengths(rows), max_tokens)
    sort = np.argsort(lengths, kind="stable")
    rows, passes = rows[sort], passes[sort]
    order = np.random.default_rng([seed, number]).permutation(bucket)
    return [(rows[i * batch : (i + 1) * batch], passes[i * batch : (i + 1) * batch]) for i in order]
