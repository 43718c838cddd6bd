"""Open a graph in onnxruntime, and run a bundle's."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnxruntime
from numpy import ndarray

from edgedistill.errors import CheckFailed, UserError, first_line, unknown_name, user_error
from edgedistill.files import Json
from edgedistill.runtime.batching import one_by_one
from edgedistill.runtime.manifest import width
from edgedistill.runtime.trust import GET_AGAIN

DEVICES = ("cpu", "cuda")
RUN_OPTIONS = onnxruntime.RunOptions()
RUN_OPTIONS.only_execute_path_to_fetches = True  # not `last_hidden_state`, which other libraries ask for
SERVING = {"intra_op.allow_spinning": "0", "set_denormal_as_zero": "1"}  # no thread spins between two calls
UNIT = 0.01  # by how much the square of an embedding's length may differ from 1; float16 stays within 0.002


class BundleSession:
    """The graph of a bundle, which a stranger may have written: the one place where it is opened and run.

    Whatever onnxruntime raises, and any output but finite rows of the manifest's width, of unit length where
    they are embeddings, is a CheckFailed. Errors name the bundle's folder.
    """

    def __init__(self, folder: Path, manifest: Json, precision: str, threads: int, device: str) -> None:
        self._place = folder
        self._output = manifest["output"]
        self._device = device
        self._unit = not manifest.get("labels")
        self._width = width(manifest)
        self._tokens: int | None = manifest["max_tokens"] if manifest.get("shape") else None
        self._session: onnxruntime.InferenceSession | None
        try:
            self._session = open_session(folder / manifest["precisions"][precision]["file"], threads, device)
        except UserError:  # no CUDA
            raise
        except Exception as error:
            raise self._failure(error) from error

    def run(self, inputs: dict[str, ndarray]) -> ndarray:
        """(batch, width) float32, finite."""
        session = self._session  # another thread may close it meanwhile
        if session is None:
            raise UserError(f"{self._place}: closed; open it again with edgedistill.load")
        try:
            parts = one_by_one(inputs, self._tokens) if self._tokens else [inputs]
            outputs = [session.run([self._output], part, RUN_OPTIONS)[0] for part in parts]
            rows = np.concatenate(outputs) if self._tokens else outputs[0]
        except Exception as error:
            raise self._failure(error) from error
        shape = (len(inputs["input_ids"]), self._width)
        if not isinstance(rows, ndarray) or rows.shape != shape or rows.dtype != np.float32:
            returned = f"{rows.dtype} {rows.shape}" if isinstance(rows, ndarray) else type(rows).__name__
            raise self._wrong(f"{returned} where float32 {shape} is right")
        if not np.isfinite(rows).all():
            raise self._wrong("a number that is not finite")
        # zero: of a text whose tokens cancel out, as in sentence-transformers
        squares = np.einsum("nd,nd->n", rows, rows).tolist()  # a batch has few rows
        if self._unit and not all(abs(square - 1) <= UNIT or square == 0 for square in squares):
            raise self._wrong("an embedding that is not of unit length")
        return rows

    def close(self) -> None:
        """Let go of the graph and its memory; a later run raises UserError."""
        self._session = None

    def _wrong(self, returned: str) -> CheckFailed:
        return CheckFailed(f"{self._place}: its graph returns {returned}; {GET_AGAIN}")

    def _failure(self, error: Exception) -> CheckFailed | UserError:
        """onnxruntime's own errors are of many classes, and it passes on others, as for want of memory."""
        if known := user_error(error, str(self._place)):
            return known
        way_out = "copy the bundle again"
        if self._device != "cpu":
            way_out = f"take another precision, or device cpu in place of {self._device}"
        return CheckFailed(f"{self._place}: onnxruntime fails on its graph ({first_line(error)}); {way_out}")


_opened: weakref.WeakSet[onnxruntime.InferenceSession] = weakref.WeakSet()


def _end_without_joining() -> None:
    """Let this forked process end where it calls exit: onnxruntime's destructors would wait for threads that
    only its parent has.

    So no session is destroyed here, nor what the C library would destroy at exit: it calls what was
    registered last first, which flushes the buffers and then ends the process with its status.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = (
        "false"  # where it is on, tokenizers waits for threads of its parent too
    )
    for session in _opened:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
    process = ctypes.CDLL(None)
    if hasattr(process, "on_exit"):  # glibc; elsewhere such a destructor does not wait
        process.on_exit(process._exit, None)
        process.__cxa_atexit(process.fflush, None, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_without_joining)


def open_session(graph: Path | bytes, threads: int, device: str) -> onnxruntime.InferenceSession:
    """Open a graph, its path or its bytes, on cpu, cuda or another provider of this onnxruntime. Operators
    that it has no kernel for run on the processor.

    Raises UserError as `check_device`, and where CUDA does not start: onnxruntime would go on without it, on
    the processor alone. Its fallback to the processor in the middle of a run is off for the same reason.
    """
    check_device(device)
    if device == "cpu":
        session = open_in_memory(graph, threads, SERVING)
        _opened.add(session)
        return session
    provider = offered()[device]
    missing = ""
    if device == "cuda":  # from pip's nvidia packages, which no other path leads to
        with contextlib.redirect_stdout(io.StringIO()) as printed:  # stdout is for results
            onnxruntime.preload_dlls()
        failed = [line for line in printed.getvalue().splitlines() if line.startswith("Failed")]
        missing = first_line(failed[0]) if failed else ""
    try:
        session = onnxruntime.InferenceSession(
            graph,
            _options(threads, SERVING),
            providers=[provider, "CPUExecutionProvider"],
            enable_fallback=0,
        )
    except Exception as error:  # of many classes
        raise _not_started(device, first_line(error)) from error
    if provider not in session.get_providers():
        raise _not_started(device, missing)
    return session


def _not_started(device: str, reason: str) -> UserError:
    fact = f"onnxruntime did not start{f' ({reason})' if reason else ''}"
    if device != "cuda":
        return UserError(f"device={device}: {fact}; use device cpu")
    return UserError(
        f"device=cuda: {fact}; it needs an NVIDIA GPU with its driver, CUDA and cuDNN; "
        'pip install "onnxruntime-gpu[cuda,cudnn]" brings the last two, or use device cpu'
    )


def offered() -> dict[str, str]:
    """The devices that this onnxruntime was built for, by their names here, such as cpu, cuda or openvino."""
    names = [name for name in onnxruntime.get_available_providers() if not name.startswith("Azure")]
    return {name.removesuffix("ExecutionProvider").lower(): name for name in names}


def check_device(device: str) -> None:
    """Raises UserError for a device that this onnxruntime was not built for."""
    if device in offered() or device == "cpu":
        return
    if device != "cuda":
        raise UserError(f"device={device}: {unknown_name('device', device, {*DEVICES, *offered()})}")
    providers = onnxruntime.get_available_providers()
    raise UserError(
        f"device=cuda: onnxruntime here offers "
        f"{', '.join(name.removesuffix('ExecutionProvider') for name in providers)}; pip uninstall "
        'onnxruntime, then pip install "onnxruntime-gpu[cuda,cudnn]"; or use device cpu'
    )


def open_in_memory(
    model: Path | bytes, threads: int = 1, settings: Mapping[str, str] = MappingProxyType({})
) -> onnxruntime.InferenceSession:
    """Open a graph, its bytes or its path, on cpu with onnxruntime's defaults but for `settings`, to measure
    and to compare with.

    With 0 threads onnxruntime chooses their number. The session keeps denormal numbers: whether they become
    zero is decided by a process's first session, for torch and numpy too.
    """
    return onnxruntime.InferenceSession(
        model, _options(threads, settings), providers=["CPUExecutionProvider"]
    )


def _options(threads: int, settings: Mapping[str, str]) -> onnxruntime.SessionOptions:
    """The options of a session. Its arena keeps the memory of the largest batch, which a batch's tokens
    bound."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    for name, value in settings.items():
        options.add_session_config_entry(f"session.{name}", value)
    return options
