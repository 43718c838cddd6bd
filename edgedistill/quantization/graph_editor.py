"""Replacing nodes of a graph: what every quantization does."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from edgedistill.quantization.graph_facts import is_product

MICROSOFT = "com.microsoft"


class GraphEditor:
    """A copy of a graph whose nodes are being replaced; `finish` drops constants that are no longer used."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = copy.deepcopy(model)
        self.constants = {constant.name: constant for constant in self.model.graph.initializer}

    def array(self, name: str) -> np.ndarray | None:
        """The values of a float constant; None for anything else."""
        constant = self.constants.get(name)
        return (
            None
            if constant is None or constant.data_type != TensorProto.FLOAT
            else numpy_helper.to_array(constant)
        )

    def is_product(self, node: onnx.NodeProto) -> bool:
        """Whether a node multiplies by a constant matrix."""
        return is_product(node, self.constants)

    def constant(self, array: np.ndarray, name: str) -> str:
        """Write a constant; returns its name, another than this where the graph has other values under it.

        Writers number their constants, width_24, and quantizers name theirs after sizes.
        """
        new = numpy_helper.from_array(array, name)
        while self.constants.setdefault(new.name, new) != new:
            new.name += "_"
        return new.name

    def replace(self, name: str, array: np.ndarray) -> None:
        """Give a constant other values."""
        self.constants[name] = numpy_helper.from_array(array, name)

    def rewrite(self, rule: Callable[[GraphEditor, onnx.NodeProto], list[onnx.NodeProto] | None]) -> None:
        """Replace each node by the nodes that the rule returns; None keeps it."""
        nodes = []
        for node in self.model.graph.node:
            new = rule(self, node)
            nodes += [node] if new is None else new
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes)

    def finish(self) -> onnx.ModelProto:
        """The graph without nodes and constants that nothing reads."""
        graph = self.model.graph
        wanted, kept = {output.name for output in graph.output}, []
        for node in reversed(graph.node):
            if wanted & set(node.output):
                wanted |= set(node.input)
                kept.append(node)
        del graph.node[:]
        graph.node.extend(reversed(kept))
        used = {name for node in graph.node for name in node.input}
        del graph.initializer[:]
        graph.initializer.extend(constant for name, constant in self.constants.items() if name in used)
        return self.model


def check_count(model: onnx.ModelProto, op: str, expected: int) -> None:
    """Raise RuntimeError where nodes were not quantized: quantizers silently skip what they do not
    recognize."""
    found = sum(node.op_type == op for node in model.graph.node)
    if found != expected:
        raise RuntimeError(f"{expected} nodes should have become {op}, {found} did")
