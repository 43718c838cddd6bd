"""Vectors of texts as the suites read them: an encoder is texts -> (n, d) rows, of any length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Encode = Callable[[list[str]], npt.NDArray[np.float32]]
Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]


def encoded(encode: Encode, texts: list[str]) -> Floats:
    """Encode each distinct text once."""
    distinct = dict.fromkeys(texts)
    rows = {text: row for row, text in enumerate(distinct)}
    vectors = np.asarray(encode(list(distinct)))
    if vectors.ndim != 2 or len(vectors) != len(rows):
        raise ValueError(f"encode gave {vectors.shape} for {len(rows)} texts; (n, d) is expected")
    return vectors if len(rows) == len(texts) else vectors[[rows[text] for text in texts]]


def unit(vectors: Floats) -> Floats:
    """Rows of length one; rows without a direction (zero, NaN) become zero, so that their cosines are 0."""
    vectors = np.nan_to_num(np.asarray(vectors, dtype=np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


def dot(x: Floats, y: Floats) -> Floats:
    products: Floats = np.einsum("nd,nd->n", x, y, dtype=np.float64)
    return products


def spearman(x: Floats, y: Floats) -> float | None:
    """Spearman's rank correlation; None where it is undefined: fewer than two points, or one side constant.

    As scipy.stats counts it, whose import takes longer than all of a bundle's.
    """
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(_ranks(x), _ranks(y))[0, 1])


def _ranks(values: Floats) -> Floats:
    """Ranks (n,) from 1; equal values share the mean of theirs."""
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[at]
