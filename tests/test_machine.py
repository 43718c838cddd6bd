"""How many processors a process may use, and which GPU a report names."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedistill import machine


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
        ("4:cpu:/gone\n0::/\n", {"unified/cpu.max": "200000 100000\n"}, 2.0),
        ("4:cpu:/gone\n", {}, None),
    ],
)
def test_the_quota_of_control_groups(tmp_path, own: str, contents: dict[str, str], expected: float | None):
    groups = tree(tmp_path / "groups", contents)
    (tmp_path / "own").write_text(own)
    assert min(machine.quotas(groups, tmp_path / "own"), default=None) == expected
    all_of_them = machine.processors(tmp_path / "none", tmp_path / "none")
    found = machine.processors(groups, tmp_path / "own")
    assert found == (all_of_them if expected is None else max(1, min(all_of_them, int(expected))))


def nvidia_smi(folder: Path, monkeypatch, output: str, code: int = 0):
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{output}'\nexit {code}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_the_gpu_of_a_report(tmp_path, monkeypatch):
    l4, t4 = "NVIDIA L4, 23034 MiB, 570.86\\n", "NVIDIA T4, 15360 MiB, 570.86\\n"
    for listed in (l4, l4 + l4):
        nvidia_smi(tmp_path, monkeypatch, listed)
        assert machine.here("cuda")["gpu"] == {"name": "NVIDIA L4", "memory": "23034 MiB", "driver": "570.86"}
    assert "gpu" not in machine.here()
    nvidia_smi(tmp_path, monkeypatch, l4 + t4)
    assert machine.gpu() is None  # of two kinds, it is unknown which CUDA takes


@pytest.mark.parametrize(("output", "code"), [("", 0), ("No devices were found\\n", 0), ("", 6)])
def test_no_gpu_is_described_where_nvidia_smi_lists_none(output: str, code: int, tmp_path, monkeypatch):
    nvidia_smi(tmp_path, monkeypatch, output, code)
    assert machine.gpu() is None


def test_no_gpu_is_described_without_nvidia_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpu() is None
