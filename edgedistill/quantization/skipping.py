"""Converting a graph except for some of its weights: those stay what they are, whatever the precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx
from onnx import helper

SUFFIX = "_skipped"

Converter = Callable[[onnx.ModelProto], onnx.ModelProto]


def convert_except(convert: Converter, model: onnx.ModelProto, skip: Iterable[str] = ()) -> onnx.ModelProto:
    """`convert(model)`, with the constants named in `skip` and the nodes that read them left as they are.

    Converters look for constants, so these are hidden behind an Identity while a converter runs. An LSTM has
    two matrices and is converted
    whole or not at all: naming one is enough. Raises KeyError for a name that is no constant of the graph.
    """
    names = set(skip)
    return _revealed(convert(_hidden(model, names))) if names else convert(model)


def is_skipped(node: onnx.NodeProto) -> bool:
    """Whether a node is such an Identity; a converter that changes constants wherever they are read has to
    leave it alone."""
    return node.op_type == "Identity" and node.output[0].endswith(SUFFIX)


def _hidden(model: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    """A copy whose nodes read these constants through an Identity."""
    if unknown := names - {constant.name for constant in model.graph.initializer}:
        raise KeyError(f"no constants of this graph: {', '.join(sorted(unknown))}")
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for node in copied.graph.node:
        if node.op_type == "LSTM" and names & set(node.input[1:3]):
            names = names | set(node.input[1:3])
    for node in copied.graph.node:
        node.input[:] = [name + SUFFIX if name in names else name for name in node.input]
    identities = [
        helper.make_node("Identity", [name], [name + SUFFIX], name=name + SUFFIX) for name in sorted(names)
    ]
    nodes = [*identities, *copied.graph.node]
    del copied.graph.node[:]
    copied.graph.node.extend(nodes)
    return copied


def _revealed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph without these Identities, in place."""
    nodes = [node for node in model.graph.node if not is_skipped(node)]
    for node in nodes:
        node.input[:] = [name.removesuffix(SUFFIX) for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model
