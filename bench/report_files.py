"""Report files that `edgedistill bench` wrote, for the scripts of this folder."""

from __future__ import annotations

from pathlib import Path

from edgedistill import files
from edgedistill.errors import UserError
from edgedistill.evaluation.report import SCHEMA, Report, title

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


def read(path: Path) -> list[Report]:
    """Read a file of one report or several. Raises UserError where there is no such file, or it is no report,
    has a newer schema or lacks a key."""
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


def missing_keys(report: Report) -> list[str]:
    """Return the required KEYS that a report lacks, dotted."""
    lost = [key for key in KEYS if key not in report]
    for key, parts in KEYS.items():
        if key in report:
            lost += [f"{key}.{part}" for part in parts if part not in (report[key] or {})]
    return lost


def merged(reports: list[Report]) -> list[Report]:
    """Return one report per graph file, with the scores of all its reports and the costs of the first."""
    found: dict[tuple[str, str], Report] = {}
    for report in reports:
        key = (title(report), report["bundle"]["sha256"])
        first = found.setdefault(key, report)
        found[key] = {**first, **{part: {**report[part], **first[part]} for part in ("quality", "kept")}}
    return list(found.values())
