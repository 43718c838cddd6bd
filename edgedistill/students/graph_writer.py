"""Writing ONNX nodes: constants, linear layers, and what every student's graph ends with."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

from edgedistill.runtime.manifest import INPUTS

OPSET = 20  # the first with Gelu; later ones add nothing we use, and older runtimes reject them
IR_VERSION = 9  # released with opset 20
MICROSOFT = "com.microsoft"
MASKED = -1e4  # finite: −inf − (−inf) is NaN on rows that are all padding, and −1e4 survives float16
ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "Tanh", nn.ReLU: "Relu", nn.Sigmoid: "Sigmoid"}


class UnitLength(nn.Module):
    """Scales rows (…, d) to unit length, between the layers after pooling."""

    def forward(self, rows: Tensor) -> Tensor:
        return nn.functional.normalize(rows, dim=-1)


class GraphWriter:
    """The nodes and constants of a graph being written.

    Parameters keep the names that they have in `student` (an encoder's in `model`, where the student's own
    has been converted); other names are numbered from `first`.
    """

    def __init__(
        self, student: nn.Module | None = None, model: nn.Module | None = None, first: int = 0
    ) -> None:
        self._named: dict[int, str] = {}
        for prefix, module in (("model.", model), ("", student)):
            tensors = [] if module is None else [*module.named_parameters(), *module.named_buffers()]
            self._named.update({id(tensor): prefix + name for name, tensor in tensors})
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._written = set[str]()
        self._numbers = itertools.count(first)

    def constant(self, value: Tensor | np.ndarray | np.generic | list[int], name: str) -> str:
        """Write a constant, floats as float32, integers as they are (lists as int64); returns its name."""
        return self._write(value, f"{name}_{next(self._numbers)}")

    def parameter(self, parameter: Tensor, value: Tensor | np.ndarray | None = None, ending: str = "") -> str:
        """Write a parameter of the student under its own name; returns it.

        `value` is written in its place where the graph folds something else into it. `ending` says how it is
        kept, for `graph.read_back`: `.T` transposed.
        """
        name = self._named.get(id(parameter)) or f"parameter_{next(self._numbers)}"
        return self._write(parameter if value is None else value, name + ending)

    def _write(self, value: Any, name: str) -> str:
        """Write what has not been written under this name before, as for layers that are applied again."""
        if name in self._written:
            return name
        self._written.add(name)
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def add(
        self, op: str, *inputs: str, outputs: list[str] | None = None, domain: str = "", **attributes: Any
    ) -> str:
        """Write a node; returns the name of its first output."""
        names = outputs or [f"{op.lower()}_{next(self._numbers)}"]
        self.nodes.append(
            helper.make_node(op, list(inputs), names, name=names[0], domain=domain, **attributes)
        )
        return names[0]

    def of_tokens(self, values: Tensor) -> str:
        """A parameter's value (V,) for each token of the texts, (B, T, 1)."""
        values_of_ids = self.add("Gather", self.parameter(values), "input_ids")
        return self.add("Unsqueeze", values_of_ids, self.constant([2], "axis"))

    def linear(self, x: str, layer: nn.Linear) -> str:
        """x·Wᵀ + b as MatMul and Add (never Gemm), so that the quantizers find it."""
        return self.linear_each([x], layer)[0]

    def linear_each(self, inputs: list[str], layer: nn.Linear) -> list[str]:
        """`linear` of several inputs, which share its constants."""
        weight = self.parameter(layer.weight, layer.weight.T, ".T")
        bias = None if layer.bias is None else self.parameter(layer.bias)
        products = [self.add("MatMul", x, weight) for x in inputs]
        return products if bias is None else [self.add("Add", product, bias) for product in products]


def finish(writer: GraphWriter, pooled: str, student: Any, tokens: str = "") -> ModelProto:
    """Write the layers after pooling and the unit length, and make the model: its inputs, outputs, opsets.

    `tokens` are an encoder's last token embeddings (B, T, H), of others there are none. They are
    `last_hidden_state` already, or become it behind the same layers, see `head_on_tokens`.
    """
    on_tokens = bool(tokens) and head_on_tokens(student)
    rows = [pooled, tokens][: 1 + on_tokens]
    for layer in student.layers_after_pooling:
        if isinstance(layer, nn.Linear):
            rows = writer.linear_each(rows, layer)
        elif isinstance(layer, UnitLength):
            rows = [unit_length(writer, x) for x in rows]
        elif not isinstance(layer, nn.Identity):
            rows = [writer.add(ACTIVATIONS[type(layer)], x) for x in rows]
    if lexical_channel(student) is not None:
        rows = student.lexical_channel.write(writer, rows)
    unit_length(writer, rows[0], outputs=["sentence_embedding"])
    both = ["batch", "sequence"]
    outputs = {"sentence_embedding": ["batch", student.dims]}
    if on_tokens:
        last = next(node for node in writer.nodes if node.output[0] == rows[1])
        last.name = last.output[0] = "last_hidden_state"
    if tokens:
        width = student.dims if on_tokens else student.model.config.hidden_size
        outputs["last_hidden_state"] = [*both, width]
    inputs = dict.fromkeys(INPUTS[:2], both)
    ends = [
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]
        for kind, shapes in ((TensorProto.INT64, inputs), (TensorProto.FLOAT, outputs))
    ]
    graph = helper.make_graph(writer.nodes, "student", *ends, writer.constants)
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edgedistill")


def is_encoder(student: Any) -> bool:
    """Whether the student is a transformer: its graph gives `last_hidden_state` too."""
    return hasattr(student, "model")


def pools_to_embedding(student: Any) -> bool:
    """Whether the mean of `last_hidden_state` is the embedding, up to its length: the student pools by mean,
    and its head is linear."""
    if not is_encoder(student) or student.poolings != ["mean"]:
        return False
    return all(isinstance(layer, nn.Linear | nn.Identity) for layer in student.layers_after_pooling)


def head_on_tokens(student: Any) -> bool:
    """Whether `last_hidden_state` is what the head gives for every token.

    A linear map commutes with the mean: applied before pooling, it lets every library that pools by mean
    return the student's embedding.
    """
    changed = any(isinstance(layer, nn.Linear) for layer in student.layers_after_pooling)
    return pools_to_embedding(student) and (changed or lexical_channel(student) is not None)


def lexical_channel(student: Any) -> Any:
    """What adds a projection of a text's words to its embedding, see `head.Lexical`; None where nothing
    does."""
    return getattr(student, "lexical_channel", None)


def unit_length(writer: GraphWriter, vectors: str, outputs: list[str] | None = None) -> str:
    """Scale rows to unit length; zero stays zero."""
    return writer.add("Div", vectors, length(writer, vectors), outputs=outputs)


def length(writer: GraphWriter, vectors: str) -> str:
    """The length of each row, at least 1e-12: (…, d) -> (…, 1)."""
    norm = writer.add("ReduceL2", vectors, writer.constant([-1], "axis"), keepdims=1)
    return writer.add("Clip", norm, writer.constant(np.float32(1e-12), "tiny"))
