"""Reports: JSON files with scores, raw latency samples, units, machine and versions, one report per bundle
and precision."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from edgedistill import files
from edgedistill.errors import UserError

SCHEMA = 1
KEYS: dict[str, tuple[str, ...]] = {  # every report has at least these
    "schema": (),
    "made_at": (),
    "bundle": ("name", "kind", "precision", "sha256"),
    "parameters": ("embedding", "encoder", "head", "total"),
    "size_bytes": ("graph", "bundle"),
    "machine": (),
    "versions": (),
    "quality": (),
    "kept": (),
    "single": ("p50_ms", "p90_ms", "p99_ms"),
    "offline": ("texts_s",),
    "load_ms": (),
    "peak_rss_bytes": (),
    "drift": ("mean", "min"),
}
NOISY = 0.10  # tables mark a p50 that differed by more than this between rounds of the same bundle
Report = dict[str, Any]


def read(path: Path) -> list[Report]:
    """Read a file of one report or several. Raises UserError: no such file, not a report, a newer schema, a
    missing key."""
    if not path.exists():
        raise UserError(f"{path}: no such file; make one with edgedistill bench … --out {path.name}")
    value = files.read_json(path, "write it again with edgedistill bench")
    reports = (
        value["reports"] if isinstance(value, dict) and isinstance(value.get("reports"), list) else [value]
    )
    for part in [value, *reports]:
        schema = part.get("schema") if isinstance(part, dict) else None
        if not isinstance(schema, int):
            raise UserError(f"{path}: not a report, it has no `schema`; make one with edgedistill bench")
        if schema > SCHEMA:
            raise UserError(
                f"{path}: schema {schema}, this edgedistill reads up to {SCHEMA}; upgrade edgedistill"
            )
    problems = [
        f"{path}: reports[{at}]: no `{key}`; write it again with edgedistill bench"
        for at, each in enumerate(reports)
        for key in missing_keys(each)
    ]
    if problems:
        raise UserError(*problems)
    return reports


def write(path: Path, reports: list[Report]) -> None:
    """Write one report as itself, several as {schema, reports}; atomically."""
    files.write_text(path, dumps(reports))


def dumps(reports: list[Report]) -> str:
    """Indented JSON in which a list of plain numbers stays on one line. Raises ValueError for NaN and
    infinity."""
    value = reports[0] if len(reports) == 1 else {"schema": SCHEMA, "reports": reports}
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    return (
        re.sub(r"\[\n\s+([-+.\deE,\s]+?)\s+\]", lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", text)
        + "\n"
    )


def missing_keys(report: Report) -> list[str]:
    """The required KEYS that a report lacks, dotted."""
    lost = [key for key in KEYS if key not in report]
    return lost + [
        f"{key}.{part}"
        for key, parts in KEYS.items()
        if key not in lost
        for part in parts
        if part not in (report[key] or {})
    ]


def title(report: Report) -> str:
    """`name:precision`, as on the command line."""
    return f"{report['bundle']['name']}:{report['bundle']['precision']}"


def is_teacher(report: Report) -> bool:
    """Whether the bundle is a teacher, exported as it is."""
    return bool(report["bundle"]["kind"] == "teacher")


def reference(reports: list[Report]) -> Report | None:
    """The teacher that students are compared with: in fp32, where that was measured."""
    teachers = [report for report in reports if is_teacher(report)]
    return min(teachers, key=lambda report: report["bundle"]["precision"] != "fp32", default=None)


def suites(reports: list[Report]) -> list[str]:
    """Names of all suites, in order of first appearance."""
    return list(dict.fromkeys(name for report in reports for name in report["quality"]))


def noisy(report: Report) -> bool:
    """Whether p50 differed by more than NOISY between rounds."""
    return bool((report.get("noise") or {}).get("between", 0) > NOISY)


def retained(report: Report, suite: str) -> float | None:
    """The share of the teacher's score; None without a teacher, and for the reference itself."""
    share: float | None = report["kept"].get(suite)
    return None if share is None or (is_teacher(report) and share == 1) else share


def without_samples(report: Report) -> Report:
    """A copy without the raw latency samples."""
    parts = {
        key: {k: v for k, v in report[key].items() if "samples" not in k} for key in ("single", "offline")
    }
    return {**report, **parts}


def merged(reports: list[Report]) -> list[Report]:
    """One report per graph file: scores of all its reports together, costs of the first."""
    found: dict[tuple[str, str], Report] = {}
    for report in reports:
        key = (title(report), report["bundle"]["sha256"])
        first = found.setdefault(key, report)
        found[key] = {**first, **{part: {**report[part], **first[part]} for part in ("quality", "kept")}}
    return list(found.values())
