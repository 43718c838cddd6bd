"""`int8`: products of 8-bit activations and 8-bit weights, whose scales never depend on the other texts of a
batch.

How a product's input is quantized follows from the operator that computes it:

- after LayerNorm or attention: a fixed scale for each channel, measured on sample texts (see
    channel_factors). The product then needs one scale for all of its input, and adds its bias itself.
- after GELU or ReLU: a scale for each row (token), from the row's maximum; the minimum is known.
- rows of an embedding table: as they are stored.
- anything else: a scale for each row, from its largest absolute value.

Weights have a scale for each output channel. Processors without VNNI add two neighbouring uint8 × int8
products in 16 bits, which saturate. The scale is chosen so that no pair of weights can reach that: the same
file gives the same everywhere, and has 8 bits where others take 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgedistill.quantization import eight_bits
from edgedistill.quantization.conversion import Converter
from edgedistill.quantization.graph_editor import MICROSOFT, GraphEditor, GraphFacts, is_product, new_node
from edgedistill.quantization.sample_texts import TokenIds, activations

# A few channels of a transformer's activations are many times as large as the others. One scale for all of
# them wastes the 8 bits of the rest, so every channel is divided by a factor of its own, which the rows of
# the weight behind it are multiplied by.
HEADROOM = 1.1  # over what was measured: clipping a channel costs more than a coarser step
# how much of a channel's range the activation's factor takes; the weight takes the rest. Flat between 0.7 and
# 0.8
EXPONENT = 0.75
ZERO = 128  # the zero point of signed activations, which are stored as uint8
# zero points behind activations that are bounded below
ZEROS = {"Gelu": 24, "FastGelu": 24, "BiasGelu": 24, "Relu": 0}
LEAST = 0.17  # GELU's minimum is −0.16997
PAIR = 127  # 255 · (w₀ + w₁) < 2¹⁵ where weights of one sign add up to 128; rounding may add one
TINY = 1e-12

# the largest absolute value (K,) of each channel of an activation, by its name
Largest = dict[str, np.ndarray]


def quantize_weights(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(K, N) -> int8 (K, N) and the scale of each column (N,): no pair of rows 2k, 2k + 1 can saturate 16
    bits."""
    even, odd = weight[0::2], np.zeros_like(weight[0::2])
    odd[: len(weight) // 2] = weight[1::2]
    positive, negative = (np.maximum(sign * even, 0) + np.maximum(sign * odd, 0) for sign in (1, -1))
    pairs = np.maximum(positive, negative).max(0)
    scale = np.maximum(np.maximum(np.abs(weight).max(0) / 127, pairs / PAIR), TINY)
    return np.round(weight / scale).astype(np.int8), scale.astype(np.float32)


def converter(model: onnx.ModelProto, samples: TokenIds) -> Converter:
    """`convert`, with channels measured on token ids of texts; without them all activations get a scale for
    each row."""
    return partial(convert, largest=measure(model, samples))


def measure(model: onnx.ModelProto, samples: TokenIds) -> Largest:
    """The largest absolute values of the inputs that have fixed scales, with headroom, over all tokens of the
    samples; nothing without samples."""
    names = [x for group in _groups(GraphFacts(model)) for x in group.inputs]
    largest = {name: np.array(TINY, np.float32) for name in names}
    for values in activations(model, names, samples) if names and samples else ():
        for name, rows in values.items():
            largest[name] = np.maximum(largest[name], np.abs(rows).max(0))
    return {name: values * HEADROOM for name, values in largest.items()} if samples else {}


def convert(model: onnx.ModelProto, largest: Largest) -> onnx.ModelProto:
    """The graph in int8, with what was measured on it, or on the same graph before some of its constants were
    hidden."""
    editor, facts = GraphEditor(model), GraphFacts(model)
    channels = _channels(editor, facts, largest)
    editor.rewrite(_Products(editor, facts, channels).rewrite)
    eight_bits.store(editor)
    return editor.finish()


def product_errors(model: onnx.ModelProto, largest: Largest, ids: TokenIds) -> dict[str, float]:
    """What int8 loses in each product by itself, by the name of its weight.

    It is |y − x·W|² / |x·W|² over the rows of the texts `ids`.
    """
    facts = GraphFacts(model)
    channels = _channels(GraphEditor(model), facts, largest)
    lost: dict[str, float] = {}
    inputs = list(dict.fromkeys(node.input[0] for node in facts.products))
    for values in activations(model, inputs, ids):
        for node in facts.products:
            source, name = node.input
            weight = numpy_helper.to_array(facts.constants[name])
            expected = values[source] @ weight
            error = ((_emulated(values[source], weight, channels.get(source)) - expected) ** 2).sum()
            lost[name] = max(lost.get(name, 0.0), float(error / max((expected**2).sum(), TINY)))
    return lost


def _emulated(x: np.ndarray, weight: np.ndarray, channels: _Channels | None) -> np.ndarray:
    """x·W (n, N) with both rounded as in the graph, but for the zero points behind GELU."""
    factors, step = np.ones(len(weight), np.float32), np.maximum(np.abs(x).max(1, keepdims=True), TINY) / 127
    if channels is not None:
        factors, step = channels.factors, np.asarray(channels.step)
    values, scale = quantize_weights(weight * factors[:, None])
    rounded = np.clip(np.rint(x / factors / step), -ZERO, ZERO - 1) * step
    return np.asarray(rounded @ (values * scale), np.float32)


class _Channels(NamedTuple):
    """How the channels of a product's input are scaled: divided by `factors` (K,), then by `step`. Where they
    are `folded`, weights do the division."""

    factors: np.ndarray
    step: float
    folded: bool


class _Input(NamedTuple):
    """A product's input in uint8: `step` is its scale, one for all, and `rows` the name of a scale for each
    row, where there is one."""

    values: str
    zero: int
    step: float
    rows: str | None


def _channels(editor: GraphEditor, facts: GraphFacts, largest: Largest) -> dict[str, _Channels]:
    """The channels of each input that is computed by LayerNorm or attention. Divisions of attention's values
    are folded into `editor`.

    Inputs of products with the same weight share their factors, as in a block of layers that is applied
    several times.
    """
    found: dict[str, _Channels] = {}
    for group in _groups(facts) if largest else ():
        if not all(_is_fixed(facts, x) or facts.rank(x) == 2 for x in group.inputs):
            continue
        most = np.max([largest[x] for x in group.inputs], axis=0)
        weights = [editor.array(name) for name in group.weights]
        factors = channel_factors(most, [weight for weight in weights if weight is not None])
        folded = _fold_into_values(editor, facts, group.inputs, factors)
        channels = _Channels(factors, float((most / factors).max()) / 127, folded)
        found.update(dict.fromkeys(group.inputs, channels))
    return found


class _Group(NamedTuple):
    inputs: list[str]
    weights: list[str]


def _groups(facts: GraphFacts) -> list[_Group]:
    """The inputs and weights of products, those that share one in one group, where an input is fixed; in the
    order of the graph."""
    groups: list[_Group] = []
    for node in facts.products:
        x, weight = node.input
        touched = [group for group in groups if x in group.inputs or weight in group.weights]
        groups = [group for group in groups if group not in touched]
        groups.append(_Group(_with(x, touched, 0), _with(weight, touched, 1)))
    return [group for group in groups if any(_is_fixed(facts, x) for x in group.inputs)]


def _with(name: str, touched: list[_Group], at: int) -> list[str]:
    return list(dict.fromkeys([*(each for group in touched for each in group[at]), name]))


def _is_fixed(facts: GraphFacts, x: str) -> bool:
    writer = facts.writer(x)
    return writer is not None and writer.op_type in ("LayerNormalization", "MultiHeadAttention")


def _fold_into_values(editor: GraphEditor, facts: GraphFacts, inputs: list[str], factors: np.ndarray) -> bool:
    """Divide the columns of the value weights and biases of attention, whose output is a mean of values;
    whether that was possible."""
    constants: dict[str, slice] = {}
    for x in inputs:
        attention = facts.writer(x)
        if attention is None or attention.op_type != "MultiHeadAttention":
            return False
        value = facts.writer(attention.input[2])
        if value is None:
            return False
        # biases of queries, keys and values in one constant
        if len(attention.input) > 3 and attention.input[3]:
            constants[attention.input[3]] = slice(-len(factors), None)
        if value.op_type == "Add":
            bias = next((name for name in value.input if name in facts.constants), "")
            value = next(filter(None, map(facts.writer, value.input)), None)
            if not bias or value is None:
                return False
            constants[bias] = slice(None)
        if not is_product(value, facts.constants):
            return False
        constants[value.input[1]] = slice(None)
    for name, where in constants.items():
        array = editor.array(name)
        assert array is not None
        array = array.copy()
        array[..., where] = array[..., where] / factors
        editor.replace(name, array)
    return True


class _Products:
    """Replaces products one by one. An input that several products read is quantized once."""

    def __init__(self, editor: GraphEditor, facts: GraphFacts, channels: dict[str, _Channels]) -> None:
        self.editor = editor
        self.facts = facts
        self.channels = channels
        self.inputs: dict[str, _Input] = {}
        self.zeros: dict[tuple[str, int], str] = {}
        self.absorbed: set[str] = set()
        self.nodes: list[onnx.NodeProto] = []

    def rewrite(self, editor: GraphEditor, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if node.output[0] in self.absorbed:
            return []
        weight = editor.weight(node)
        if weight is None:
            return None
        self.nodes = []
        x, name = node.input
        if x not in self.inputs:
            self.inputs[x] = self._quantize(x, int(self.facts.constants[name].dims[0]))
        source = self.inputs[x]
        # a shared layer's weight is read by several products, whose inputs share their factors
        factors = self.channels[x].factors[:, None] if x in self.channels else np.float32(1)
        values, scale = quantize_weights(weight * factors)
        operands = [source.values, self._constant(values, f"{name}_int8"), self._number(source.step)]
        operands += [self._constant(scale, f"{name}_scale"), self._zero(source.zero)]
        if source.rows is None:
            self._product_and_bias(node, operands)
        else:
            self._product_of_rows(node, operands, source.rows)
        return self.nodes

    def _product_and_bias(self, node: onnx.NodeProto, operands: list[str]) -> None:
        bias = self.facts.bias(node)
        if bias is None:
            self._add("MatMulIntegerToFloat", operands, node.output[0], domain=MICROSOFT)
            return
        add, constant = bias
        self.absorbed.add(add.output[0])
        self._add("MatMulIntegerToFloat", [*operands, "", constant], add.output[0], domain=MICROSOFT)

    def _product_of_rows(self, node: onnx.NodeProto, operands: list[str], rows: str) -> None:
        y, x = node.output[0], node.input[0]
        product = self._add("MatMulIntegerToFloat", operands, f"{y}_product", domain=MICROSOFT)
        if self.facts.rank(x) == 2 or self._table(x):
            self._add("Mul", [product, rows], y)
            return
        scaled = self._add("Mul", [product, rows], f"{y}_rows")
        leading = self._add("Shape", [x], f"{y}_leading", start=0, end=-1)
        width = self.editor.constants[node.input[1]].dims[1]
        shape = self._add(
            "Concat", [leading, self._integers([width], f"width_{width}")], f"{y}_shape", axis=0
        )
        self._add("Reshape", [scaled, shape], y)

    def _quantize(self, x: str, width: int) -> _Input:
        if x in self.channels:
            return self._by_channel(x, self.channels[x])
        if lookup := self._table(x):
            return self._table_rows(x, *lookup.input)
        rows = x
        if self.facts.rank(x) != 2:
            shape = self._integers([-1, width], f"rows_{width}")
            rows = self._add("Reshape", [x, shape], f"{x}_as_rows")
        writer = self.facts.writer(x)
        zero = ZEROS.get(writer.op_type, ZERO) if writer is not None else ZERO
        scale = self._row_scales(x, rows, zero)
        flat = self._add("Reshape", [scale, self._integers([-1], "flat")], f"{x}_row_scales")
        zeros = self._zero_rows(x, flat, zero)
        values = self._add("QuantizeLinear", [rows, flat, zeros], f"{x}_uint8", axis=0)
        return _Input(values, zero, 1.0, scale)

    def _by_channel(self, x: str, channels: _Channels) -> _Input:
        even = x
        if not channels.folded:
            factors = self._constant((1 / channels.factors).astype(np.float32), f"{x}_factors")
            even = self._add("Mul", [x, factors], f"{x}_even")
        scale = [self._number(channels.step), self._zero(ZERO)]
        values = self._add("QuantizeLinear", [even, *scale], f"{x}_uint8")
        return _Input(values, ZERO, channels.step, None)

    def _row_scales(self, x: str, rows: str, zero: int) -> str:
        """A scale for each row: (rows, 1)."""
        high = self._add("ReduceMax", [rows], f"{x}_high", axes=[-1], keepdims=1)
        if zero != ZERO:
            step = self._add("Mul", [high, self._number(1 / (255 - zero))], f"{x}_step")
            return self._add("Max", [step, self._number(LEAST / zero if zero else TINY)], f"{x}_scale")
        low = self._add("ReduceMin", [rows], f"{x}_low", axes=[-1], keepdims=1)
        largest = self._add(
            "Max", [high, self._add("Neg", [low], f"{x}_depth"), self._number(TINY)], f"{x}_largest"
        )
        return self._add("Mul", [largest, self._number(1 / 127)], f"{x}_scale")

    def _zero_rows(self, x: str, scales: str, zero: int) -> str:
        """A zero point for each row, as QuantizeLinear requires; values with the same rows share it."""
        key = (self.facts.rows_of(x), zero)
        if key not in self.zeros:
            value = helper.make_tensor("value", TensorProto.UINT8, [1], [zero])
            self.zeros[key] = self._add(
                "ConstantOfShape", [self._add("Shape", [scales], f"{x}_count")], f"{x}_zeros", value=value
            )
        return self.zeros[key]

    def _table(self, x: str) -> onnx.NodeProto | None:
        """The node that looks x up in an embedding table, if one does."""
        writer = self.facts.writer(x)
        if writer is None or writer.op_type != "Gather" or x != writer.output[0]:
            return None
        table = writer.input[0]
        return writer if table in self.facts.constants and self.facts.rank(table) == 2 else None

    def _table_rows(self, x: str, name: str, ids: str) -> _Input:
        """Rows of an embedding table, which has a scale for each row."""
        table = self.editor.array(name)
        assert table is not None
        values, scale = eight_bits.quantize_rows(table)
        shifted = self._constant((values.astype(np.int16) + ZERO).astype(np.uint8), f"{name}_uint8")
        rows = self._add("Gather", [self._constant(scale, f"{name}_scale"), ids], f"{x}_scale")
        return _Input(self._add("Gather", [shifted, ids], f"{x}_uint8"), ZERO, 1.0, rows)

    def _integers(self, values: list[int], name: str) -> str:
        return self._constant(np.array(values, np.int64), name)

    def _number(self, value: float) -> str:
        return self._constant(np.float32(value), f"number_{value:.9g}")

    def _zero(self, zero: int) -> str:
        return self._constant(np.uint8(zero), f"zero_{zero}")

    def _constant(self, value: np.ndarray | np.generic, name: str) -> str:
        return self.editor.constant(np.asarray(value), name)

    def _add(self, op: str, inputs: list[str], output: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(new_node(op, inputs, output, domain=domain, **attributes))
        return output


def channel_factors(largest: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
    """What to divide each channel by (K,), from the largest activations (K,) and from all weights that read
    them, each (K, N).

    Xiao et al. 2023, SmoothQuant, equation 4.
    """
    of_weights = np.maximum(np.max([np.abs(weight).max(1) for weight in weights], axis=0), TINY)
    return np.asarray(np.maximum(largest, TINY) ** EXPONENT / of_weights ** (1 - EXPONENT), np.float32)
