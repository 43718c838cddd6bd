"""Arrays in 4 bits: groups of 32 numbers with one float16 scale each, and how a group's scale is chosen."""

from __future__ import annotations

import numpy as np

from edgedistill.errors import CheckFailed

GROUP = 32  # numbers that share a scale: 4 + 16/32 = 4.5 bits each
LOWEST, HIGHEST = -8, 7  # the values of 4 bits
FACTORS = np.linspace(
    0.65, 1.0, 15, dtype=np.float32
)  # of the scale that just reaches the largest number of a group
SMALLEST_SCALE = 2.0**-24  # float16's
LEAST, MOST = 2.0**-17, 8 * 65504.0  # of an array's largest number: its scales are exact to 3%, and reach it


def check_range(array: np.ndarray, name: str) -> None:
    """Raise CheckFailed where the scales of an array, its largest number over 8, leave the float16 that
    stores them."""
    largest = float(np.abs(array).max(initial=0))
    if not (largest == 0 or LEAST <= largest <= MOST):
        fact = (
            f"the largest number of {name} is {largest:.3g}, and the float16 scales of w4 reach from "
            f"{LEAST:.0e} to {MOST:,.0f}"
        )
        raise CheckFailed(f"{fact}; try --precision w8")


def quantize_groups(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(…, n) -> int8 (…, n) of values −8 … 7, and the scale of each group along the last axis (…, ⌈n / 32⌉)
    float16.

    The scale of a group is the one of least squared error among 30: the largest number may sit at −8 or be
    clipped, and the sign is free, since there is one more negative value than positive ones.
    """
    groups = in_groups(array.astype(np.float32))
    scale = best_scale(groups)
    values = rounded(groups, scale)
    return values.reshape(*array.shape[:-1], -1)[..., : array.shape[-1]], scale[..., 0].astype(np.float16)


def in_groups(array: np.ndarray) -> np.ndarray:
    """(…, n) -> (…, ⌈n / 32⌉, 32), filled with zeros."""
    rest = -array.shape[-1] % GROUP
    padded = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, rest)])
    return padded.reshape(*array.shape[:-1], -1, GROUP)


def best_scale(groups: np.ndarray) -> np.ndarray:
    """(…, 32) -> (…, 1) float32 that float16 holds exactly: the scale of least squared error among the
    candidates."""
    extreme = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)
    found = np.full_like(extreme, SMALLEST_SCALE)
    least = np.full(extreme.shape, np.inf, np.float32)
    for limit in (LOWEST, HIGHEST):  # the group's extreme at −8 (the scale has the other sign) or at 7
        for factor in FACTORS:
            scale = _float16(extreme * (factor / limit))
            error = ((rounded(groups, scale) * scale - groups) ** 2).sum(-1, keepdims=True)
            better = error < least
            found, least = np.where(better, scale, found), np.where(better, error, least)
    return found


def rounded(groups: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The nearest values of 4 bits, int8."""
    return np.clip(np.rint(groups / scale), LOWEST, HIGHEST).astype(np.int8)


def packed(values: np.ndarray, zero: int = 0) -> np.ndarray:
    """(…, n) int8 -> uint8 (…, ⌈n / 2⌉): the first of each two in the lower 4 bits. `zero` is added to each
    value."""
    bits = (values + zero).astype(np.uint8) & 15
    bits = np.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, bits.shape[-1] % 2)])
    return bits[..., 0::2] | (bits[..., 1::2] << 4)


def _float16(scale: np.ndarray) -> np.ndarray:
    """Rounded to float16, never zero."""
    half = np.clip(scale, -65504, 65504).astype(np.float16).astype(np.float32)
    return np.where(half == 0, np.float32(SMALLEST_SCALE), half)
