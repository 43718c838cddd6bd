"""Open a graph in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import onnxruntime

from edgedistill.errors import UserError, unknown_name

RUN_OPTIONS = onnxruntime.RunOptions()
RUN_OPTIONS.only_execute_path_to_fetches = True  # not `last_hidden_state`, which other libraries ask for


def open_session(graph: Path | bytes, threads: int, device: str) -> onnxruntime.InferenceSession:
    """A session for a graph, a file or its bytes, on cpu or cuda.

    Raises UserError for another device, and for cuda where onnxruntime does not support it.
    """
    return onnxruntime.InferenceSession(graph, _options(threads), providers=_providers(device))


def open_in_memory(model: bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    """A session on cpu with onnxruntime's defaults, to measure and to compare with.

    It keeps denormal numbers: whether they become zero is decided by a process's first session, for torch and numpy too.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _options(threads: int) -> onnxruntime.SessionOptions:
    """No thread spins between two calls. The arena keeps the memory of the largest batch, which a batch's tokens bound."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return options


def _providers(device: str) -> list[str]:
    if device == "cpu":
        return ["CPUExecutionProvider"]
    if device != "cuda":
        raise UserError(f"device: {unknown_name('device', device, ('cpu', 'cuda'))}")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise UserError("device cuda: this onnxruntime does not support CUDA; pip install onnxruntime-gpu, or use device cpu")
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]
