"""`fp16`: weights in float16, and products, attention and activation functions computed in it; for GPUs and
phones.

Inputs and outputs stay what they are, float32 embeddings. Norms, pooling, unit length and LSTMs are computed
in float32, since sums of squares and of tokens may leave float16, which ends at 65,504. So is any other node
whose values come within a quarter of that on sample texts. A CPU without float16 kernels casts back and
forth, and computes in float32 where two casts meet: choose another precision there. What the graph gives
where all of it is rounded to float16, `simulated` shows.

onnxruntime's own converter gives the same for ordinary weights (cosine .9999997), but rounds what passes
between two nodes that stay in float32, and multiplies weights below float16's start without a word.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from numpy import ndarray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from edgedistill.quantization.eight_bits import SMALLEST
from edgedistill.quantization.graph_editor import Converter, GraphEditor, is_product, new_node
from edgedistill.quantization.sample_texts import TokenIds, values_of

LARGEST = 65504.0
SMALLEST_NORMAL = 2.0**-14  # numbers below are zero on devices that flush denormals
HEADROOM = 4.0  # over what was measured: other texts come, and sums pass through larger values
LEAST_KEPT = 2.0**-8  # of a weight's norm may be lost: eight times what rounding to 11 bits takes
ACTIVATIONS = ("Relu", "Gelu", "Tanh", "Sigmoid", "Erf", "Softmax")
ELEMENTWISE = ("Add", "Sub", "Mul", *ACTIVATIONS, "Where", "Identity")
MOVING = ("Split", "Reshape", "Transpose", "Concat", "Squeeze", "Unsqueeze", "Slice", "Gather", "Expand")
# where all that they read is float16; anything else is float32
IN_FLOAT16 = ("MatMul", *ELEMENTWISE, *MOVING)

Largest = dict[str, float]  # the largest absolute value of each float32 value, by its name


def converter(model: ModelProto, samples: TokenIds) -> Converter:
    """The graph -> the graph in float16, with activations measured on token ids of texts; without them only
    weights decide what stays float32."""
    largest = measure(model, samples)
    return lambda graph: _Float16(graph, largest).convert()


def measure(model: ModelProto, samples: TokenIds) -> Largest:
    """The largest absolute values on the samples; empty without them."""
    if not len(samples):
        return {}
    watched = ModelProto()
    watched.CopyFrom(model)
    largest = dict.fromkeys(sorted(_values_of_type(model, TensorProto.FLOAT)), 0.0)
    for name in largest:
        watched.graph.node.append(new_node("Abs", [name], f"absolute {name}"))
        watched.graph.node.append(new_node("ReduceMax", [f"absolute {name}"], f"largest {name}", keepdims=0))
    for _, values in values_of(watched, [f"largest {name}" for name in largest], samples):
        for name, before in largest.items():
            largest[name] = float(np.maximum(before, values[f"largest {name}"]))  # keeps NaN
    return largest


def simulated(model: ModelProto) -> ModelProto:
    """A converted graph in float32 whose every float16 value is rounded to float16, as a device with float16
    kernels computes it.

    Sums inside a product are exact, weights below 6.1e-5 are zero. A CPU's own casts cancel where two meet;
    these do not.
    """
    half = _values_of_type(model, TensorProto.FLOAT16)
    editor = GraphEditor(model)
    del editor.model.graph.value_info[:]
    for name, constant in editor.constants.items():
        if constant.data_type == TensorProto.FLOAT16:
            editor.replace(name, flushed(numpy_helper.to_array(constant)))

    def rounded(editor: GraphEditor, node: NodeProto) -> list[NodeProto]:
        nodes = [node]
        if node.op_type == "Cast" and node.output[0] in half:
            node.attribute[0].i = TensorProto.FLOAT
        for at, name in enumerate(node.output):
            if name in half:
                node.output[at] = exact = f"{name}_exact"
                nodes.append(new_node("Cast", [exact], f"{name}_rounded", to=TensorProto.FLOAT16))
                restored = f"{name}_restored"
                nodes.append(new_node("Cast", [f"{name}_rounded"], name, restored, to=TensorProto.FLOAT))
        return nodes

    editor.rewrite(rounded)
    return editor.finish()


def flushed(array: ndarray) -> ndarray:
    """float32 -> the nearest numbers of float16, those below its smallest normal number zero; float32
    again."""
    half = array.astype(np.float16).astype(np.float32)
    return np.where(np.abs(half) < SMALLEST_NORMAL, np.float32(0), half)


def holds(array: ndarray, axis: int | None = None) -> bool:
    """Whether float16 holds the numbers of an array: none is beyond its end, and few of those that matter are
    below its start.

    With an axis, each row along it matters by itself; otherwise only the whole array does.
    """
    largest = float(np.abs(array).max(initial=0))
    if not 0 < largest <= LARGEST:
        return largest == 0
    scaled = array / largest  # the squares of small numbers are zero
    lost = scaled - flushed(array) / np.float32(largest)
    return bool((np.linalg.norm(lost, axis=axis) <= LEAST_KEPT * np.linalg.norm(scaled, axis=axis)).all())


class _Float16:
    """A graph on its way to float16, node by node; `half` holds the values that are float16 by now."""

    def __init__(self, model: ModelProto, largest: Largest) -> None:
        self.editor = GraphEditor(model)
        # float32, but for constants: inputs, where a conversion skips constants, and what nodes compute
        self.floats = _of_type(model.graph.input, TensorProto.FLOAT)
        self.floats |= _values_of_type(model, TensorProto.FLOAT)
        self.largest = largest
        self.half: set[str] = set()
        self.outputs = {output.name for output in model.graph.output}
        self.nodes: list[NodeProto] = []  # that take the place of the node at hand
        self.casts: set[str] = set()

    def convert(self) -> ModelProto:
        self.editor.rewrite(self._rewrite)
        return self.editor.finish()

    def _rewrite(self, editor: GraphEditor, node: NodeProto) -> list[NodeProto]:
        self.nodes = []
        if self._is_half(node):
            self._add_half(node)
        else:
            node.input[:] = [self._as_float(name) for name in node.input]
            self.nodes.append(node)
        return self.nodes

    def _is_half(self, node: NodeProto) -> bool:
        """A product with a matrix, a lookup in a table, the mask, or a node that reads nothing but float16;
        float16 must hold what it handles."""
        if node.op_type == "Cast" and node.input[0].startswith("attention_mask"):
            return node.output[0] in self.floats  # 0 and 1
        constants = [name for name in node.input if self.editor.array(name) is not None]
        computed = [name for name in node.input if name in self.floats]
        handled = [*constants, *computed, *node.output]
        if node.op_type not in IN_FLOAT16 or not constants + computed or not all(map(self._fits, handled)):
            return False
        if is_product(node, self.editor.constants):
            return True
        return self.half.issuperset(computed) and bool(computed or node.op_type in MOVING)

    def _fits(self, name: str) -> bool:
        array = self.editor.array(name)
        if array is None:
            return self.largest.get(name, 0.0) * HEADROOM <= LARGEST
        if array.ndim > 1:
            return holds(array)
        return bool(np.abs(array).max(initial=0) <= LARGEST)  # a small bias is lost in its sum anyway

    def _add_half(self, node: NodeProto) -> None:
        node.input[:] = [self._as_half(name) for name in node.input]
        if node.op_type == "Cast":
            node.attribute[0].i = TensorProto.FLOAT16
        self.nodes.append(node)
        outputs = self.outputs & self.floats
        self.half |= self.floats.intersection(node.output) - outputs
        for at, name in enumerate(node.output):
            if name in outputs:
                node.output[at] = half = f"{name}_half"
                self.nodes.append(new_node("Cast", [half], name, f"{name}_cast", to=TensorProto.FLOAT))

    def _as_half(self, name: str) -> str:
        array = self.editor.array(name)
        if array is not None:
            return self._constant(name, array)
        if name in self.half or name not in self.floats:
            return name
        return self._cast(name, f"{name}_half", TensorProto.FLOAT16)

    def _as_float(self, name: str) -> str:
        """Large constants of float32 nodes are stored in float16 too; onnxruntime folds their Cast when the
        graph is opened.

        Not those with rows of small numbers: they may be multiplied by the values that keep the node in
            float32.
        """
        array = self.editor.array(name)
        if array is not None and array.size >= SMALLEST and holds(array, axis=-1):
            return self._cast(self._constant(name, array), f"{name}_float", TensorProto.FLOAT)
        return self._cast(name, f"{name}_float", TensorProto.FLOAT) if name in self.half else name

    def _constant(self, name: str, array: ndarray) -> str:
        return self.editor.constant(array.astype(np.float16), f"{name}_fp16")

    def _cast(self, name: str, out: str, to: int) -> str:
        if out not in self.casts:
            self.casts.add(out)
            self.nodes.append(new_node("Cast", [name], out, to=to))
        return out


def _values_of_type(model: ModelProto, kind: int) -> set[str]:
    """The names of all values that nodes compute in a type of TensorProto."""
    computed = {name for node in model.graph.node for name in node.output}
    graph = onnx.shape_inference.infer_shapes(model).graph
    return computed & _of_type([*graph.value_info, *graph.output], kind)


def _of_type(values: Iterable[ValueInfoProto], kind: int) -> set[str]:
    return {value.name for value in values if value.type.tensor_type.elem_type == kind}
