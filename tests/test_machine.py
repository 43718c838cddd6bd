"""How many processors a process may use."""

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
