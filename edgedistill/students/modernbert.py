"""ModernBERT as a student's encoder: chosen layers of one, at its full width."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import onnx
from pydantic import ConfigDict, Field, model_validator
from torch import nn
from transformers import ModernBertConfig, ModernBertModel, PretrainedConfig

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.students.bert_layers import GELUS, EncoderLayers
from edgedistill.students.embedding_tables import lookup
from edgedistill.students.graph_writer import (
    ACTIVATIONS,
    MICROSOFT,
    GraphWriter,
    Shared,
    after_pooling,
    attend,
    integer_mask,
    last_tokens,
    pool_and_finish,
    positions,
    shared,
    window_scores,
)
from edgedistill.students.shape_fields import Fields, Layers, Share, Size

MODEL_TYPE = "modernbert"
CHANGING = ("dynamic", "longrope")  # rotary positions whose angles depend on the length of the text
NO_TOKENS = dict.fromkeys(
    ("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id")
)  # the encoder reads none of these
ARCHITECTURE = {"ModernBertModel": (MODEL_TYPE, "ModernBERT")}  # as bert_layers.ARCHITECTURES


class RopeBase(Fields):
    """Rotary positions of one type of layers."""

    rope_type: Literal["default"] = "default"
    rope_theta: Annotated[float, Field(gt=1, le=1e12)]


class Ropes(Fields):
    """Rotary positions of the layers that read the whole text, and of those that read a window of it."""

    full_attention: RopeBase
    sliding_attention: RopeBase


class ModernBertSizes(Fields):
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
            raise ValueError(
                f"{self.num_attention_heads} heads of an even size do not make up a width of "
                f"{self.hidden_size}"
            )
        if not len(self.layer_types) == len(self.attention_norms) == self.num_hidden_layers:
            raise ValueError(f"types and norms of another number of layers than {self.num_hidden_layers}")
        if (self.pad_token_id or 0) >= self.vocab_size:
            raise ValueError("a padding id above the vocabulary")
        return self


def config(
    spec: recipe.Bert, source: PretrainedConfig, layers: list[int], own: dict[str, int]
) -> ModernBertConfig:
    """The source's config with chosen layers, which keep their reach (the whole text, or a window), and the
    student's values `own`.

    `attention_norms`: whether each layer has a LayerNorm in front of its attention, which a ModernBERT's
        first layer has not.
    Raises UserError: `max_positions`, which has no meaning for rotary positions; transformers 4, whose layers
        have no types.
    """
    if spec.max_positions is not None:
        raise UserError(
            "student.max_positions: ModernBERT's positions are rotary and have no table; leave it out"
        )
    given: dict[str, Any] = source.to_dict()
    if "layer_types" not in given:
        raise UserError(
            "student.weights: layers of ModernBERT need transformers 5 or newer; pip install "
            "'transformers>=5'"
        )
    norms = given.get("attention_norms") or [layer > 0 for layer in range(source.num_hidden_layers)]
    chosen = {
        "num_hidden_layers": len(layers),
        "layer_types": [given["layer_types"][layer] for layer in layers],
    }
    activation = {"hidden_activation": spec.activation} if spec.activation else {}
    dropout = dict.fromkeys(("attention_dropout", "embedding_dropout", "mlp_dropout"), spec.dropout)
    return ModernBertConfig(
        **{
            **given,
            **chosen,
            **activation,
            **dropout,
            **NO_TOKENS,
            **own,
            "attention_norms": [norms[layer] for layer in layers],
        }
    )


def build(config: dict[str, Any]) -> ModernBertModel:
    """The encoder of a config with `attention_norms`, with weights drawn from torch's generator."""
    model = ModernBertModel(ModernBertConfig(**{**config, **NO_TOKENS}))
    for layer, normed in zip(model.layers, config["attention_norms"], strict=True):
        norm = nn.LayerNorm(model.config.hidden_size, eps=model.config.norm_eps, bias=model.config.norm_bias)
        layer.attn_norm = norm if normed else nn.Identity()
    return model


def copy_layers(student: Any, layers: list[int], source: EncoderLayers) -> None:
    """Copy chosen layers and all norms of a source in place; rotary positions have no weights."""
    mine, theirs = student.model, source.model
    for at, number in enumerate(layers):
        mine.layers[at].load_state_dict(theirs.layers[number].state_dict())
    mine.embeddings.norm.load_state_dict(theirs.embeddings.norm.state_dict())
    mine.final_norm.load_state_dict(theirs.final_norm.state_dict())


def is_supported(student: Any) -> bool:
    """Whether the graph can be written from the weights; otherwise it has to be traced."""
    model: Any = getattr(student, "model", None)
    if type(model).__name__ not in ARCHITECTURE or not hasattr(model.config, "layer_types"):
        return False
    steady = not any(kind in CHANGING for kind in model.rotary_emb.rope_type.values())
    layers = all(
        isinstance(layer, nn.Linear | nn.Identity) or type(layer) in ACTIVATIONS
        for layer in after_pooling(student)
    )
    return steady and layers and model.config.hidden_activation in (*GELUS, "relu")


class _Reach(NamedTuple):
    """What layers of one type read: cosines and sines (T, s / 2) of rotary positions, and the scores of their
    window, or nothing."""

    cosines: str
    sines: str
    scores: str


def write(student: Any) -> onnx.ModelProto:
    """Write the graph; `last_hidden_state` is the last LayerNorm's output (B, T, H). Behind a linear head it
    is (B, T, d)."""
    writer, model, config = GraphWriter(student), student.model, student.model.config
    mask = integer_mask(writer)
    tokens = lookup(writer, model.get_input_embeddings(), "input_ids")
    read = shared(writer, config.num_attention_heads, config.hidden_size, mask, tokens)
    at = positions(writer)
    reaches = {
        kind: _reach(writer, model, at, kind)
        for kind in dict.fromkeys(layer.attention_type for layer in model.layers)
    }
    rows = _norm(writer, writer.add("Reshape", tokens, read.to_rows), model.embeddings.norm)
    first = writer.constant(np.zeros(1, np.int64), "first")  # the position of a text's first token
    for layer in model.layers:
        rows = _attention(writer, layer, read, (reaches[layer.attention_type], first), rows)
        rows = _feed_forward(writer, layer, config.hidden_activation, rows)
    rows = _norm(writer, rows, model.final_norm)
    return pool_and_finish(
        writer, student, model, writer.add("Reshape", rows, read.to_sequences, outputs=[last_tokens(student)])
    )


def _reach(writer: GraphWriter, model: Any, at: str, kind: str) -> _Reach:
    """Write what layers of a type read. at (T,): the positions."""
    rotary = model.rotary_emb
    frequencies, scale = (
        getattr(rotary, f"{kind}_inv_freq"),
        float(getattr(rotary, f"{kind}_attention_scaling")),
    )
    column = writer.add(
        "Unsqueeze", writer.add("Cast", at, to=onnx.TensorProto.FLOAT), writer.constant([1], "axis")
    )
    angles = writer.add("Mul", column, writer.constant(frequencies, "frequencies"))
    waves = [writer.add(wave, angles) for wave in ("Cos", "Sin")]
    if scale != 1:
        factor = writer.constant(np.float32(scale), "scaling")
        waves = [writer.add("Mul", wave, factor) for wave in waves]
    local = kind == "sliding_attention"
    return _Reach(waves[0], waves[1], window_scores(writer, at, model.config.sliding_window) if local else "")


def _norm(writer: GraphWriter, rows: str, norm: Any) -> str:
    """A LayerNorm, whose shift may be missing; nothing for the identity in front of a first layer."""
    if isinstance(norm, nn.Identity):
        return rows
    constants = [writer.parameter(each) for each in (norm.weight, norm.bias) if each is not None]
    return writer.add("LayerNormalization", rows, *constants, axis=-1, epsilon=norm.eps)


def _products(writer: GraphWriter, rows: str, dense: nn.Linear, count: int = 1) -> list[str]:
    """The products with each of the layers that one matrix holds: several cost less than splitting the output
    of one."""
    found, bias = [], dense.bias
    for at, weight in enumerate(dense.weight.chunk(count)):
        ending = f"[{at}]" if count > 1 else ""
        product = writer.add("MatMul", rows, writer.parameter(dense.weight, weight.T, f"{ending}.T"))
        if bias is not None:
            product = writer.add("Add", product, writer.parameter(bias, bias.chunk(count)[at], ending))
        found.append(product)
    return found


def _attention(writer: GraphWriter, layer: Any, read: Shared, where: tuple[_Reach, str], rows: str) -> str:
    """Write a layer's attention: rows (B·T, H) -> rows. where: what its type reads, and the first
    position."""
    reach, first = where
    products = _products(writer, _norm(writer, rows, layer.attn_norm), layer.attn.Wqkv, 3)
    parts = [writer.add("Reshape", product, read.to_sequences) for product in products]
    rotated = [
        writer.add("RotaryEmbedding", part, first, reach.cosines, reach.sines, domain=MICROSOFT)
        for part in parts[:2]
    ]
    context = attend(writer, read, [*rotated, parts[2]], reach.scores)
    return writer.add("Add", rows, *_products(writer, context, layer.attn.Wo))


def _feed_forward(writer: GraphWriter, layer: Any, activation: str, rows: str) -> str:
    """Write a layer's feed-forward block: one half of its neurons times the other half, the gate."""
    inner, gate = _products(writer, _norm(writer, rows, layer.mlp_norm), layer.mlp.Wi, 2)
    active = (
        writer.add("Relu", inner)
        if activation == "relu"
        else writer.add(GELUS[activation], inner, domain=MICROSOFT)
    )
    return writer.add("Add", rows, *_products(writer, writer.add("Mul", active, gate), layer.mlp.Wo))
