"""Encoders that are not written node by node, such as most teachers: traced with torch's TorchScript
exporter."""

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

from edgedistill.students.graph_parity import compare
from edgedistill.students.graph_writer import MICROSOFT, OPSET, after_pooling, head_on_tokens, is_encoder
from edgedistill.students.model_folder import TEACH, opening

FUSED_COSINE = 0.99999  # to torch; the fused graph is used above it, the plain one otherwise


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
        for layer in after_pooling(self.student) if head_on_tokens(self.student) else []:
            tokens = layer(tokens)
        return torch.nn.functional.normalize(pooled, dim=-1), tokens


def write(student: Any) -> onnx.ModelProto:
    """Trace with torch's TorchScript exporter; an encoder on eager attention, then fused where the fused
    graph gives the same.

    Not with the newer exporter: no attention is fused in its graphs, and the quantizer does not find their
        LSTM weights.
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
    with opening(
        type(copied.model if encoder else copied).__name__,
        "an architecture that cannot be written as a graph",
        TEACH,
    ):
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")  # about the old exporter, and one for each shape it traces
            torch.onnx.export(
                _Traced(copied).eval(), (example, example), file, dynamo=False, opset_version=OPSET, **options
            )
        chosen = onnx.load_from_string(file.getvalue())
        if encoder:
            config = student.model.config
            fused = _fused(chosen, config)
            if (
                _is_valid(fused)
                and compare(student, fused, min(64, _max_positions(config)), config.vocab_size) > FUSED_COSINE
            ):
                chosen = fused
    _gemm_to_matmul(chosen.graph)
    _take_apart(chosen.graph)
    _share_constants(chosen.graph)
    _name_parameters(chosen.graph, student)
    chosen.producer_name = "edgedistill"
    return chosen


def _name_parameters(graph: onnx.GraphProto, student: nn.Module) -> None:
    """Give the constants that are parameters of the student, or transposed ones, the names of those; in
    place."""
    known: dict[tuple[object, ...], list[str]] = {}
    for name, parameter in student.named_parameters():
        array = parameter.detach().numpy()
        for kept, ending in ((array, ""), (array.T, ".T")) if array.ndim == 2 else ((array, ""),):
            known.setdefault((kept.shape, kept.tobytes()), []).append(name + ending)
    renamed: dict[str, str] = {}
    for constant in graph.initializer:
        array = numpy_helper.to_array(constant)
        names = known.get((array.shape, array.tobytes()), [])
        if names:
            own = constant.name.removeprefix("student.")
            renamed[constant.name] = constant.name = names.pop(names.index(own) if own in names else 0)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]


def _max_positions(config: Any) -> int:
    """How many tokens fit the position table; RoBERTa and its relatives count positions from behind the
    padding id.

    A padding id beyond the table, as at the end of a decoder's vocabulary, cannot be what they are counted
    from.
    """
    positions = int(getattr(config, "max_position_embeddings", 512))
    behind = positions - (config.pad_token_id or 0) - 1
    return behind if behind > 0 else positions


def _fused(plain: onnx.ModelProto, config: Any) -> onnx.ModelProto:
    """Fold constants; fuse attention, norms and GELU to single nodes where onnxruntime's optimizer supports
    the encoder.

    Queries, keys and values keep their own weights, and the embedding table its Gather: the quantizers look
    for those.
    """
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    options = FusionOptions("bert")
    options.enable_embed_layer_norm = False
    options.use_multi_head_attention = True
    heads, width = (
        getattr(config, "num_attention_heads", 0),
        getattr(config, "hidden_size", 0),
    )  # 0: derived from the graph
    copied = onnx.load_from_string(plain.SerializeToString())
    logging.disable(logging.WARNING)
    try:
        fused = optimize_model(
            copied, "bert", num_heads=heads, hidden_size=width, optimization_options=options, opt_level=1
        ).model
    finally:
        logging.disable(logging.NOTSET)
    if not any(entry.domain == MICROSOFT for entry in fused.opset_import):
        fused.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return fused


def _is_valid(model: onnx.ModelProto) -> bool:
    """Whether all operators are known: onnxruntime fuses RMSNorm to one that is neither in ONNX's domain nor
    in its own."""
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return False
    return True


def _take_apart(graph: onnx.GraphProto) -> None:
    """Replace two fused operators by their parts, in place: on CPUs SkipLayerNormalization takes three to six
    times as long as Add and LayerNormalization, and a product's bias is hidden from the quantizers in
    BiasGelu.

    The reshaping between Add and LayerNormalization keeps onnxruntime from fusing them again when it opens
    the graph.
    """
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "BiasGelu":
            nodes.append(
                helper.make_node("Add", node.input, [f"{node.output[0]}_sum"], name=f"{node.name}_add")
            )
            nodes.append(
                helper.make_node(
                    "Gelu", [f"{node.output[0]}_sum"], node.output, name=node.name, domain=MICROSOFT
                )
            )
        elif node.op_type == "SkipLayerNormalization" and len(node.output) == 1:
            nodes += _norm_of_sum(graph, node)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _norm_of_sum(graph: onnx.GraphProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """SkipLayerNormalization's parts: x, skip, scale, shift and perhaps a bias -> the norm of their sum."""
    y, (x, skip, scale, shift, *bias) = node.output[0], node.input
    width = next(constant.dims[0] for constant in graph.initializer if constant.name == scale)
    graph.initializer.append(numpy_helper.from_array(np.array([-1, width], np.int64), f"{y}_width"))
    terms = [x, *bias, skip]
    nodes: list[onnx.NodeProto] = []
    for at, term in enumerate(terms[1:]):
        nodes.append(
            helper.make_node(
                "Add", [nodes[-1].output[0] if at else x, term], [f"{y}_sum_{at}"], name=f"{y}_sum_{at}"
            )
        )
    total = nodes[-1].output[0]
    epsilon = next((attribute.f for attribute in node.attribute if attribute.name == "epsilon"), 1e-12)
    nodes.append(helper.make_node("Shape", [total], [f"{y}_shape"], name=f"{y}_shape"))
    nodes.append(helper.make_node("Reshape", [total, f"{y}_width"], [f"{y}_rows"], name=f"{y}_rows"))
    norm = helper.make_node(
        "LayerNormalization",
        [f"{y}_rows", scale, shift],
        [f"{y}_norm"],
        name=node.name,
        axis=-1,
        epsilon=epsilon,
    )
    return [*nodes, norm, helper.make_node("Reshape", [f"{y}_norm", f"{y}_shape"], [y], name=y)]


def _gemm_to_matmul(graph: onnx.GraphProto) -> None:
    """Rewrite Gemm, x·Wᵀ + b, as MatMul and Add, so that the quantizers find dense layers; in place."""
    weights = {constant.name: constant for constant in graph.initializer}
    nodes = []
    for node in graph.node:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        plain = (
            attributes.get("alpha", 1.0) == 1.0
            and attributes.get("beta", 1.0) == 1.0
            and not attributes.get("transA", 0)
        )
        if node.op_type != "Gemm" or not plain or node.input[1] not in weights:
            nodes.append(node)
            continue
        name = f"{node.output[0]}_weight"
        weight = numpy_helper.to_array(weights[node.input[1]])
        graph.initializer.append(
            numpy_helper.from_array(
                np.asarray(weight.T if attributes.get("transB") else weight, order="C"), name
            )
        )
        product = f"{node.output[0]}_product" if len(node.input) > 2 else node.output[0]
        nodes.append(helper.make_node("MatMul", [node.input[0], name], [product], name=f"{node.name}_matmul"))
        if len(node.input) > 2:
            nodes.append(
                helper.make_node("Add", [product, node.input[2]], list(node.output), name=f"{node.name}_add")
            )
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [constant for constant in graph.initializer if constant.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _share_constants(graph: onnx.GraphProto) -> None:
    """Keep one of several equal matrices: the weight of a head that is applied to every token and to their
    mean; in place."""
    first: dict[tuple[object, ...], str] = {}
    same: dict[str, str] = {}
    for constant in graph.initializer:
        same[constant.name] = constant.name
        if len(constant.dims) == 2:
            array = numpy_helper.to_array(constant)
            same[constant.name] = first.setdefault(
                (array.dtype.str, array.shape, array.tobytes()), constant.name
            )
    for node in graph.node:
        for at, name in enumerate(node.input):
            node.input[at] = same.get(name, name)
    kept = [constant for constant in graph.initializer if same[constant.name] == constant.name]
    del graph.initializer[:]
    graph.initializer.extend(kept)
