"""What a student's shape may hold: a stranger may have written the one in a bundle's manifest.

A shape that passes builds a module of the kinds we know, and nothing else: keys of transformers' configuration that could load code, or
that our graphs do not have, are left out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from edgedistill.errors import UserError
from edgedistill.runtime.trust import GET_AGAIN

Size = Annotated[int, Field(ge=1, le=2**24)]
Layers = Annotated[int, Field(ge=0, le=1_000)]
Share = Annotated[float, Field(ge=0, lt=1)]
Tokens = Annotated[int, Field(ge=1, le=131_072)]


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class HeadShape(_Fields):
    """The linear layer after pooling."""

    dims: Size
    bias: bool


class BertSizes(_Fields):
    """The keys of a BertConfig that our graphs read; other keys are ignored."""

    model_config = ConfigDict(extra="ignore")

    vocab_size: Size = 30_522
    hidden_size: Size = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3_072
    hidden_act: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu"] = "gelu"
    hidden_dropout_prob: Share = 0.1
    attention_probs_dropout_prob: Share = 0.1
    max_position_embeddings: Size = 512
    type_vocab_size: Annotated[int, Field(ge=1, le=64)] = 2
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.02
    layer_norm_eps: Annotated[float, Field(gt=0, le=1)] = 1e-12
    pad_token_id: Annotated[int, Field(ge=0)] | None = 0
    model_type: Literal["bert"] = "bert"

    @model_validator(mode="after")
    def _fits(self) -> BertSizes:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"{self.num_attention_heads} heads do not divide a width of {self.hidden_size}")
        if (self.pad_token_id or 0) >= self.vocab_size:
            raise ValueError("a padding id above the vocabulary")
        return self


class StudentShape(_Fields):
    """What every student's shape holds."""

    head: HeadShape | None
    tanh: bool
    max_tokens: Tokens
    codes: Size | None = None
    blocks: list[Annotated[tuple[Size, float], Field(strict=False)]] | None = None
    prompt: Annotated[str, Field(max_length=10_000)] = ""


S = TypeVar("S", bound=StudentShape)


def _in_blocks(shape: S, width: int) -> S:
    if shape.codes is not None and width % shape.codes:
        raise ValueError(f"{shape.codes} blocks do not divide a width of {width}")
    return shape


class BertShape(StudentShape):
    """A BERT's shape."""

    kind: Literal["bert"]
    config: BertSizes
    bottleneck: Size | None = None
    pooling: Literal["mean", "cls", "cls_pooler", "max", "last"]
    positions: Literal["pad", "zero"] = "zero"
    pad: Annotated[int, Field(ge=0, lt=2**24)] = 0

    @model_validator(mode="after")
    def _in_tables(self) -> BertShape:
        first = self.pad + 1 if self.positions == "pad" else 0
        if self.max_tokens > self.config.max_position_embeddings - first:
            raise ValueError(f"{self.max_tokens} tokens for {self.config.max_position_embeddings} positions")
        if self.pad >= self.config.vocab_size:
            raise ValueError("a padding id above the vocabulary")
        return _in_blocks(self, self.config.hidden_size)


class RecurrentShape(BertShape):
    """A recurrent student's shape."""

    kind: Literal["recurrent"]  # type: ignore[assignment]
    times: Annotated[int, Field(ge=1, le=1_000)]


class TableShape(StudentShape):
    """What the shapes of students without a BertConfig share."""

    pieces: Size
    pad: Annotated[int, Field(ge=0)]
    width: Size

    @model_validator(mode="after")
    def _pad_in_table(self) -> TableShape:
        if self.pad >= self.pieces:
            raise ValueError("a padding id above the vocabulary")
        return _in_blocks(self, self.width)


class BiLSTMShape(TableShape):
    """A BiLSTM's shape."""

    kind: Literal["bilstm"]
    hidden: Size
    layers: Annotated[int, Field(ge=1, le=64)]
    readout: Literal["last", "max", "mean"]
    dropout: Share


class StaticShape(TableShape):
    """A static student's shape."""

    kind: Literal["static"]


SHAPES: dict[str, type[StudentShape]] = {"bert": BertShape, "bilstm": BiLSTMShape, "recurrent": RecurrentShape, "static": StaticShape}


def checked(shape: dict[str, Any], place: str) -> dict[str, Any]:
    """A shape of one of SHAPES without the keys that are left out. place: the file.

    Raises UserError for a field that no training writes.
    """
    try:
        read = SHAPES[shape["kind"]].model_validate(shape)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        raise UserError(*(f"{place}: student.{ascii(line)[1:-1]}; {GET_AGAIN}" for line in lines[:20])) from None
    found = read.model_dump(mode="json", exclude_unset=True)
    return {**found, "config": read.config.model_dump()} if isinstance(read, BertShape) else found
