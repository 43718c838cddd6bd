"""LSTM weights in few bits on disk. The recurrence runs in float32: onnxruntime's own int8 LSTM scales
activations over the whole batch."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from edgedistill.quantization.embedding_tables import constant_in_8_bits
from edgedistill.quantization.graph_editor import GraphEditor


def stored_in_8_bits(editor: GraphEditor, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """W and R of an LSTM with a scale per gate row, restored to float32 when the graph is opened."""
    return stored(editor, node, constant_in_8_bits)


def stored(
    editor: GraphEditor, node: onnx.NodeProto, store: Callable[[GraphEditor, str], list[onnx.NodeProto]]
) -> list[onnx.NodeProto] | None:
    """W and R of an LSTM as `store` keeps them; store: a constant's name -> the nodes that restore it, its
    output last."""
    if node.op_type != "LSTM" or editor.array(node.input[1]) is None:  # skipped, see skipping
        return None
    nodes = []
    for at in (1, 2):
        nodes += store(editor, node.input[at])
        node.input[at] = nodes[-1].output[0]
    return [*nodes, node]
