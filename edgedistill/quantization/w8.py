"""`w8`: 8-bit weights, one scale per block of 32; activations quantized in the same blocks inside the product
(int8 products)."""

from __future__ import annotations

import numpy as np
import onnx

from edgedistill.quantization import eight_bits
from edgedistill.quantization.conversion import Converter
from edgedistill.quantization.graph_editor import GraphEditor, product_in_blocks
from edgedistill.quantization.sample_texts import TokenIds

BLOCK = 32  # weights that share a scale; the smallest that MatMulNBits takes, hence the most exact
ZERO = 128  # the zero point: MatMulNBits stores weights as uint8


def converter(model: onnx.ModelProto, samples: TokenIds) -> Converter:
    """`convert`, which measures nothing."""
    return convert


def convert(model: onnx.ModelProto) -> onnx.ModelProto:
    editor = GraphEditor(model)
    eight_bits.store(editor)
    editor.rewrite(_matmul_n_bits)
    return editor.finish()


def _matmul_n_bits(editor: GraphEditor, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """x · W -> MatMulNBits of 8 bits."""
    weight = editor.weight(node)
    if weight is None:
        return None
    (inputs, outputs), name = weight.shape, node.input[1]
    blocks = -(-inputs // BLOCK)
    padded = np.zeros((outputs, blocks * BLOCK), np.float32)
    padded[:, :inputs] = weight.T
    values, scale = eight_bits.quantize_rows(padded.reshape(-1, BLOCK))
    packed = (values.astype(np.int16) + ZERO).astype(np.uint8).reshape(outputs, blocks, BLOCK)
    bits, scales = (
        editor.constant(packed, f"{name}_w8"),
        editor.constant(scale.reshape(-1), f"{name}_w8_scale"),
    )
    return [product_in_blocks(node, [node.input[0], bits, scales], weight, 8)]
