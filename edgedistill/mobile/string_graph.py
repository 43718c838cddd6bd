"""Graphs with the string operators of onnxruntime-extensions: building one node by node, and running one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto

from edgedistill.runtime.onnx_session import open_in_memory
from edgedistill.students.graph_writer import MICROSOFT, GraphWriter

EXTENSIONS = "ai.onnx.contrib"  # the domain of onnxruntime-extensions


class NoSuchGraph(Exception):
    """A tokenizer, or a part of it, for which there are no operators; the message is the fact."""


class StringGraph(GraphWriter):
    """Nodes and constants of a graph of string operators; every method adds a node and returns the name of
    its output."""

    def __init__(self) -> None:
        super().__init__(first=1_000_000)  # far from the names of the graph that it is joined with

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A node of ONNX's own operators."""
        return self.add(operator, *inputs, **attributes)

    def strings(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A node of onnxruntime-extensions' operators."""
        return self.add(operator, *inputs, domain=EXTENSIONS, **attributes)

    def where(self, mask: str) -> str:
        """The places (k) where a mask (n) is true."""
        return self("Reshape", self("NonZero", mask), self.integers([-1]))

    def count(self, mask: str) -> str:
        """At each place of a mask (n), how many are true up to there."""
        return self("CumSum", self("Cast", mask, to=TensorProto.INT64), self.integers(0))

    def integers(self, values: Any) -> str:
        """An int64 constant."""
        return self.constant(np.array(values, np.int64), "integers")

    def text(self, value: str) -> str:
        """A constant: one string, of shape (1)."""
        return self.constant(strings([value]), "text")

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
        return self.add("Tokenizer", text, domain=MICROSOFT, mark=0, mincharnum=1, pad_value="", **how)

    def split_and_join(self, text: str, between: str, **how: Any) -> str:
        """Split each text (n) and join its parts again, with another text between them: (n)."""
        return self.strings("StringJoin", self.split(text, **how), self.text(between), self.integers([1]))


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
