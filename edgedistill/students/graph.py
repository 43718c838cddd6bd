"""Student -> ONNX graph: `input_ids`, `attention_mask` in, `sentence_embedding` out; pooling, head and unit
length inside.

Encoders of BERT's layers (DistilBERT, RoBERTa, MPNet too), BiLSTMs and static students are
written straight from their weights, node by node, so what a device runs can be read here: about eight nodes
per BERT layer and ten around them; six for a static student. Any other encoder (a teacher may be anything)
and any other kind of student is traced with torch's TorchScript exporter.

The operators `MultiHeadAttention` and `Gelu` are onnxruntime's own (domain com.microsoft).
All its builds have them, also the one for browsers.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto, helper
from torch import nn

from edgedistill.errors import CheckFailed, UserError
from edgedistill.students import bert_layers, kinds, output, traced
from edgedistill.students.graph_parity import ORT_ERRORS, compare
from edgedistill.students.graph_writer import head_on_tokens, pools_to_embedding

__all__ = ["before_unit", "build", "build_checked", "compare", "head_on_tokens", "pools_to_embedding"]

LARGEST_BYTES = 1_800_000_000  # protobuf ends at 2 GiB; a graph stays one file below this
MIN_COSINE = 0.9999  # to torch, on random ids; float32 differs in the seventh digit
# Tracing runs the model's own code, which may raise nearly anything.
NOT_TRACED = (
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    UserError,
    CheckFailed,
    onnx.checker.ValidationError,
    *ORT_ERRORS,
)


def _written(student: Any) -> onnx.ModelProto:
    if isinstance(student, output.Output):
        return output.append(build(student.inner), student)
    kind = kinds.of(student)
    if kind is not None and kind.write is not None:
        return kind.write(student)
    layers = bert_layers.layers_of(student)
    return traced.write(student) if layers is None else bert_layers.write(student, layers)


def build(student: nn.Module) -> onnx.ModelProto:
    """Write a student as a graph: (B, T) int64 twice -> `sentence_embedding` (B, d) float32, unit rows (zero
    stays zero).

    Graphs of encoders also give `last_hidden_state` (B, T, H), the token embeddings before pooling, which
    transformers.js and optimum look for. Raises UserError for layers that ONNX cannot express, and above 1.8
    GB.
    """
    model = _written(student)
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

    Every graph written here ends in a division by the length. For a graph that does not, `sentence_embedding`
    is returned.
    """
    last = next(node for node in model.graph.node if "sentence_embedding" in node.output)
    if last.op_type != "Div":
        return "sentence_embedding"
    model.graph.output.append(helper.make_tensor_value_info(last.input[0], TensorProto.FLOAT, None))
    return str(last.input[0])


def build_checked(encoder: nn.Module, max_tokens: int, vocabulary_size: int) -> onnx.ModelProto:
    """`build`, with a graph that gives the same as torch for batches and lengths other than it was traced
    with.

    Raises CheckFailed, with the reason, for an encoder that has no such graph.
    """
    try:
        model = build(encoder)
        worst = compare(encoder, model, max_tokens, vocabulary_size)
    except NOT_TRACED as error:
        reason = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise CheckFailed(f"it cannot be written as a graph ({reason})") from error
    if not worst > MIN_COSINE:  # NaN is above nothing
        raise CheckFailed(f"its graph gives other embeddings than torch (cosine {worst:.4f} on random ids)")
    return model
