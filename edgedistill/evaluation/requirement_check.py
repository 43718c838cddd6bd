"""A report compared with the requirements of its bundle's recipe: which are met, which are not, which could
not be checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgedistill.errors import CheckFailed
from edgedistill.evaluation import report, scoring
from edgedistill.session import Log


def check(manifest: dict[str, Any], measured: report.Report) -> list[dict[str, Any]]:
    """Compare a report with the `requirements` of the manifest's recipe.

    Returns one {bundle, requirement, required, found, met} per requirement; `met` is None where it was not
    measured.
    `sts` and `sts_kept` apply to the named suite, else to every measured suite of kind sts; `size_mb` to the
        graph, in 10⁶ bytes.
    """
    requirements = (manifest.get("recipe") or {}).get("requirements") or {}
    name, precision = report.title(measured), measured["bundle"]["precision"]
    checks: list[dict[str, Any]] = []

    def add(what: str, required: float, found: float | None, met: bool) -> None:
        met_or_unknown = None if found is None else met
        checks.append(
            {"bundle": name, "requirement": what, "required": required, "found": found, "met": met_or_unknown}
        )

    named = requirements.get("suite")
    if named and Path(named).is_file():
        named = scoring.title(named)
    for suite in (
        [named]
        if named
        else [each for each, scores in measured["quality"].items() if scores["kind"] == "sts"]
    ):
        if (required := requirements.get("sts")) is not None:
            found = (measured["quality"].get(suite) or {}).get("average")
            add(f"sts on {suite}", required, found, found is not None and found >= required)
        if (required := requirements.get("sts_kept")) is not None:
            found = measured["kept"].get(suite)
            add(f"sts_kept on {suite}", required, found, found is not None and found >= required)
    if (required := (requirements.get("size_mb") or {}).get(precision)) is not None:
        found = measured["size_bytes"]["graph"] / 1e6
        add(f"size_mb in {precision}", required, found, found <= required)
    return checks


def conclude(checks: list[dict[str, Any]], result: dict[str, Any], log: Log) -> None:
    """Log every check. Raises CheckFailed with `result` when a requirement is not met."""
    for each in checks:
        state = {True: "met", False: "NOT MET", None: f"not checked, {_reason(each)}"}[each["met"]]
        log(
            f"requirement of {each['bundle']}: {each['requirement']}: {_figure(each['found'])}, "
            f"{_bound(each)}: {state}"
        )
    failed = [each for each in checks if each["met"] is False]
    if failed:
        lines = [
            f"{each['bundle']}: {each['requirement']} is {_figure(each['found'])}, its recipe requires "
            f"{_bound(each)}"
            for each in failed
        ]
        raise CheckFailed("\n".join(lines), result)


def _bound(check: dict[str, Any]) -> str:
    return f"{'at most' if check['requirement'].startswith('size_mb') else 'at least'} {check['required']:g}"


def _reason(check: dict[str, Any]) -> str:
    if check["requirement"].startswith("sts_kept"):
        return "its teacher was not measured in this run; add the teacher's bundle"
    return "the suite was not measured; name it with --suite"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
