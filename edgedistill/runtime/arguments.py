"""What the functions of a bundle are given: checked, and in the order in which it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from edgedistill.errors import UserError

LARGEST_BATCH_TOKENS = 1 << 30
MOST_THREADS = 1024


def positive(value: int, name: str, most: int = LARGEST_BATCH_TOKENS) -> int:
    """A whole number from 1 to `most`. Raises UserError for anything else."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value <= most:
        raise UserError(f"{name}={value!r}: not a whole number from 1 to {most:,}")
    return int(value)


def listed(items: Iterable[Any], name: str, most_dimensions: int = 1, expected: str = "a list") -> list[Any]:
    """The items of any iterable that has an order and, where it is an array, one dimension, or as many as are
    allowed: what follows counts and reads the same ones."""
    kind = type(items).__name__
    fact = ""
    if isinstance(items, str):
        fact = "one string; put it in a list"
    elif isinstance(items, bytes | bytearray | Mapping) or not isinstance(items, Iterable):
        fact = f"{kind}, not {expected} of strings; give {expected}"
    elif isinstance(items, set | frozenset):
        fact = f"{kind}, which has no order; give a list"
    elif hasattr(items, "columns") or not 1 <= getattr(items, "ndim", 1) <= most_dimensions:
        fact = f"{kind}, not one column; give one, such as table['text']"  # a table of pandas, an array
    if fact:
        raise UserError(f"{name}: {fact}")
    return list(items)


def given_texts(texts: Iterable[str], name: str = "texts", expected: str = "a list") -> list[str]:
    """The strings of any iterable that has an order. Raises UserError for anything else, which `name`
    names."""
    strings = listed(texts, name, expected=expected)
    for at, text in enumerate(strings):
        if not isinstance(text, str):
            raise UserError(f"{name}[{at}]: {type(text).__name__}, not a string; give strings")
    return strings
