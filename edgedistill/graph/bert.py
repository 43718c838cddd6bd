"""BERT encoders and recurring units, from their weights: about eight nodes a layer and ten around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import nn

from edgedistill.graph.sheet import ACTIVATIONS, MASKED, MICROSOFT, Sheet, after_pooling, finish, pool, rows

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
    sheet, model, config = Sheet(), student.model, student.model.config
    mask = sheet.add("Cast", "attention_mask", to=TensorProto.INT32)
    tokens = _embeddings(sheet, model.embeddings, config, getattr(student, "pad", None))
    weights = [_layer_weights(sheet, layer) for layer in model.encoder.layer]
    layers = weights * getattr(model.encoder, "times", 1)  # a recurring unit's constants are written once
    for number, layer in enumerate(layers):
        output = "last_hidden_state" if number == len(layers) - 1 else f"layer_{number}"
        tokens = _layer(sheet, layer, config, tokens, mask, output)
    if not layers:
        tokens = sheet.add("Identity", tokens, outputs=["last_hidden_state"])
    poolings = list(getattr(student, "poolings", None) or [student.pooling])
    if poolings == ["cls_pooler"]:
        pooled = sheet.add("Tanh", sheet.linear(pool(sheet, tokens, "cls"), model.pooler.dense, "pooler"))
    else:
        parts = [pool(sheet, tokens, pooling) for pooling in poolings]
        pooled = sheet.add("Concat", *parts, axis=-1) if len(parts) > 1 else parts[0]
    return finish(sheet, pooled, after_pooling(student), len(poolings) * config.hidden_size, config.hidden_size)


def _embeddings(sheet: Sheet, embeddings: Any, config: Any, pad: int | None) -> str:
    """Word, position and segment tables -> (B, T, H). All text is segment 0: its row is added to the positions once, here.

    `pad`: the id behind which positions are counted, over the tokens that are not that id; None: they are counted from 0.
    """
    tokens = rows(sheet, embeddings.word_embeddings, "input_ids")
    positions = embeddings.position_embeddings.weight + embeddings.token_type_embeddings.weight[0]
    table = sheet.constant(positions, "position_table")
    if pad is None:
        length, zero = sheet.add("Shape", "input_ids", start=1, end=2), sheet.constant([0], "zero")
        places = sheet.add("Slice", table, zero, length, zero)
    else:
        places = sheet.add("Gather", table, _counted_from(sheet, pad))
    tokens = sheet.add("Add", tokens, places)
    norm = embeddings.LayerNorm
    scale, shift = sheet.constant(norm.weight, "norm_weight"), sheet.constant(norm.bias, "norm_bias")
    return sheet.add("LayerNormalization", tokens, scale, shift, axis=-1, epsilon=config.layer_norm_eps)


def _counted_from(sheet: Sheet, pad: int) -> str:
    """XLM-R's positions (B, T): pad + 1, pad + 2, … over the tokens that are not padding, pad for those that are."""
    number = sheet.constant(np.int64(pad), "pad")
    seen = sheet.add("Cast", sheet.add("Not", sheet.add("Equal", "input_ids", number)), to=TensorProto.INT64)
    counted = sheet.add("Mul", sheet.add("CumSum", seen, sheet.constant(np.int64(1), "axis")), seen)
    return sheet.add("Add", counted, number)


def _layer_weights(sheet: Sheet, layer: Any) -> dict[str, str]:
    """Write a layer's constants; their names. One product for queries, keys and values."""
    projections = [layer.attention.self.query, layer.attention.self.key, layer.attention.self.value]
    names = {
        "qkv_bias": sheet.constant(torch.cat([projection.bias for projection in projections]), "qkv_bias"),
        "qkv_weight": sheet.constant(torch.cat([projection.weight for projection in projections]).T, "qkv_weight"),
        "inner_weight": sheet.constant(layer.intermediate.dense.weight.T, "inner_weight"),
        "inner_bias": sheet.constant(layer.intermediate.dense.bias, "inner_bias"),
    }
    for part, block in (("attention", layer.attention.output), ("feed_forward", layer.output)):
        names[f"{part}_weight"] = sheet.constant(block.dense.weight.T, "out_weight")
        names[f"{part}_scale"] = sheet.constant(block.LayerNorm.weight, "norm_weight")
        names[f"{part}_shift"] = sheet.constant(block.LayerNorm.bias, "norm_bias")
        names[f"{part}_bias"] = sheet.constant(block.dense.bias, "out_bias")
    return names


def _layer(sheet: Sheet, names: dict[str, str], config: Any, tokens: str, mask: str, output: str) -> str:
    """Attention and feed-forward with the constants of those names: (B, T, H) -> (B, T, H)."""
    qkv = sheet.add("MatMul", tokens, names["qkv_weight"])
    parts = [f"{qkv}_{name}" for name in ("query", "key", "value")]
    sheet.add("Split", qkv, outputs=parts, axis=-1)
    heads = {"num_heads": config.num_attention_heads, "mask_filter_value": MASKED}
    context = sheet.add("MultiHeadAttention", *parts, names["qkv_bias"], mask, domain=MICROSOFT, **heads)
    tokens = _add_and_norm(sheet, context, names, "attention", tokens, config)
    inner = sheet.add("MatMul", tokens, names["inner_weight"])
    if config.hidden_act == "relu":
        inner = sheet.add("Relu", sheet.add("Add", inner, names["inner_bias"]))
    else:
        inner = sheet.add(GELUS[config.hidden_act], inner, names["inner_bias"], domain=MICROSOFT)
    return _add_and_norm(sheet, inner, names, "feed_forward", tokens, config, output)


def _add_and_norm(sheet: Sheet, x: str, names: dict[str, str], part: str, residual: str, config: Any, output: str | None = None) -> str:
    """LayerNorm(x·Wᵀ + b + residual)."""
    y = sheet.add("MatMul", x, names[f"{part}_weight"])
    rest = [names[f"{part}_{name}"] for name in ("scale", "shift", "bias")]
    options: dict[str, Any] = {"outputs": [output] if output else None, "domain": MICROSOFT, "epsilon": config.layer_norm_eps}
    return sheet.add("SkipLayerNormalization", y, residual, *rest, **options)
