"""An `Output` as ONNX nodes: an affine map and blocks of unit length behind a student's finished graph."""

from __future__ import annotations

import itertools

import numpy as np
import onnx

from edgedistill.graph.writer import GraphWriter, unit_length
from edgedistill.students.output import Output


def append(model: onnx.ModelProto, student: Output) -> onnx.ModelProto:
    """Add the affine map behind the unit-length embedding of the inner student's graph, then the blocks; in place."""
    inner, writer = model.graph, GraphWriter(first=1_000_000)  # far from the inner graph's names
    last = next(node for node in inner.node if "sentence_embedding" in node.output)
    last.name = last.output[0] = "own_embedding"
    rows = "own_embedding" if student.linear is None else writer.linear("own_embedding", student.linear, "reduce")
    if student.blocks:
        ends = list(itertools.accumulate(size for size, _ in student.blocks))
        parts = []
        for end, (size, weight) in zip(ends, student.blocks, strict=True):
            bounds = [writer.constant(np.array([at], np.int64), "at") for at in (end - size, end, 1)]
            part = unit_length(writer, writer.add("Slice", rows, *bounds))
            parts.append(writer.add("Mul", part, writer.constant(np.float32(weight**0.5), "root")))
        rows = writer.add("Concat", *parts, axis=1)
    unit_length(writer, rows, outputs=["sentence_embedding"])
    inner.node.extend(writer.nodes)
    inner.initializer.extend(writer.constants)
    inner.output[0].type.tensor_type.shape.dim[1].dim_value = student.dims
    return model
