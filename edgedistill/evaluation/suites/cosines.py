"""What all suites compute with: embeddings of distinct texts, unit rows, cosines, rank correlation.

An encoder is texts -> (n, d) embeddings, which need not have unit length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgedistill.errors import CheckFailed
from edgedistill.runtime.bundle import Bundle
from edgedistill.runtime.compact import PLAIN, Calibration
from edgedistill.runtime.prompts import ROLES
from edgedistill.runtime.similarity import not_finite, unit_rows

Encode = Callable[[list[str]], npt.NDArray[np.float32]]
Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
Measures = dict[str, Any]  # what is measured, by the keys of reports


class Encoder(NamedTuple):
    """An encoder by the roles of texts: what embeds a text, a query, a document; and what its embeddings in
    fewer bytes are made with."""

    text: Encode
    query: Encode
    document: Encode
    calibration: Calibration = PLAIN

    @classmethod
    def by_role(cls, in_role: Callable[[str], Encode]) -> Encoder:
        """What embeds the texts of a role is what `in_role` returns for it."""
        text, query, document = map(in_role, ROLES)
        return cls(text, query, document)

    @classmethod
    def of(cls, encode: Any) -> Encoder:
        """A bundle, or a function that embeds texts of all roles, by roles."""
        if isinstance(encode, Bundle):
            return cls(encode.encode, encode.encode_query, encode.encode_document, encode.calibration)
        return encode if isinstance(encode, Encoder) else cls(encode, encode, encode)


class Remembered:
    """An encoder that embeds each distinct text once."""

    def __init__(self, encode: Encode) -> None:
        self.encode = encode
        self.rows = dict[str, Any]()

    def __call__(self, texts: list[str]) -> Floats:
        """(n, d), a row per text. Raises ValueError where the encoder returns another number of rows."""
        new = [text for text in dict.fromkeys(texts) if text not in self.rows]
        if new:
            self.rows.update(zip(new, np.asarray(self.encode(new)), strict=True))
        return np.stack([self.rows[text] for text in texts])


def encoded(encode: Encode, texts: list[str]) -> Floats:
    """Encode each distinct text once: (n, d), a row per text. Raises ValueError as `Remembered`."""
    return Remembered(encode)(texts)


def unit(embeddings: Floats) -> Floats:
    """Scale rows (n, d) to unit length; rows of zeros stay zero, so that their cosines are 0. Raises
    CheckFailed for one that is not finite."""
    rows = np.asarray(embeddings, dtype=np.float32)
    if (at := not_finite(rows)) is not None:
        raise CheckFailed(f"embedding {at} is not finite; export or train the model again")
    return unit_rows(rows)


def dot(x: Floats, y: Floats) -> Floats:
    """Multiply x and y (n, d) row by row: (n,) float64; of unit rows these are the cosines."""
    return np.einsum("nd,nd->n", x, y, dtype=np.float64)


def spearman(x: Floats, y: Floats) -> float | None:
    """Return Spearman's rank correlation of x and y (n,); None where it is undefined, for fewer than two
    points or where one of them is constant.

    It equals scipy.stats.spearmanr, which is not used because importing it takes longer than opening a
    bundle.
    """
    return rank_correlation(places(x), places(y))


def places(values: Floats) -> Ints:
    """Return the place of each value (n,) among the distinct ones, from 0."""
    return np.unique(values, return_inverse=True)[1]


def rank_correlation(x: Ints, y: Ints) -> float | None:
    """Return `spearman` of values that are given by their `places`, perhaps among more than these: without
    sorting, as for resamples."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(_ranks(x), _ranks(y))[0, 1])


def _ranks(at: Ints) -> Floats:
    """Return ranks (n,) from 1; ties share the mean of their ranks."""
    counts = np.bincount(at)
    return (np.cumsum(counts) - (counts - 1) / 2)[at]
