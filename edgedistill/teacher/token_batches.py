"""Texts -> token ids -> padded batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase


def encode_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str], max_tokens: int) -> list[np.ndarray]:
    """Token ids of each text, special tokens included, truncated at max_tokens; (n_i,) int32 each."""
    backend: Any = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(max_tokens, direction=tokenizer.truncation_side)
    return [np.array(encoding.ids, np.int32) for encoding in backend.encode_batch_fast(texts)]


def budget_batches(order: list[int], ids: list[np.ndarray], tokens: int) -> Iterator[list[int]]:
    """Cut rows sorted by length into batches of at most `tokens` padded tokens, at least one row each."""
    batch: list[int] = []
    for row in order:
        if batch and (len(batch) + 1) * len(ids[row]) > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
