"""Ask pip's resolver whether every dependency of the base install has a wheel for the platforms that README
names.

python bench/platforms.py [--out bench/reports/platforms.json]

pip evaluates markers such as sys_platform on the system that it runs on: what one adds elsewhere (colorama on
Windows, by click) is asked for by name. documents.py writes the table into export/README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import measured_tables
import report_files

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "bench" / "reports" / "platforms.json"
MANYLINUX = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
PLATFORMS = {  # name: pip's tags, best first
    "Linux x86-64": [f"{tag}_x86_64" for tag in MANYLINUX],
    "Linux aarch64": [f"{tag}_aarch64" for tag in MANYLINUX],
    "Alpine (musl) x86-64": ["musllinux_1_2_x86_64", "musllinux_1_1_x86_64"],
    "Alpine (musl) aarch64": ["musllinux_1_2_aarch64", "musllinux_1_1_aarch64"],
    "macOS arm64": ["macosx_14_0_arm64"],
    "macOS x86-64": ["macosx_14_0_x86_64"],
    "Windows x86-64": ["win_amd64"],
    "Windows arm64": ["win_arm64"],
}
MARKED = {"Windows x86-64": ["colorama"], "Windows arm64": ["colorama"]}
PYTHONS = ("3.11", "3.14")


def asked(requirements: list[str], tags: list[str], python: str) -> dict[str, str] | None:
    """{package: version} that pip would install of wheels alone; None where there is no such set."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--only-binary=:all:", "--target=.", "--report=-", f"--python-version={python}"]
    command += [f"--platform={tag}" for tag in tags]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    items = [item["metadata"] for item in json.loads(done.stdout)["install"]]
    return {item["name"]: item["version"] for item in items}


def row(name: str, python: str, requirements: list[str]) -> dict[str, Any]:
    """What pip finds for a platform, and of which requirements it finds no wheel."""
    wanted = [*requirements, *MARKED.get(name, [])]
    found = asked(wanted, PLATFORMS[name], python)
    missing = [] if found else [each for each in wanted if asked([each], PLATFORMS[name], python) is None]
    return {"platform": name, "python": python, "packages": found or {}, "missing": missing}


def table(report: dict[str, Any]) -> str:
    """A row for each platform, a column for each Python."""
    cells = {(each["platform"], each["python"]): _cell(each) for each in report["rows"]}
    names, columns = (list(dict.fromkeys(each)) for each in zip(*cells, strict=True))
    rows = [[name, *(cells[name, each] for each in columns)] for name in names]
    heads = ["wheels for", *(f"Python {each}" for each in columns)]
    return measured_tables.lines(heads, rows, len(heads), [])


def _cell(row: dict[str, Any]) -> str:
    if row["packages"]:
        return f"all; onnxruntime {row['packages']['onnxruntime']}"
    return f"lacks {', '.join(each.split('>')[0] for each in row['missing'])}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=REPORT)
    arguments = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = []
    for name in PLATFORMS:
        for python in PYTHONS:
            rows.append(row(name, python, project["dependencies"]))
            print(json.dumps(rows[-1]), flush=True)
    report = {"schema": 1, "bench": "platforms", "rows": rows}
    report_files.write(arguments.out, report)
    print(table(report))


if __name__ == "__main__":
    main()
