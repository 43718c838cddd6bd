"""Token embeddings -> one embedding per text: in torch, and in ONNX."""

from __future__ import annotations

import numpy as np
import torch
from onnx import TensorProto
from torch import Tensor

from edgedistill.errors import UserError, unknown_name
from edgedistill.students.graph_writer import MASKED, GraphWriter

MODES = ("mean", "cls", "cls_pooler", "max", "last", "mean_sqrt_len", "weighted_mean")


def pool(tokens: Tensor, mask: Tensor, mode: str) -> Tensor:
    """Pool each text's token embeddings; padding never counts.

    tokens (B, T, H), mask (B, T) of 0 and 1, right-padded. Returns (B, H). `cls_pooler` is pooled like `cls`
    here: its tanh layer belongs to the model. `weighted_mean` weights the t-th token by t (SGPT);
    `mean_sqrt_len` divides the sum by √length.
    """
    if mode in ("cls", "cls_pooler"):
        return tokens[:, 0]
    weights = mask.to(tokens.dtype).unsqueeze(-1)
    if mode == "max":
        return tokens.masked_fill(weights == 0, torch.finfo(tokens.dtype).min).amax(1)
    if mode == "last":
        following = torch.nn.functional.pad(weights, (0, 0, 0, 1))[
            :, 1:
        ]  # 0 behind the last token, whose weight is then 1 − 0
        return (tokens * (weights - following)).sum(1)
    if mode == "weighted_mean":
        weights = weights * weights.cumsum(1)
    length = weights.sum(1).clamp(min=1)
    return (tokens * weights).sum(1) / (length.sqrt() if mode == "mean_sqrt_len" else length)


def pool_nodes(writer: GraphWriter, tokens: str, pooling: str) -> str:
    """Write the pooling of token embeddings (B, T, H); returns the name of its output (B, H). Raises
    UserError for an unknown pooling."""
    if pooling in ("mean", "mean_sqrt_len", "weighted_mean"):
        return mean_nodes(writer, tokens, pooling)
    if pooling == "max":
        mask = writer.add(
            "Unsqueeze",
            writer.add("Cast", "attention_mask", to=TensorProto.BOOL),
            writer.constant([2], "axis"),
        )
        masked = writer.add("Where", mask, tokens, writer.constant(np.float32(MASKED), "masked"))
        return writer.add("ReduceMax", masked, writer.constant([1], "axis"), keepdims=0)
    if pooling == "cls":
        return writer.add("Gather", tokens, writer.constant(np.int64(0), "first"), axis=1)
    if pooling == "last":
        return _last(writer, tokens)
    raise UserError(unknown_name("pooling", pooling, MODES))


def mean_nodes(writer: GraphWriter, tokens: str, pooling: str) -> str:
    """Mean pooling: weights w / Σw (B, 1, T) times tokens, one small product instead of a product and a sum
    over (B, T, H).

    w is the mask; for `weighted_mean` the mask times 1, 2, 3 …; `mean_sqrt_len` divides by √Σw.
    """
    weights = writer.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    axis = writer.constant([1], "axis")
    if pooling == "weighted_mean":
        weights = writer.add(
            "Mul", weights, writer.add("CumSum", weights, writer.constant(np.int64(1), "axis"))
        )
    total = writer.add("ReduceSum", weights, axis, keepdims=1)
    total = writer.add("Clip", total, writer.constant(np.float32(1), "one"))
    total = writer.add("Sqrt", total) if pooling == "mean_sqrt_len" else total
    weights = writer.add("Unsqueeze", writer.add("Div", weights, total), axis)
    return writer.add("Squeeze", writer.add("MatMul", weights, tokens), axis)


def _last(writer: GraphWriter, tokens: str) -> str:
    """The last token that is not padding, whether texts are padded left or right."""
    length = writer.add("Squeeze", writer.add("Shape", "attention_mask", start=1, end=2))
    zero = writer.constant(np.int64(0), "zero")
    one = writer.constant(np.int64(1), "one")
    positions = writer.add("Mul", "attention_mask", writer.add("Range", zero, length, one))
    last = writer.add("ReduceMax", positions, writer.constant([1], "axis"), keepdims=1)
    return writer.add("GatherND", tokens, last, batch_dims=1)
