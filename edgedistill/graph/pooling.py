"""Pooling as ONNX nodes: token embeddings (B, T, H) and the attention mask -> (B, H); and how a transformer's graph ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from edgedistill.errors import UserError, unknown_name
from edgedistill.graph.writer import MASKED, GraphWriter, after_pooling, finish, head_on_tokens


def last_tokens(student: Any) -> str:
    """What a transformer's last token embeddings are called in its graph: they are an output, unless a head is applied to them."""
    return "encoded" if head_on_tokens(student) else "last_hidden_state"


def pool_and_finish(writer: GraphWriter, student: Any, model: Any, tokens: str) -> onnx.ModelProto:
    """Write what follows the last layer of a transformer: its poolings, joined, the head and the unit length; and make the model.

    model: the encoder inside, with its config and perhaps a pooler. tokens: `last_tokens`, (B, T, H).
    """
    poolings = list(getattr(student, "poolings", None) or [student.pooling])
    if poolings == ["cls_pooler"]:
        pooled = writer.add("Tanh", writer.linear(pool(writer, tokens, "cls"), model.pooler.dense, "pooler"))
    else:
        parts = [pool(writer, tokens, pooling) for pooling in poolings]
        pooled = writer.add("Concat", *parts, axis=-1) if len(parts) > 1 else parts[0]
    width, on_tokens = model.config.hidden_size, tokens if tokens != "last_hidden_state" else None
    return finish(writer, pooled, after_pooling(student), len(poolings) * width, width, on_tokens)


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
