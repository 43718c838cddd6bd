"""`w8`: 8-bit weights, one scale per block of 32; activations quantized in the same blocks inside the product
(int8 products)."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto

from edgedistill.quantization import eight_bits
from edgedistill.quantization.graph_editor import MICROSOFT, Converter, GraphEditor, new_node
from edgedistill.quantization.sample_texts import TokenIds
from edgedistill.quantization.w4 import GROUP, in_groups

ZERO = 128  # the zero point: MatMulNBits stores weights as uint8


def converter(model: ModelProto, samples: TokenIds) -> Converter:
    """`convert`, which measures nothing."""
    return convert


def convert(model: ModelProto) -> ModelProto:
    editor = GraphEditor(model)
    eight_bits.store(editor)
    editor.rewrite(_matmul_n_bits)
    return editor.finish()


def _matmul_n_bits(editor: GraphEditor, node: NodeProto) -> list[NodeProto] | None:
    """x · W -> MatMulNBits of 8 bits: symmetric, in blocks along the input. accuracy_level 4 quantizes
    activations per row and block."""
    weight = editor.weight(node)
    if weight is None:
        return None
    name = node.input[1]
    groups = in_groups(weight.T)
    values, scale = eight_bits.quantize_rows(groups.reshape(-1, GROUP))
    packed = (values.astype(np.int16) + ZERO).astype(np.uint8).reshape(groups.shape)
    bits = editor.constant(packed, f"{name}_w8")
    scales = editor.constant(scale.reshape(-1), f"{name}_w8_scale")
    inputs, outputs = weight.shape
    sizes = {"K": inputs, "N": outputs, "bits": 8, "block_size": GROUP, "accuracy_level": 4}
    read = [node.input[0], bits, scales]
    return [new_node("MatMulNBits", read, node.output[0], node.name, domain=MICROSOFT, **sizes)]
