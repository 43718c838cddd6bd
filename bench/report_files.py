"""Report files that `edgedistill bench` wrote, for the scripts of this folder."""

from __future__ import annotations

from edgedistill.evaluation.report import KEYS, Report, missing_keys, read, title

__all__ = ["KEYS", "merged", "missing_keys", "read"]


def merged(reports: list[Report]) -> list[Report]:
    """Return one report per graph file, with the scores of all its reports and the costs of the first."""
    found: dict[tuple[str, str], Report] = {}
    for report in reports:
        key = (title(report), report["bundle"]["sha256"])
        first = found.setdefault(key, report)
        found[key] = {**first, **{part: {**report[part], **first[part]} for part in ("quality", "kept")}}
    return list(found.values())
