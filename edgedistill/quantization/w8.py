"""`w8`: 8-bit weights, one scale per block of 32; activations quantized in the same blocks inside the product
(int8 products)."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from edgedistill.quantization import eight_bits
from edgedistill.quantization.conversion import Converter
from edgedistill.quantization.graph_editor import MICROSOFT, GraphEditor, GraphFacts, check_count, is_product
from edgedistill.quantization.sample_texts import TokenIds

BLOCK = 32  # weights that share a scale; the smallest that MatMulNBits takes, hence the most exact
ZERO = 128  # the zero point: MatMulNBits stores weights as uint8


def converter(model: onnx.ModelProto, samples: TokenIds) -> Converter:
    """`convert`, which measures nothing."""
    return convert


def convert(model: onnx.ModelProto) -> onnx.ModelProto:
    editor, products = GraphEditor(model), GraphFacts(model).products
    eight_bits.store(editor)
    editor.rewrite(_matmul_n_bits)
    quantized = editor.finish()
    check_count(quantized, "MatMulNBits", len(products))
    return quantized


def _matmul_n_bits(editor: GraphEditor, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """x · W -> MatMulNBits: 8 bits, blocks of 32 along the input, symmetric; accuracy_level 4 quantizes
    activations per row and block."""
    if not is_product(node, editor.constants):
        return None
    weight, name = editor.array(node.input[1]), node.input[1]
    assert weight is not None
    inputs, outputs = weight.shape
    blocks = -(-inputs // BLOCK)
    padded = np.zeros((outputs, blocks * BLOCK), np.float32)
    padded[:, :inputs] = weight.T
    values, scale = eight_bits.quantize_rows(padded.reshape(-1, BLOCK))
    packed = (values.astype(np.int16) + ZERO).astype(np.uint8).reshape(outputs, blocks, BLOCK)
    names = [editor.constant(packed, f"{name}_w8"), editor.constant(scale.reshape(-1), f"{name}_w8_scale")]
    shape = {"K": inputs, "N": outputs, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
    return [
        helper.make_node(
            "MatMulNBits",
            [node.input[0], *names],
            list(node.output),
            name=node.name,
            domain=MICROSOFT,
            **shape,
        )
    ]
