"""What a student of any kind is built and initialized from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from edgedistill import machine
from edgedistill.errors import UserError
from edgedistill.students.bert_layers import EncoderLayers

TRAINED_BYTES = 16  # a parameter, its gradient, and AdamW's two moments


@dataclass(frozen=True)
class Start:
    """What the recipe's models and corpus give a new student.

    `dims` are those of the embeddings that the student is to give. `embeddings` (V, w) are rows for its tokens, or None for random ones.
    `layers` are those that its own come from, or None for random ones, and `head` is what follows their pooling. `token_weights` (V,)
    weight the tokens where the table is reduced, and `batch`, (ids, mask) of (B, T), holds texts of the corpus; both are None where they
    are not needed or not at hand.
    """

    tokenizer: PreTrainedTokenizerBase
    dims: int
    embeddings: Tensor | None
    layers: EncoderLayers | None = None
    head: nn.Linear | None = None
    token_weights: Tensor | None = None
    batch: tuple[Tensor, Tensor] | None = None

    @property
    def vocabulary_size(self) -> int:
        return len(self.tokenizer)

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_token_id or 0


def build_to_train(build: Callable[[dict[str, Any]], Any], shape: dict[str, Any]) -> Any:
    """A module of this shape. Raises UserError where this machine has not the memory that training it takes."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        count = sum(parameter.numel() for parameter in build(shape).parameters())
    memory = machine.memory_bytes()
    if memory is not None and count * TRAINED_BYTES > memory:
        fact = f"{count:,} parameters take {count * TRAINED_BYTES / 1e9:,.0f} GB to train, and this machine has {memory / 1e9:,.0f}"
        raise UserError(f"student: {fact}; give it fewer layers, or a smaller width or vocabulary")
    return build(shape)
