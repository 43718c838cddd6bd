"""Encoders that are not written node by node, such as most teachers: traced with torch's TorchScript
exporter."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import onnx
import torch
from onnx import GraphProto, ModelProto, numpy_helper
from onnxruntime.quantization.onnx_model import ONNXModel
from torch import Tensor, nn

from edgedistill.students.graph_writer import OPSET, head_on_tokens, is_encoder
from edgedistill.students.model_folder import TEACH, opening


class _Traced(nn.Module):
    """The student with both outputs: unit-length embeddings, and its last layer's token embeddings, behind a
    linear head if it has one."""

    def __init__(self, student: Any) -> None:
        super().__init__()
        self.student = student
        self.token_embeddings: list[Tensor] = []
        if is_encoder(student):
            student.model.register_forward_hook(
                lambda module, inputs, output: self.token_embeddings.append(output[0])
            )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        pooled = self.student(input_ids, attention_mask)
        if not self.token_embeddings:
            return (torch.nn.functional.normalize(pooled, dim=-1),)
        tokens = self.token_embeddings.pop()
        for layer in self.student.layers_after_pooling if head_on_tokens(self.student) else []:
            tokens = layer(tokens)
        return torch.nn.functional.normalize(pooled, dim=-1), tokens


def write(student: Any) -> ModelProto:
    """Trace with torch's TorchScript exporter; an encoder on eager attention. onnxruntime fuses what it can
    when it opens the graph.

    The newer exporter is not used: the quantizer does not find the LSTM weights of its graphs.
    """
    copied = copy.deepcopy(student)
    encoder = is_encoder(student)
    if encoder:
        copied.model.set_attn_implementation("eager")
    names = ["input_ids", "attention_mask", "sentence_embedding", *(["last_hidden_state"] if encoder else [])]
    dynamic = {name: {0: "batch", 1: "sequence"} for name in names} | {"sentence_embedding": {0: "batch"}}
    example: Tensor = torch.ones((2, 5), dtype=torch.long)
    file: Any = io.BytesIO()  # the exporter takes a file object, though its type hints do not allow one
    options: dict[str, Any] = {"input_names": names[:2], "output_names": names[2:], "dynamic_axes": dynamic}
    with (
        opening(
            type(copied.model if encoder else copied).__name__,
            "an architecture that cannot be written as a graph",
            TEACH,
        ),
        warnings.catch_warnings(),
        torch.inference_mode(),
    ):
        warnings.simplefilter("ignore")  # about the old exporter, and one for each shape it traces
        torch.onnx.export(
            _Traced(copied).eval(), (example, example), file, dynamo=False, opset_version=OPSET, **options
        )
    model = onnx.load_from_string(file.getvalue())
    ONNXModel(model).replace_gemm_with_matmul()  # the quantizers look for MatMul
    _share_matrices(model.graph)
    model.producer_name = "edgedistill"
    return model


def _share_matrices(graph: GraphProto) -> None:
    """Keep one of several equal matrices, in place: the weight of a head that is applied to every token and
    to their mean."""
    first: dict[object, str] = {}
    renamed: dict[str, str] = {}
    for constant in graph.initializer:
        array = numpy_helper.to_array(constant)
        content = (array.dtype.str, array.shape, array.tobytes()) if array.ndim == 2 else constant.name
        renamed[constant.name] = first.setdefault(content, constant.name)
    kept = [constant for constant in graph.initializer if renamed[constant.name] == constant.name]
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    del graph.initializer[:]
    graph.initializer.extend(kept)
