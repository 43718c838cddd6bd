"""Writing ONNX nodes, and what every student's graph ends with: head, unit length, inputs and outputs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

OPSET = 17  # the first with LayerNormalization; later ones add nothing we use, and older runtimes reject them
IR_VERSION = 8  # released with opset 17
MICROSOFT = "com.microsoft"
MASKED = -1e4  # finite: −inf − (−inf) is NaN on rows that are all padding, and −1e4 survives float16
ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "Tanh", nn.ReLU: "Relu", nn.Sigmoid: "Sigmoid"}


class GraphWriter:
    """The nodes and constants of a graph being written. Names are numbered from `first`."""

    def __init__(self, first: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self._numbers = itertools.count(first)

    def constant(self, value: Tensor | np.ndarray | np.generic | list[int], name: str) -> str:
        """Write a constant, floats as float32, integers as they are (lists as int64); returns its name."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        name = f"{name}_{next(self._numbers)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def add(self, op: str, *inputs: str, outputs: list[str] | None = None, domain: str = "", **attributes: Any) -> str:
        """Write a node; returns the name of its first output."""
        names = outputs or [f"{op.lower()}_{next(self._numbers)}"]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=names[0], domain=domain, **attributes))
        return names[0]

    def linear(self, x: str, layer: nn.Linear, name: str) -> str:
        """x·Wᵀ + b as MatMul and Add (never Gemm), so that the quantizers find it."""
        return self.linear_each([x], layer, name)[0]

    def linear_each(self, inputs: list[str], layer: nn.Linear, name: str) -> list[str]:
        """`linear` of several inputs, which share its constants."""
        weight = self.constant(layer.weight.T, f"{name}_weight")
        bias = None if layer.bias is None else self.constant(layer.bias, f"{name}_bias")
        products = [self.add("MatMul", x, weight) for x in inputs]
        return products if bias is None else [self.add("Add", product, bias) for product in products]


def finish(
    writer: GraphWriter, pooled: str, layers: list[nn.Module], dims: int, hidden: int | None, tokens: str | None = None
) -> onnx.ModelProto:
    """Write the layers after pooling and the unit length, and make the model: its inputs, outputs, opsets.

    dims: of the pooled embedding; hidden: the width of `last_hidden_state`, None where the graph has none. tokens: token embeddings
    (B, T, H) that become `last_hidden_state` behind the same layers, see `head_on_tokens`; None where it is written already.
    """
    rows = [pooled] if tokens is None else [pooled, tokens]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            rows, dims = writer.linear_each(rows, layer, "head"), layer.out_features
        elif not isinstance(layer, nn.Identity):
            rows = [writer.add(ACTIVATIONS[type(layer)], each) for each in rows]
    unit_length(writer, rows[0], outputs=["sentence_embedding"])
    if tokens is not None:
        last, hidden = next(node for node in writer.nodes if node.output[0] == rows[1]), dims
        last.name = last.output[0] = "last_hidden_state"
    both = ["batch", "sequence"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, both) for name in ("input_ids", "attention_mask")]
    outputs = [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", dims])]
    if hidden is not None:
        outputs.append(helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*both, hidden]))
    graph = helper.make_graph(writer.nodes, "student", inputs, outputs, writer.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edgedistill")


def after_pooling(student: Any) -> list[nn.Module]:
    """The layers between pooling and unit length, in order."""
    if hasattr(student, "dense"):  # a pretrained encoder's chain
        return [layer for block in student.dense for layer in block]
    head = [student.head] if getattr(student, "head", None) is not None else []
    return [*head, nn.Tanh()] if getattr(student, "tanh", False) else head


def pools_to_embedding(student: Any) -> bool:
    """Whether the mean of `last_hidden_state` is the embedding, up to its length: the student pools by mean, and its head is linear."""
    poolings = list(getattr(student, "poolings", None) or [getattr(student, "pooling", None)])
    return poolings == ["mean"] and all(isinstance(layer, nn.Linear | nn.Identity) for layer in after_pooling(student))


def head_on_tokens(student: Any) -> bool:
    """Whether `last_hidden_state` is what the head gives for every token.

    A linear map commutes with the mean: applied before pooling, it lets every library that pools by mean return the student's embedding.
    """
    return pools_to_embedding(student) and any(isinstance(layer, nn.Linear) for layer in after_pooling(student))


def unit_length(writer: GraphWriter, vectors: str, outputs: list[str] | None = None) -> str:
    """Scale rows to unit length; zero stays zero."""
    length = writer.add("ReduceL2", vectors, axes=[-1], keepdims=1)
    length = writer.add("Clip", length, writer.constant(np.float32(1e-12), "tiny"))
    return writer.add("Div", vectors, length, outputs=outputs)
