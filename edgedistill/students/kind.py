"""What the file of a kind of student gives, and what a new student is initialized from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from edgedistill import machine
from edgedistill.errors import UserError
from edgedistill.students.bert_layers import EncoderLayers
from edgedistill.students.shape_fields import StudentShape

TRAINED_BYTES = 16  # a parameter, its gradient, and AdamW's two moments
MOST_DRAWN = 30_000_000  # parameters whose random weights are drawn where only the shape is asked for


@dataclass(frozen=True)
class Start:
    """What the recipe's models and corpus give a new student.

    `dims` are those of the embeddings that the student is to give. `embeddings` (V, w) are rows for its
        tokens, or None for random ones.
    `layers` are those that its own come from, or None for random ones, and `head` is what follows their
        pooling. `token_weights` (V,)
    weight the tokens where the table is reduced, and `batch`, (ids, mask) of (B, T), holds texts of the
    corpus; both are None where they are not needed or not at hand. With `shape_only`, for an estimate, the
    weights of a large student are not drawn: it is on torch's meta device, which has shapes and no numbers.
    """

    tokenizer: PreTrainedTokenizerBase
    dims: int
    embeddings: Tensor | None
    layers: EncoderLayers | None = None
    head: nn.Linear | None = None
    token_weights: Tensor | None = None
    batch: tuple[Tensor, Tensor] | None = None
    shape_only: bool = False

    @property
    def vocabulary_size(self) -> int:
        return len(self.tokenizer)

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_token_id or 0


class Kind(NamedTuple):
    """What a file of this folder says of its kind of student.

    `fields` is what a shape (student.json) may hold. `initial` makes the student of a recipe's section, with
        its shape; `build` makes
    it again from the shape alone. `parameters` counts {embedding, encoder, head, total}. `write` writes its
    graph node by node; without it an encoder of known layers is written from those, and anything else is
    traced. `restore` undoes in place what the graph does to parameters, see weights_in_graph.
    """

    module: type[nn.Module]
    fields: type[StudentShape]
    initial: Callable[[Any, Start], tuple[nn.Module, dict[str, Any]]]
    build: Callable[[dict[str, Any]], nn.Module]
    parameters: Callable[[Any], dict[str, int]]
    write: Callable[[Any], onnx.ModelProto] | None = None
    restore: Callable[[dict[str, np.ndarray]], None] = lambda found: None


def build_to_train(
    build: Callable[[dict[str, Any]], Any], shape: dict[str, Any], shape_only: bool = False
) -> Any:
    """A module of this shape. Raises UserError where this machine has not the memory that training it takes.

    shape_only: as in Start.
    """
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        unweighted = build(shape)
    count = sum(parameter.numel() for parameter in unweighted.parameters())
    memory = machine.memory_bytes()
    if memory is not None and count * TRAINED_BYTES > memory:
        fact = (
            f"{count:,} parameters take {count * TRAINED_BYTES / 1e9:,.0f} GB to train, and this machine "
            f"has {memory / 1e9:,.0f}"
        )
        raise UserError(f"student: {fact}; give it fewer layers, or a smaller width or vocabulary")
    return unweighted if shape_only and count > MOST_DRAWN else build(shape)
