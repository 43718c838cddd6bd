"""Reports: JSON files with scores, raw latency samples, units, machine and versions, one report per bundle
and precision; and the requirements of a recipe that a report is compared with."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

from edgedistill import files
from edgedistill.errors import Problems, UserError
from edgedistill.evaluation import scoring
from edgedistill.evaluation.speed import OWN, titled
from edgedistill.evaluation.suites.cosines import Measures

SCHEMA = 1
NOISY = 0.10  # tables mark a p50 that differed by more than this between rounds of the same bundle
STOLEN = 0.01  # seconds of a processor per second, from which others disturb a measurement
AGAIN = "write it again with edgedistill bench"
Report = dict[str, Any]
KEYS: dict[str, tuple[str, ...]] = {  # every report has at least these
    "schema": (),
    "made_at": (),
    "bundle": ("name", "kind", "precision", "sha256"),
    "parameters": ("total",),
    "size_bytes": ("graph",),
    "machine": (),
    "versions": (),
    "quality": (),
    "kept": (),
    "single": ("p50_ms", "p90_ms", "p99_ms"),
    "offline": ("texts_s",),
    "peak_rss_bytes": (),
}


def read(path: Path) -> list[Report]:
    """Read a file of one report or several. Raises UserError where there is no such file, or it is no report,
    has a newer schema or lacks a key."""
    if not path.exists():
        raise UserError(f"{path}: no such file; make one with edgedistill bench … --out {path.name}")
    value = files.read_json(path, AGAIN, finite=True)
    reports = value.get("reports", [value]) if isinstance(value, dict) else [value]
    for part in [value, *reports]:
        schema = part.get("schema") if isinstance(part, dict) else None
        if not isinstance(schema, int):
            raise UserError(f"{path}: not a report, it has no `schema`; make one with edgedistill bench")
        if schema > SCHEMA:
            raise UserError(
                f"{path}: schema {schema}, this edgedistill reads up to {SCHEMA}; upgrade edgedistill"
            )
    problems = Problems()
    for number, report in enumerate(reports):
        problems.found += [f"{path}: reports[{number}]: no `{key}`; {AGAIN}" for key in missing_keys(report)]
    problems.raise_any()
    return reports


def missing_keys(report: Report) -> list[str]:
    """Return the required KEYS that a report lacks, dotted."""
    lost = [key for key in KEYS if key not in report]
    for key, parts in KEYS.items():
        lost += [f"{key}.{part}" for part in parts if part not in report.get(key, parts)]
    return lost


def write(path: Path, reports: list[Report]) -> None:
    """Write one report as itself, several as {schema, reports}; atomically."""
    files.write_text(path, dumps(reports))


def dumps(reports: list[Report]) -> str:
    """Return indented JSON in which a list of plain numbers stays on one line. Raises ValueError for NaN and
    infinity."""
    value = reports[0] if len(reports) == 1 else {"schema": SCHEMA, "reports": reports}
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    numbers = r"\[\n\s+([-+.\deE,\s]+?)\s+\]"
    return re.sub(numbers, lambda match: f"[{' '.join(match[1].split())}]", text) + "\n"


def title(report: Report) -> str:
    """Return how the report's bundle and runner are named, see `speed.titled`."""
    bundle = report["bundle"]
    runner = report.get("runner") or {}
    return titled(bundle["name"], bundle["precision"], runner.get("name", OWN))


def is_teacher(report: Report) -> bool:
    """Return whether the bundle is a teacher, exported as it is."""
    return bool(report["bundle"]["kind"] == "teacher")


def suites(reports: list[Report]) -> list[str]:
    """Return the names of all suites, in order of first appearance."""
    return list(dict.fromkeys(name for report in reports for name in report["quality"]))


def disturbances(reports: list[Report]) -> list[str]:
    """Return what makes the times of reports doubtful, one fact each; none on a quiet machine."""
    noises = [report.get("noise") or {} for report in reports]
    between, same = (max(noise.get(key, 0) for noise in noises) for key in ("between", "resolution"))
    facts = []
    if between > NOISY:
        facts.append(f"p50 of the same graph differed by more than {NOISY:.0%} between rounds")
    if same > NOISY:
        facts.append(f"the same bundle measured twice differed by up to {same:.0%}")
    for key, who in (("steal", "other guests of the host"), ("throttled", "the CPU quota of its group")):
        shares = [share for noise in noises for share in noise.get("pressure", {}).get(key, ())]
        if max(shares, default=0) > STOLEN:
            facts.append(f"{who} took {max(shares):.0%} of a processor's time in the worst round")
    return facts


def ties(reports: list[Report]) -> list[tuple[Report, Report]]:
    """Return the pairs of reports whose p50 the run cannot tell apart."""
    pairs = combinations(reports, 2)
    return [(a, b) for a, b in pairs if a.get("against", {}).get(title(b), {}).get("tie")]


def resolution(report: Report) -> float:
    """Return the smallest relative difference of times that the run could resolve: by its A/A test, otherwise
    by how much p50 differed between its rounds."""
    noise = report.get("noise") or {}
    return float(noise.get("resolution") or noise.get("between") or 0.0)


def retained(report: Report, suite: str) -> float | None:
    """Return the share of the teacher's score; None without a teacher, and for the reference itself."""
    share = report["kept"].get(suite)
    return None if share is None or (is_teacher(report) and share == 1) else share


def without_samples(part: Any) -> Any:
    """Return a copy of a report, or of a part of one, without the raw samples of times and scores."""
    if not isinstance(part, dict):
        return part
    return {key: without_samples(value) for key, value in part.items() if "samples" not in key}


def check_requirements(manifest: Report, report: Report) -> list[Measures]:
    """Compare a report with the `requirements` of the manifest's recipe.

    `sts` and `sts_kept` apply to the named suite, else to every measured suite of kind sts; `size_mb` to the
    graph, in 10⁶ bytes. Returns one {bundle, requirement, required, found, met} per requirement; `met` is
    None where it was not measured.
    """
    requirements = (manifest.get("recipe") or {}).get("requirements") or {}
    names = [name for name, quality in report["quality"].items() if quality["kind"] == "sts"]
    if named := requirements.get("suite"):
        names = [scoring.title(named) if Path(named).is_file() else named]
    checks = []

    def check(what: str, required: float | None, value: float | None, sign: int = 1) -> None:
        if required is not None:
            met = None if value is None else sign * value >= sign * required
            row = {"bundle": title(report), "requirement": what, "required": required, "found": value}
            checks.append({**row, "met": met})

    for name in names:
        average = report["quality"].get(name, {}).get("average")
        check(f"sts on {name}", requirements.get("sts"), average)
        check(f"sts_kept on {name}", requirements.get("sts_kept"), report["kept"].get(name))
    precision = report["bundle"]["precision"]
    limit = (requirements.get("size_mb") or {}).get(precision)
    check(f"size_mb in {precision}", limit, report["size_bytes"]["graph"] / 1e6, -1)
    return checks
