"""Nodes of a graph as they are written, and what all students share: pooling, the layers behind it, unit length, inputs and outputs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from edgedistill.errors import UserError, unknown
from edgedistill.students.tables import Coded, Factorised

OPSET = 17  # the first with LayerNormalization; later ones bring nothing we use, and older runtimes refuse them
IR_VERSION = 8  # what opset 17 came with
MICROSOFT = "com.microsoft"
MASKED = -1e4  # finite: −inf − (−inf) is NaN on rows that are all padding, and −1e4 survives float16
ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "Tanh", nn.ReLU: "Relu", nn.Sigmoid: "Sigmoid"}


class Sheet:
    """The nodes and constants of a graph being written; `add` returns the name of a node's output."""

    def __init__(self, first: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self._numbers = itertools.count(first)

    def constant(self, value: Tensor | np.ndarray | np.generic | list[int], name: str) -> str:
        """Write a constant: floats as float32, integers as they are (lists as int64)."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        name = f"{name}_{next(self._numbers)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def add(self, op: str, *inputs: str, outputs: list[str] | None = None, domain: str = "", **attributes: Any) -> str:
        names = outputs or [f"{op.lower()}_{next(self._numbers)}"]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=names[0], domain=domain, **attributes))
        return names[0]

    def linear(self, x: str, layer: nn.Linear, name: str) -> str:
        """x·Wᵀ + b as MatMul and Add (never Gemm), so that the quantizers find it."""
        y = self.add("MatMul", x, self.constant(layer.weight.T, f"{name}_weight"))
        return y if layer.bias is None else self.add("Add", y, self.constant(layer.bias, f"{name}_bias"))


def rows(sheet: Sheet, table: Any, ids: str) -> str:
    """A word table's rows of ids (A, B): (A, B, H). Of codes, the rows of every block, put together number by number."""
    if isinstance(table, Factorised):
        return sheet.linear(sheet.add("Gather", sheet.constant(table.table.weight, "word_table"), ids), table.project, "word_project")
    if not isinstance(table, Coded):
        return sheet.add("Gather", sheet.constant(table.weight, "word_table"), ids)
    codes = sheet.add("Gather", sheet.constant(table.codes, "word_codes"), ids)
    places = sheet.add("Add", sheet.add("Cast", codes, to=TensorProto.INT32), sheet.constant(table.offsets, "block"))
    size = table.book.embedding_dim
    book = sheet.constant(table.book.weight.view(table.codes.shape[1], -1), "word_book")  # a row a block: what a scale is for, quantized
    parts = sheet.add("Gather", sheet.add("Reshape", book, sheet.constant([-1, size], "shape")), places)
    return sheet.add("Reshape", sheet.add("Transpose", parts, perm=[0, 1, 3, 2]), sheet.constant([0, 0, -1], "shape"))


def finish(sheet: Sheet, pooled: str, layers: list[nn.Module], dims: int, hidden: int | None) -> onnx.ModelProto:
    """The layers behind the pooling, unit length, the names of inputs and outputs, and the model around the nodes."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            pooled, dims = sheet.linear(pooled, layer, "head"), layer.out_features
        elif not isinstance(layer, nn.Identity):
            pooled = sheet.add(ACTIVATIONS[type(layer)], pooled)
    unit(sheet, pooled, outputs=["sentence_embedding"])
    both = ["batch", "sequence"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, both) for name in ("input_ids", "attention_mask")]
    outputs = [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", dims])]
    if hidden is not None:
        outputs.append(helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*both, hidden]))
    graph = helper.make_graph(sheet.nodes, "student", inputs, outputs, sheet.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edgedistill")


def unit(sheet: Sheet, vectors: str, outputs: list[str] | None = None) -> str:
    """Rows scaled to unit length; zero stays zero."""
    length = sheet.add("ReduceL2", vectors, axes=[-1], keepdims=1)
    length = sheet.add("Clip", length, sheet.constant(np.float32(1e-12), "tiny"))
    return sheet.add("Div", vectors, length, outputs=outputs)


# Pooling: tokens (B, T, H) and mask -> (B, H)


def pool(sheet: Sheet, tokens: str, pooling: str) -> str:
    if pooling in ("mean", "mean_sqrt_len", "weighted_mean"):
        return mean(sheet, tokens, pooling)
    if pooling == "max":
        mask = sheet.add("Unsqueeze", sheet.add("Cast", "attention_mask", to=TensorProto.BOOL), sheet.constant([2], "axis"))
        seen = sheet.add("Where", mask, tokens, sheet.constant(np.float32(MASKED), "masked"))
        return sheet.add("ReduceMax", seen, axes=[1], keepdims=0)
    if pooling == "cls":
        return sheet.add("Gather", tokens, sheet.constant(np.int64(0), "first"), axis=1)
    if pooling == "last":
        return _last(sheet, tokens)
    raise UserError(unknown("pooling", pooling, ("mean", "max", "cls", "cls_pooler", "last", "mean_sqrt_len", "weighted_mean")))


def mean(sheet: Sheet, tokens: str, pooling: str) -> str:
    """Weights w / Σw (B, 1, T) times tokens: one small product instead of a product and a sum over (B, T, H).

    w is the mask; for `weighted_mean` the mask times 1, 2, 3 …; `mean_sqrt_len` divides by √Σw.
    """
    weights, axis = sheet.add("Cast", "attention_mask", to=TensorProto.FLOAT), sheet.constant([1], "axis")
    if pooling == "weighted_mean":
        weights = sheet.add("Mul", weights, sheet.add("CumSum", weights, sheet.constant(np.int64(1), "axis")))
    total = sheet.add("ReduceSum", weights, axis, keepdims=1)
    total = sheet.add("Clip", total, sheet.constant(np.float32(1), "one"))
    total = sheet.add("Sqrt", total) if pooling == "mean_sqrt_len" else total
    weights = sheet.add("Unsqueeze", sheet.add("Div", weights, total), axis)
    return sheet.add("Squeeze", sheet.add("MatMul", weights, tokens), axis)


def _last(sheet: Sheet, tokens: str) -> str:
    """The token at the last position that is not padding, on whichever side the padding is."""
    width = sheet.add("Squeeze", sheet.add("Shape", "attention_mask", start=1, end=2))
    zero, one = sheet.constant(np.int64(0), "zero"), sheet.constant(np.int64(1), "one")
    places = sheet.add("Mul", "attention_mask", sheet.add("Range", zero, width, one))
    return sheet.add("GatherND", tokens, sheet.add("ReduceMax", places, axes=[1], keepdims=1), batch_dims=1)


def after_pooling(student: Any) -> list[nn.Module]:
    """The layers between pooling and unit length, in order."""
    if hasattr(student, "dense"):  # a teacher's chain
        return [layer for block in student.dense for layer in block]
    head = [student.head] if getattr(student, "head", None) is not None else []
    return [*head, nn.Tanh()] if getattr(student, "tanh", False) else head
