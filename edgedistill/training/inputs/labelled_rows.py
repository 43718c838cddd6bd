"""What fine-tuning trains on: the rows of a task and its transfer set as token ids, and what the task's
teacher says of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe
from edgedistill.data.labelled_tasks import Item
from edgedistill.evaluation.suites import labelled_task
from edgedistill.objectives import Targets
from edgedistill.runtime import batching
from edgedistill.teacher import tokenizer_files
from edgedistill.training.inputs.batches import Ids
from edgedistill.training.inputs.stage_targets import StageTargets
from edgedistill.training.stages import NumberedStage

TOKENS_PER_BATCH = 4_096  # padding included, where nothing is trained


class ItemTokens:
    """Items of one or two texts as token ids."""

    def __init__(
        self, items: list[Item], tokenizer: PreTrainedTokenizerBase, prompt: str, max_tokens: int
    ) -> None:
        """The prompt is put before every text; a text of more than `max_tokens` tokens is truncated."""
        columns = [[prompt + text for text in column] for column in zip(*items, strict=True)]
        self.columns = [tokenizer_files.encode_ids(tokenizer, column, max_tokens) for column in columns]
        self.pad_id = tokenizer.pad_token_id or 0
        self.longest = np.max([[len(row) for row in column] for column in self.columns], axis=0)

    def __len__(self) -> int:
        return len(self.longest)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens in the longer text of each row, (n,)."""
        return self.longest[rows]

    def padded(self, rows: np.ndarray) -> list[Ids]:
        """ids and mask (n, T) of each text of the rows."""
        return [batching.pad([column[row] for row in rows], self.pad_id) for column in self.columns]

    def batch(self, rows: np.ndarray, device: torch.device) -> list[Tensor]:
        """The same on a device: two tensors for single texts, four for pairs."""
        return [torch.from_numpy(each).to(device) for pair in self.padded(rows) for each in pair]


class LabelledBatches(NamedTuple):
    """The batches of a stage over labelled rows: their tokens, the label of each (n,), and the logits of the
    task's teacher (n, C), if it has one."""

    tokens: ItemTokens
    labels: np.ndarray
    logits: np.ndarray | None
    targets: StageTargets = StageTargets()

    @property
    def rows(self) -> int:
        return len(self.tokens)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens in the longer text of each row, (n,)."""
        return self.tokens.lengths(rows)

    def trained_and_queued(self, stage: NumberedStage[recipe.Stage]) -> tuple[np.ndarray, np.ndarray]:
        """All rows are trained on, in order."""
        return np.arange(self.rows), np.arange(0)

    def compared(self, rows: np.ndarray) -> Targets:
        """The labels of rows, and the teacher's logits."""
        return Targets(labels=self.labels[rows], logits=None if self.logits is None else self.logits[rows])

    def batch(self, rows: np.ndarray, passes: np.ndarray) -> tuple[list[Ids], Targets]:
        """(ids and mask of each text, what they are compared with)."""
        return self.tokens.padded(rows), self.compared(rows)


def logits(
    module: Callable[..., Tensor], labels: int, tokens: ItemTokens, device: torch.device
) -> np.ndarray:
    """Logits (n, labels) float32 of every row, by the module as it is."""
    out = np.empty((len(tokens), labels), np.float32)
    with torch.inference_mode():
        for rows in batching.longest_first(np.maximum(tokens.longest, 1).tolist(), TOKENS_PER_BATCH):
            out[rows] = module(*tokens.batch(rows, device)).float().cpu().numpy()
    return out


def digest(tokens: list[ItemTokens], arrays: Sequence[np.ndarray | None] = ()) -> str:
    """The sha256 of token ids and of arrays: what was computed from them is still right where it is the
    same."""
    found = hashlib.sha256()
    for column in [column for each in tokens for column in each.columns]:
        found.update(np.array([len(row) for row in column]).tobytes())
        found.update(np.concatenate(column).tobytes())
    for array in arrays:
        found.update(b"none" if array is None else array.tobytes())
    return found.hexdigest()


class LabelledTokens(NamedTuple):
    """A split that a classifier is scored on: its tokens, the label id of each row (n,), and the labels."""

    tokens: ItemTokens
    gold: np.ndarray
    labels: list[str]

    def scores(self, module: Callable[..., Tensor], device: torch.device) -> dict[str, float]:
        """Accuracy and F1 of a module in eval mode."""
        predicted = logits(module, len(self.labels), self.tokens, device).argmax(1)
        return labelled_task.scores(predicted, self.gold, self.labels)
