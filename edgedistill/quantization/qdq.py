"""`qdq`: the products of int8 in ONNX's own QuantizeLinear and DequantizeLinear around MatMul, for engines
other than onnxruntime. Those that know the pattern multiply integers, as onnxruntime does, and the others
compute the same in float32.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, numpy_helper

from edgedistill.quantization import int8
from edgedistill.quantization.graph_editor import Converter
from edgedistill.quantization.int8 import Input
from edgedistill.quantization.sample_texts import TokenIds


def converter(model: ModelProto, samples: TokenIds) -> Converter:
    """The graph -> the graph in operators of ai.onnx alone, with channels measured on token ids of texts."""
    largest = int8.measure(model, samples)
    return lambda graph: Products(graph, largest).converted()


class Products(int8.Products):
    def product(self, source: Input, weight: str, scale: str, bias: str, output: str) -> None:
        """A product of what was rounded to 8 bits, in float32.

        A bias is subtracted: onnxruntime would make a Gemm of MatMul and Add before it looks for products of
        integers, and dequantize the weight in every run.
        """
        # each product has its own, so that an engine may replace both by one integer product
        x = self.add("DequantizeLinear", [source.values, source.scale, source.zero], f"{output}_input")
        restored = self.add("DequantizeLinear", [weight, scale], f"{output}_weight", axis=1)
        if not bias:
            self.add("MatMul", [x, restored], output)
            return
        array = numpy_helper.to_array(self.editor.constants[bias])
        negative = self.constant(np.negative(array), f"{bias}_negative")
        self.add("Sub", [self.add("MatMul", [x, restored], f"{output}_product"), negative], output)
