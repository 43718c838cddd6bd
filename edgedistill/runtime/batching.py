"""Batches of token ids: sorted by length, bounded in tokens, padded on the right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy import ndarray

PADDING = (
    16  # a batch holds at most one padding token for so many tokens; more costs more time than another batch
)


def longest_first(lengths: Sequence[int], batch_tokens: int) -> Iterator[ndarray]:
    """The indices of each batch, longest rows first, so that rows of similar length share a batch.

    A batch holds at most `batch_tokens` tokens with its padding, of which a sixteenth may be padding, and at
    least one row.
    """
    sizes = np.array(lengths)
    order = np.argsort(-sizes, kind="stable")
    start = 0
    while start < len(order):
        longest = int(sizes[order[start]])
        rows = order[start : start + max(1, batch_tokens // longest)]
        padding = np.cumsum(longest - sizes[rows])
        batch = rows[: int(np.searchsorted(padding, batch_tokens // PADDING, side="right"))]
        yield batch
        start += len(batch)


def one_by_one(inputs: Mapping[str, ndarray], tokens: int) -> Iterator[dict[str, ndarray]]:
    """Each row of arrays (n, T) by itself, (1, tokens): padded with zeros, which the mask hides."""
    for at in range(len(inputs["input_ids"])):
        padded = {}
        for name, array in inputs.items():
            padded[name] = np.zeros((1, tokens), array.dtype)
            padded[name][0, : array.shape[1]] = array[at]
        yield padded


def pad(rows: Sequence[ndarray], pad_id: int) -> tuple[ndarray, ndarray]:
    """(input_ids, attention_mask), each (n, T) int64 for the longest row's T, at least 1, padded on the
    right."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(max(1, lengths.max())) < lengths[:, None]
    ids = np.full(mask.shape, pad_id, np.int64)
    ids[mask] = np.concatenate(rows)
    return ids, mask.astype(np.int64)
