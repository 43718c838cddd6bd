"""`int8`: products of 8-bit activations and 8-bit weights, whose scales never depend on the other texts of a
batch.

How a product's input is quantized follows from the operator that computes it:

- after LayerNorm or attention: a fixed scale for each channel, measured on sample texts (see
    channel_factors). The product then needs one scale for all of its input, and adds its bias itself.
- anything else: each row (token) is divided by its largest absolute value, behind GELU and ReLU by its
    largest value, since the smallest is known. The scale is fixed again, and the product multiplied by what
    the row was divided by.

Weights have a scale for each output channel. Processors without VNNI add two neighbouring uint8 × int8
products in 16 bits, which saturate. The scale is chosen so that no pair of weights can reach that: the same
file gives the same everywhere, and has 8 bits where others take 7.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from onnx import ModelProto, NodeProto, numpy_helper

from edgedistill.quantization import eight_bits
from edgedistill.quantization.graph_editor import (
    MICROSOFT,
    Converter,
    GraphEditor,
    GraphFacts,
    is_product,
    new_node,
)
from edgedistill.quantization.sample_texts import TokenIds, activations

# A few channels of a transformer's activations are many times as large as the others. One scale for all of
# them wastes the 8 bits of the rest, so every channel is divided by a factor of its own, which the rows of
# the weight behind it are multiplied by.
# how much of a channel's range the activation's factor takes; the weight takes the rest. Flat from .7 to .85
EXPONENT = 0.75
ZERO = 128  # the zero point of signed activations, which are stored as uint8
ZEROS = {"Gelu": 24, "Relu": 0}  # zero points behind activations that are bounded below
LEAST = 0.17  # GELU's minimum is −0.16997
PAIR = 127  # 255 · (w₀ + w₁) < 2¹⁵ where weights of one sign add up to 128; rounding may add one
TINY = 1e-12

# the largest absolute value (K,) of each channel of an activation, by its name
Largest = dict[str, ndarray]


def quantize_weights(weight: ndarray) -> tuple[ndarray, ndarray]:
    """(K, N) -> int8 (K, N) and the scale of each column (N,): no pair of rows 2k, 2k + 1 can saturate 16
    bits."""
    even = weight[0::2]
    odd = np.zeros_like(even)
    odd[: len(weight) // 2] = weight[1::2]
    positive = np.maximum(even, 0) + np.maximum(odd, 0)
    negative = np.maximum(-even, 0) + np.maximum(-odd, 0)
    pairs = np.maximum(positive, negative).max(0)
    largest = np.abs(weight).max(0)
    scale = np.maximum(np.maximum(largest / 127, pairs / PAIR), TINY)
    return np.round(weight / scale).astype(np.int8), scale.astype(np.float32)


def converter(model: ModelProto, samples: TokenIds) -> Converter:
    """The graph -> the graph in int8, with channels measured on token ids of texts; without them all
    activations get a scale for each row."""
    largest = measure(model, samples)
    return lambda graph: Products(graph, largest).converted()


def measure(model: ModelProto, samples: TokenIds) -> Largest:
    """The largest absolute values of the inputs that have fixed scales, over all tokens of the samples;
    nothing without samples."""
    names = [x for group in _groups(GraphFacts(model)) for x in group.inputs]
    if not names or not samples:
        return {}
    largest = dict.fromkeys(names, np.array(TINY, np.float32))
    for values in activations(model, names, samples):
        for name, rows in values.items():
            largest[name] = np.maximum(largest[name], np.abs(rows).max(0))
    return largest


def product_errors(model: ModelProto, largest: Largest, ids: TokenIds) -> dict[str, float]:
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
            error = _emulated(values[source], weight, channels.get(source)) - expected
            share = (error**2).sum() / max((expected**2).sum(), TINY)
            lost[name] = max(lost.get(name, 0.0), float(share))
    return lost


def _emulated(x: ndarray, weight: ndarray, channels: _Channels | None) -> ndarray:
    """x·W (n, N) with both rounded as in the graph, but for the zero points behind GELU."""
    rows = np.maximum(np.abs(x).max(1, keepdims=True), TINY) / 127
    factors, step = channels or (np.ones(len(weight), np.float32), rows)
    values, scale = quantize_weights(weight * factors[:, None])
    integers = np.clip(np.rint(x / factors / step), -ZERO, ZERO - 1)
    return np.asarray((integers * step) @ (values * scale), np.float32)


class _Channels(NamedTuple):
    """How the channels of a product's input are scaled: divided by `factors` (K,), then by `step`."""

    factors: ndarray
    step: float


class Input(NamedTuple):
    """The names of a product's input in uint8, of its scale and zero point, and of what each row of the
    product is multiplied by, where rows were divided."""

    values: str
    scale: str
    zero: str
    rows: str | None


def _channels(editor: GraphEditor, facts: GraphFacts, largest: Largest) -> dict[str, _Channels]:
    """The channels of each input that is computed by LayerNorm or attention.

    Inputs of products with the same weight share their factors, as in a block of layers that is applied
    several times.
    """
    by_input = {}
    for group in _groups(facts) if largest else ():
        most = np.max([largest[x] for x in group.inputs], axis=0)
        arrays = map(editor.array, group.weights)
        factors = channel_factors(most, [weight for weight in arrays if weight is not None])
        channels = _Channels(factors, float((most / factors).max()) / 127)
        by_input.update(dict.fromkeys(group.inputs, channels))
    return by_input


class _Group(NamedTuple):
    inputs: list[str]
    weights: list[str]


def _groups(facts: GraphFacts) -> list[_Group]:
    """The inputs and weights of products, those that share one in one group, where all inputs are fixed; in
    the order of the graph.

    A head also projects tokens, which are fixed; what is pooled from them is not.
    """
    groups: list[_Group] = []
    for node in facts.products:
        joined = _Group([], [])
        for group in list(groups):
            if node.input[0] in group.inputs or node.input[1] in group.weights:
                groups.remove(group)
                joined = _Group(joined.inputs + group.inputs, joined.weights + group.weights)
        parts = zip(joined, node.input, strict=True)
        groups.append(_Group(*(list(dict.fromkeys([*names, name])) for names, name in parts)))
    return [group for group in groups if all(_is_fixed(facts, x) for x in group.inputs)]


def _is_fixed(facts: GraphFacts, x: str) -> bool:
    writer = facts.writer(x)
    if writer is None or is_product(writer, facts.constants):
        return False
    return writer.op_type in ("MatMul", "LayerNormalization")


class Products:
    """Replaces products one by one, but for those with weights to `skip`. An input that several products read
    is quantized once."""

    def __init__(self, model: ModelProto, largest: Largest, skip: Collection[str] = ()) -> None:
        self.editor = GraphEditor(model)
        self.facts = GraphFacts(model, skip)
        self.skip = skip
        self.channels = _channels(self.editor, self.facts, largest)
        self.inputs: dict[str, Input] = {}
        self.absorbed: set[str] = set()  # by products: the outputs of the sums with their biases
        self.nodes: list[NodeProto] = []
        self.count = 0

    def converted(self) -> ModelProto:
        """The graph with all products replaced, and what else is large stored in 8 bits."""
        self.editor.rewrite(self._rewrite)
        eight_bits.store(self.editor)
        return self.editor.finish()

    def product(self, source: Input, weight: str, scale: str, bias: str, output: str) -> None:
        """Add the nodes of a product; `bias` may be empty."""
        operands = [source.values, weight, source.scale, scale, source.zero, *(["", bias] if bias else [])]
        self.add("MatMulIntegerToFloat", operands, output, domain=MICROSOFT)

    def _rewrite(self, editor: GraphEditor, node: NodeProto) -> list[NodeProto] | None:
        if node.output[0] in self.absorbed:
            return []
        weight = editor.weight(node)
        if weight is None or node.input[1] in self.skip:
            return None
        self.nodes = []
        x, name = node.input
        if x not in self.inputs:
            self.inputs[x] = self._quantize(x)
        source = self.inputs[x]
        stored = self.stored(x, name, weight)
        (output,) = node.output
        if source.rows is not None:
            self.product(source, *stored, "", f"{output}_product")
            self.add("Mul", [f"{output}_product", source.rows], output)
            return self.nodes
        constant, output = self.facts.bias(node) or ("", output)
        if constant:
            self.absorbed.add(output)
        self.product(source, *stored, constant, output)
        return self.nodes

    def stored(self, x: str, name: str, weight: ndarray) -> tuple[str, str]:
        """Store the weight that x is multiplied by; returns the names of its values and of their scales.

        A shared layer's weight is read by several products, whose inputs share their factors.
        """
        values, scale = quantize_weights(weight * self.factors(x)[:, None])
        return self.constant(values, f"{name}_int8"), self.constant(scale, f"{name}_scale")

    def factors(self, x: str) -> ndarray:
        """What the channels of a product's input are divided by, (K,) or (1,)."""
        return self.channels[x].factors if x in self.channels else np.ones(1, np.float32)

    def _quantize(self, x: str) -> Input:
        if x in self.channels:
            channels = self.channels[x]
            rows = None
            zero = ZERO
            step = channels.step
            factors = (1 / channels.factors).astype(np.float32)
            even = self.add("Mul", [x, self.constant(factors, f"{x}_factors")], f"{x}_even")
        else:
            writer = self.facts.writer(x)
            zero = ZERO if writer is None else ZEROS.get(writer.op_type, ZERO)
            step = 1 / (255 - zero)
            rows = self._largest(x, zero, step)
            even = self.add("Div", [x, rows], f"{x}_even")
        scale = self.number(step), self.constant(np.uint8(zero), f"zero_{zero}")
        return Input(self.add("QuantizeLinear", [even, *scale], f"{x}_uint8"), *scale, rows)

    def _largest(self, x: str, zero: int, step: float) -> str:
        """What each row is divided by, (…, 1)."""
        values = x
        smallest = TINY
        if zero == ZERO:
            values = self.add("Abs", [x], f"{x}_absolute")
        elif zero:
            smallest = LEAST / zero / step
        last = self.constant(np.array([-1]), "last_axis")
        high = self.add("ReduceMax", [values, last], f"{x}_high", keepdims=1)
        return self.add("Max", [high, self.number(smallest)], f"{x}_largest")

    def number(self, value: float) -> str:
        return self.constant(np.float32(value), f"number_{value:.9g}")

    def constant(self, value: ndarray | np.generic, name: str) -> str:
        return self.editor.constant(np.asarray(value), name)

    def add(self, op: str, inputs: list[str], output: str = "", domain: str = "", **attributes: Any) -> str:
        """Add a node; its output has a number where it needs no name."""
        self.count += 1
        output = output or f"q{self.count}"
        self.nodes.append(new_node(op, inputs, output, domain=domain, **attributes))
        return output


def channel_factors(largest: ndarray, weights: Sequence[ndarray]) -> ndarray:
    """What to divide each channel by (K,), from the largest activations (K,) and from all weights that read
    them, each (K, N).

    Xiao et al. 2023, SmoothQuant, equation 4.
    """
    of_weights = np.maximum(np.max([np.abs(weight).max(1) for weight in weights], axis=0), TINY)
    return np.asarray(np.maximum(largest, TINY) ** EXPONENT / of_weights ** (1 - EXPONENT), np.float32)
