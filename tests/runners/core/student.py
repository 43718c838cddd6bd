"""The core as Python calls it: compiled once for each command, and opened by ctypes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
CORE = ROOT / "export" / "core"
WARNINGS = ["-Wall", "-Wextra", "-pedantic"]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
FUNCTIONS = {
    "ed_open": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_char_p)]),
    "ed_close": (None, [ctypes.c_void_p]),
    "ed_size": (ctypes.c_size_t, [ctypes.c_void_p]),
    "ed_max_tokens": (ctypes.c_size_t, [ctypes.c_void_p]),
    "ed_dims": (ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_size_t]),
    "ed_label": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]),
    "ed_tokenize": (
        ctypes.c_char_p,
        [*[ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]]
        + [ctypes.POINTER(ctypes.c_size_t)],
    ),
    "ed_embed": (
        ctypes.c_char_p,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p],
    ),
    "ed_check": (ctypes.c_char_p, [ctypes.c_void_p] + [ctypes.POINTER(ctypes.c_double)] * 2),
    "ed_cut": (None, [ctypes.c_void_p, ctypes.c_size_t]),
    "ed_int8": (None, [*[ctypes.c_void_p] * 2, ctypes.c_size_t, ctypes.c_void_p]),
    "ed_bits": (None, [*[ctypes.c_void_p] * 2, ctypes.c_size_t, ctypes.c_void_p]),
    "ed_instructions": (ctypes.c_char_p, []),
}


class CoreError(Exception):
    """What the core says is wrong."""


def run(*command: object, stdin: str = "") -> str:
    """The output of a command that succeeds."""
    done = subprocess.run(list(map(str, command)), input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


def library(folder: Path) -> Any:
    """The core as a shared library, compiled without a warning."""
    path = folder / "core.so"
    options = ["-std=c99", "-O2", *WARNINGS, "-shared", "-fPIC"]
    assert run(COMPILER, *options, CORE / "edgedistill.c", "-o", path, "-lm") == ""
    opened = ctypes.CDLL(str(path))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(opened, name)
        function.restype, function.argtypes = result, arguments
    return opened


class CoreStudent:
    """A student of the core."""

    def __init__(self, core: Any, data: bytes):
        self.core, self._data = core, np.frombuffer(data, np.uint8).copy()
        error = ctypes.c_char_p()
        self._student = core.ed_open(self._data.ctypes.data, len(data), ctypes.byref(error))
        if not self._student:
            raise CoreError((error.value or b"").decode())
        self.size, self.max_tokens = core.ed_size(self._student), core.ed_max_tokens(self._student)

    def compact(self, row: np.ndarray, precision: str) -> np.ndarray:
        bits = precision == "binary"
        found = np.zeros(len(row) // 8, np.uint8) if bits else np.zeros(len(row), np.int8)
        call = self.core.ed_bits if bits else self.core.ed_int8
        call(self._student, row.ctypes.data, len(row), found.ctypes.data)
        return found

    def close(self):
        self.core.ed_close(self._student)

    def tokenize(self, text: str | bytes, role: int = 0) -> list[int]:
        data = text if isinstance(text, bytes) else text.encode()
        ids, count = np.zeros(self.max_tokens, np.uint32), ctypes.c_size_t()
        arguments = (data, len(data), role, ids.ctypes.data, ctypes.byref(count))
        _raised(self.core.ed_tokenize(self._student, *arguments))
        return [int(each) for each in ids[: count.value]]

    def embed(self, texts: Sequence[str | bytes], role: int = 0) -> np.ndarray:
        rows = np.zeros((len(texts), self.size), np.float32)
        for row, text in zip(rows, texts, strict=True):
            data = text if isinstance(text, bytes) else text.encode()
            _raised(self.core.ed_embed(self._student, data, len(data), role, row.ctypes.data))
        return rows

    @property
    def labels(self) -> list[str]:
        found, size = [], ctypes.c_size_t()
        while place := self.core.ed_label(self._student, len(found), ctypes.byref(size)):
            found.append(ctypes.string_at(place, size.value).decode())
        return found

    @property
    def dims(self) -> list[int]:
        found: list[int] = []
        while size := self.core.ed_dims(self._student, len(found)):
            found.append(size)
        return found

    def check(self) -> tuple[float, float]:
        """The lowest cosine of a golden text, and what the file asks for."""
        worst, least = ctypes.c_double(), ctypes.c_double()
        _raised(self.core.ed_check(self._student, ctypes.byref(worst), ctypes.byref(least)))
        return worst.value, least.value


def _raised(error: bytes | None):
    if error is not None:
        raise CoreError(error.decode())
