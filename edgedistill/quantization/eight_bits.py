"""Constants in 8 bits, a scale for every row: embedding tables, position tables, PQ codebooks, LSTMs."""

from __future__ import annotations

import numpy as np
from numpy import ndarray
from onnx import NodeProto, TensorProto, numpy_helper

from edgedistill.quantization.graph_editor import GraphEditor, new_node

SMALLEST = 1024  # elements; quantizing a smaller table adds more bytes in scales and nodes than it saves


def quantize_rows(table: ndarray) -> tuple[ndarray, ndarray]:
    """(V, r) -> int8 (V, r) and the scale of each row (V, 1): table ≈ values · scale, with an error of at
    most half a scale."""
    scale = np.maximum(np.abs(table).max(1, keepdims=True), 1e-12) / 127
    return np.round(table / scale).astype(np.int8), scale.astype(np.float32)


def store(editor: GraphEditor) -> None:
    """Store all that is not the weight of a product."""
    for rule in (gather, table, lstm):
        editor.rewrite(rule)


def large_table(editor: GraphEditor, node: NodeProto, *operators: str) -> ndarray | None:
    """The values of a large table that a node with one of these operators reads; None for other nodes, and
    where it looks up columns."""
    if node.op_type not in operators or any(a.name == "axis" and a.i != 0 for a in node.attribute):
        return None
    values = editor.array(node.input[0])
    return values if values is not None and values.ndim == 2 and values.size >= SMALLEST else None


def gather(editor: GraphEditor, node: NodeProto) -> list[NodeProto] | None:
    """Gather from an embedding table -> Gather of int8 rows and of their scales, in standard operators."""
    table = large_table(editor, node, "Gather")
    if table is None:
        return None
    name, ids = node.input
    (out,) = node.output
    rows, scales = _stored(editor, name, *quantize_rows(table))
    whole = f"{out}_int8"
    scale = f"{out}_row_scale"
    restored = f"{out}_float"
    return [
        new_node("Gather", [rows, ids], whole, f"{out}_rows"),
        new_node("Gather", [scales, ids], scale, f"{out}_row_scales"),
        new_node("Cast", [whole], restored, f"{out}_cast", to=TensorProto.FLOAT),
        new_node("Mul", [restored, scale], out, f"{out}_scaled"),
    ]


def constant_in_8_bits(editor: GraphEditor, name: str) -> list[NodeProto]:
    """Store a constant in 8 bits with a scale per row (last axis), and restore it to float32 by Cast and Mul:
    `{name}_float`.

    onnxruntime folds both nodes once, when the graph is opened. It would run DequantizeLinear every time.
    There are none for a constant that another node has read before.
    """
    if f"{name}_int8" in editor.constants:
        return []
    array = numpy_helper.to_array(editor.constants[name])
    values, scale = quantize_rows(array.reshape(-1, array.shape[-1]))
    parts = values.reshape(array.shape), scale.reshape(*array.shape[:-1], 1)
    stored, scales = _stored(editor, name, *parts)
    return [
        new_node("Cast", [stored], f"{name}_cast", to=TensorProto.FLOAT),
        new_node("Mul", [f"{name}_cast", scales], f"{name}_float"),
    ]


def _stored(editor: GraphEditor, name: str, values: ndarray, scale: ndarray) -> tuple[str, str]:
    """Write what a constant is stored as; returns the names of both."""
    return editor.constant(values, f"{name}_int8"), editor.constant(scale, f"{name}_scale")


def table(editor: GraphEditor, node: NodeProto) -> list[NodeProto] | None:
    """Position tables (a Slice) and PQ codebooks (a Reshape): 8 bits on disk, float32 once opened."""
    if large_table(editor, node, "Slice", "Reshape") is None:
        return None
    nodes = constant_in_8_bits(editor, node.input[0])
    node.input[0] += "_float"
    return [*nodes, node]


def lstm(editor: GraphEditor, node: NodeProto) -> list[NodeProto] | None:
    """W and R of an LSTM: 8 bits on disk, float32 once opened. The recurrence runs in float32: onnxruntime's
    own int8 LSTM scales activations over the whole batch.
    """
    if node.op_type != "LSTM" or editor.array(node.input[1]) is None:  # skipped, see conversion
        return None
    nodes = []
    for at in (1, 2):
        nodes += constant_in_8_bits(editor, node.input[at])
        node.input[at] += "_float"
    return [*nodes, node]
