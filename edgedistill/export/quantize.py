"""fp32 graph -> `w8` or `int8`: the same inputs, outputs and nodes around them, a quarter of the bytes.

`w8` keeps each weight in 8 bits and quantizes activations inside the product, 32 numbers at a time. A text's vector depends on that
text alone: the safe default. `int8` gives each product one scale for the whole batch (DynamicQuantizeLinear): fastest at batch 1,
and a text's vector moves with its neighbours. `drift` says by how much.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgedistill.errors import UserError, unknown

MICROSOFT = "com.microsoft"
BLOCK = 32  # weights that share a scale in w8; the smallest MatMulNBits takes, hence the most exact
ZERO = 128  # MatMulNBits stores weights as uint8 around this
SMALLEST = 1024  # numbers; below this a table's scales and nodes cost more than its bytes


def quantize(model: onnx.ModelProto, precision: str) -> onnx.ModelProto:
    """The graph in another precision; `fp32` returns it as it is. Raises UserError for a precision that is not known."""
    if precision not in PRECISIONS:
        raise UserError(f"--precision: {unknown('precision', precision, PRECISIONS)}")
    return PRECISIONS[precision](model)


def _w8(model: onnx.ModelProto) -> onnx.ModelProto:
    editor = _Editor(model)
    expected = editor.count("MatMul", editor.dense)
    editor.rewrite(_row_table)
    editor.rewrite(_stored_table)
    editor.rewrite(_stored_lstm)
    editor.rewrite(_n_bits)
    made = editor.finish()
    _insist(made, "MatMulNBits", expected)
    return made


def _int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """onnxruntime's dynamic quantization of products and LSTMs, a scale per output channel, weights in 7 bits.

    7 bits (`reduce_range`): processors without VNNI add pairs of uint8 × int8 products in 16 bits, where 8-bit weights overflow and
    the vectors come out wrong, on those machines only. One file must say the same everywhere.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    editor = _Editor(model)
    expected = {"MatMulInteger": editor.count("MatMul", editor.dense), "DynamicQuantizeLSTM": editor.count("LSTM")}
    editor.rewrite(_row_table)
    editor.rewrite(_stored_table)
    logging.disable(logging.WARNING)  # it asks for a pre-processing that we have done in graph.py
    try:
        with tempfile.TemporaryDirectory() as folder:
            quantize_dynamic(
                editor.finish(),
                Path(folder) / "int8.onnx",
                op_types_to_quantize=["MatMul", "LSTM"],
                per_channel=True,
                reduce_range=True,
                weight_type=QuantType.QInt8,
                extra_options={"MatMulConstBOnly": True, "DefaultTensorType": TensorProto.FLOAT},
            )
            made = onnx.load(Path(folder) / "int8.onnx")
    finally:
        logging.disable(logging.NOTSET)
    made.producer_name = model.producer_name
    for op, number in expected.items():
        _insist(made, op, number)
    return made


PRECISIONS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {"fp32": lambda model: model, "w8": _w8, "int8": _int8}


def _insist(model: onnx.ModelProto, op: str, number: int) -> None:
    """Quantizers skip what they do not recognise, silently; we do not ship what they skipped."""
    found = sum(node.op_type == op for node in model.graph.node)
    if found != number:
        raise RuntimeError(f"{number} nodes should have become {op}, {found} did")


class _Editor:
    """A copy of a graph while nodes are replaced; constants no longer used fall away at the end."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = copy.deepcopy(model)
        self.constants = {constant.name: constant for constant in self.model.graph.initializer}

    def array(self, name: str) -> np.ndarray | None:
        """A float constant's values, or None."""
        constant = self.constants.get(name)
        return None if constant is None or constant.data_type != TensorProto.FLOAT else numpy_helper.to_array(constant)

    def dense(self, node: onnx.NodeProto) -> bool:
        """Whether a MatMul multiplies by a constant matrix."""
        weight = self.constants.get(node.input[1])
        return weight is not None and len(weight.dims) == 2

    def count(self, op: str, which: Callable[[onnx.NodeProto], bool] = lambda node: True) -> int:
        return sum(node.op_type == op and which(node) for node in self.model.graph.node)

    def constant(self, array: np.ndarray, name: str) -> str:
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def rewrite(self, rule: Callable[[_Editor, onnx.NodeProto], list[onnx.NodeProto] | None]) -> None:
        """Replace each node by what the rule says; None keeps it."""
        nodes = []
        for node in self.model.graph.node:
            new = rule(self, node)
            nodes += [node] if new is None else new
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes)

    def finish(self) -> onnx.ModelProto:
        graph = self.model.graph
        used = {name for node in graph.node for name in node.input}
        del graph.initializer[:]
        graph.initializer.extend(constant for name, constant in self.constants.items() if name in used)
        return self.model


def rows_int8(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(V, r) -> int8 (V, r) and the scale of each row (V, 1): table ≈ values · scale, off by half a scale at most."""
    scale = np.maximum(np.abs(table).max(1, keepdims=True), 1e-12) / 127
    return np.round(table / scale).astype(np.int8), scale.astype(np.float32)


def _row_table(editor: _Editor, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """Gather from a word table -> Gather of int8 rows and of their scales, in standard operators."""
    table = editor.array(node.input[0]) if node.op_type == "Gather" else None
    if table is None or table.ndim != 2 or table.size < SMALLEST or any(a.name == "axis" and a.i != 0 for a in node.attribute):
        return None
    name, out, ids = node.input[0], node.output[0], node.input[1]
    values, scale = rows_int8(table)
    return [
        helper.make_node("Gather", [editor.constant(values, f"{name}_int8"), ids], [f"{out}_int8"], name=f"{out}_rows"),
        helper.make_node("Gather", [editor.constant(scale, f"{name}_scale"), ids], [f"{out}_row_scale"], name=f"{out}_row_scales"),
        helper.make_node("Cast", [f"{out}_int8"], [f"{out}_float"], name=f"{out}_cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{out}_float", f"{out}_row_scale"], [out], name=f"{out}_scaled"),
    ]


def _stored(editor: _Editor, name: str) -> list[onnx.NodeProto]:
    """A constant in 8 bits on disk, a scale for each last axis, back to float32 by Cast and Mul: `{name}_float`.

    Both are constant, so onnxruntime computes them once, when the graph is opened. (Not DequantizeLinear: that it runs every time.)
    """
    array = editor.array(name)
    assert array is not None
    values, scale = rows_int8(array.reshape(-1, array.shape[-1]))
    values, scale = values.reshape(array.shape), scale.reshape(*array.shape[:-1], 1)
    return [
        helper.make_node("Cast", [editor.constant(values, f"{name}_int8")], [f"{name}_cast"], name=f"{name}_cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{name}_cast", editor.constant(scale, f"{name}_scale")], [f"{name}_float"], name=f"{name}_float"),
    ]


def _stored_table(editor: _Editor, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """Position tables, of which a text reads the first rows, and the book of a word table's codes: 8 bits on disk, float32 once opened."""
    table = editor.array(node.input[0]) if node.op_type in ("Slice", "Reshape") else None
    if table is None or table.ndim != 2 or table.size < SMALLEST:
        return None
    nodes = _stored(editor, node.input[0])
    node.input[0] = nodes[-1].output[0]
    return [*nodes, node]


def _stored_lstm(editor: _Editor, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """LSTM weights W and R, a scale per gate row. MatMulNBits has no LSTM: 8 bits on disk, the arithmetic in float32."""
    if node.op_type != "LSTM":
        return None
    nodes = []
    for at in (1, 2):
        nodes += _stored(editor, node.input[at])
        node.input[at] = nodes[-1].output[0]
    return [*nodes, node]


def _n_bits(editor: _Editor, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """x · W -> MatMulNBits: 8 bits, blocks of 32 along the input, symmetric; accuracy_level 4 = int8 products, per block and row."""
    if node.op_type != "MatMul" or not editor.dense(node):
        return None
    weight, name = editor.array(node.input[1]), node.input[1]
    assert weight is not None
    inputs, outputs = weight.shape
    blocks = -(-inputs // BLOCK)
    padded = np.zeros((outputs, blocks * BLOCK), np.float32)
    padded[:, :inputs] = weight.T
    values, scale = rows_int8(padded.reshape(-1, BLOCK))
    packed = (values.astype(np.int16) + ZERO).astype(np.uint8).reshape(outputs, blocks, BLOCK)
    names = [editor.constant(packed, f"{name}_w8"), editor.constant(scale.reshape(-1), f"{name}_w8_scale")]
    shape = {"K": inputs, "N": outputs, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
    return [helper.make_node("MatMulNBits", [node.input[0], *names], list(node.output), name=node.name, domain=MICROSOFT, **shape)]
