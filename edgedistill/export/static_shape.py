"""A graph for any batch and length -> the same graph for one text of one length, as compilers for NPUs need
it."""

from __future__ import annotations

import re

import numpy as np
import onnx
from onnx import numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from edgedistill.errors import CheckFailed, UserError
from edgedistill.precisions import STANDARD


def tokens(shape: str, precisions: list[str]) -> int:
    """The tokens of a shape, 128 of 1x128. Raises UserError for another batch, and for precisions with
    operators of onnxruntime, which needs no fixed shape."""
    if (match := re.fullmatch("1x([1-9][0-9]{0,5})", shape)) is None:
        raise UserError(f"--shape {shape}: not 1xTOKENS; give 1x128")
    if others := [name for name in precisions if name not in STANDARD]:
        raise UserError(
            f"--shape {shape}: not for {', '.join(others)}, with operators of onnxruntime; choose from "
            f"{', '.join(STANDARD)}"
        )
    return int(match[1])


def fixed(model: onnx.ModelProto, tokens: int) -> onnx.ModelProto:
    """The graph for one text of so many tokens with its padding; what depends on the shape alone becomes a
    constant. Raises CheckFailed where a tensor of another shape is left."""
    static = onnx.ModelProto()
    static.CopyFrom(model)
    for value in static.graph.input:
        for dimension, size in zip(value.type.tensor_type.shape.dim, (1, tokens), strict=True):
            dimension.dim_value = size
    for value in static.graph.output:
        value.type.tensor_type.ClearField("shape")  # which is inferred
    derived = set[str]()
    before = -1
    while before < len(derived):
        before = len(derived)
        del static.graph.value_info[:]
        static = shape_inference.infer_shapes(static, strict_mode=True, data_prop=True)
        _fold(static.graph, derived)
    read = {name for node in static.graph.node for name in node.input}
    for constant in [weight for weight in static.graph.initializer if weight.name not in read]:
        static.graph.initializer.remove(constant)
    if unknown := [value.name for value in static.graph.value_info if _sizes(value) is None]:
        raise CheckFailed(f"the shape of its {unknown[0]} depends on more than that of the inputs")
    return static


def _sizes(value: onnx.ValueInfoProto) -> list[int] | None:
    """The sizes of a tensor; None where one of them is not known."""
    shape = value.type.tensor_type.shape
    known = value.type.tensor_type.HasField("shape") and all(size.HasField("dim_value") for size in shape.dim)
    return [size.dim_value for size in shape.dim] if known else None


def _fold(graph: onnx.GraphProto, derived: set[str]) -> None:
    """Replace nodes that read known shapes, and what was `derived` from these, by constants, in place. What
    reads weights alone stays, as a weight in 8 bits does."""
    sizes = {value.name: _sizes(value) for value in [*graph.value_info, *graph.input]}
    constants = {weight.name: numpy_helper.to_array(weight) for weight in graph.initializer}
    for node in list(graph.node):
        inputs = {name: constants[name] for name in node.input if name in constants}
        if node.op_type == "Shape" and (known := sizes.get(node.input[0])) is not None:
            inputs = {node.input[0]: np.broadcast_to(np.float32(0), known)}
        elif len(inputs) < len({*node.input} - {""}) or (node.input and not derived & inputs.keys()):
            continue
        rows = ReferenceEvaluator(node).run(None, inputs)
        constants |= dict(zip(node.output, rows, strict=True))
        derived |= {*node.output}
        graph.initializer.extend(map(numpy_helper.from_array, rows, node.output))
        graph.node.remove(node)
