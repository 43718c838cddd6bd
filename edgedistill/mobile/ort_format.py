"""ONNX graphs in the ORT format, and the operators that a reduced build of onnxruntime needs for them."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edgedistill.mobile.graph_session import extensions_library
from edgedistill.mobile.string_graph import EXTENSIONS

CONFIG = "required_operators.config"


def convert(models: list[Path], folder: Path) -> list[Path]:
    """Write each X.onnx as X.ort into the folder, and CONFIG with their operators and types. Returns the
    paths of the .ort files.

    Optimized for every CPU alike: onnxruntime's layout for x86 is left out, as onnxruntime's own converter
        does.
    """
    from onnxruntime.tools import convert_onnx_models_to_ort as converter

    with (
        tempfile.TemporaryDirectory() as temporary,
        contextlib.redirect_stdout(io.StringIO()),
        _quiet("ort_format_model.utils"),
    ):
        source, target = Path(temporary) / "onnx", Path(temporary) / "ort"
        source.mkdir()
        for model in models:
            (source / model.name).write_bytes(model.read_bytes())
        converter.convert_onnx_models_to_ort(
            source,
            target,
            [converter.OptimizationStyle.Fixed],
            Path(extensions_library()),
            "arm",
            enable_type_reduction=True,
        )
        for path in target.glob("*.ort"):
            (folder / path.name).write_bytes(path.read_bytes())
        _write_config(
            (target / "required_operators_and_types.config").read_text(encoding="utf-8"),
            models,
            folder / CONFIG,
        )
    return [folder / model.with_suffix(".ort").name for model in models]


def _write_config(text: str, models: list[Path], path: Path) -> None:
    """The converter's file without its paths, and without the operators that onnxruntime-extensions brings
    itself."""
    kept = [line for line in text.splitlines() if line and not line.startswith(("#", EXTENSIONS))]
    names = ", ".join(model.with_suffix(".ort").name for model in models)
    path.write_text(
        "\n".join([f"# What {names} need: build.sh --include_ops_by_config {CONFIG} …", *kept, ""]),
        encoding="utf-8",
    )


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
