"""What a student's shape may hold: a stranger may have written the one in a bundle's manifest.

A shape that passes builds a module of the kinds we know, and nothing else: keys of transformers' configuration that could load code, or
that our graphs do not have, are left out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from edgedistill.errors import UserError
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.students.relative_bias import BUCKETS

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


class RopeBase(_Fields):
    """Rotary positions of one type of layers."""

    rope_type: Literal["default"] = "default"
    rope_theta: Annotated[float, Field(gt=1, le=1e12)]


class Ropes(_Fields):
    """Rotary positions of the layers that read the whole text, and of those that read a window of it."""

    full_attention: RopeBase
    sliding_attention: RopeBase


class ModernBertSizes(_Fields):
    """The keys of a ModernBertConfig that our graphs read; other keys are ignored."""

    model_config = ConfigDict(extra="ignore")

    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    intermediate_size: Size
    hidden_activation: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu"] = "gelu"
    attention_dropout: Share = 0.0
    embedding_dropout: Share = 0.0
    mlp_dropout: Share = 0.0
    max_position_embeddings: Size = 8192
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.02
    norm_eps: Annotated[float, Field(gt=0, le=1)] = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    local_attention: Annotated[int, Field(ge=2, le=2**24)] = 128
    pad_token_id: Annotated[int, Field(ge=0)] | None
    layer_types: list[Literal["full_attention", "sliding_attention"]]
    rope_parameters: Ropes
    attention_norms: list[bool]
    model_type: Literal["modernbert"]

    @model_validator(mode="after")
    def _fits(self) -> ModernBertSizes:
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(f"{self.num_attention_heads} heads of an even size do not make up a width of {self.hidden_size}")
        if not len(self.layer_types) == len(self.attention_norms) == self.num_hidden_layers:
            raise ValueError(f"types and norms of another number of layers than {self.num_hidden_layers}")
        if (self.pad_token_id or 0) >= self.vocab_size:
            raise ValueError("a padding id above the vocabulary")
        return self


class StudentShape(_Fields):
    """What every student's shape holds."""

    head: HeadShape | None
    tanh: bool
    max_tokens: Tokens
    codes: Size | None = None
    centroids: Annotated[int, Field(ge=2, le=2**15)] = 256
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
    relative_bias: Annotated[int, Field(ge=BUCKETS, le=1_024)] | None = None

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


class ModernBertShape(StudentShape):
    """The shape of a student of ModernBERT's layers."""

    kind: Literal["bert"]
    config: ModernBertSizes
    bottleneck: Size | None = None
    pooling: Literal["mean", "cls", "max", "last"]

    @model_validator(mode="after")
    def _in_reach(self) -> ModernBertShape:
        if self.max_tokens > self.config.max_position_embeddings:
            raise ValueError(f"{self.max_tokens} tokens for {self.config.max_position_embeddings} positions")
        return _in_blocks(self, self.config.hidden_size)


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
        read = _fields_of(shape).model_validate(shape)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        raise UserError(*(f"{place}: student.{ascii(line)[1:-1]}; {GET_AGAIN}" for line in lines[:20])) from None
    found = read.model_dump(mode="json", exclude_unset=True)
    return {**found, "config": read.config.model_dump()} if isinstance(read, BertShape | ModernBertShape) else found


def _fields_of(shape: dict[str, Any]) -> type[StudentShape]:
    config = shape.get("config")
    modern = shape["kind"] == "bert" and isinstance(config, dict) and config.get("model_type") == "modernbert"
    return ModernBertShape if modern else SHAPES[shape["kind"]]
