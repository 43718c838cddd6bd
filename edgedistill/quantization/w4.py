"""`w4`: 4-bit weights and embedding table, one float16 scale per group of 32; products as in int8, whose
weights are restored once, when the graph is opened."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray
from onnx import ModelProto, NodeProto, TensorProto, helper
from threadpoolctl import threadpool_limits

from edgedistill.errors import CheckFailed
from edgedistill.quantization import eight_bits, int8
from edgedistill.quantization.fp16 import LARGEST, SMALLEST_NORMAL
from edgedistill.quantization.graph_editor import (
    MICROSOFT,
    Converter,
    GraphEditor,
    GraphFacts,
    new_node,
)
from edgedistill.quantization.sample_texts import TokenIds, activations

# numbers that share a scale, 4 + 16/32 = 4.5 bits each
GROUP = 32
# the values of 4 bits
LOWEST = -8
HIGHEST = 7
# of the scale that just reaches the largest number of a group
FACTORS = np.linspace(0.65, 1.0, 15, dtype=np.float32)
SMALLEST_SCALE = 2.0**-24  # float16's
# of an array's largest number: its scales are exact to 3%, and reach it
LEAST = 2.0**-17
MOST = 8 * LARGEST

# Weights are rounded one input at a time, each rounding error made up for by the inputs that are still to be
# rounded (Frantar et al. 2023, GPTQ). What is minimized is the error of the product, E|x·W − x·Q|², not that
# of the weights; it needs E[x xᵀ] of the product's inputs.
DAMPING = 0.1  # of the mean variance, added to each input's: the texts are few, and other texts come
RANDOM_SHARE = 0.25  # of the second moments: random tokens, for texts unlike those given
ZERO = 8  # the zero point of weights, which are stored as 0 … 15
PAIRS = np.stack([np.arange(256) % 16, np.arange(256) // 16], 1).astype(np.float32) - ZERO  # in a byte
SMALLEST_HALVED = 128  # elements; halving fewer saves less than the Cast takes

# E[x xᵀ] (K, K) of what a product's weight is multiplied with, by the weight's name
Moments = dict[str, ndarray]


def converter(model: ModelProto, samples: TokenIds) -> Converter:
    """The graph -> the graph in w4, with moments and channels measured on token ids of some hundred texts.

    With them the weights of products are rounded with error feedback, which halves the loss; without, each
    weight is rounded to the nearest.
    """
    moments = {}
    largest = int8.measure(model, samples)
    if len(samples):
        with threadpool_limits(1):  # more threads add in another order, which would give other bytes
            moments = second_moments(model, samples)
    return lambda graph: Products(graph, largest, moments).converted()


class Products(int8.Products):
    """The products of int8, whose weights are stored in 4 bits; embedding tables become GatherBlockQuantized.

    Position tables, PQ codebooks and LSTM weights are stored in 8 bits, as there is no LSTM of 4-bit weights,
    PQ codes as they are, scales, biases and norms in float16. onnxruntime makes the 8-bit weights once, when
    the graph is opened, unless all its graph optimizations are switched off.

    `moments` may have been measured on the same graph before some of its constants were hidden.
    """

    def __init__(self, model: ModelProto, largest: int8.Largest, moments: Moments | None = None) -> None:
        super().__init__(model, largest)
        self.moments = moments or {}

    def converted(self) -> ModelProto:
        editor = self.editor
        editor.rewrite(_gather)
        editor.rewrite(eight_bits.table)
        editor.rewrite(eight_bits.lstm)
        with threadpool_limits(1):
            editor.rewrite(self._rewrite)
        _halve_floats(editor)
        return editor.finish()

    def stored(self, x: str, name: str, weight: ndarray) -> tuple[str, str]:
        """In 4 bits, turned: (outputs, inputs), and scales in units of the 8-bit weight's, `{name}_step`.

        They become the weight of int8, `{name}_int8`, by nodes that onnxruntime folds. It folds none of its
        own operators for 4 bits, nor DequantizeLinear.
        """
        whole, step = f"{name}_int8", f"{name}_step"
        if step in self.editor.constants:  # a shared layer's
            return whole, step
        check_range(weight, name)
        if name in self.moments:
            values, scale = quantize_with_feedback(weight, self.moments[name])
        else:
            values, scale = quantize_groups(weight.T)
        groups, scale = in_groups(values), scale[..., None].astype(np.float32)
        rows, inputs = len(values), len(weight)
        even = (groups * scale).reshape(rows, -1)[:, :inputs] * self.factors(x)
        steps = _room(int8.quantize_weights(even.T)[1])
        bits = self.constant(packed(groups.reshape(rows, -1), ZERO), f"{name}_w4")
        scales = self.constant(_float16(scale / steps[:, None, None]).astype(np.float16), f"{name}_w4_scale")
        pairs = self.constant(PAIRS, "pairs_256")
        index = self.add("Cast", [bits], to=TensorProto.INT32)
        in_pairs = self.add("Gather", [pairs, index])
        shape = self.constant(np.array([rows, -1, GROUP]), f"shape_{rows}_1_{GROUP}")
        floats = self.add("Cast", [scales], to=TensorProto.FLOAT)
        restored = self.add("Mul", [self.add("Reshape", [in_pairs, shape]), floats])
        shape = self.constant(np.array([rows, groups.size // rows]), f"shape_{rows}_{groups.size // rows}")
        restored = self.add("Reshape", [restored, shape])
        if groups.size > values.size:
            ends = [self.constant(np.array([at]), f"slice_{at}") for at in (0, inputs, 1)]
            restored = self.add("Slice", [restored, *ends])
        if x in self.channels:
            restored = self.add("Div", [restored, f"{x}_factors"])
        integers = self.add("Cast", [self.add("Round", [restored])], to=TensorProto.INT8)
        return self.add("Transpose", [integers], whole), self.constant(steps, step)


def _gather(editor: GraphEditor, node: NodeProto) -> list[NodeProto] | None:
    """Gather from an embedding table -> GatherBlockQuantized."""
    array = eight_bits.large_table(editor, node, "Gather")
    if array is None:
        return None
    name, ids = node.input
    (out,) = node.output
    bits = f"{name}_w4"
    scales = f"{name}_w4_scale"
    nodes = []
    if bits not in editor.constants:
        check_range(array, name)
        values, scale = quantize_groups(array)
        data = packed(values.reshape(-1)).tobytes()
        editor.constants[bits] = helper.make_tensor(bits, TensorProto.INT4, values.shape, data, raw=True)
        stored, restored = editor.constant(scale, scales), f"{scales}_float"
        nodes.append(new_node("Cast", [stored], restored, f"{scales}_cast", to=TensorProto.FLOAT))
    options = {"gather_axis": 0, "quantize_axis": 1, "block_size": GROUP}
    read = [bits, ids, f"{scales}_float"]
    rows = f"{out}_rows"
    return [*nodes, new_node("GatherBlockQuantized", read, out, rows, domain=MICROSOFT, **options)]


def _halve_floats(editor: GraphEditor) -> None:
    """Store what is still float32, such as biases and norms, in float16, and restore it by a Cast of the same
    name."""
    graph = editor.model.graph
    casts = []
    for name in dict.fromkeys(name for node in graph.node for name in node.input):
        array = editor.array(name)
        if array is None or array.size < SMALLEST_HALVED:
            continue
        largest = float(np.abs(array).max())
        if largest == 0 or SMALLEST_NORMAL <= largest <= LARGEST:
            del editor.constants[name]
            half = editor.constant(array.astype(np.float16), f"{name}_fp16")
            casts.append(new_node("Cast", [half], name, f"{name}_cast", to=TensorProto.FLOAT))
    for cast in reversed(casts):
        graph.node.insert(0, cast)


def second_moments(model: ModelProto, ids: TokenIds) -> Moments:
    """E[x xᵀ] (K, K) float32 of the inputs x of every product with a constant matrix, by the matrix's name.

    `ids` are the token ids of texts that this graph may meet; the rest of the moments comes from random
    tokens up to the largest of these ids, in texts of the same lengths.
    """
    products = [tuple(node.input) for node in GraphFacts(model).products]
    if not products:
        return {}
    random = np.random.default_rng(0)
    highest = max(max(row) for row in ids if len(row))
    drawn = [random.integers(0, highest + 1, len(row)).tolist() for row in ids]
    names = list(dict.fromkeys(name for name, _ in products))
    moments = _moments(model, names, ids)
    for name, extra in _moments(model, names, drawn).items():
        scale = np.trace(moments[name]) / max(np.trace(extra), 1e-30)
        moments[name] = (1 - RANDOM_SHARE) * moments[name] + RANDOM_SHARE * scale * extra
    by_weight: Moments = {}
    for name, matrix in products:  # the matrices of a shared layer are multiplied with several inputs
        by_weight[matrix] = by_weight.get(matrix, 0) + moments[name]
    return by_weight


def quantize_with_feedback(weight: ndarray, moments: ndarray) -> tuple[ndarray, ndarray]:
    """W (K, N) and E[x xᵀ] (K, K) -> values (N, K) int8 and scales (N, ⌈K / 32⌉) float16, as
    `quantize_groups(W.T)`."""
    inputs, outputs = weight.shape
    rest = weight.astype(np.float64)  # with the errors of the inputs that are rounded already
    values = np.zeros(weight.shape, np.int8)
    scales = []
    factor = _factor(moments.astype(np.float64))
    for start in range(0, inputs, GROUP):
        end = min(start + GROUP, inputs)
        groups = np.ascontiguousarray(rest[start:end].T, np.float32)  # or sums are rounded in another order
        scale = best_scale(in_groups(groups))[:, 0, 0]
        scales.append(scale.astype(np.float16))
        errors = np.zeros((end - start, outputs))
        for k in range(start, end):
            values[k] = rounded(rest[k], scale)
            error = (rest[k] - values[k] * scale) / factor[k, k]
            rest[k + 1 : end] -= np.outer(factor[k, k + 1 : end], error)
            errors[k - start] = error
        rest[end:] -= factor[start:end, end:].T @ errors
    return np.ascontiguousarray(values.T), np.stack(scales, 1)


def _factor(moments: ndarray) -> ndarray:
    """The upper triangle U with Uᵀ·U = (E[x xᵀ] + damping)⁻¹."""
    variance = max(float(np.trace(moments)) / len(moments), 1e-30)
    inverse = np.linalg.inv(moments + DAMPING * variance * np.eye(len(moments)))
    return np.ascontiguousarray(np.linalg.cholesky((inverse + inverse.T) / 2).T)


def _moments(model: ModelProto, names: Sequence[str], ids: TokenIds) -> Moments:
    """E[x xᵀ] of the values of those names over all tokens, or over all texts where a value has one row a
    text."""
    sums = Moments()
    rows = dict.fromkeys(names, 0)
    for values in activations(model, names, ids):
        for name, x in values.items():
            sums[name] = sums.get(name, 0) + x.T @ x
            rows[name] += len(x)
    return {name: total / np.float32(max(rows[name], 1)) for name, total in sums.items()}


def check_range(array: ndarray, name: str) -> None:
    """Raise CheckFailed where the scales of an array, its largest number over 8, leave the float16 that
    stores them."""
    largest = float(np.abs(array).max(initial=0))
    if not (largest == 0 or LEAST <= largest <= MOST):
        raise CheckFailed(
            f"the largest number of {name} is {largest:.3g}, and the float16 scales of w4 reach from "
            f"{LEAST:.0e} to {MOST:,.0f}; try --precision w8"
        )


def quantize_groups(array: ndarray) -> tuple[ndarray, ndarray]:
    """(…, n) -> int8 (…, n) of values −8 … 7, and the scale of each group along the last axis (…, ⌈n / 32⌉)
    float16.

    The scale of a group is the one of least squared error among 30: the largest number may sit at −8 or be
    clipped, and the sign is free, since there is one more negative value than positive ones.
    """
    groups = in_groups(array.astype(np.float32))
    scale = best_scale(groups)
    values = rounded(groups, scale)
    return values.reshape(*array.shape[:-1], -1)[..., : array.shape[-1]], scale[..., 0].astype(np.float16)


def in_groups(array: ndarray) -> ndarray:
    """(…, n) -> (…, ⌈n / 32⌉, 32), filled with zeros."""
    rest = -array.shape[-1] % GROUP
    padded = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, rest)])
    return padded.reshape(*array.shape[:-1], -1, GROUP)


def best_scale(groups: ndarray) -> ndarray:
    """(…, 32) -> (…, 1) float32 that float16 holds exactly: the scale of least squared error among the
    candidates."""
    extreme = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)
    best = np.full_like(extreme, SMALLEST_SCALE)
    least = np.full(extreme.shape, np.inf, np.float32)
    for limit in (LOWEST, HIGHEST):  # the group's extreme at −8 (the scale has the other sign) or at 7
        for factor in FACTORS:
            scale = _float16(extreme * (factor / limit))
            error = ((rounded(groups, scale) * scale - groups) ** 2).sum(-1, keepdims=True)
            better = error < least
            best = np.where(better, scale, best)
            least = np.where(better, error, least)
    return best


def rounded(groups: ndarray, scale: ndarray) -> ndarray:
    """The nearest values of 4 bits, int8."""
    return np.clip(np.rint(groups / scale), LOWEST, HIGHEST).astype(np.int8)


def packed(values: ndarray, zero: int = 0) -> ndarray:
    """(…, n) int8 -> uint8 (…, ⌈n / 2⌉): the first of each two in the lower 4 bits. `zero` is added to each
    value."""
    bits = (values + zero).astype(np.uint8) & 15
    bits = np.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, bits.shape[-1] % 2)])
    return bits[..., 0::2] | (bits[..., 1::2] << 4)


def _room(steps: ndarray) -> ndarray:
    """Scales that float16 holds, and larger by more than it rounds: no weight leaves its 8 bits."""
    half = np.minimum(steps * (1 + 2.0**-9), LARGEST).astype(np.float16)
    return np.where(half < steps, np.nextafter(half, np.float16(np.inf)), half).astype(np.float32)


def _float16(scale: ndarray) -> ndarray:
    """Rounded to float16, never zero."""
    half = np.clip(scale, -LARGEST, LARGEST).astype(np.float16).astype(np.float32)
    return np.where(half == 0, np.float32(SMALLEST_SCALE), half)
