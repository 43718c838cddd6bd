"""What the functions of a bundle are given: checked, and in the order in which it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from edgedistill.errors import UserError

LARGEST_BATCH_TOKENS, MOST_THREADS = 1 << 30, 1024


def positive(value: int, name: str, most: int = LARGEST_BATCH_TOKENS) -> int:
    """A whole number from 1 to `most`. Raises UserError for anything else."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value <= most:
        raise UserError(f"{name}={value!r}: not a whole number from 1 to {most:,}")
    return int(value)


def listed(items: Iterable[Any], name: str, most_dimensions: int = 1) -> list[Any]:
    """The items of any iterable that has an order and, where it is an array, one dimension, or as many as are
    allowed: what follows counts and reads the same ones."""
    if isinstance(items, str):
        raise UserError(f"{name}: one string; put it in a list")
    kind = type(items).__name__
    if isinstance(items, bytes | bytearray | Mapping) or not isinstance(items, Iterable):
        raise UserError(f"{name}: {kind}, not a list of strings; give a list")
    if isinstance(items, set | frozenset):
        raise UserError(f"{name}: {kind}, which has no order; give a list")
    dimensions = getattr(items, "ndim", 1)
    if hasattr(items, "columns") or not 1 <= dimensions <= most_dimensions:  # a table of pandas, an array
        raise UserError(f"{name}: {kind} of several columns; give one column")
    return list(items)


def given_texts(texts: Iterable[str]) -> list[str]:
    """The strings of any iterable that has an order. Raises UserError for anything else."""
    found = listed(texts, "texts")
    for at, text in enumerate(found):
        if not isinstance(text, str):
            raise UserError(f"texts[{at}]: {type(text).__name__}, not a string; give strings")
    return found
