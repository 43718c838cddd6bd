"""Run a graph that needs onnxruntime-extensions, of a file or in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime


def open_session(graph: Path | bytes) -> onnxruntime.InferenceSession:
    """A session on cpu that knows the operators of onnxruntime-extensions."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.register_custom_ops_library(extensions_library())
    return onnxruntime.InferenceSession(graph if isinstance(graph, bytes) else str(graph), options, providers=["CPUExecutionProvider"])


def extensions_library() -> str:
    """The path of onnxruntime-extensions' shared library."""
    import onnxruntime_extensions

    return str(onnxruntime_extensions.get_library_path())


def strings(texts: list[str]) -> np.ndarray:
    """Texts as a graph takes them, (n)."""
    return np.array(texts, object)
