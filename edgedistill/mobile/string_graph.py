"""Graphs with the string operators of onnxruntime-extensions: building one node by node, and running one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from edgedistill.runtime.onnx_session import open_in_memory

EXTENSIONS = "ai.onnx.contrib"  # the domain of onnxruntime-extensions


class NoSuchGraph(Exception):
    """A tokenizer, or a part of it, for which there are no operators; the message is the fact."""


class StringGraph:
    """Nodes and constants of a graph that is being built; every method adds a node and returns the name of
    its output.

    Names start with `tokenizer/`, so that the graph can be joined with another.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def node(
        self, operator: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node and return the names of all its outputs."""
        name = f"tokenizer/{len(self.nodes)}_{operator}"
        names = [name if at == 0 else f"{name}_{at}" for at in range(outputs)]
        self.nodes.append(
            helper.make_node(operator, list(inputs), names, name=name, domain=domain, **attributes)
        )
        return names

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A node of ONNX's own operators."""
        return self.node(operator, *inputs, **attributes)[0]

    def strings(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A node of onnxruntime-extensions' operators."""
        return self.node(operator, *inputs, outputs=outputs, domain=EXTENSIONS, **attributes)[0]

    def where(self, mask: str) -> str:
        """The places (k) where a mask (n) is true."""
        return self("Reshape", self("NonZero", mask), self.integers([-1]))

    def count(self, mask: str) -> str:
        """At each place of a mask (n), how many are true up to there."""
        return self("CumSum", self("Cast", mask, to=TensorProto.INT64), self.integers(0))

    def integers(self, values: Any) -> str:
        """An int64 constant."""
        array = np.array(values, np.int64)
        return self._constant(numpy_helper.from_array(array), f"{list(array.shape)}{array.ravel().tolist()}")

    def text(self, value: str) -> str:
        """A constant: one string, of shape (1)."""
        return self._constant(helper.make_tensor("", TensorProto.STRING, [1], [value.encode()]), value)

    def replace(self, text: str, pattern: str, by: str) -> str:
        """Replace every match of an RE2 pattern; `by` may refer to groups, `\\1`. The pattern is compiled in
        every run."""
        return self.strings("StringRegexReplace", text, self.text(pattern), self.text(by))

    def split(self, text: str, **how: Any) -> str:
        """The parts of each text (n): (n, parts). `separators` are patterns of what is left out, `tokenexp`
        is the pattern of a part.

        Unlike those of `replace`, these patterns are compiled once. They may match U+0000, where all other
        operators end a text.
        """
        return self.node(
            "Tokenizer", text, domain="com.microsoft", mark=0, mincharnum=1, pad_value="", **how
        )[0]

    def split_and_join(self, text: str, between: str, **how: Any) -> str:
        """Split each text (n) and join its parts again, with another text between them: (n)."""
        return self.strings("StringJoin", self.split(text, **how), self.text(between), self.integers([1]))

    def output(self, name: str, value: str) -> None:
        """Offer a value under a name of the graph."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name=f"tokenizer/{name}"))

    def _constant(self, tensor: onnx.TensorProto, key: str) -> str:
        if key not in self.constants:
            tensor.name = f"tokenizer/constant_{len(self.constants)}"
            self.constants[key] = tensor
        return self.constants[key].name


def open_session(graph: Path | bytes) -> onnxruntime.InferenceSession:
    """A session on cpu that knows the operators of onnxruntime-extensions."""
    return open_in_memory(graph if isinstance(graph, bytes) else str(graph), 0, library=extensions_library())


def extensions_library() -> str:
    """The path of onnxruntime-extensions' shared library."""
    import onnxruntime_extensions

    return str(onnxruntime_extensions.get_library_path())


def strings(texts: list[str]) -> np.ndarray:
    """Texts as a graph takes them, (n)."""
    return np.array(texts, object)
