"""A graph in a precision, as a bundle has it. Where int8 alone loses too much, the products that lose most
stay in w8 (qdq: float32), as few as it takes."""

from __future__ import annotations

from functools import partial

import onnx

from edgedistill.precisions import PRECISIONS
from edgedistill.quantization import conversion, int8, qdq, w8
from edgedistill.quantization.sample_texts import TokenIds, agreement, embeddings

REST = {"int8": w8.convert, "qdq": lambda model: model}  # what is made of the products that lose most
LARGEST_SHARE = 0.5  # of the products; a graph that needs more in w8 should be w8


def converted(
    model: onnx.ModelProto, precision: str, samples: TokenIds, ids: TokenIds
) -> tuple[onnx.ModelProto, list[str]]:
    """The graph in a precision, and the names of the products that int8 leaves in w8, and qdq in float32.

    There are none where all of them in 8 bits keep the cosine that the precision requires.

    Activations are measured on the token ids `samples`; the cosine to float32 is required of the texts `ids`.
    """
    if precision not in REST:
        return conversion.convert(model, precision, samples), []
    required = PRECISIONS[precision].single_cosine
    largest, expected = int8.measure(model, samples), embeddings(model, ids)
    convert = partial(qdq.convert if precision == "qdq" else int8.convert, largest=largest)
    quantized = convert(model)
    if agreement(quantized, expected, ids)[1] >= required:
        return quantized, []
    lost = int8.product_errors(model, largest, ids)
    ranked = sorted(lost, key=lambda name: -lost[name])
    count = 1
    while count <= LARGEST_SHARE * len(ranked):
        kept = ranked[:count]
        mixed = REST[precision](conversion.convert_except(convert, model, kept))
        if agreement(mixed, expected, ids)[1] >= required:
            return mixed, kept
        count *= 2
    return quantized, []
