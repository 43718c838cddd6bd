"""What is known of a graph's values before it runs: which are constants, of what shape, and which are
floating point.

It answers two questions about a stranger's nodes. What does onnxruntime compute while it opens the graph,
from constants alone: layout, casts and arithmetic of bounded size, which is all that exports leave to it. Can
a division of integers be by 0, or the smallest by −1: the processor stops a process for either.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from edgedistill.runtime.trust import GET_AGAIN

FLOATS = {1, 10, 11, 16}  # of TensorProto.DataType
MOST_FOLDED = (
    2**30
)  # elements computed while the graph is opened; a table of 250,000 rows of 1,024 twice is half of it
MOST_BATCH_DIMS = 8
MOST_STEP = 4_096  # of a convolution: its kernel, stride, dilation, padding
SAME = set("Cast Identity Neg Abs DequantizeLinear CastLike".split())  # the shape of the first input
BROADCAST = set("Add Sub Mul Div Mod BitShift BitwiseAnd BitwiseOr BitwiseXor".split())
LAYOUT = set(
    "Concat Flatten Reshape Slice Split Squeeze Transpose Unsqueeze Shape Size".split()
)  # no more elements than the inputs have
FLOAT_RESULTS = set(  # whatever the first input is
    "DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul EmbedLayerNormalization GatherBlockQuantized "
    "MatMulIntegerToFloat".split()
)
OTHER_RESULTS = set(  # not floating point, though the first input may be
    "And ArgMax ArgMin DynamicQuantizeLinear Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual "
    "MatMulInteger NonZero Not Or "
    "QLinearMatMul QuantizeLinear Shape Size Xor".split()
)
ALL_RESULTS = {
    "DynamicQuantizeLSTM",
    "GRU",
    "LSTM",
    "Split",
}  # whose other outputs are of the first one's type
SAME_IDS = set("Cast Flatten Identity Mul Reshape Squeeze Transpose Unsqueeze".split())
TYPE_OF_INPUT = {"CastLike": 1, "Where": 1}  # the input whose type the result has, where it is not the first
IDS = ("input_ids", "input_ids_2")


class Tensor(NamedTuple):
    """A constant. `element` is a TensorProto.DataType; `integers` holds the elements where these are few
    integers."""

    element: int
    dims: list[int]
    integers: list[int] | None


NOTHING = Tensor(0, [], None)


class Node(NamedTuple):
    """A node. Each attribute has its fields by their names, and as `tensor` the Tensor that it holds."""

    kind: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, dict[str, Any]]

    def integer(self, name: str, default: int = 0) -> int:
        """An attribute that is an integer. A negative one is read as a huge one."""
        return int(self.attributes.get(name, {}).get("i", default))

    def integers(self, name: str, default: list[int]) -> list[int]:
        """An attribute that holds integers."""
        return list(self.attributes.get(name, {}).get("ints", default))


class GraphValues:
    """Takes the nodes of a graph in order. `rows` counts those of the smallest table in which token ids are
    looked up; it is None where there is none.

    A value that no node before gives counts as a constant: nodes out of order hide nothing.
    """

    def __init__(self, constants: dict[str, Tensor], inputs: list[str]) -> None:
        self.tensors = constants
        self.rows: int | None = None
        self._dynamic, self._ids = set(inputs), set(inputs) & set(IDS)
        self._floats = {name for name, tensor in constants.items() if tensor.element in FLOATS}
        self._shapes = {name: tuple(tensor.dims) for name, tensor in constants.items()}
        self._folded = 0

    def problems(self, node: Node) -> Iterator[str]:
        """What is wrong with the next node; its outputs are known afterwards."""
        divides = node.kind in ("Div", "Mod") and self._floats.isdisjoint(node.inputs[:2])
        if divides and not self._is_safe_divisor(node):
            yield (
                f"{node.kind} of integers by what is not a constant other than 0 and -1, which can end the "
                f"process; {GET_AGAIN}"
            )
        if node.integer("batch_dims") > MOST_BATCH_DIMS:
            yield f"{node.kind} with batch_dims that no tensor has, which can end the process; {GET_AGAIN}"
        if node.kind == "Conv" and not self._is_convolution(node):
            yield (
                f"Conv without a constant kernel, or with sizes that are not between 1 and {MOST_STEP}, "
                f"which may never end; {GET_AGAIN}"
            )
        if node.kind == "Constant":
            self._constant(node)
        elif self._dynamic.isdisjoint(node.inputs):
            yield from self._fold(node)
        else:
            self._dynamic.update(node.outputs)
            self._look_up(node)
        if self._is_float(node):
            self._floats.update(node.outputs if node.kind in ALL_RESULTS else node.outputs[:1])

    def _input(self, node: Node, at: int) -> Tensor | None:
        """The constant that is an input of a node; None where that is computed, or is not there."""
        return self.tensors.get(node.inputs[at]) if len(node.inputs) > at else None

    def _is_safe_divisor(self, node: Node) -> bool:
        divisor = self._input(node, 1)
        return divisor is not None and bool(divisor.integers) and not {0, -1} & set(divisor.integers or ())

    def _is_convolution(self, node: Node) -> bool:
        """Whether a Conv has sizes that onnxruntime computes with: with a kernel of no elements it does not
        end."""
        kernel = self._input(node, 1)
        if kernel is None or len(kernel.dims) < 3 or kernel.dims[1] == 0:
            return False
        axes = len(kernel.dims) - 2
        steps = {"kernel_shape": axes, "strides": axes, "dilations": axes, "pads": 2 * axes}
        sizes = {name: node.integers(name, [1] * count) for name, count in steps.items()}
        if any(len(sizes[name]) != count for name, count in steps.items()):
            return False
        padding = sizes.pop("pads")  # the only ones that may be 0
        others = [size for each in (kernel.dims[2:], *sizes.values()) for size in each]
        is_bounded = min(others) > 0 and max(others + padding) <= MOST_STEP
        return is_bounded and 0 < node.integer("group", 1) <= kernel.dims[0]

    def _is_float(self, node: Node) -> bool:
        """Whether a node's first output is known to be floating point."""
        if node.kind == "Cast":
            return node.integer("to") in FLOATS
        if node.kind in ("Constant", "ConstantOfShape"):
            for name, field in node.attributes.items():
                if "tensor" in field or name.startswith("value_int"):
                    return "tensor" in field and field["tensor"].element in FLOATS
            return True
        at = TYPE_OF_INPUT.get(node.kind, 0)
        is_like_input = node.kind not in OTHER_RESULTS and not self._floats.isdisjoint(
            node.inputs[at : at + 1]
        )
        return node.kind in FLOAT_RESULTS or is_like_input

    def _constant(self, node: Node) -> None:
        for field in node.attributes.values():
            tensor, count = field.get("tensor"), max(1, len(field.get("ints", ())))
            for name in node.outputs:
                self._shapes[name] = (-count,) if tensor is None else tuple(tensor.dims)
                if tensor is not None:
                    self.tensors[name] = tensor

    def _fold(self, node: Node) -> Iterator[str]:
        """Follow a node of constants, which onnxruntime computes when it opens the graph."""
        shape = self._folded_shape(node, [self._shapes.get(name) for name in node.inputs if name])
        if shape is None:
            yield f"{node.kind} of constants alone, which exports compute before; {GET_AGAIN}"
            return
        self._folded += abs(prod(shape))
        if self._folded > MOST_FOLDED:
            yield (
                f"more than {MOST_FOLDED} elements to compute from constants while it is opened; {GET_AGAIN}"
            )
        self._shapes.update(dict.fromkeys(node.outputs, shape))

    def _folded_shape(self, node: Node, inputs: list[tuple[int, ...] | None]) -> tuple[int, ...] | None:
        """The shape of what a node computes from constants, None where that is not bounded. A negative shape
        is only a count."""
        shapes = [shape for shape in inputs if shape is not None]
        if not shapes or len(shapes) < len(inputs):
            return None
        if node.kind == "ConstantOfShape":
            sizes = self.tensors.get(node.inputs[0], NOTHING).integers
            return tuple(sizes) if sizes is not None and min(sizes, default=0) >= 0 else None
        if node.kind in SAME:
            return shapes[0]
        counts = [abs(prod(shape)) for shape in shapes]
        if node.kind in LAYOUT:
            return (-sum(counts),)
        if node.kind not in BROADCAST:
            return None
        if any(size < 0 for shape in shapes for size in shape):
            return (-prod(counts),)
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            return None

    def _look_up(self, node: Node) -> None:
        if node.kind in SAME_IDS and node.inputs[0] in self._ids:
            self._ids.update(node.outputs)
        table = self._input(node, 0) if node.kind in ("Gather", "GatherBlockQuantized") else None
        by_rows = not node.integer("axis") and not node.integer("gather_axis")
        if table is not None and table.dims and by_rows and self._ids & set(node.inputs[1:2]):
            self.rows = min(table.dims[0], self.rows or table.dims[0])
