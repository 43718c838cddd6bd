"""A graph's nodes: what can be told of them, replacing them, and what every conversion is checked for."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import onnx
from numpy import ndarray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Converter = Callable[[ModelProto], ModelProto]

MICROSOFT = "com.microsoft"
MOVING = ("Reshape", "Transpose")


def is_product(node: NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether a node multiplies by a constant matrix, which is what precisions quantize."""
    return node.op_type == "MatMul" and node.input[1] in constants and len(constants[node.input[1]].dims) == 2


class Bias(NamedTuple):
    """The names of a constant that is added to a product, and of the sum."""

    constant: str
    sum: str


class GraphFacts:
    """An fp32 graph, looked at before it is rewritten; its products but for those with weights to `skip`."""

    def __init__(self, model: ModelProto, skip: Collection[str] = ()) -> None:
        self.constants = {constant.name: constant for constant in model.graph.initializer}
        self.outputs = {output.name for output in model.graph.output}
        products = [node for node in model.graph.node if is_product(node, self.constants)]
        self.products = [node for node in products if node.input[1] not in skip]
        self._writers = {name: node for node in model.graph.node for name in node.output}
        self._readers = defaultdict[str, list[NodeProto]](list)
        for node in model.graph.node:
            for name in node.input:
                self._readers[name].append(node)

    def writer(self, name: str) -> NodeProto | None:
        """The node that computes a value, moving its numbers left out; None for inputs and constants."""
        node = self._writers.get(name)
        while node is not None and node.op_type in MOVING:
            node = self._writers.get(node.input[0])
        return node

    def reader(self, name: str) -> NodeProto | None:
        """The node that reads a value, where there is only one and the value is no output."""
        readers = self._readers[name]
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def bias(self, product: NodeProto) -> Bias | None:
        """The bias (N,) that is added to a product, where nothing else reads the product."""
        add = self.reader(product.output[0])
        if add is None or add.op_type != "Add":
            return None
        other = next((name for name in add.input if name != product.output[0]), "")
        is_bias = other in self.constants and len(self.constants[other].dims) == 1
        return Bias(other, add.output[0]) if is_bias else None


class GraphEditor:
    """A copy of a graph whose nodes are being replaced; `finish` drops constants that are no longer used."""

    def __init__(self, model: ModelProto) -> None:
        self.model = copy.deepcopy(model)
        self.constants = {constant.name: constant for constant in self.model.graph.initializer}

    def array(self, name: str) -> ndarray | None:
        """The values of a float constant; None for anything else."""
        constant = self.constants.get(name)
        if constant is None or constant.data_type != TensorProto.FLOAT:
            return None
        return numpy_helper.to_array(constant)

    def weight(self, node: NodeProto) -> ndarray | None:
        """The constant matrix (K, N) that a node multiplies by; None for anything else."""
        return self.array(node.input[1]) if is_product(node, self.constants) else None

    def constant(self, array: ndarray, name: str) -> str:
        """Write a constant; returns its name, another than this where the graph has other values under it.

        Writers number their constants, width_24, and quantizers name theirs after sizes.
        """
        new = numpy_helper.from_array(array, name)
        while self.constants.setdefault(new.name, new) != new:
            new.name += "_"
        return new.name

    def replace(self, name: str, array: ndarray) -> None:
        """Give a constant other values."""
        self.constants[name] = numpy_helper.from_array(array, name)

    def rewrite(self, rule: Callable[[GraphEditor, NodeProto], list[NodeProto] | None]) -> None:
        """Replace each node by the nodes that the rule returns; None keeps it."""
        nodes = []
        for node in self.model.graph.node:
            new = rule(self, node)
            nodes += [node] if new is None else new
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes)

    def finish(self) -> ModelProto:
        """The graph without nodes and constants that nothing reads."""
        graph = self.model.graph
        wanted = {output.name for output in graph.output}
        kept = []
        for node in reversed(graph.node):
            if wanted & set(node.output):
                wanted |= set(node.input)
                kept.append(node)
        del graph.node[:]
        graph.node.extend(reversed(kept))
        used = {name for node in graph.node for name in node.input}
        del graph.initializer[:]
        graph.initializer.extend(constant for name, constant in self.constants.items() if name in used)
        domains = {node.domain for node in kept} - {opset.domain for opset in self.model.opset_import}
        self.model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in sorted(domains))
        return self.model


def new_node(
    operator: str, inputs: list[str], output: str, name: str | None = None, **attributes: Any
) -> NodeProto:
    """A node of one output, by whose name it is called unless it has another."""
    return helper.make_node(operator, inputs, [output], name=name or output, **attributes)


def left_in_float32(fp32: ModelProto, quantized: ModelProto) -> tuple[list[str], float]:
    """The matrices that a conversion left in float32, and their share of the numbers in all matrices."""
    before, after = (
        {
            constant.name: math.prod(constant.dims)
            for constant in model.graph.initializer
            if constant.data_type == TensorProto.FLOAT and len(constant.dims) > 1
        }
        for model in (fp32, quantized)
    )
    left = [name for name in before if name in after]
    return left, sum(before[name] for name in left) / max(sum(before.values()), 1)
