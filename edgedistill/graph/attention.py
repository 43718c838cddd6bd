"""Attention as ONNX nodes, and what all layers of a graph share for it: shapes, the mask, what is added to scores by distance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from edgedistill.graph.writer import MASKED, MICROSOFT, GraphWriter
from edgedistill.students.relative_bias import FARTHEST, RelativeBias


class Shared(NamedTuple):
    """What all layers read. Token embeddings are rows (B·T, H) for products and norms, and (B, T, H) for attention."""

    heads: int
    mask: str
    to_rows: str
    to_sequences: str


def shared(writer: GraphWriter, heads: int, width: int, mask: str, tokens: str) -> Shared:
    """Write the shapes of tokens (B, T, width), which are known when the graph runs. mask: `attention_mask` in int32."""
    batch_and_length = writer.add("Shape", tokens, start=0, end=2)
    to_sequences = writer.add("Concat", batch_and_length, writer.constant([width], "width"), axis=0)
    return Shared(heads, mask, writer.constant([-1, width], "rows"), to_sequences)


def attend(writer: GraphWriter, shared: Shared, parts: list[str], scores: str = "") -> str:
    """Write the attention of queries, keys and values, each (B, T, H), to rows (B·T, H). scores: added to those of all tokens, or empty.

    scores (1, heads, T, T), or (1, 1, T, T) for all heads alike.
    """
    read = [*parts, "", shared.mask, *([scores] if scores else [])]
    context = writer.add("MultiHeadAttention", *read, domain=MICROSOFT, num_heads=shared.heads, mask_filter_value=MASKED)
    return writer.add("Reshape", context, shared.to_rows)


def relative_scores(writer: GraphWriter, bias: RelativeBias) -> str:
    """What a relative bias adds to the scores of queries by keys: (1, heads, T, T), looked up by their distance."""
    table = writer.constant(bias.by_distance()[None], "relative_bias")  # three dimensions: the quantizers leave it in float32
    far = [writer.constant(np.int64(distance), "far") for distance in (-FARTHEST, FARTHEST)]
    distances = writer.add("Clip", _distances(writer, positions(writer)), *far)
    rows = writer.add("Gather", table, writer.add("Add", distances, far[1]), axis=1)  # all heads of a distance at once: 6 × as fast
    return writer.add("Transpose", rows, perm=[0, 3, 1, 2])


def window_scores(writer: GraphWriter, at: str, window: int) -> str:
    """What keeps tokens from keys more than `window` tokens away: (1, 1, T, T). at (T,): the positions."""
    inside = writer.add("LessOrEqual", writer.add("Abs", _distances(writer, at)), writer.constant(np.int64(window), "window"))
    zero, masked = (writer.constant(np.float32(value), "score") for value in (0, MASKED))
    return writer.add("Unsqueeze", writer.add("Where", inside, zero, masked), writer.constant([0, 1], "axes"))


def positions(writer: GraphWriter) -> str:
    """0, 1, 2, … (T,) int64."""
    length = writer.add("Squeeze", writer.add("Shape", "input_ids", start=1, end=2))
    return writer.add("Range", writer.constant(np.int64(0), "zero"), length, writer.constant(np.int64(1), "one"))


def integer_mask(writer: GraphWriter) -> str:
    """`attention_mask` in int32, as attention reads it."""
    return writer.add("Cast", "attention_mask", to=TensorProto.INT32)


def _distances(writer: GraphWriter, at: str) -> str:
    """Key − query (T, T), queries by keys."""
    keys, queries = (writer.add("Unsqueeze", at, writer.constant([axis], "axis")) for axis in (0, 1))
    return writer.add("Sub", keys, queries)
