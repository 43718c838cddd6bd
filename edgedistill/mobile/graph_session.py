"""Run a graph that needs onnxruntime-extensions, of a file or in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime

from edgedistill.runtime.onnx_session import open_in_memory


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
