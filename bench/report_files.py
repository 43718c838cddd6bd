"""Report files, of `edgedistill bench` and of the scripts of this folder."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from edgedistill import files, machine
from edgedistill.evaluation.report import KEYS, Report, missing_keys, read, title

__all__ = ["KEYS", "half", "merged", "missing_keys", "read", "write"]


def write(path: Path, report: Report) -> None:
    """Write a report, with the machine, the versions and the date."""
    about = {"machine": machine.here(), "versions": machine.versions()}
    made_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    files.write_json(path, {**report, **about, "made_at": made_at})


def half(measured: Report) -> float:
    """Half the width of a score's 95% interval, × 100."""
    low, high = measured["interval95"]
    return 50 * (high - low)


def merged(reports: list[Report]) -> list[Report]:
    """Return one report per graph file, with the scores of all its reports and the costs of the first."""
    found: dict[tuple[str, str], Report] = {}
    for report in reports:
        key = (title(report), report["bundle"]["sha256"])
        first = found.setdefault(key, report)
        found[key] = {**first, **{part: {**report[part], **first[part]} for part in ("quality", "kept")}}
    return list(found.values())
