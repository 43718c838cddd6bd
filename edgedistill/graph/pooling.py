"""Pooling as ONNX nodes: token embeddings (B, T, H) and the attention mask -> (B, H)."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from edgedistill.errors import UserError, unknown_name
from edgedistill.graph.writer import MASKED, GraphWriter


def pool(writer: GraphWriter, tokens: str, pooling: str) -> str:
    """Write the pooling of token embeddings (B, T, H); returns the name of its output (B, H). Raises UserError for an unknown pooling."""
    if pooling in ("mean", "mean_sqrt_len", "weighted_mean"):
        return mean(writer, tokens, pooling)
    if pooling == "max":
        mask = writer.add("Unsqueeze", writer.add("Cast", "attention_mask", to=TensorProto.BOOL), writer.constant([2], "axis"))
        masked = writer.add("Where", mask, tokens, writer.constant(np.float32(MASKED), "masked"))
        return writer.add("ReduceMax", masked, axes=[1], keepdims=0)
    if pooling == "cls":
        return writer.add("Gather", tokens, writer.constant(np.int64(0), "first"), axis=1)
    if pooling == "last":
        return _last(writer, tokens)
    raise UserError(unknown_name("pooling", pooling, ("mean", "max", "cls", "cls_pooler", "last", "mean_sqrt_len", "weighted_mean")))


def mean(writer: GraphWriter, tokens: str, pooling: str) -> str:
    """Mean pooling: weights w / Σw (B, 1, T) times tokens, one small product instead of a product and a sum over (B, T, H).

    w is the mask; for `weighted_mean` the mask times 1, 2, 3 …; `mean_sqrt_len` divides by √Σw.
    """
    weights, axis = writer.add("Cast", "attention_mask", to=TensorProto.FLOAT), writer.constant([1], "axis")
    if pooling == "weighted_mean":
        weights = writer.add("Mul", weights, writer.add("CumSum", weights, writer.constant(np.int64(1), "axis")))
    total = writer.add("ReduceSum", weights, axis, keepdims=1)
    total = writer.add("Clip", total, writer.constant(np.float32(1), "one"))
    total = writer.add("Sqrt", total) if pooling == "mean_sqrt_len" else total
    weights = writer.add("Unsqueeze", writer.add("Div", weights, total), axis)
    return writer.add("Squeeze", writer.add("MatMul", weights, tokens), axis)


def _last(writer: GraphWriter, tokens: str) -> str:
    """The last token that is not padding, whether texts are padded left or right."""
    length = writer.add("Squeeze", writer.add("Shape", "attention_mask", start=1, end=2))
    zero, one = writer.constant(np.int64(0), "zero"), writer.constant(np.int64(1), "one")
    positions = writer.add("Mul", "attention_mask", writer.add("Range", zero, length, one))
    return writer.add("GatherND", tokens, writer.add("ReduceMax", positions, axes=[1], keepdims=1), batch_dims=1)
