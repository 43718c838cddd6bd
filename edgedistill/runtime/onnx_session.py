"""Open a graph in onnxruntime."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import onnxruntime

from edgedistill.errors import UserError, first_line, unknown_name

DEVICES = ("cpu", "cuda")
RUN_OPTIONS = onnxruntime.RunOptions()
RUN_OPTIONS.only_execute_path_to_fetches = True  # not `last_hidden_state`, which other libraries ask for


def open_session(graph: Path | bytes, threads: int, device: str) -> onnxruntime.InferenceSession:
    """A session for a graph, a file or its bytes, on cpu or cuda. Operators without a CUDA kernel run on the processor.

    Raises UserError as `check_device`, and where CUDA does not start: onnxruntime would go on without it, on the processor alone.
    Its fallback to the processor in the middle of a run is off for the same reason.
    """
    check_device(device)
    if device == "cpu":
        return onnxruntime.InferenceSession(graph, _options(threads), providers=["CPUExecutionProvider"])
    missing = _preload_cuda()
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    try:
        session = onnxruntime.InferenceSession(graph, _options(threads), providers=providers, enable_fallback=0)
    except Exception as error:  # of many classes
        raise _no_cuda(f" ({first_line(error)})") from error
    if "CUDAExecutionProvider" not in session.get_providers():
        raise _no_cuda(f" ({first_line(missing)})" if missing else "")
    return session


def _preload_cuda() -> str:
    """Load CUDA's libraries from pip's nvidia packages, which no other path leads to. Returns the first failure that onnxruntime prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:  # stdout is for results
        onnxruntime.preload_dlls()
    return next((line for line in printed.getvalue().splitlines() if line.startswith("Failed")), "")


def _no_cuda(because: str) -> UserError:
    needs = "it needs an NVIDIA GPU with its driver, CUDA and cuDNN"
    way_out = "pip install 'onnxruntime-gpu[cuda,cudnn]' brings the last two, or use device cpu"
    return UserError(f"device cuda: onnxruntime did not start{because}; {needs}; {way_out}")


def check_device(device: str) -> None:
    """Raises UserError for a device other than cpu and cuda, and for cuda where this onnxruntime was not built for it."""
    if device not in DEVICES:
        raise UserError(f"device: {unknown_name('device', device, DEVICES)}")
    offered = onnxruntime.get_available_providers()
    if device == "cuda" and "CUDAExecutionProvider" not in offered:
        short = ", ".join(name.removesuffix("ExecutionProvider") for name in offered)
        way_out = "pip uninstall onnxruntime, then pip install 'onnxruntime-gpu[cuda,cudnn]'; or use device cpu"
        raise UserError(f"device cuda: onnxruntime here offers {short}; {way_out}")


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
