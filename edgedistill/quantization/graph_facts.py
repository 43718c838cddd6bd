"""What can be told of a graph from its nodes alone: who writes a value, who reads it, how many dimensions it has."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

SAME_SHAPE = ("Add", "Mul", "Gelu", "FastGelu", "BiasGelu", "QuickGelu", "Relu", "Tanh", "LayerNormalization", "MatMul", "Cast")


def is_product(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether a node multiplies by a constant matrix, which is what precisions quantize."""
    return node.op_type == "MatMul" and node.input[1] in constants and len(constants[node.input[1]].dims) == 2


class GraphFacts:
    """An fp32 graph, looked at before it is rewritten."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.constants = {constant.name: constant for constant in model.graph.initializer}
        self.outputs = {output.name for output in model.graph.output}
        self.products = [node for node in model.graph.node if is_product(node, self.constants)]
        self._writers = {name: node for node in model.graph.node for name in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)

    def is_matrix(self, name: str) -> bool:
        return name in self.constants and len(self.constants[name].dims) == 2

    def writer(self, name: str) -> onnx.NodeProto | None:
        """The node that computes a value, reshaping left out; None for inputs and constants."""
        node = self._writers.get(name)
        return self.writer(node.input[0]) if node is not None and node.op_type == "Reshape" else node

    def reader(self, name: str) -> onnx.NodeProto | None:
        """The node that reads a value, where there is only one and the value is no output."""
        readers = self._readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def bias(self, product: onnx.NodeProto) -> tuple[onnx.NodeProto, str] | None:
        """The Add that alone reads a product, and the constant (N,) that it adds."""
        add = self.reader(product.output[0])
        if add is None or add.op_type != "Add":
            return None
        other = next((name for name in add.input if name != product.output[0]), "")
        return (add, other) if other in self.constants and len(self.constants[other].dims) == 1 else None

    def rank(self, name: str) -> int | None:
        """The number of dimensions of a value; None where it cannot be told."""
        if name in ("input_ids", "attention_mask"):
            return 2
        if name in self.constants:
            return len(self.constants[name].dims)
        node = self._writers.get(name)
        if node is None:
            return None
        if node.op_type == "Reshape":
            shape = self.constants.get(node.input[1])
            writer = self._writers.get(node.input[1])
            if shape is None:  # (batch, sequence) of the input, and a width
                return 3 if writer is not None and writer.op_type == "Concat" else None
            return int(shape.dims[0])
        if node.op_type == "MultiHeadAttention":
            return 3
        if node.op_type == "Gather" and not any(a.name == "axis" and a.i for a in node.attribute):
            ranks = [self.rank(each) for each in node.input[:2]]
            return None if None in ranks else sum(rank for rank in ranks if rank is not None) - 1
        if node.op_type in ("Add", "Mul"):
            ranks = [self.rank(each) for each in node.input]
            return None if None in ranks else max(rank for rank in ranks if rank is not None)
        return self.rank(node.input[0]) if node.op_type in SAME_SHAPE else None

    def rows_of(self, name: str) -> str:
        """The value furthest up the graph that surely has as many rows (of its last dimension) as this one."""
        node = self._writers.get(name)
        if node is None or node.op_type not in ("Reshape", "MultiHeadAttention", *SAME_SHAPE):
            return name
        inputs = [each for each in node.input[:2] if each not in self.constants]
        if len(inputs) > 1 and node.op_type in ("Add", "Mul"):  # they broadcast: only a product is known to have all rows
            inputs = [each for each in inputs if self._writers.get(each) in self.products]
        return self.rows_of(inputs[0]) if inputs else name
