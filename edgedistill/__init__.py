"""Distil a sentence encoder, export it as an ONNX bundle, measure it, and run it.

    import edgedistill

    encoder = edgedistill.load("nano")                            # a Bundle
    embeddings = encoder.encode(["A text.", "Another one."])      # (2, 384) float32, rows of unit length
    edgedistill.similarity(embeddings, encoder.encode("A text"))  # (2, 1) cosines

`load` opens a bundle, `Bundle` is what it returns, `shipped` lists those that ship, `similarity` compares
embeddings, `search` finds the nearest, `UserError` (something you can fix) and `CheckFailed` (a file was
changed) are what they raise. They need numpy, tokenizers and onnxruntime, which are imported on first use.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgedistill.errors import CheckFailed, UserError
    from edgedistill.runtime.bundle import Bundle, load
    from edgedistill.runtime.bundle_location import shipped
    from edgedistill.runtime.similarity import search, similarity

# onnxruntime reads it when it is first imported, which every module here does after this line.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_ROOMS = {  # public name: where it is
    **dict.fromkeys(("CheckFailed", "UserError"), "errors"),
    **dict.fromkeys(("Bundle", "load"), "runtime.bundle"),
    **dict.fromkeys(("search", "similarity"), "runtime.similarity"),
    "shipped": "runtime.bundle_location",
}
__all__ = ["load", "Bundle", "similarity", "search", "shipped", "UserError", "CheckFailed"]  # noqa: RUF022 (as in API.md)


def __dir__() -> list[str]:
    return ["__version__", *__all__]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import edgedistill` takes milliseconds."""
    if name in _ROOMS:
        return getattr(import_module(f"edgedistill.{_ROOMS[name]}"), name)
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("edgedistill")
        except metadata.PackageNotFoundError:
            return "source"  # a checkout that was not installed
    raise AttributeError(f"module 'edgedistill' has no attribute {name!r}; it has {', '.join(__all__)}")
