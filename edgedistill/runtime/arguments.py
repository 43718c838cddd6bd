"""What the functions of a bundle are given: checked, and in the order in which it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from edgedistill.errors import UserError, unknown_name
from edgedistill.files import Json

LARGEST_BATCH_TOKENS = 1 << 30
MOST_THREADS = 1024
# Parameters of sentence-transformers: ours; what always holds; and what to do in place of others.
SAME = {"show_progress_bar": "progress", "truncate_dim": "dim", "top_k": "k"}
HOLDS = {"normalize_embeddings": True, "convert_to_numpy": True, "convert_to_tensor": False}
UNUSED = "batch_size"  # results do not depend on it, and batch_tokens bounds batches here
IN_PLACE = {
    "normalize_embeddings": "embeddings have unit length; leave it out",
    "convert_to_numpy": "embeddings are an array; leave it out, and give its rows to list",
    "convert_to_tensor": "embeddings are an array; leave it out, and give it to torch.from_numpy",
    **dict.fromkeys(("prompt", "prompt_name"), "give role, or call encode_query or encode_document"),
    "device": "give it to edgedistill.load",
}


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


def our_names(function: str, others: Mapping[str, Any], options: Mapping[str, Any]) -> Json:
    """The `options` of a function, and with them `others` by our names: those that
    sentence-transformers names otherwise. Its batch_size is taken and not used.

    Raises UserError, a line for each, for those that work in another way here, or that nobody knows.
    """
    parameters = dict(options)
    problems = []
    for name, value in others.items():
        if (ours := SAME.get(name, "")) in options:
            parameters[ours] = value
        elif name != UNUSED and (name not in HOLDS or value != HOLDS[name]):
            fact = IN_PLACE.get(name) or unknown_name("parameter", name, options)
            problems.append(f"{function}: {name}={value!r}: {fact}")
    if problems:
        raise UserError(*problems)
    return parameters
