"""How many processors a process may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedistill import machine
from edgedistill.evaluation import number_format


def tree(folder: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("own", "contents", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5),
        ("0::/a/b\n", {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "50000 100000\n"}, 0.5),
        (
            "5:memory:/x\n4:cpu,cpuacct:/d/x\n",
            {"cpu,cpuacct/d/x/cpu.cfs_quota_us": "75000", "cpu,cpuacct/d/x/cpu.cfs_period_us": "50000"},
            1.5,
        ),
        ("4:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, None),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ("4:cpu:/gone\n0::/\n", {}, None),
    ],
)
def test_the_quota_of_control_groups(tmp_path: Path, own: str, contents: dict[str, str], expected: float | None) -> None:
    groups = tree(tmp_path / "groups", contents)
    (tmp_path / "own").write_text(own)
    assert min(machine.quotas(groups, tmp_path / "own"), default=None) == expected
    all_of_them = machine.processors(tmp_path / "none", tmp_path / "none")
    found = machine.processors(groups, tmp_path / "own")
    assert found == (all_of_them if expected is None else max(1, min(all_of_them, int(expected))))


def test_the_gpu_of_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text('#!/bin/sh\n[ "$1" = --id=2 ] && echo "NVIDIA L4, 23034 MiB, 570.86"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert machine.here("cuda")["gpu"] == {"name": "NVIDIA L4", "memory": "23034 MiB", "driver": "570.86"}
    assert "gpu" not in machine.here()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")  # none of that number: exit code 1
    assert machine.gpu() is None
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert machine.gpu() is None


def test_the_gpu_is_named_in_the_conditions() -> None:
    report = {"device": "cuda", "machine": {"gpu": {"name": "NVIDIA L4"}, "cpu": "Xeon"}, "threads": 2, "made_at": "2026-01-02T00:00:00Z"}
    report["versions"] = {"onnxruntime": "1.30.0", "onnxruntime-gpu": "1.31.1"}
    assert number_format.conditions(report) == "NVIDIA L4 · Xeon · 2 threads · onnxruntime 1.31.1 · 2026-01-02"
    assert number_format.conditions({**report, "machine": {"gpu": None}}).startswith("cuda · 2 threads")
    alone = {**report, "device": "cpu", "versions": {"onnxruntime-gpu": "1.31.1"}}
    assert number_format.conditions(alone) == "Xeon · 2 threads · onnxruntime 1.31.1 · 2026-01-02"
    assert number_format.conditions({**report, "device": "cpu"}) == "Xeon · 2 threads · onnxruntime 1.30.0 · 2026-01-02"
