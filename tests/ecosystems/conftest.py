"""Bundles of tiny students, and the real libraries that open them, each in an environment of its own
(bench/ecosystems.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ecosystems
import pytest

from edgedistill import files
from edgedistill.export import bundle_writer
from tests.export.test_export import make_run

ROOT = Path(__file__).resolve().parents[2]
STUDENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "headless": ("bert", {"head": None}),
    "linear": ("bert", {}),
    "tanh": ("bert", {"tanh": True}),
    "first": ("bert", {"pooling": "cls"}),
    "bilstm": ("bilstm", {}),
    "static": ("static", {}),
}
TIGHT = {
    "fp32": 0.99999,
    "w8": 0.999,
    "int8": 0.999,
}  # of tiny students: a wrong pooling or head gives below 0.9

Ask = Callable[[str, str], dict[str, dict[str, Any]]]


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of bundles, one of each of STUDENTS in three precisions."""
    folder = tmp_path_factory.mktemp("shelf")
    for name, (kind, shape) in STUDENTS.items():
        bundle_writer.export(
            make_run(folder / "runs" / name, kind, **shape), list(TIGHT), folder / name, lambda line: None
        )
    return folder


@pytest.fixture(scope="session")
def ask(shelf: Path) -> Ask:
    """(runner, student) -> {precision: its row of the report}; skips where the runner is not installed."""

    def measured(runner: str, student: str) -> dict[str, dict[str, Any]]:
        rows = ecosystems.measure(
            shelf / student, runner, ecosystems.RUNNERS[runner], ecosystems.Environments.found()
        )
        if "not_run" in rows[0]:
            pytest.skip(f"{runner}: {rows[0]['not_run']}")
        return {row["precision"]: row for row in rows}

    return measured


def assert_same(
    rows: dict[str, dict[str, Any]], measure: str = "cosine_min", precisions: list[str] | None = None
):
    """Every precision gives torch's embeddings of the golden texts."""
    assert list(rows) == (precisions or list(TIGHT))
    for precision, row in rows.items():
        assert "error" not in row, row["error"]
        assert row[measure] >= TIGHT[precision], row
        assert row["texts"] == 32


def read(folder: Path, name: str) -> Any:
    return files.read_json(folder / name)
