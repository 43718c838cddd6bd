"""Reports: JSON files with scores, raw latency samples, units, machine and versions, one report per bundle
and precision; and the requirements of a recipe that a report is compared with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from edgedistill import files
from edgedistill.errors import CheckFailed
from edgedistill.evaluation import scoring
from edgedistill.session import Log

SCHEMA = 1
NOISY = 0.10  # tables mark a p50 that differed by more than this between rounds of the same bundle
Report = dict[str, Any]


def write(path: Path, reports: list[Report]) -> None:
    """Write one report as itself, several as {schema, reports}; atomically."""
    files.write_text(path, dumps(reports))


def dumps(reports: list[Report]) -> str:
    """Return indented JSON in which a list of plain numbers stays on one line. Raises ValueError for NaN and
    infinity."""
    value = reports[0] if len(reports) == 1 else {"schema": SCHEMA, "reports": reports}
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    on_one_line = re.sub(
        r"\[\n\s+([-+.\deE,\s]+?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text
    )
    return on_one_line + "\n"


def title(report: Report) -> str:
    """Return `name:precision`, as on the command line."""
    return f"{report['bundle']['name']}:{report['bundle']['precision']}"


def is_teacher(report: Report) -> bool:
    """Return whether the bundle is a teacher, exported as it is."""
    return bool(report["bundle"]["kind"] == "teacher")


def reference(reports: list[Report]) -> Report | None:
    """Return the teacher that students are compared with, in fp32 where that was measured."""
    teachers = [report for report in reports if is_teacher(report)]
    return min(teachers, key=lambda report: report["bundle"]["precision"] != "fp32", default=None)


def suites(reports: list[Report]) -> list[str]:
    """Return the names of all suites, in order of first appearance."""
    return list(dict.fromkeys(name for report in reports for name in report["quality"]))


def noisy(report: Report) -> bool:
    """Return whether p50 differed by more than NOISY between rounds."""
    return bool((report.get("noise") or {}).get("between", 0) > NOISY)


def retained(report: Report, suite: str) -> float | None:
    """Return the share of the teacher's score; None without a teacher, and for the reference itself."""
    share: float | None = report["kept"].get(suite)
    return None if share is None or (is_teacher(report) and share == 1) else share


def without_samples(report: Report) -> Report:
    """Return a copy without the raw latency samples."""
    parts = {
        key: {k: v for k, v in report[key].items() if "samples" not in k} for key in ("single", "offline")
    }
    return {**report, **parts}


def check_requirements(manifest: dict[str, Any], report: Report) -> list[dict[str, Any]]:
    """Compare a report with the `requirements` of the manifest's recipe.

    `sts` and `sts_kept` apply to the named suite, else to every measured suite of kind sts; `size_mb` to the
    graph, in 10⁶ bytes. Returns one {bundle, requirement, required, found, met} per requirement; `met` is
    None where it was not measured.
    """
    requirements = (manifest.get("recipe") or {}).get("requirements") or {}
    names = [name for name, scores in report["quality"].items() if scores["kind"] == "sts"]
    if named := requirements.get("suite"):
        names = [scoring.title(named) if Path(named).is_file() else named]
    found: list[tuple[str, float | None, float | None]] = []
    for name in names:
        average = (report["quality"].get(name) or {}).get("average")
        found.append((f"sts on {name}", requirements.get("sts"), average))
        found.append((f"sts_kept on {name}", requirements.get("sts_kept"), report["kept"].get(name)))
    precision, size = report["bundle"]["precision"], report["size_bytes"]["graph"] / 1e6
    found.append((f"size_mb in {precision}", (requirements.get("size_mb") or {}).get(precision), size))
    checks = []
    for what, required, value in found:
        if required is not None:
            sign = -1 if what.startswith("size_mb") else 1
            met = None if value is None else sign * value >= sign * required
            check = {"bundle": title(report), "requirement": what}
            checks.append({**check, "required": required, "found": value, "met": met})
    return checks


def conclude(checks: list[dict[str, Any]], result: dict[str, Any], log: Log) -> None:
    """Log every check of a requirement. Raises CheckFailed with `result` when one is not met."""
    failed = []
    for each in checks:
        what, found = each["requirement"], "–" if each["found"] is None else f"{each['found']:.4f}"
        bound = f"{'at most' if what.startswith('size_mb') else 'at least'} {each['required']:g}"
        why_not = "the suite was not measured; name it with --suite"
        if what.startswith("sts_kept"):
            why_not = "its teacher was not measured in this run; add the teacher's bundle"
        state = {True: "met", False: "NOT MET", None: f"not checked, {why_not}"}[each["met"]]
        log(f"requirement of {each['bundle']}: {what}: {found}, {bound}: {state}")
        if each["met"] is False:
            failed.append(f"{each['bundle']}: {what} is {found}, its recipe requires {bound}")
    if failed:
        raise CheckFailed("\n".join(failed), result)
