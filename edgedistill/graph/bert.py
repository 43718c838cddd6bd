"""BERT encoders and recurring units, from their weights: about eight nodes a layer and ten around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import nn

from edgedistill.graph.pooling import pool
from edgedistill.graph.writer import ACTIVATIONS, MASKED, MICROSOFT, GraphWriter, after_pooling, finish, rows

GELUS = {"gelu": "BiasGelu", "gelu_new": "FastGelu", "gelu_pytorch_tanh": "FastGelu", "gelu_fast": "FastGelu"}


def is_known(student: Any) -> bool:
    """Whether the graph can be written from the weights; otherwise it is traced."""
    model: Any = getattr(student, "model", None)
    if type(model).__name__ != "BertModel" or model.config.is_decoder:
        return False
    absolute = getattr(model.config, "position_embedding_type", "absolute") == "absolute"
    known = all(isinstance(layer, nn.Linear | nn.Identity) or type(layer) in ACTIVATIONS for layer in after_pooling(student))
    return absolute and known and model.config.hidden_act in (*GELUS, "relu")


def write(student: Any) -> onnx.ModelProto:
    """The whole graph; `last_hidden_state` (B, T, H) is what the last layer gives, of a student without layers the embeddings."""
    writer, model, config = GraphWriter(), student.model, student.model.config
    mask = writer.add("Cast", "attention_mask", to=TensorProto.INT32)
    tokens = _embeddings(writer, model.embeddings, config, getattr(student, "pad", None))
    weights = [_layer_weights(writer, layer) for layer in model.encoder.layer]
    layers = weights * getattr(model.encoder, "times", 1)  # a recurring unit's constants are written once
    for number, layer in enumerate(layers):
        output = "last_hidden_state" if number == len(layers) - 1 else f"layer_{number}"
        tokens = _layer(writer, layer, config, tokens, mask, output)
    if not layers:
        tokens = writer.add("Identity", tokens, outputs=["last_hidden_state"])
    poolings = list(getattr(student, "poolings", None) or [student.pooling])
    if poolings == ["cls_pooler"]:
        pooled = writer.add("Tanh", writer.linear(pool(writer, tokens, "cls"), model.pooler.dense, "pooler"))
    else:
        parts = [pool(writer, tokens, pooling) for pooling in poolings]
        pooled = writer.add("Concat", *parts, axis=-1) if len(parts) > 1 else parts[0]
    return finish(writer, pooled, after_pooling(student), len(poolings) * config.hidden_size, config.hidden_size)


def _embeddings(writer: GraphWriter, embeddings: Any, config: Any, pad: int | None) -> str:
    """Word, position and segment tables -> (B, T, H). All text is segment 0: its row is added to the positions once, here.

    `pad`: the id behind which positions are counted, over the tokens that are not that id; None: they are counted from 0.
    """
    tokens = rows(writer, embeddings.word_embeddings, "input_ids")
    positions = embeddings.position_embeddings.weight + embeddings.token_type_embeddings.weight[0]
    table = writer.constant(positions, "position_table")
    if pad is None:
        length, zero = writer.add("Shape", "input_ids", start=1, end=2), writer.constant([0], "zero")
        places = writer.add("Slice", table, zero, length, zero)
    else:
        places = writer.add("Gather", table, _counted_from(writer, pad))
    tokens = writer.add("Add", tokens, places)
    norm = embeddings.LayerNorm
    scale, shift = writer.constant(norm.weight, "norm_weight"), writer.constant(norm.bias, "norm_bias")
    return writer.add("LayerNormalization", tokens, scale, shift, axis=-1, epsilon=config.layer_norm_eps)


def _counted_from(writer: GraphWriter, pad: int) -> str:
    """XLM-R's positions (B, T): pad + 1, pad + 2, … over the tokens that are not padding, pad for those that are."""
    number = writer.constant(np.int64(pad), "pad")
    seen = writer.add("Cast", writer.add("Not", writer.add("Equal", "input_ids", number)), to=TensorProto.INT64)
    counted = writer.add("Mul", writer.add("CumSum", seen, writer.constant(np.int64(1), "axis")), seen)
    return writer.add("Add", counted, number)


def _layer_weights(writer: GraphWriter, layer: Any) -> dict[str, str]:
    """Write a layer's constants; their names. One product for queries, keys and values."""
    projections = [layer.attention.self.query, layer.attention.self.key, layer.attention.self.value]
    names = {
        "qkv_bias": writer.constant(torch.cat([projection.bias for projection in projections]), "qkv_bias"),
        "qkv_weight": writer.constant(torch.cat([projection.weight for projection in projections]).T, "qkv_weight"),
        "inner_weight": writer.constant(layer.intermediate.dense.weight.T, "inner_weight"),
        "inner_bias": writer.constant(layer.intermediate.dense.bias, "inner_bias"),
    }
    for part, block in (("attention", layer.attention.output), ("feed_forward", layer.output)):
        names[f"{part}_weight"] = writer.constant(block.dense.weight.T, "out_weight")
        names[f"{part}_scale"] = writer.constant(block.LayerNorm.weight, "norm_weight")
        names[f"{part}_shift"] = writer.constant(block.LayerNorm.bias, "norm_bias")
        names[f"{part}_bias"] = writer.constant(block.dense.bias, "out_bias")
    return names


def _layer(writer: GraphWriter, names: dict[str, str], config: Any, tokens: str, mask: str, output: str) -> str:
    """Attention and feed-forward with the constants of those names: (B, T, H) -> (B, T, H)."""
    qkv = writer.add("MatMul", tokens, names["qkv_weight"])
    parts = [f"{qkv}_{name}" for name in ("query", "key", "value")]
    writer.add("Split", qkv, outputs=parts, axis=-1)
    heads = {"num_heads": config.num_attention_heads, "mask_filter_value": MASKED}
    context = writer.add("MultiHeadAttention", *parts, names["qkv_bias"], mask, domain=MICROSOFT, **heads)
    tokens = _add_and_norm(writer, context, names, "attention", tokens, config)
    inner = writer.add("MatMul", tokens, names["inner_weight"])
    if config.hidden_act == "relu":
        inner = writer.add("Relu", writer.add("Add", inner, names["inner_bias"]))
    else:
        inner = writer.add(GELUS[config.hidden_act], inner, names["inner_bias"], domain=MICROSOFT)
    return _add_and_norm(writer, inner, names, "feed_forward", tokens, config, output)


def _add_and_norm(
    writer: GraphWriter, x: str, names: dict[str, str], part: str, residual: str, config: Any, output: str | None = None
) -> str:
    """LayerNorm(x·Wᵀ + b + residual)."""
    y = writer.add("MatMul", x, names[f"{part}_weight"])
    rest = [names[f"{part}_{name}"] for name in ("scale", "shift", "bias")]
    options: dict[str, Any] = {"outputs": [output] if output else None, "domain": MICROSOFT, "epsilon": config.layer_norm_eps}
    return writer.add("SkipLayerNormalization", y, residual, *rest, **options)
