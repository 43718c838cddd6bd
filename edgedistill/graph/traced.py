"""Encoders that are not written node by node, such as most teachers: traced with torch's TorchScript exporter."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from edgedistill.graph.torch_parity import compare
from edgedistill.graph.writer import MICROSOFT, OPSET

FUSED_COSINE = 0.99999  # to torch; the fused graph is used above it, the plain one otherwise


class _Traced(nn.Module):
    """The student with both outputs: unit-length embeddings, and the token embeddings of its last layer."""

    def __init__(self, student: Any) -> None:
        super().__init__()
        self.student = student
        self.token_embeddings: list[Tensor] = []
        student.model.register_forward_hook(lambda module, inputs, output: self.token_embeddings.append(output[0]))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        pooled = self.student(input_ids, attention_mask)
        return torch.nn.functional.normalize(pooled, dim=-1), self.token_embeddings.pop()


def write(student: Any) -> onnx.ModelProto:
    """Trace with torch's TorchScript exporter on eager attention, then fuse with onnxruntime where the fused graph gives the same.

    Not with the newer exporter: no attention is fused in its graphs, and the quantizer does not find their LSTM weights.
    """
    copied = copy.deepcopy(student)
    copied.model.set_attn_implementation("eager")
    names = ("input_ids", "attention_mask", "sentence_embedding", "last_hidden_state")
    dynamic = {name: {0: "batch", 1: "sequence"} for name in names if name != "sentence_embedding"} | {names[2]: {0: "batch"}}
    example: Tensor = torch.ones((2, 5), dtype=torch.long)
    file: Any = io.BytesIO()  # the exporter takes a file object, though its type hints do not allow one
    options: dict[str, Any] = {"input_names": names[:2], "output_names": names[2:], "dynamic_axes": dynamic}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # about the old exporter, and one for each shape it traces
        torch.onnx.export(_Traced(copied).eval(), (example, example), file, dynamo=False, opset_version=OPSET, **options)
    plain = onnx.load_from_string(file.getvalue())
    fused = _fused(plain, student.model.config)
    config = student.model.config
    chosen = fused if compare(student, fused, min(64, _max_positions(config)), config.vocab_size) > FUSED_COSINE else plain
    _gemm_to_matmul(chosen.graph)
    chosen.producer_name = "edgedistill"
    return chosen


def _max_positions(config: Any) -> int:
    """How many tokens fit the position table; RoBERTa and its relatives count positions from behind the padding id."""
    return int(getattr(config, "max_position_embeddings", 512)) - (config.pad_token_id or 0) - 1


def _fused(plain: onnx.ModelProto, config: Any) -> onnx.ModelProto:
    """Fold constants; fuse attention, norms and GELU to single nodes where onnxruntime's optimizer supports the encoder.

    Queries, keys and values keep their own weights, and the embedding table its Gather: the quantizers look for those.
    """
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    options = FusionOptions("bert")
    options.enable_embed_layer_norm = False
    options.use_multi_head_attention = True
    heads, width = getattr(config, "num_attention_heads", 0), getattr(config, "hidden_size", 0)  # 0: derived from the graph
    copied = onnx.load_from_string(plain.SerializeToString())
    logging.disable(logging.WARNING)
    try:
        fused = optimize_model(copied, "bert", num_heads=heads, hidden_size=width, optimization_options=options, opt_level=1).model
    finally:
        logging.disable(logging.NOTSET)
    if not any(entry.domain == MICROSOFT for entry in fused.opset_import):
        fused.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return fused


def _gemm_to_matmul(graph: onnx.GraphProto) -> None:
    """Rewrite Gemm, x·Wᵀ + b, as MatMul and Add, so that the quantizers find dense layers; in place."""
    weights = {constant.name: constant for constant in graph.initializer}
    nodes = []
    for node in graph.node:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        plain = attributes.get("alpha", 1.0) == 1.0 and attributes.get("beta", 1.0) == 1.0 and not attributes.get("transA", 0)
        if node.op_type != "Gemm" or not plain or node.input[1] not in weights:
            nodes.append(node)
            continue
        name = f"{node.output[0]}_weight"
        weight = numpy_helper.to_array(weights[node.input[1]])
        graph.initializer.append(numpy_helper.from_array(np.asarray(weight.T if attributes.get("transB") else weight, order="C"), name))
        product = f"{node.output[0]}_product" if len(node.input) > 2 else node.output[0]
        nodes.append(helper.make_node("MatMul", [node.input[0], name], [product], name=f"{node.name}_matmul"))
        if len(node.input) > 2:
            nodes.append(helper.make_node("Add", [product, node.input[2]], list(node.output), name=f"{node.name}_add"))
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [constant for constant in graph.initializer if constant.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
