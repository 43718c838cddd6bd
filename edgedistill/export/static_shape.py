"""A graph for any batch and length -> the same graph for one text of one length, as compilers for NPUs need
it."""

from __future__ import annotations

import re

import onnx
from onnx import shape_inference

from edgedistill.errors import CheckFailed, UserError
from edgedistill.precisions import STANDARD
from edgedistill.quantization.eight_bits import SMALLEST


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
    constant, and no weight in 8 bits is restored. Raises CheckFailed where a tensor of another shape is
    left."""
    from onnxscript import optimizer  # no other export needs it

    static = onnx.ModelProto()
    static.CopyFrom(model)
    for value in static.graph.input:
        for dimension, size in zip(value.type.tensor_type.shape.dim, (1, tokens), strict=True):
            dimension.dim_value = size
    for value in static.graph.output:
        value.type.tensor_type.ClearField("shape")  # which is inferred
    optimizer.fold_constants(
        static,
        onnx_shape_inference=True,
        input_size_limit=SMALLEST - 1,
        should_fold=lambda node: node.op_type == "ConstantOfShape" or None,
    )
    optimizer.remove_unused_nodes(static)
    static = shape_inference.infer_shapes(static, strict_mode=True, data_prop=True)
    for value in static.graph.value_info:
        shape = value.type.tensor_type.shape
        if not value.type.tensor_type.HasField("shape") or not all(
            size.HasField("dim_value") for size in shape.dim
        ):
            raise CheckFailed(f"the shape of its {value.name} depends on more than that of the inputs")
    return static
