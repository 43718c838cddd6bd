"""`fp16`: weights in float16, and products, attention and activation functions computed in it; for GPUs and phones.

Inputs and outputs stay what they are, float32 embeddings. Norms, softmax outside of attention, pooling, unit length and LSTMs are computed
in float32, since sums of squares and of tokens may leave float16, which ends at 65,504. A CPU without float16 kernels gets the same
results, but casts back and forth: choose another precision there.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from edgedistill.errors import UserError
from edgedistill.quantization.embedding_tables import SMALLEST
from edgedistill.quantization.graph_editor import GraphEditor
from edgedistill.quantization.skipping import is_skipped

LARGEST = 65504.0
ATTENTION = ("MultiHeadAttention", "Attention")
ELEMENTWISE = ("Add", "Sub", "Mul", "Relu", "Gelu", "BiasGelu", "FastGelu", "QuickGelu", "Tanh", "Sigmoid", "Erf", "Where", "Identity")
MOVING = ("Split", "Reshape", "Transpose", "Concat", "Squeeze", "Unsqueeze", "Slice", "Gather", "Expand")
IN_FLOAT16 = ("MatMul", *ATTENTION, *ELEMENTWISE, *MOVING)  # where all that they read is float16; anything else is float32


def convert(model: onnx.ModelProto) -> onnx.ModelProto:
    """Raises UserError for a weight that float16 cannot hold. Weights below 6e-8 become 0."""
    return _Float16(model).convert()


class _Float16:
    """A graph on its way to float16, node by node; `half` holds the values that are float16 by now."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.editor = GraphEditor(model)
        self.floats = _float_values(model)
        self.half: set[str] = set()
        self.nodes: list[onnx.NodeProto] = []
        self.casts: set[str] = set()

    def convert(self) -> onnx.ModelProto:
        graph = self.editor.model.graph
        outputs = {output.name for output in graph.output}
        for node in graph.node:
            if is_skipped(node):
                self.nodes.append(node)
            elif self._is_half(node):
                self._add_half(node, outputs)
            else:
                node.input[:] = [self._as_float(name) for name in node.input]
                self.nodes.append(node)
        del graph.node[:]
        graph.node.extend(self.nodes)
        return self.editor.finish()

    def _is_half(self, node: onnx.NodeProto) -> bool:
        """A product with a matrix, a lookup in a table, or a node that reads nothing but float16."""
        read = [name for name in node.input if name in self.floats]
        constants = [name for name in read if self.editor.array(name) is not None]
        computed = [name for name in read if name not in constants]
        if node.op_type not in IN_FLOAT16 or not read:
            return False
        if self.editor.is_product(node):
            return True
        if node.op_type in ATTENTION:
            return all(name in self.half for name in computed[:1])
        return all(name in self.half for name in computed) and bool(computed or node.op_type in MOVING)

    def _add_half(self, node: onnx.NodeProto, outputs: set[str]) -> None:
        node.input[:] = [self._as_half(name) for name in node.input]
        self.nodes.append(node)
        for at, name in enumerate(node.output):
            if name not in self.floats:
                continue
            if name in outputs:
                node.output[at] = f"{name}_half"
                self.nodes.append(helper.make_node("Cast", [f"{name}_half"], [name], name=f"{name}_cast", to=TensorProto.FLOAT))
            else:
                self.half.add(name)

    def _as_half(self, name: str) -> str:
        array = self.editor.array(name)
        if array is not None:
            return self._constant(name, array)
        return name if name in self.half or name not in self.floats else self._cast(name, f"{name}_half", TensorProto.FLOAT16)

    def _as_float(self, name: str) -> str:
        """Large constants of float32 nodes are stored in float16 too; onnxruntime folds their Cast when the graph is opened."""
        array = self.editor.array(name)
        if array is not None and array.size >= SMALLEST:
            return self._cast(self._constant(name, array), f"{name}_float", TensorProto.FLOAT)
        return self._cast(name, f"{name}_float", TensorProto.FLOAT) if name in self.half else name

    def _constant(self, name: str, array: np.ndarray) -> str:
        largest = float(np.abs(array).max(initial=0))
        if not largest <= LARGEST:
            raise UserError(f"--precision fp16: {name} holds {largest:.3g}, float16 ends at 65,504; leave fp16 out, or try w8")
        return self.editor.constant(array.astype(np.float16), f"{name}_fp16")

    def _cast(self, name: str, out: str, to: int) -> str:
        if out not in self.casts:
            self.casts.add(out)
            self.nodes.append(helper.make_node("Cast", [name], [out], name=out, to=to))
        return out


def _float_values(model: onnx.ModelProto) -> set[str]:
    """The names of all float32 values; onnxruntime infers the types, those of its own operators too."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    names = {name for node in model.graph.node for name in node.output if name}
    del watched.graph.output[:]
    watched.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in sorted(names))
    options = ort.SessionOptions()
    options.log_severity_level, options.graph_optimization_level = 3, ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(watched.SerializeToString(), options, providers=["CPUExecutionProvider"])
    constants = {constant.name for constant in model.graph.initializer if constant.data_type == TensorProto.FLOAT}
    return constants | {value.name for value in session.get_outputs() if value.type == "tensor(float)"}
