"""What onnxruntime's own mobile tools make of ONNX graphs: the ORT format, the operators that a reduced build
needs, and a report of what NNAPI and CoreML could run."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from pathlib import Path

from edgedistill.mobile.string_graph import EXTENSIONS, extensions_library

CONFIG, USABILITY = "required_operators.config", "mobile_usability.txt"


def convert(models: list[Path], folder: Path) -> None:
    """Write each X.onnx as X.ort into the folder, and CONFIG with their operators and types.

    They are optimized for every CPU alike: onnxruntime's layout for x86 is left out, as onnxruntime's own
    converter does.
    """
    from onnxruntime.tools import convert_onnx_models_to_ort as converter

    logging.getLogger("ort_format_model.utils").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stdout(io.StringIO()):
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
        written = (target / "required_operators_and_types.config").read_text(encoding="utf-8")
    # without the converter's paths, and without the operators that onnxruntime-extensions brings itself
    kept = [line for line in written.splitlines() if line and not line.startswith(("#", EXTENSIONS))]
    names = ", ".join(model.with_suffix(".ort").name for model in models)
    head = f"# What {names} need: build.sh --include_ops_by_config {CONFIG} …"
    (folder / CONFIG).write_text("\n".join([head, *kept, ""]), encoding="utf-8")


def write_usability(graph: Path) -> None:
    """Write beside an ONNX graph which share of it NNAPI and CoreML could run, in how many partitions."""
    from onnxruntime.tools.mobile_helpers import usability_checker

    written = io.StringIO()
    logger = logging.Logger("mobile usability", logging.INFO)
    logger.addHandler(logging.StreamHandler(written))
    usability_checker.analyze_model(graph, logger=logger)
    text = written.getvalue().replace(str(graph), graph.name).strip() + "\n"
    graph.with_name(USABILITY).write_text(text, encoding="utf-8")
