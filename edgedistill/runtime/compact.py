"""Embeddings in fewer bytes: int8, one for each dimension, and binary, one bit for each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import ndarray

from edgedistill.errors import UserError, unknown_name
from edgedistill.files import Json

# A component of a unit row has mean square 1/d; the largest of 20,000 texts were 5.6/√d, 6.3/√d and 7.1/√d
# for three students, 1.5 times those of the sentences that an export measures. A scale for each dimension has
# the same nDCG within 0.2.
INT8_RANGE = 8.0
BEYOND_SENTENCES = 1.5
# Length of the mean embedding from which it is subtracted before bits are taken. Of 113 sentences it is .91
# for `multi`, whose bits then have nDCG@10 54.6 in place of 17.6 (ten collections); for `nano` and `micro`
# .34 and .25, and it helps only in languages that they were not made for.
LEAST_MEAN = 0.5
LEAST_COSINE = 0.98  # of an int8 row to its float32 one: below it, int8 is refused


class Layout(NamedTuple):
    """How a row of embeddings is stored: its numpy type, and how many of these."""

    dtype: np.dtype
    width: int

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * self.width


class Calibration(NamedTuple):
    """What int8 and binary embeddings of an encoder are made with: components up to int8_range/√d are not
    clipped; of bits, mean (d,) is subtracted first."""

    int8_range: float = INT8_RANGE
    mean: ndarray | None = None

    @classmethod
    def of(cls, manifest: Json) -> Calibration:
        """A bundle's, from its manifest's `calibration`."""
        kept = manifest.get("calibration", {})
        mean = kept.get("mean")
        return cls(kept.get("int8_range", INT8_RANGE), None if mean is None else np.array(mean, np.float32))

    def centred(self, rows: ndarray) -> ndarray:
        """Rows (n, d) less the mean; less its first components, at its whole length, where they are cut."""
        if self.mean is None:
            return rows
        mean = self.mean[: rows.shape[-1]]
        longer = float(np.linalg.norm(self.mean)) / max(float(np.linalg.norm(mean)), 1e-12)
        return np.asarray(rows - mean * np.float32(longer))


def measured(rows: ndarray) -> Json:
    """The `calibration` of an encoder's manifest, from its embeddings (n, d) of ordinary sentences; without
    what the default serves as well."""
    mean = rows.mean(axis=0)
    widest = rows.shape[1] ** 0.5
    most = min(widest, BEYOND_SENTENCES * widest * float(np.abs(rows).max()))
    calibration = {} if most <= INT8_RANGE else {"int8_range": round(most, 2)}
    if np.linalg.norm(mean) < LEAST_MEAN:
        return calibration
    return calibration | {"mean": [round(x, 5) for x in mean.tolist()]}


PLAIN = Calibration()
TYPES: dict[str, np.dtype] = {"float32": np.dtype("<f4"), "int8": np.dtype("i1"), "binary": np.dtype("u1")}


def layout(precision: str, dim: int, place: str = "precision") -> Layout:
    """The layout of embeddings of `dim` dimensions. Raises UserError, which begins with `place`, for an
    unknown precision, and for bits that do not fill whole bytes."""
    if precision not in list(TYPES):
        raise UserError(f"{place}: {unknown_name('precision of embeddings', precision, TYPES)}")
    if precision == "binary" and dim % 8:
        raise UserError(f"{place}: binary needs dimensions in whole bytes, not {dim}; choose int8")
    return Layout(TYPES[precision], dim // 8 if precision == "binary" else dim)


def compact(rows: ndarray, precision: str, calibration: Calibration = PLAIN) -> ndarray:
    """Unit rows (n, d) in a precision. Raises UserError as `layout`, and where int8 would not hold a row.

    float32: as they are. int8, (n, d): x · 127√d / int8_range, rounded and clipped to ±127. binary, (n, d/8)
    uint8: the bits x > mean as numpy.packbits orders them, which sentence-transformers calls ubinary.
    """
    dim = rows.shape[1]
    dtype, _ = layout(precision, dim)
    if precision == "float32":
        return rows
    if precision == "binary":
        return np.packbits(calibration.centred(rows) > 0, axis=1)
    scaled = rows * np.float32(127 * dim**0.5 / calibration.int8_range)
    clipped = np.clip(np.rint(scaled), -127, 127)
    for at in np.flatnonzero((np.abs(scaled) > 128).any(axis=1)).tolist():
        cosine = clipped[at] @ scaled[at] / (np.linalg.norm(clipped[at]) * np.linalg.norm(scaled[at]))
        if cosine < LEAST_COSINE:
            raise UserError(
                f"precision: int8 clips the embedding of text {at}, which keeps a cosine of "
                f"{cosine:.3f} to itself; take float32, or export the bundle again, which measures its range"
            )
    return clipped.astype(dtype)


def expanded(rows: ndarray) -> ndarray:
    """Embeddings in any precision as float32 rows (n, d) of any length: bits, which are uint8, as ±1."""
    if rows.dtype == np.uint8:
        return np.unpackbits(rows, axis=1) * np.float32(2) - 1
    return np.asarray(rows, np.float32)
