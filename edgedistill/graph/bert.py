"""BERT encoders and recurrent students as ONNX nodes, from their weights: about eight nodes per layer and ten around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import nn

from edgedistill.graph.embedding_tables import lookup
from edgedistill.graph.pooling import pool
from edgedistill.graph.writer import ACTIVATIONS, MASKED, MICROSOFT, GraphWriter, after_pooling, finish

GELUS = {"gelu": "BiasGelu", "gelu_new": "FastGelu", "gelu_pytorch_tanh": "FastGelu", "gelu_fast": "FastGelu"}


def is_supported(student: Any) -> bool:
    """Whether the graph can be written from the weights; otherwise it has to be traced."""
    model: Any = getattr(student, "model", None)
    if type(model).__name__ != "BertModel" or model.config.is_decoder:
        return False
    absolute = getattr(model.config, "position_embedding_type", "absolute") == "absolute"
    layers = all(isinstance(layer, nn.Linear | nn.Identity) or type(layer) in ACTIVATIONS for layer in after_pooling(student))
    return absolute and layers and model.config.hidden_act in (*GELUS, "relu")


def write(student: Any) -> onnx.ModelProto:
    """Write the graph; `last_hidden_state` (B, T, H) is the last layer's output, or the embeddings where there are no layers."""
    writer, model, config = GraphWriter(), student.model, student.model.config
    mask = writer.add("Cast", "attention_mask", to=TensorProto.INT32)
    tokens = _embeddings(writer, model.embeddings, config, getattr(student, "pad", None))
    weights = [_layer_weights(writer, layer) for layer in model.encoder.layer]
    layers = weights * getattr(model.encoder, "times", 1)  # the constants of a shared layer block are written once
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
    """Token, position and segment embeddings -> (B, T, H). All text is segment 0: its row is added to the position table here.

    pad: the padding id, where positions are counted from pad + 1 (XLM-R); None: they are counted from 0.
    """
    tokens = lookup(writer, embeddings.word_embeddings, "input_ids")
    table = writer.constant(embeddings.position_embeddings.weight + embeddings.token_type_embeddings.weight[0], "position_table")
    if pad is None:
        length, zero = writer.add("Shape", "input_ids", start=1, end=2), writer.constant([0], "zero")
        positions = writer.add("Slice", table, zero, length, zero)
    else:
        positions = writer.add("Gather", table, _position_ids(writer, pad))
    tokens = writer.add("Add", tokens, positions)
    norm = embeddings.LayerNorm
    scale, shift = writer.constant(norm.weight, "norm_weight"), writer.constant(norm.bias, "norm_bias")
    return writer.add("LayerNormalization", tokens, scale, shift, axis=-1, epsilon=config.layer_norm_eps)


def _position_ids(writer: GraphWriter, pad: int) -> str:
    """XLM-R's positions (B, T): pad + 1, pad + 2, … for tokens that are not padding, pad for padding."""
    pad_id = writer.constant(np.int64(pad), "pad")
    is_token = writer.add("Cast", writer.add("Not", writer.add("Equal", "input_ids", pad_id)), to=TensorProto.INT64)
    counted = writer.add("Mul", writer.add("CumSum", is_token, writer.constant(np.int64(1), "axis")), is_token)
    return writer.add("Add", counted, pad_id)


def _layer_weights(writer: GraphWriter, layer: Any) -> dict[str, str]:
    """Write a layer's constants; returns their names. Queries, keys and values share one matrix product."""
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
    """Write attention and feed-forward with the constants of those names: (B, T, H) -> (B, T, H)."""
    qkv = writer.add("MatMul", tokens, names["qkv_weight"])
    parts = [f"{qkv}_{name}" for name in ("query", "key", "value")]
    writer.add("Split", qkv, outputs=parts, axis=-1)
    heads = {"num_heads": config.num_attention_heads, "mask_filter_value": MASKED}
    context = writer.add("MultiHeadAttention", *parts, names["qkv_bias"], mask, domain=MICROSOFT, **heads)
    product = writer.add("MatMul", context, names["attention_weight"])
    tokens = _skip_norm(writer, product, tokens, _norm_inputs(names, "attention"), epsilon=config.layer_norm_eps)
    inner = writer.add("MatMul", tokens, names["inner_weight"])
    if config.hidden_act == "relu":
        inner = writer.add("Relu", writer.add("Add", inner, names["inner_bias"]))
    else:
        inner = writer.add(GELUS[config.hidden_act], inner, names["inner_bias"], domain=MICROSOFT)
    product = writer.add("MatMul", inner, names["feed_forward_weight"])
    return _skip_norm(writer, product, tokens, _norm_inputs(names, "feed_forward"), epsilon=config.layer_norm_eps, outputs=[output])


def _norm_inputs(names: dict[str, str], block: str) -> list[str]:
    return [names[f"{block}_{name}"] for name in ("scale", "shift", "bias")]


def _skip_norm(writer: GraphWriter, product: str, residual: str, norm: list[str], **options: Any) -> str:
    """LayerNorm(product + bias + residual); norm: the names of scale, shift and bias."""
    return writer.add("SkipLayerNormalization", product, residual, *norm, domain=MICROSOFT, **options)
