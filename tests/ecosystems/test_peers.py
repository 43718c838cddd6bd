"""bench/peers: one harness asks every library alike, failures are rows, and the table shows who leads."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedistill.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "bench" / "peers"
LIBRARY = """
import numpy as np
from harness import Opened, Task

def make_good(task: Task) -> dict[str, int]:
    print("what a library prints is no answer")
    task.folder.mkdir(parents=True, exist_ok=True)
    (task.folder / "weights").write_bytes(b"1234")
    return {"texts": 3}

def embed(texts: list[str], sign: float = 1.0) -> np.ndarray:
    print("nor this")
    longest = max(map(len, texts))  # as int8 does that is quantized by the batch: others of it matter
    return np.array([[sign * len(text), 1.0, longest / 100] for text in texts])

def open_good(task: Task) -> Opened:
    return Opened("numpy", embed, [task.folder / "weights"], 4, lambda texts: embed(texts, -1.0))

def open_bad(task: Task) -> Opened:
    raise ValueError("no model\\nof that name")
"""


@pytest.fixture(scope="module")
def run() -> Any:
    """bench/peers/run.py as a module."""
    sys.path.insert(0, str(PEERS))
    spec = importlib.util.spec_from_file_location("peers_run", PEERS / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(PEERS))
    return module


@pytest.fixture
def bench(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bench of two peers of a library of three lines, in this environment."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "tiny_library.py").write_text(LIBRARY, encoding="utf-8")
    (tmp_path / "harness.py").write_text((PEERS / "harness.py").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(run, "HARNESS", tmp_path / "harness.py")
    peers = {
        name: run.Peer("student", environment, "tiny_library", variant, "by hand")
        for name, environment, variant in (
            (run.BASELINE, run.OURS, "good"),
            ("bad", run.OURS, "bad"),
            ("nowhere", "no-such-environment", "good"),
        )
    }
    monkeypatch.setattr(run, "PEERS", peers)
    monkeypatch.setenv("EDGEDISTILL_ENVIRONMENTS", str(tmp_path / "environments"))
    monkeypatch.setattr(run.Bench, "task", lambda self, name: task(self, name, tmp_path))
    monkeypatch.setattr(run.Bench, "sample", lambda self: ["a", "bb", "c" * 90])
    monkeypatch.setattr(run.Bench, "sentences", lambda self, count: ["a", "bb", "ccc"] * 4)
    monkeypatch.setattr(run, "SUITES", {"sts7": "mini"})
    return run.Bench(argparse.Namespace(work=tmp_path / "work", data=None, minutes=0.1, threads=1))


def task(bench: Any, name: str, folder: Path) -> dict[str, Any]:
    """The task of a tiny peer; no teacher is looked for."""
    paths = dict.fromkeys(("teacher", "bundle", "texts", "documents"), str(folder))
    return {"folder": str(bench.folder(name)), **paths, "minutes": bench.minutes, "threads": 1}


def test_a_peer_is_made_once_and_measured_in_its_own_process(run: Any, bench: Any):
    found = run.row(bench, run.BASELINE, [])
    assert found["made"]["texts"] == 3 and found["size_bytes"] == 4 and found["parameters"] == 4
    assert found["version"] == f"numpy {np.__version__}" and found["dims"] == 3
    alone, beside = np.array([1, 1, 0.01]), np.array([1, 1, 0.9])
    cosine = alone @ beside / np.linalg.norm(alone) / np.linalg.norm(beside)
    assert found["drift"] == pytest.approx(1 - cosine, abs=1e-6)
    assert abs(found["quality"]["sts7"]) < 0.5  # lengths say little of meaning, but they are not zeros
    (bench.folder(run.BASELINE) / "weights").write_bytes(b"12")
    assert run.row(bench, run.BASELINE, [])["size_bytes"] == 2  # not made again
    same = run.row(bench, run.BASELINE, [{**found, "name": "other"}])
    assert "same_as" not in same  # the other has no sample here


def test_what_fails_is_a_row_with_its_error_in_a_line(run: Any, bench: Any):
    (bench.environments / "no-such-environment").mkdir(parents=True, exist_ok=True)
    log = bench.environments / "no-such-environment" / "install.log"
    log.write_text("WARNING: x\nERROR: no matching distribution\n\n[notice] y\n", encoding="utf-8")
    assert run.row(bench, "bad", [])["error"] == "ValueError: no model"
    assert run.row(bench, "nowhere", [])["error"] == (
        "no environment no-such-environment: ERROR: no matching distribution"
    )


def test_rounds_compare_with_the_baseline_of_the_same_round(run: Any):
    rounds = [
        {
            run.BASELINE: {"p50_ms": slow * 4.0, "texts_s": 100 / slow, "peak_rss_bytes": 5},
            "fast": {"p50_ms": slow * 1.0, "texts_s": 300 / slow, "peak_rss_bytes": 7},
        }
        for slow in (1, 3, 2)  # the machine's own changes are in both
    ]
    found = run.summary(rounds)["fast"]
    assert found["times_as_fast"] == {"single": 4.0, "batch": 3.0}
    assert (found["p50_ms"], found["texts_s"], found["peak_rss_bytes"]) == (2.0, 150.0, 7)


def test_an_unknown_peer_is_refused_by_name(run: Any):
    with pytest.raises(UserError, match="no peer 'model2vek'; did you mean 'model2vec'"):
        run.asked(argparse.Namespace(only=["model2vek"], again=[]))


def test_every_peer_has_its_functions_and_its_environment(run: Any):
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name, peer in run.PEERS.items():
        source = (PEERS / "libraries" / f"{peer.library}.py").read_text(encoding="utf-8")
        assert f"open_{peer.variant}" in source, name
        assert peer.ours or f"$(ENVIRONMENTS)/{peer.environment}/installed: PACKAGES" in made, name
