"""ModernBERT as ONNX nodes, from its weights: about twenty nodes per layer.

Its layers have their LayerNorm in front, rotary positions, and a gate in the feed-forward block; most see only a window of the text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx
from torch import Tensor, nn

from edgedistill.graph.attention import Shared, attend, integer_mask, positions, shared, window_scores
from edgedistill.graph.bert import GELUS
from edgedistill.graph.embedding_tables import lookup
from edgedistill.graph.pooling import last_tokens, pool_and_finish
from edgedistill.graph.writer import ACTIVATIONS, MICROSOFT, GraphWriter, after_pooling
from edgedistill.students.modernbert import ARCHITECTURE

CHANGING = ("dynamic", "longrope")  # rotary positions whose angles depend on the length of the text


def is_supported(student: Any) -> bool:
    """Whether the graph can be written from the weights; otherwise it has to be traced."""
    model: Any = getattr(student, "model", None)
    if type(model).__name__ not in ARCHITECTURE or not hasattr(model.config, "layer_types"):
        return False
    steady = not any(kind in CHANGING for kind in model.rotary_emb.rope_type.values())
    layers = all(isinstance(layer, nn.Linear | nn.Identity) or type(layer) in ACTIVATIONS for layer in after_pooling(student))
    return steady and layers and model.config.hidden_activation in (*GELUS, "relu")


class _Reach(NamedTuple):
    """What layers of one type read: cosines and sines (T, s / 2) of rotary positions, and the scores of their window, or nothing."""

    cosines: str
    sines: str
    scores: str


def write(student: Any) -> onnx.ModelProto:
    """Write the graph; `last_hidden_state` is the last LayerNorm's output (B, T, H). Behind a linear head it is (B, T, d)."""
    writer, model, config = GraphWriter(), student.model, student.model.config
    mask = integer_mask(writer)
    tokens = lookup(writer, model.get_input_embeddings(), "input_ids")
    read = shared(writer, config.num_attention_heads, config.hidden_size, mask, tokens)
    at = positions(writer)
    reaches = {kind: _reach(writer, model, at, kind) for kind in dict.fromkeys(layer.attention_type for layer in model.layers)}
    rows = _norm(writer, writer.add("Reshape", tokens, read.to_rows), model.embeddings.norm)
    first = writer.constant(np.zeros(1, np.int64), "first")  # the position of a text's first token
    for number, layer in enumerate(model.layers):
        rows = _attention(writer, layer, f"layer_{number}_", read, (reaches[layer.attention_type], first), rows)
        rows = _feed_forward(writer, layer, f"layer_{number}_", config.hidden_activation, rows)
    rows = _norm(writer, rows, model.final_norm)
    return pool_and_finish(writer, student, model, writer.add("Reshape", rows, read.to_sequences, outputs=[last_tokens(student)]))


def _reach(writer: GraphWriter, model: Any, at: str, kind: str) -> _Reach:
    """Write what layers of a type read. at (T,): the positions."""
    rotary = model.rotary_emb
    frequencies, scale = getattr(rotary, f"{kind}_inv_freq"), float(getattr(rotary, f"{kind}_attention_scaling"))
    column = writer.add("Unsqueeze", writer.add("Cast", at, to=onnx.TensorProto.FLOAT), writer.constant([1], "axis"))
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
    constants = [writer.constant(norm.weight, "norm_weight")] + ([] if norm.bias is None else [writer.constant(norm.bias, "norm_bias")])
    return writer.add("LayerNormalization", rows, *constants, axis=-1, epsilon=norm.eps)


def _product(writer: GraphWriter, rows: str, weight: Tensor, bias: Tensor | None, name: str) -> str:
    product = writer.add("MatMul", rows, writer.constant(weight.T, f"{name}_weight"))
    return product if bias is None else writer.add("Add", product, writer.constant(bias, f"{name}_bias"))


def _parts(dense: nn.Linear, count: int) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of each of the layers that one matrix holds: three products cost less than splitting the output of one."""
    bias: Any = dense.bias
    return list(zip(dense.weight.chunk(count), [None] * count if bias is None else bias.chunk(count), strict=True))


def _attention(writer: GraphWriter, layer: Any, name: str, read: Shared, where: tuple[_Reach, str], rows: str) -> str:
    """Write a layer's attention: rows (B·T, H) -> rows. where: what its type reads, and the first position."""
    reach, first = where
    normed = _norm(writer, rows, layer.attn_norm)
    kinds = zip(("query", "key", "value"), _parts(layer.attn.Wqkv, 3), strict=True)
    parts = [writer.add("Reshape", _product(writer, normed, *part, f"{name}{kind}"), read.to_sequences) for kind, part in kinds]
    rotated = [writer.add("RotaryEmbedding", part, first, reach.cosines, reach.sines, domain=MICROSOFT) for part in parts[:2]]
    context = attend(writer, read, [*rotated, parts[2]], reach.scores)
    return writer.add("Add", rows, _product(writer, context, layer.attn.Wo.weight, layer.attn.Wo.bias, f"{name}attention"))


def _feed_forward(writer: GraphWriter, layer: Any, name: str, activation: str, rows: str) -> str:
    """Write a layer's feed-forward block: one half of its neurons times the other half, the gate."""
    normed = _norm(writer, rows, layer.mlp_norm)
    halves = zip(("inner", "gate"), _parts(layer.mlp.Wi, 2), strict=True)
    inner, gate = (_product(writer, normed, *half, f"{name}{kind}") for kind, half in halves)
    active = writer.add("Relu", inner) if activation == "relu" else writer.add(GELUS[activation], inner, domain=MICROSOFT)
    gated = writer.add("Mul", active, gate)
    return writer.add("Add", rows, _product(writer, gated, layer.mlp.Wo.weight, layer.mlp.Wo.bias, f"{name}feed_forward"))
