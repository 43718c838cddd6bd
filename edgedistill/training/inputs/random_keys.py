"""Random bits that are a pure function of (seed, row, pass over the corpus): a text's view depends on no
other text."""

from __future__ import annotations

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mixed(keys: np.ndarray) -> np.ndarray:
    """64 bits -> 64 bits, each of which depends on all (the finalizer of splitmix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(keys ^ (keys >> np.uint64(31)))


def row_keys(seed: int, rows: np.ndarray, passes: np.ndarray) -> np.ndarray:
    """Random bits for every (seed, row, pass), (n,) uint64."""
    start = np.random.SeedSequence([seed, 20_221]).generate_state(1, np.uint64)
    with np.errstate(over="ignore"):
        once = mixed(start + (rows.astype(np.uint64) + np.uint64(1)) * GOLDEN)
        return mixed(once + (passes.astype(np.uint64) + np.uint64(1)) * GOLDEN)


def draws(keys: np.ndarray | np.uint64, at: np.ndarray) -> np.ndarray:
    """Random bits of rows at numbered places, such as their words: (n,) uint64 of `at` (n,), and one key or
    (n,) of them."""
    return mixed(keys + (at.astype(np.uint64) + np.uint64(3)) * GOLDEN)


def uniform(keys: np.ndarray) -> np.ndarray:
    """Random bits -> float64 in [0, 1)."""
    return np.asarray((keys >> np.uint64(11)) * 2.0**-53)


def rounded_fraction(fraction: float, counts: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """fraction · counts, rounded up or down at random so that it holds on average, (n,) int64."""
    return np.floor(fraction * counts + uniform(mixed(keys ^ np.uint64(1)))).astype(np.int64)
