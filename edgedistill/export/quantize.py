"""fp32 graph -> `w8` or `int8`: the same inputs and outputs in a quarter of the bytes; `PRECISIONS` holds all precisions.

`w8` stores weights in 8 bits, in blocks of 32 with a scale each, and quantizes activations in the same blocks inside the product (int8
products). A text's embedding depends on that text alone, which makes it the safe default. `int8` uses one activation scale per product
for the whole batch (DynamicQuantizeLinear). It is the fastest at batch 1, but a text's embedding varies with the other texts of its
batch; the manifest's `drift` measures by how much.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgedistill.errors import UserError, unknown_name

MICROSOFT = "com.microsoft"
BLOCK = 32  # weights that share a scale in w8; the smallest that MatMulNBits takes, hence the most exact
ZERO = 128  # the zero point: MatMulNBits stores weights as uint8
SMALLEST = 1024  # elements; quantizing a smaller table adds more bytes in scales and nodes than it saves


def quantize(model: onnx.ModelProto, precision: str) -> onnx.ModelProto:
    """The graph in another precision; `fp32` returns it unchanged. Raises UserError for an unknown precision."""
    if precision not in PRECISIONS:
        raise UserError(f"--precision: {unknown_name('precision', precision, PRECISIONS)}")
    return PRECISIONS[precision].convert(model)


def _w8(model: onnx.ModelProto) -> onnx.ModelProto:
    editor = _GraphEditor(model)
    expected = editor.count("MatMul", editor.dense)
    editor.rewrite(_int8_gather)
    editor.rewrite(_int8_table)
    editor.rewrite(_int8_lstm)
    editor.rewrite(_matmul_n_bits)
    quantized = editor.finish()
    _check_count(quantized, "MatMulNBits", expected)
    return quantized


def _int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """onnxruntime's dynamic quantization of matrix products and LSTMs, with a scale per output channel and weights in 7 bits.

    7 bits (`reduce_range`): processors without VNNI add pairs of uint8 × int8 products in 16 bits, where 8-bit weights overflow. The
    embeddings would be wrong on those machines only, and one file must give the same everywhere.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    editor = _GraphEditor(model)
    expected = {"MatMulInteger": editor.count("MatMul", editor.dense), "DynamicQuantizeLSTM": editor.count("LSTM")}
    editor.rewrite(_int8_gather)
    editor.rewrite(_int8_table)
    logging.disable(logging.WARNING)  # it asks for preprocessing that our graphs do not need
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
            quantized = onnx.load(Path(folder) / "int8.onnx")
    finally:
        logging.disable(logging.NOTSET)
    quantized.producer_name = model.producer_name
    for op, count in expected.items():
        _check_count(quantized, op, count)
    return quantized


class Precision(NamedTuple):
    """How a graph is converted to a precision, its file in the bundle, and the least agreement with torch that an export requires.

    single_cosine, batched_cosine: of a golden text's embedding to torch's, run by itself and in one padded batch with all others.
    batch_cosine: of the single to the batched embedding; the manifest's `drift`. probability_difference: the largest of a classifier.
    fallback: the precision to try where one of these is not reached.
    """

    convert: Callable[[onnx.ModelProto], onnx.ModelProto]
    file: str
    description: str
    single_cosine: float
    batched_cosine: float
    batch_cosine: float
    probability_difference: float
    fallback: str | None

    @property
    def remedy(self) -> str:
        """What to do where an export does not reach these."""
        return f"try --precision {self.fallback}" if self.fallback else "a bug in the graph, please report it"


# A new precision: its function above, and one entry in this table.
PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(
        convert=lambda model: model,
        file="onnx/model.onnx",
        description="float32",
        # the same products in another order: float32 differs in the seventh digit
        single_cosine=0.99999,
        batched_cosine=0.99999,
        batch_cosine=0.99999,
        probability_difference=1e-3,
        fallback=None,
    ),
    "w8": Precision(
        convert=_w8,
        file="onnx/model_w8.onnx",
        description="8-bit weights, one scale per block of 32; int8 matrix multiplication; the default",
        # a six-layer encoder reaches 0.998 on ordinary text, and every row is quantized by itself
        single_cosine=0.99,
        batched_cosine=0.99,
        batch_cosine=0.99999,
        probability_difference=0.10,
        fallback="fp32",
    ),
    "int8": Precision(
        convert=_int8,
        file="onnx/model_quantized.onnx",  # transformers.js looks for its q8, the default in a browser, under this name
        description="dynamic int8, one activation scale per tensor; fastest for single texts",
        # the same encoder reaches 0.978 by itself and 0.967 in a batch; batch sensitivity is reported, not limited, so that only a
        # wrong graph fails here
        single_cosine=0.95,
        batched_cosine=0.90,
        batch_cosine=0.0,
        probability_difference=0.35,
        fallback="w8",
    ),
}


def _check_count(model: onnx.ModelProto, op: str, expected: int) -> None:
    """Raise RuntimeError where nodes were not quantized: quantizers silently skip what they do not recognize."""
    found = sum(node.op_type == op for node in model.graph.node)
    if found != expected:
        raise RuntimeError(f"{expected} nodes should have become {op}, {found} did")


class _GraphEditor:
    """A copy of a graph whose nodes are being replaced; `finish` drops constants that are no longer used."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = copy.deepcopy(model)
        self.constants = {constant.name: constant for constant in self.model.graph.initializer}

    def array(self, name: str) -> np.ndarray | None:
        """The values of a float constant; None for anything else."""
        constant = self.constants.get(name)
        return None if constant is None or constant.data_type != TensorProto.FLOAT else numpy_helper.to_array(constant)

    def dense(self, node: onnx.NodeProto) -> bool:
        """Whether a MatMul multiplies by a constant matrix."""
        weight = self.constants.get(node.input[1])
        return weight is not None and len(weight.dims) == 2

    def count(self, op: str, condition: Callable[[onnx.NodeProto], bool] = lambda node: True) -> int:
        return sum(node.op_type == op and condition(node) for node in self.model.graph.node)

    def constant(self, array: np.ndarray, name: str) -> str:
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def rewrite(self, rule: Callable[[_GraphEditor, onnx.NodeProto], list[onnx.NodeProto] | None]) -> None:
        """Replace each node by the nodes that the rule returns; None keeps it."""
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


def quantize_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(V, r) -> int8 (V, r) and the scale of each row (V, 1): table ≈ values · scale, with an error of at most half a scale."""
    scale = np.maximum(np.abs(table).max(1, keepdims=True), 1e-12) / 127
    return np.round(table / scale).astype(np.int8), scale.astype(np.float32)


def _int8_gather(editor: _GraphEditor, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """Gather from an embedding table -> Gather of int8 rows and of their scales, in standard operators."""
    table = editor.array(node.input[0]) if node.op_type == "Gather" else None
    if table is None or table.ndim != 2 or table.size < SMALLEST or any(a.name == "axis" and a.i != 0 for a in node.attribute):
        return None
    name, out, ids = node.input[0], node.output[0], node.input[1]
    values, scale = quantize_rows(table)
    return [
        helper.make_node("Gather", [editor.constant(values, f"{name}_int8"), ids], [f"{out}_int8"], name=f"{out}_rows"),
        helper.make_node("Gather", [editor.constant(scale, f"{name}_scale"), ids], [f"{out}_row_scale"], name=f"{out}_row_scales"),
        helper.make_node("Cast", [f"{out}_int8"], [f"{out}_float"], name=f"{out}_cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{out}_float", f"{out}_row_scale"], [out], name=f"{out}_scaled"),
    ]


def _int8_constant(editor: _GraphEditor, name: str) -> list[onnx.NodeProto]:
    """Store a constant in 8 bits with a scale per row (last axis), and restore it to float32 by Cast and Mul: `{name}_float`.

    onnxruntime folds both nodes once, when the graph is opened. It would run DequantizeLinear every time.
    """
    array = editor.array(name)
    assert array is not None
    values, scale = quantize_rows(array.reshape(-1, array.shape[-1]))
    values, scale = values.reshape(array.shape), scale.reshape(*array.shape[:-1], 1)
    return [
        helper.make_node("Cast", [editor.constant(values, f"{name}_int8")], [f"{name}_cast"], name=f"{name}_cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{name}_cast", editor.constant(scale, f"{name}_scale")], [f"{name}_float"], name=f"{name}_float"),
    ]


def _int8_table(editor: _GraphEditor, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """Position tables (a Slice) and PQ codebooks (a Reshape): 8 bits on disk, float32 once opened."""
    table = editor.array(node.input[0]) if node.op_type in ("Slice", "Reshape") else None
    if table is None or table.ndim != 2 or table.size < SMALLEST:
        return None
    nodes = _int8_constant(editor, node.input[0])
    node.input[0] = nodes[-1].output[0]
    return [*nodes, node]


def _int8_lstm(editor: _GraphEditor, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """LSTM weights W and R, a scale per gate row: 8 bits on disk, products in float32, since there is no LSTM with MatMulNBits."""
    if node.op_type != "LSTM":
        return None
    nodes = []
    for at in (1, 2):
        nodes += _int8_constant(editor, node.input[at])
        node.input[at] = nodes[-1].output[0]
    return [*nodes, node]


def _matmul_n_bits(editor: _GraphEditor, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """x · W -> MatMulNBits: 8 bits, blocks of 32 along the input, symmetric; accuracy_level 4 quantizes activations per row and block."""
    if node.op_type != "MatMul" or not editor.dense(node):
        return None
    weight, name = editor.array(node.input[1]), node.input[1]
    assert weight is not None
    inputs, outputs = weight.shape
    blocks = -(-inputs // BLOCK)
    padded = np.zeros((outputs, blocks * BLOCK), np.float32)
    padded[:, :inputs] = weight.T
    values, scale = quantize_rows(padded.reshape(-1, BLOCK))
    packed = (values.astype(np.int16) + ZERO).astype(np.uint8).reshape(outputs, blocks, BLOCK)
    names = [editor.constant(packed, f"{name}_w8"), editor.constant(scale.reshape(-1), f"{name}_w8_scale")]
    shape = {"K": inputs, "N": outputs, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
    return [helper.make_node("MatMulNBits", [node.input[0], *names], list(node.output), name=node.name, domain=MICROSOFT, **shape)]
