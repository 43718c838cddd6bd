"""Student -> ONNX graph: `input_ids`, `attention_mask` in, `sentence_embedding` out; pooling, head and unit length inside.

Encoders of BERT's layers (DistilBERT, RoBERTa, MPNet too), ModernBERTs, BiLSTMs and static students are written straight from their
weights, node by node, so what a device runs can be read here: about eight nodes per BERT layer and ten around them; six for a static
student. Any other encoder (a teacher may be anything) is traced with torch's TorchScript exporter.

The operators `MultiHeadAttention`, `RotaryEmbedding` and `Gelu` are onnxruntime's own (domain com.microsoft). All its
builds have them, also the one for browsers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx import TensorProto, helper
from torch import nn

from edgedistill.errors import UserError
from edgedistill.graph import bert, bilstm, modernbert, output, static, traced
from edgedistill.students.bilstm import BiLSTMStudent
from edgedistill.students.output import Output
from edgedistill.students.static import StaticStudent

LARGEST_BYTES = 1_800_000_000  # protobuf ends at 2 GiB; a graph stays one file below this


def _transformer(student: Any) -> onnx.ModelProto:
    layers = bert.layers_of(student)
    if layers is not None:
        return bert.write(student, layers)
    return modernbert.write(student) if modernbert.is_supported(student) else traced.write(student)


# A new student whose graph is written straight: its file in this folder, and one line in this table.
WRITERS: dict[type[nn.Module], Callable[[Any], onnx.ModelProto]] = {
    BiLSTMStudent: bilstm.write,
    StaticStudent: static.write,
    Output: lambda student: output.append(build(student.inner), student),
}


def build(student: nn.Module) -> onnx.ModelProto:
    """Write a student as a graph: (B, T) int64 twice -> `sentence_embedding` (B, d) float32, unit rows (zero stays zero).

    Students without a line in WRITERS are transformers: those of known layers are written, others are traced. Their graphs also
    give `last_hidden_state` (B, T, H), the token embeddings before pooling, which transformers.js and optimum look for.
    Raises UserError for layers that ONNX cannot express, and above 1.8 GB.
    """
    model = WRITERS.get(type(student), _transformer)(student)
    size = model.ByteSize()
    if size > LARGEST_BYTES:
        raise UserError(
            f"the graph would be {size / 1e9:.1f} GB: one file holds at most {LARGEST_BYTES / 1e9:.1f} GB; "
            "give the student fewer layers, a smaller vocabulary, or `pq_bytes` for its embedding table"
        )
    onnx.checker.check_model(model)
    return model


def before_unit(model: onnx.ModelProto) -> str:
    """Add the embedding before its scaling to unit length as an output, in place; returns the output's name.

    Every graph written here ends in a division by the length. For a graph that does not, `sentence_embedding` is returned.
    """
    last = next(node for node in model.graph.node if "sentence_embedding" in node.output)
    if last.op_type != "Div":
        return "sentence_embedding"
    model.graph.output.append(helper.make_tensor_value_info(last.input[0], TensorProto.FLOAT, None))
    return str(last.input[0])
