"""A graph in a precision, as a bundle has it. Where int8 alone loses too much, the products that lose most
stay in w8, as few as it takes."""

from __future__ import annotations

from functools import partial

import onnx

from edgedistill.precisions import PRECISIONS
from edgedistill.quantization import conversion, int8, w8
from edgedistill.quantization.sample_texts import TokenIds, agreement, embeddings

LARGEST_SHARE = 0.5  # of the products; a graph that needs more in w8 should be w8


def converted(
    model: onnx.ModelProto, precision: str, samples: TokenIds, ids: TokenIds
) -> tuple[onnx.ModelProto, list[str]]:
    """The graph in a precision, and the names of the products that int8 leaves in w8, see `int8_with_w8`."""
    if precision == "int8":
        return int8_with_w8(model, samples, ids)
    return conversion.convert(model, precision, samples), []


def int8_with_w8(
    model: onnx.ModelProto, samples: TokenIds, ids: TokenIds
) -> tuple[onnx.ModelProto, list[str]]:
    """The graph in int8, and the names of its products that stay in w8: none where int8 keeps the cosine that
    its precision requires.

    Activations are measured on the token ids `samples`; the cosine to float32 is required of the texts `ids`.
    """
    required = PRECISIONS["int8"].single_cosine
    largest, expected = int8.measure(model, samples), embeddings(model, ids)
    quantized = int8.convert(model, largest)
    if agreement(quantized, expected, ids)[1] >= required:
        return quantized, []
    convert = partial(int8.convert, largest=largest)
    lost = int8.product_errors(model, largest, ids)
    ranked = sorted(lost, key=lambda name: -lost[name])
    count = 1
    while count <= LARGEST_SHARE * len(ranked):
        kept = ranked[:count]
        mixed = w8.convert(conversion.convert_except(convert, model, kept))
        if agreement(mixed, expected, ids)[1] >= required:
            return mixed, kept
        count *= 2
    return quantized, []
