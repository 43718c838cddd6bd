"""Scripts of bench/, which measure what `edgedistill bench` does not: counts and tables."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ecosystems.conftest import ROOT


def script(name: str) -> Any:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


# other processors


def row(**values: Any) -> dict[str, Any]:
    return {"runner": "here", "kind": "nano", "precision": "int8", **values}


def test_a_processor_without_its_emulator_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx", reason="the students are exported with onnx")
    processors = script("processors")
    monkeypatch.setenv("PATH", str(tmp_path))
    for architecture, cpu, _ in processors.PROCESSORS.values():
        with pytest.raises(
            processors.CannotRun, match=f"no qemu-{architecture}-static; install qemu-user-static"
        ):
            processors.command(processors.Processor(architecture, cpu, ""), tmp_path / "root")
    (tmp_path / "qemu-aarch64-static").write_text("#!/bin/sh\n")
    (tmp_path / "qemu-aarch64-static").chmod(0o755)
    with pytest.raises(processors.CannotRun, match="no apt-get"):
        processors.command(processors.PROCESSORS["Cortex-A72"], tmp_path / "root")
    assert not (tmp_path / "root" / "installed").exists()


def test_the_table_of_processors_has_the_worst_cosine_and_the_reasons() -> None:
    rows = [
        row(cosine_min=0.997524, texts=32, below_threshold=0),
        row(runner="A72", cosine_min=0.9612, texts=32, below_threshold=3),
        row(runner="A72", kind="bert", precision="w8", error="exit code -4"),
        row(runner="N1", precision=None, not_run="no qemu"),
    ]
    report = {"processors": {"A72": "NEON", "N1": "dots"}, "machine": {"cpu": "EPYC"}, "rows": rows}
    text = script("measured_tables").processors(report)
    assert "| bundle | precision | EPYC | A72 |" in text
    assert "| `nano` | int8 | 0.99752 | 0.96120 |" in text and "| bert | w8 |  | fails |" in text
    assert "A72: NEON<br>3 of 32 embeddings are below what `verify` asks of their precision<br>" in text
    assert "N1 was not run: no qemu<br>A72, bert: exit code -4" in text


# tables


def test_the_tables_of_mteb_and_of_training() -> None:
    tables = script("measured_tables")
    task = {"main_score": 0.78123, "measure": "cosine_spearman"}
    rows = [{"bundle": "nano:int8", "tasks": {"STS12": task}}]
    rows += [{"bundle": "teacher:fp32", "tasks": {"STS12": {**task, "main_score": 2 * task["main_score"]}}}]
    text = tables.mteb({"mteb": "2.1", "rows": rows})
    assert "| nano:int8 | 78.1 (50.0%) |" in text and "mteb 2.1 · cosine_spearman" in text
    assert "| **teacher:fp32** | 156.2 |" in text
    shared = {"machine": {"cpu": "EPYC"}, "threads": 1, "made_at": "2026-11-27T08"}
    rates = {"sentence-transformers": 100.0, "int8": 484.0}
    train = {**shared, "batch": 256, "ratio": 6.1, "texts_s": {**rates, "edgedistill": 610.0}}
    text = tables.training(
        train, {**shared, "texts_s": rates, "ratio": {"sentence-transformers": 1, "int8": 4.84}}
    )
    assert "| edgedistill | 610 | 6.10 |" in text and "| edgedistill, int8 | 484 | 4.84 |" in text


def test_the_table_of_embeddings_in_fewer_bytes() -> None:
    scores = {"float32": (1536, {"sts7": 0.5, "SciFact": 0.25}), "binary": (48, {"SciFact": 0.125})}
    found = {name: {"bytes": size, "scores": each} for name, (size, each) in scores.items()}
    text = script("measured_tables").embedding_bytes({"rows": [{"bundle": "nano:int8", "embeddings": found}]})
    assert text.splitlines()[2] == "| `nano` | float32 | 1,536 | 50.0 | 25.0 |"
    assert text.splitlines()[3].startswith("|  | binary, the 100 nearest by Hamming distance")
    assert text.splitlines()[3].endswith(" | 48 |  | 12.5 |") and "<sub>" not in text
