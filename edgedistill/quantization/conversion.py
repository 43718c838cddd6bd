"""fp32 graph -> the same graph, with the same inputs and outputs, in another precision. Where int8 alone
loses too much, the products that lose most stay in w8 (qdq: float32), as few as it takes."""

from __future__ import annotations

import importlib

from onnx import ModelProto

from edgedistill.precisions import PRECISIONS, known_precisions
from edgedistill.quantization import int8, qdq, w4, w8
from edgedistill.quantization.graph_editor import Converter
from edgedistill.quantization.sample_texts import TokenIds, agreement, embeddings

# how products are replaced in the precisions of int8's kind
PRODUCTS: dict[str, type[int8.Products]] = {"int8": int8.Products, "qdq": qdq.Products, "w4": w4.Products}
# what is made of those products that lose most
REST: dict[str, Converter] = {"int8": w8.convert, "qdq": lambda model: model}
LARGEST_SHARE = 0.5  # of the products; a graph that needs more in w8 should be w8


def convert(model: ModelProto, precision: str, samples: TokenIds = ()) -> ModelProto:
    """The graph in another precision; `fp32` returns it unchanged.

    `samples` are token ids of texts for precisions that measure activations; without them these round less
    well. Raises UserError for an unknown precision.
    """
    return converter(model, precision, samples)(model)


def converter(model: ModelProto, precision: str, samples: TokenIds = ()) -> Converter:
    """`convert` for this graph and for others of its products, with activations measured only once."""
    known_precisions([precision])
    if precision == "fp32":
        return lambda graph: graph
    module = importlib.import_module(f"edgedistill.quantization.{precision}")
    return module.converter(model, samples)


def within_limit(
    model: ModelProto, precision: str, samples: TokenIds, ids: TokenIds
) -> tuple[ModelProto, list[str]]:
    """The graph in a precision, as a bundle has it, and the names of the products that int8 leaves in w8, and
    qdq in float32.

    There are none where all of them in 8 bits keep the cosine to float32 that the precision requires of the
    texts `ids`, and none where too many would have to stay. Activations are measured on the token ids
    `samples`.
    """
    if precision not in REST:
        return convert(model, precision, samples), []
    products = PRODUCTS[precision]
    largest = int8.measure(model, samples)
    quantized = products(model, largest).converted()
    required = PRECISIONS[precision].single_cosine
    expected = embeddings(model, ids)
    if agreement(quantized, expected, ids)[1] >= required:
        return quantized, []
    lost = int8.product_errors(model, largest, ids)
    ranked = sorted(lost, key=lambda name: -lost[name])
    count = 1
    while count <= LARGEST_SHARE * len(ranked):
        kept = ranked[:count]
        mixed = REST[precision](products(model, largest, kept).converted())
        if agreement(mixed, expected, ids)[1] >= required:
            return mixed, kept
        count *= 2
    return quantized, []
