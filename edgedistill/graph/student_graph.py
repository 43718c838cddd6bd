"""Student -> ONNX graph: `input_ids`, `attention_mask` in, `sentence_embedding` out; pooling, head and unit length inside.

BERT encoders, BiLSTMs and static tables are written straight from their weights, node by node, so what a device runs can be read
here: about eight nodes a BERT layer and ten around them; six for a static table. Any other encoder (a teacher may be anything) is
traced with torch's TorchScript exporter.

The operators `MultiHeadAttention`, `SkipLayerNormalization` and `BiasGelu` are onnxruntime's own (domain com.microsoft),
present in all its builds, the browser's too.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx
from onnx import TensorProto, helper
from torch import nn

from edgedistill.errors import UserError
from edgedistill.graph import bert, bilstm, static, traced
from edgedistill.graph.writer import GraphWriter, unit
from edgedistill.students.output import Output
from edgedistill.students.static import StaticStudent

LARGEST_BYTES = 1_800_000_000  # protobuf ends at 2 GiB; a graph stays one file below this


def build(student: nn.Module) -> onnx.ModelProto:
    """Write the student as a graph: (B, T) int64 twice -> `sentence_embedding` (B, d) float32, unit rows (zero stays zero).

    Encoders also give `last_hidden_state` (B, T, H), the token embeddings on the way there: transformers.js and optimum open
    those. Raises UserError for parts ONNX has no words for, and above 1.8 GB.
    """
    if isinstance(student, Output):
        model = _followed(build(student.inner), student)
    elif hasattr(student, "lstm"):
        model = bilstm.write(student)
    elif isinstance(student, StaticStudent):
        model = static.write(student)
    elif bert.is_known(student):
        model = bert.write(student)
    else:
        model = traced.write(student)
    size = model.ByteSize()
    if size > LARGEST_BYTES:
        raise UserError(
            f"the graph would be {size / 1e9:.1f} GB: one file holds at most {LARGEST_BYTES / 1e9:.1f} GB; "
            "give the student fewer layers, a smaller vocabulary, or `codes` for its word table"
        )
    onnx.checker.check_model(model)
    return model


def before_unit(model: onnx.ModelProto) -> str:
    """Put out the vectors before they are scaled to unit length too; returns that output's name.

    Every graph here ends in a division by the length; a graph that does not gives unit vectors alone, and so does this.
    """
    last = next(node for node in model.graph.node if "sentence_embedding" in node.output)
    if last.op_type != "Div":
        return "sentence_embedding"
    model.graph.output.append(helper.make_tensor_value_info(last.input[0], TensorProto.FLOAT, None))
    return str(last.input[0])


def _followed(model: onnx.ModelProto, student: Output) -> onnx.ModelProto:
    """A student's graph with an affine map behind its unit vector, and blocks as long as the root of their weight."""
    inner, writer = model.graph, GraphWriter(first=1_000_000)  # far from the inner graph's names
    last = next(node for node in inner.node if "sentence_embedding" in node.output)
    last.name = last.output[0] = "own_embedding"
    rows = "own_embedding" if student.linear is None else writer.linear("own_embedding", student.linear, "reduce")
    if student.blocks:
        ends = list(itertools.accumulate(size for size, _ in student.blocks))
        parts = []
        for end, (size, weight) in zip(ends, student.blocks, strict=True):
            bounds = [writer.constant(np.array([at], np.int64), "at") for at in (end - size, end, 1)]
            part = unit(writer, writer.add("Slice", rows, *bounds))
            parts.append(writer.add("Mul", part, writer.constant(np.float32(weight**0.5), "root")))
        rows = writer.add("Concat", *parts, axis=1)
    unit(writer, rows, outputs=["sentence_embedding"])
    inner.node.extend(writer.nodes)
    inner.initializer.extend(writer.constants)
    inner.output[0].type.tensor_type.shape.dim[1].dim_value = student.dims
    return model
