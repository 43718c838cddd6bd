"""Where int8 alone loses too much: the products that lose most stay in w8, as few as it takes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from edgedistill import quantization
from edgedistill.quantization import PRECISIONS, convert_except, int8, sensitivity, w8

LARGEST_SHARE = 0.5  # of the products; a graph that needs more in w8 should be w8


Ids = Sequence[Sequence[int]]


def int8_with_w8(model: onnx.ModelProto, samples: Ids, ids: Ids) -> tuple[onnx.ModelProto, list[str]]:
    """The graph in int8, and the names of its products that stay in w8: none where int8 keeps the cosine that its precision requires.

    samples: token ids to measure activations on. ids: token ids of the texts whose cosine to float32 is required.
    """
    required = PRECISIONS["int8"].single_cosine
    quantized = quantization.convert(model, "int8", samples)
    if sensitivity.agreement(quantized, model, ids)[1] >= required:
        return quantized, []

    def convert(graph: onnx.ModelProto) -> onnx.ModelProto:
        return quantization.convert(graph, "int8", samples)

    lost = int8.product_errors(model, samples, ids)
    ranked = sorted(lost, key=lambda name: -lost[name])
    count = 1
    while count <= LARGEST_SHARE * len(ranked):
        kept = ranked[:count]
        mixed = w8.convert(convert_except(convert, model, kept))
        if sensitivity.agreement(mixed, model, ids)[1] >= required:
            return mixed, kept
        count *= 2
    return quantized, []
