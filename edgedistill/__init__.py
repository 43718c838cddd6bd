"""edgedistill: distil a sentence encoder, export it, measure it, run it.

`edgedistill.load("bundles/x").encode(texts)` needs numpy, tokenizers and onnxruntime; they are imported when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgedistill.runtime.bundle import load

__all__ = ["load"]


def __dir__() -> list[str]:
    return ["__version__", *__all__]


def __getattr__(name: str) -> Any:
    if name == "load":
        from edgedistill.runtime.bundle import load

        return load
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("edgedistill")
        except metadata.PackageNotFoundError:
            return "source"  # a checkout that was not installed
    raise AttributeError(f"module 'edgedistill' has no attribute {name!r}")
