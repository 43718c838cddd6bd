"""fp32 graph -> the same graph, with the same inputs and outputs, in another precision, whole or except for
some of its weights."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable

import onnx
from onnx import helper

from edgedistill.precisions import known_precisions
from edgedistill.quantization.sample_texts import TokenIds

READERS = ("MatMul", "Gather", "LSTM", "Slice", "Reshape")  # of the weights that a precision may convert

Converter = Callable[[onnx.ModelProto], onnx.ModelProto]


def convert(model: onnx.ModelProto, precision: str, samples: TokenIds = ()) -> onnx.ModelProto:
    """The graph in another precision; `fp32` returns it unchanged.

    `samples` are token ids of texts for precisions that measure activations; without them these round less
    well. Raises UserError for an unknown precision.
    """
    return converter(model, precision, samples)(model)


def converter(model: onnx.ModelProto, precision: str, samples: TokenIds = ()) -> Converter:
    """`convert` for this graph and for the same graph with some constants skipped, with activations measured
    only once."""
    known_precisions([precision])
    if precision == "fp32":
        return lambda graph: graph
    module = importlib.import_module(f"edgedistill.quantization.{precision}")
    conversion: Converter = module.converter(model, samples)
    return conversion


def convert_except(convert: Converter, model: onnx.ModelProto, skip: Iterable[str]) -> onnx.ModelProto:
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
    hidden = onnx.ModelProto()
    hidden.CopyFrom(model)
    for name in sorted(names):
        hidden.graph.initializer.remove(constants[name])
        hidden.graph.input.append(
            helper.make_tensor_value_info(name, constants[name].data_type, constants[name].dims)
        )
    quantized = convert(hidden)
    inputs = [entry for entry in quantized.graph.input if entry.name not in names]
    del quantized.graph.input[:]
    quantized.graph.input.extend(inputs)
    quantized.graph.initializer.extend(constants[name] for name in sorted(names))
    return quantized


def converted(model: onnx.ModelProto, quantized: onnx.ModelProto) -> list[str]:
    """The weights that a conversion converted, in the order of the graph."""
    matrices = {constant.name for constant in model.graph.initializer if len(constant.dims) > 1}
    changed = matrices - {constant.name for constant in quantized.graph.initializer}
    # the data of a lookup; the matrix of a product; W of an LSTM, whose R goes with it
    read = [name for node in model.graph.node if node.op_type in READERS for name in node.input[:2]]
    return [name for name in dict.fromkeys(read) if name in changed]
