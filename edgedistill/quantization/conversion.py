"""fp32 graph -> the same graph, with the same inputs and outputs, in another precision, whole or except for
some of its weights. Where int8 alone loses too much, the products that lose most stay in w8 (qdq: float32),
as few as it takes."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from onnx import ModelProto, helper

from edgedistill.precisions import PRECISIONS, known_precisions
from edgedistill.quantization import int8, w8
from edgedistill.quantization.graph_editor import Converter
from edgedistill.quantization.sample_texts import TokenIds, agreement, embeddings

REST = {"int8": w8.convert, "qdq": lambda model: model}  # what is made of the products that lose most
LARGEST_SHARE = 0.5  # of the products; a graph that needs more in w8 should be w8


def convert(model: ModelProto, precision: str, samples: TokenIds = ()) -> ModelProto:
    """The graph in another precision; `fp32` returns it unchanged.

    `samples` are token ids of texts for precisions that measure activations; without them these round less
    well. Raises UserError for an unknown precision.
    """
    return converter(model, precision, samples)(model)


def converter(model: ModelProto, precision: str, samples: TokenIds = ()) -> Converter:
    """`convert` for this graph and for the same graph with some constants skipped, with activations measured
    only once."""
    known_precisions([precision])
    if precision == "fp32":
        return lambda graph: graph
    module = importlib.import_module(f"edgedistill.quantization.{precision}")
    conversion: Converter = module.converter(model, samples)
    return conversion


def within_limit(
    model: ModelProto, precision: str, samples: TokenIds, ids: TokenIds
) -> tuple[ModelProto, list[str]]:
    """The graph in a precision, as a bundle has it, and the names of the products that int8 leaves in w8, and
    qdq in float32.

    There are none where all of them in 8 bits keep the cosine to float32 that the precision requires of the
    texts `ids`, and none where too many would have to stay. Activations are measured on the token ids
    `samples`.
    """
    convert = converter(model, precision, samples)
    quantized = convert(model)
    if precision not in REST:
        return quantized, []
    required, expected = PRECISIONS[precision].single_cosine, embeddings(model, ids)
    if agreement(quantized, expected, ids)[1] >= required:
        return quantized, []
    lost = int8.product_errors(model, int8.measure(model, samples), ids)
    ranked, count = sorted(lost, key=lambda name: -lost[name]), 1
    while count <= LARGEST_SHARE * len(ranked):
        kept = ranked[:count]
        mixed = REST[precision](convert_except(convert, model, kept))
        if agreement(mixed, expected, ids)[1] >= required:
            return mixed, kept
        count *= 2
    return quantized, []


def convert_except(convert: Converter, model: ModelProto, skip: Iterable[str]) -> ModelProto:
    """`convert(model)`, with the constants named in `skip` and the nodes that read them left as they are.

    Converters look for constants, so these are inputs of the graph while a converter runs. An LSTM has two
    matrices and is converted whole or not at all: naming one is enough. Raises KeyError for a name that is no
    constant of the graph.
    """
    names = set(skip)
    constants = {constant.name: constant for constant in model.graph.initializer}
    if unknown := names - constants.keys():
        raise KeyError(f"no constants of this graph: {', '.join(sorted(unknown))}")
    for node in model.graph.node:
        if node.op_type == "LSTM" and names & set(node.input[1:3]):
            names |= set(node.input[1:3])
    hidden = ModelProto()
    hidden.CopyFrom(model)
    for name in sorted(names):
        constant = constants[name]
        hidden.graph.initializer.remove(constant)
        hidden.graph.input.append(helper.make_tensor_value_info(name, constant.data_type, constant.dims))
    quantized = convert(hidden)
    for value in [value for value in quantized.graph.input if value.name in names]:
        quantized.graph.input.remove(value)
        quantized.graph.initializer.append(constants[value.name])
    return quantized
