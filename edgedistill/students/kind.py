"""What the file of a kind of student gives, what its shape may hold, and what a new student is initialized
from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from edgedistill import machine, recipe
from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.students import embedding_tables, head
from edgedistill.students.bert_layers import EncoderLayers

TRAINED_BYTES = 16  # a parameter, its gradient, and AdamW's two moments
MOST_DRAWN = 30_000_000  # parameters whose random weights are drawn where only the shape is asked for

Size = Annotated[int, Field(ge=1, le=2**24)]
Layers = Annotated[int, Field(ge=0, le=1_000)]
Share = Annotated[float, Field(ge=0, lt=1)]
Tokens = Annotated[int, Field(ge=1, le=131_072)]
Prompt = Annotated[str, Field(max_length=recipe.LONGEST_PROMPT)]


class Fields(BaseModel):
    """Fields of a shape. A stranger may have written the one in a bundle's manifest: one that passes builds a
    module of the kinds we know, and nothing else. Keys of transformers' configuration that could load code,
    or that our graphs do not have, are left out."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class HeadShape(Fields):
    """The linear layer after pooling."""

    dims: Size
    bias: bool


class StudentShape(Fields):
    """What every student's shape holds."""

    head: HeadShape | None
    tanh: bool
    max_tokens: Tokens
    pq_bytes: Size | None = None
    pq_centroids: Annotated[int, Field(ge=2, le=2**15)] = 256
    lexical: Annotated[float, Field(gt=0, le=10)] | None = None
    prompt: Prompt = ""
    query_prompt: Prompt | None = None
    document_prompt: Prompt | None = None

    def in_blocks(self, width: int) -> Self:
        """The shape itself. Raises ValueError for PQ codes that do not divide the table's width."""
        if self.pq_bytes is not None and width % self.pq_bytes:
            raise ValueError(f"{self.pq_bytes} blocks do not divide a width of {width}")
        return self


class TableShape(StudentShape):
    """What the shapes of students without a BertConfig share."""

    vocabulary_size: Size
    pad: Annotated[int, Field(ge=0)]
    width: Size

    @model_validator(mode="after")
    def _pad_in_table(self) -> Self:
        if self.pad >= self.vocabulary_size:
            raise ValueError("a padding id above the vocabulary")
        return self.in_blocks(self.width)


def table_shape(
    spec: recipe.BiLSTM | recipe.Static, vocabulary_size: int, pad: int, teacher_dims: int
) -> Json:
    """The fields of a `TableShape`. Raises UserError for PQ bytes that do not divide the width."""
    embedding_tables.check(None, spec.pq_bytes, spec.width)
    return {
        "kind": spec.kind,
        "vocabulary_size": vocabulary_size,
        "pad": pad,
        "width": spec.width,
        **embedding_tables.product_quantized(spec),
        **head.shape(spec, teacher_dims),
        "max_tokens": spec.max_tokens,
    }


@dataclass(frozen=True)
class Start:
    """What the recipe's models and corpus give a new student.

    `dims` are those of the embeddings that the student is to give. `embeddings` (V, w) are rows for its
    tokens, or None for random ones. `layers` are those that its own come from, or None for random ones, and
    `head` is what follows their pooling. `token_weights` (V,) weight the tokens where the table is reduced,
    and `batch`, (ids, mask) of (B, T), holds texts of the corpus; both are None where they are not needed or
    not at hand. With `shape_only`, for an estimate, the weights of a large student are not drawn: it is on
    torch's meta device, which has shapes and no numbers.
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
    its shape; `build` makes it again from the shape alone. `restore` undoes in place what the graph does to
    parameters, see `graph.read_back`. Its module counts its parameters (`counts`), and may write its graph
    node by node (`write`): without that an encoder of known layers is written from those, and anything else
    is traced.
    """

    fields: type[StudentShape]
    initial: Callable[[Any, Start], tuple[nn.Module, Json]]
    build: Callable[[Json], nn.Module]
    restore: Callable[[dict[str, np.ndarray]], None] = lambda weights: None


def build_to_train(build: Callable[[Json], Any], shape: Json, shape_only: bool = False) -> Any:
    """A module of this shape; `shape_only` is that of Start. Raises UserError where this machine has not the
    memory that training it takes."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        unweighted = build(shape)
    count = sum(parameter.numel() for parameter in unweighted.parameters())
    memory = machine.memory_bytes()
    if memory is not None and count * TRAINED_BYTES > memory:
        raise UserError(
            f"student: {count:,} parameters take {count * TRAINED_BYTES / 1e9:,.0f} GB to train, "
            f"and this machine has {memory / 1e9:,.0f}; give it fewer layers, or a smaller width or "
            "vocabulary"
        )
    return unweighted if shape_only and count > MOST_DRAWN else build(shape)
