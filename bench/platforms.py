"""Ask pip's resolver whether every dependency of the base install has a wheel for the platforms that README
names.

python bench/platforms.py [--out bench/reports/platforms.json] [--readme]

pip evaluates markers such as sys_platform on the system that it runs on: what one adds elsewhere (colorama on
Windows, by click) is asked for by name. --readme: write the table into export/README.md; alone, from the
report that is there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import readme_tables

from edgedistill import files, machine, run

ROOT = Path(__file__).resolve().parent.parent
REPORT, DOCUMENT = ROOT / "bench" / "reports" / "platforms.json", ROOT / "export" / "README.md"
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
    rows, columns = report["rows"], list(dict.fromkeys(each["python"] for each in report["rows"]))
    cells = {(each["platform"], each["python"]): _cell(each) for each in rows}
    lines = [
        f"| wheels for | {' | '.join(f'Python {each}' for each in columns)} |",
        "|---|" + "---|" * len(columns),
    ]
    names = dict.fromkeys(each["platform"] for each in rows)
    lines += [f"| {name} | {' | '.join(cells[name, each] for each in columns)} |" for name in names]
    return "\n".join([*lines, ""])


def _cell(row: dict[str, Any]) -> str:
    if row["packages"]:
        return f"all; onnxruntime {row['packages']['onnxruntime']}"
    return f"lacks {', '.join(each.split('>')[0] for each in row['missing'])}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--readme", action="store_true")
    arguments = parser.parse_args()
    report = files.read_json(REPORT) if not arguments.out else None
    if report is None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        rows = []
        for name in PLATFORMS:
            for python in PYTHONS:
                rows.append(row(name, python, project["dependencies"]))
                print(json.dumps(rows[-1]), flush=True)
        report = {
            "schema": 1,
            "bench": "platforms",
            "rows": rows,
            "machine": machine.here(),
            **run.provenance(),
        }
        files.write_json(arguments.out, report)
    if arguments.readme:
        readme_tables.update(DOCUMENT, table(report), "platforms")
    print(table(report))


if __name__ == "__main__":
    main()
