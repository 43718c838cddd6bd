"""Views made by leaving words out: word deletion, cropping, deletion of one word. Computed for each batch."""

from __future__ import annotations

from itertools import compress

import numpy as np

from edgedistill import recipe
from edgedistill.training.inputs.random_keys import GOLDEN, mixed, rounded_fraction, row_keys, uniform

Edit = recipe.WordDeletion | recipe.Crop | recipe.DeleteOne


def remaining_words(
    spec: Edit, seed: int, rows: np.ndarray, passes: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Which words of the texts remain in the view: a bool for every word, text after text; at least one word
    of a text remains.

    rows, passes, counts (n,): the text, the pass over the corpus, its number of words. A fraction that is no
    whole number of words is rounded up or down at random, so that it holds on average. SimCSE, Table 1 (Gao
    et al. 2021); ConGen, Table 6.
    """
    key = row_keys(seed, rows, passes)
    dropped = np.minimum(_dropped(spec, counts, key), counts - 1)
    text = np.repeat(np.arange(len(rows)), counts)
    within = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts)
    if isinstance(spec, recipe.Crop):
        start = np.floor(uniform(mixed(key ^ np.uint64(2))) * (dropped + 1)).astype(np.int64)
        return np.asarray((within >= start[text]) & (within < (start + counts - dropped)[text]))
    rank = np.empty(len(text), np.int64)
    rank[np.lexsort((mixed(key[text] + (within.astype(np.uint64) + np.uint64(3)) * GOLDEN), text))] = within
    return np.asarray(rank >= dropped[text])


def _dropped(spec: Edit, counts: np.ndarray, keys: np.ndarray) -> np.ndarray | int:
    """How many words of each text are to be left out."""
    if isinstance(spec, recipe.DeleteOne):
        return 1
    return rounded_fraction(
        spec.drop_fraction if isinstance(spec, recipe.Crop) else spec.fraction, counts, keys
    )


def edited(spec: Edit, seed: int, rows: np.ndarray, passes: np.ndarray, texts: list[str]) -> list[str]:
    """The texts with their `remaining_words`."""
    words = [text.split() for text in texts]
    remaining = iter(
        remaining_words(spec, seed, rows, passes, np.array([len(row) for row in words])).tolist()
    )
    return [" ".join(compress(row, remaining)) for row in words]
