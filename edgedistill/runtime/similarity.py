"""Compare embeddings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgedistill.errors import UserError


def similarity(a: npt.ArrayLike, b: npt.ArrayLike) -> np.ndarray:
    """The cosine of every embedding of `a` with every embedding of `b`: (n, d), (m, d) -> (n, m) float32,
    between -1 and 1.

    One embedding, (d,), counts as (1, d), as in sentence-transformers. An embedding of zeros has cosine 0
    with everything. Raises UserError where an argument is not numbers, has another shape, or the dimensions
    differ.
    """
    first, second = _rows(a, "a"), _rows(b, "b")
    if first.shape[1] != second.shape[1]:
        raise UserError(
            f"similarity: a has {first.shape[1]} dimensions, b has {second.shape[1]}; encode both with the "
            "same bundle and dim"
        )
    return np.asarray(unit_rows(first) @ unit_rows(second).T)


def _rows(embeddings: npt.ArrayLike, name: str) -> np.ndarray:
    try:
        rows = np.atleast_2d(np.asarray(embeddings, np.float32))
    except (TypeError, ValueError, OverflowError):
        raise UserError(
            f"similarity: {name} is not an array of numbers; give embeddings, such as those of encode"
        ) from None
    if embeddings is None:
        raise UserError(f"similarity: {name} is None; give embeddings, such as those of encode")
    if rows.ndim != 2:
        raise UserError(
            f"similarity: {name} has shape {rows.shape}; give embeddings of shape (n, d), or one of shape "
            "(d,)"
        )
    return rows


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows of unit length, in their own type; rows of zeros stay zeros."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
