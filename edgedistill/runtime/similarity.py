"""Compare embeddings: with each other, and a runner's with torch's by a measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgedistill.errors import UserError
from edgedistill.precisions import Precision


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


class Measure(NamedTuple):
    """How the rows of a runner are compared with torch's: embeddings by their cosine.

    rows and limits are what parity.json calls the rows and their thresholds, and explained is its first line.
    item is what a text is called, name and worst what a value is called (as in cosine_min), about says what a
    value is, and fact what is wrong with one. best is the value of equal rows; sign is -1 where smaller
    values are better. between compares two arrays of n rows and gives n values. required and required_drift
    are a precision's limits: of a value to torch's, and of a text alone to the same text in a batch.
    """

    rows: str
    limits: str
    item: str
    name: str
    worst: str
    explained: str
    about: str
    fact: str
    best: int
    sign: int
    between: Callable[[np.ndarray, np.ndarray], np.ndarray]
    required: Callable[[Precision], float]
    required_drift: Callable[[Precision], float]

    def worst_of(self, values: np.ndarray) -> int:
        """The index of the worst value; NaN is the worst of all."""
        return int(np.argmin(self.sign * values))

    def rounded(self, values: np.ndarray) -> float:
        """The worst value in six digits, never better than it was. (float32 noise is reported as
        0.999999.)"""
        return self.sign * float(np.floor((self.sign * values).min() * 1e6) / 1e6)

    def agreement(self, values: np.ndarray) -> np.ndarray:
        """1 for equal rows, less for others."""
        return np.asarray(1 - self.best + self.sign * values)

    def problem(self, value: float, threshold: float, precision: str, where: str) -> str | None:
        """What is wrong with a value, if anything is."""
        if self.sign * value >= self.sign * threshold:  # NaN is not
            return None
        digits = 4 if threshold < 0.999 else 6  # as many as it takes to compare them
        return self.fact.format(
            value=value, threshold=threshold, precision=precision, where=where, digits=digits
        )


COSINE = Measure(
    rows="vectors",
    limits="cosine_at_least",
    item="text",
    name="cosine",
    worst="min",
    explained="text i -> ids i (unpadded, truncated to {} tokens) -> vectors i, unit length, by torch in "
    "float32",
    about="cosine",
    fact="came back at cosine {value:.{digits}f}{where}, {precision} must reach {threshold:.{digits}f}",
    best=1,
    sign=1,
    between=lambda rows, others: (rows.astype(np.float64) * others).sum(1),
    required=lambda precision: precision.single_cosine,
    required_drift=lambda precision: precision.batch_cosine,
)
