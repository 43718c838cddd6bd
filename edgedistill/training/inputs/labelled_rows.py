"""Labelled rows as token ids, and what a classifier says of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from edgedistill.data.labelled_tasks import Item
from edgedistill.data.token_cache import TokenCache
from edgedistill.evaluation.suites import labelled_task
from edgedistill.runtime import batching
from edgedistill.teacher import tokenizer_files

TOKENS_PER_BATCH = 4_096  # padding included, where nothing is trained


def tokenized(
    items: list[Item], tokenizer: PreTrainedTokenizerBase, prompt: str, max_tokens: int
) -> list[TokenCache]:
    """The tokens of each text column, behind the prompt; a text of more than `max_tokens` is truncated."""
    columns = ([prompt + text for text in column] for column in zip(*items, strict=True))
    ids = (tokenizer_files.encode_ids(tokenizer, column, max_tokens) for column in columns)
    return [TokenCache.of(column, tokenizer.pad_token_id or 0) for column in ids]


def logits(
    module: Callable[..., Tensor], labels: int, sides: list[TokenCache], device: torch.device
) -> np.ndarray:
    """Logits (n, labels) float32 of every row, by the module as it is."""
    rows = np.arange(len(sides[0]))
    longest = np.max([side.lengths(rows) for side in sides], axis=0)
    out = np.empty((len(rows), labels), np.float32)
    with torch.inference_mode():
        for part in batching.longest_first(np.maximum(longest, 1).tolist(), TOKENS_PER_BATCH):
            padded = [side.batch(np.asarray(part), int(longest.max())) for side in sides]
            columns = [torch.from_numpy(array).to(device) for pair in padded for array in pair]
            out[part] = module(*columns).float().cpu().numpy()
    return out


def digest(sides: list[TokenCache], arrays: Sequence[np.ndarray | None] = ()) -> str:
    """The sha256 of token ids and of arrays: what was computed from them is still right where it is the
    same."""
    sha256 = hashlib.sha256()
    for side in sides:
        sha256.update(side.offsets.tobytes() + side.ids.tobytes())
    for array in arrays:
        sha256.update(b"none" if array is None else array.tobytes())
    return sha256.hexdigest()


class LabelledTokens(NamedTuple):
    """A split that a classifier is scored on: the tokens of its text columns, the label id of each row (n,),
    and the labels."""

    sides: list[TokenCache]
    gold: np.ndarray
    labels: list[str]

    def scores(self, module: Callable[..., Tensor], device: torch.device) -> dict[str, float]:
        """Accuracy and F1 of a module in eval mode."""
        predicted = logits(module, len(self.labels), self.sides, device).argmax(1)
        return labelled_task.scores(predicted, self.gold, self.labels)
