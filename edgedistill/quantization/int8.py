"""`int8`: onnxruntime's dynamic quantization."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import onnx
from onnx import TensorProto

from edgedistill.quantization.embedding_tables import gather, table
from edgedistill.quantization.graph_editor import GraphEditor, check_count


def convert(model: onnx.ModelProto) -> onnx.ModelProto:
    """onnxruntime's dynamic quantization of matrix products and LSTMs, with a scale per output channel and weights in 7 bits.

    7 bits (`reduce_range`): processors without VNNI add pairs of uint8 × int8 products in 16 bits, where 8-bit weights overflow. The
    embeddings would be wrong on those machines only, and one file must give the same everywhere.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    editor = GraphEditor(model)
    expected = {"MatMulInteger": editor.count("MatMul", editor.dense), "DynamicQuantizeLSTM": editor.count("LSTM")}
    editor.rewrite(gather)
    editor.rewrite(table)
    logging.disable(logging.WARNING)  # it asks for preprocessing that our graphs do not need
    try:
        with tempfile.TemporaryDirectory() as folder:
            quantize_dynamic(
                editor.finish(),
                Path(folder) / "int8.onnx",
                op_types_to_quantize=["MatMul", "LSTM"],
                per_channel=True,
                reduce_range=True,
                weight_type=QuantType.QInt8,
                extra_options={"MatMulConstBOnly": True, "DefaultTensorType": TensorProto.FLOAT},
            )
            quantized = onnx.load(Path(folder) / "int8.onnx")
    finally:
        logging.disable(logging.NOTSET)
    quantized.producer_name = model.producer_name
    for op, count in expected.items():
        check_count(quantized, op, count)
    return quantized
