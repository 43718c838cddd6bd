"""What a model card says of the teachers: their names, revisions and licences, and the share of each in the targets."""

from __future__ import annotations

from typing import Any


def names(manifest: dict[str, Any]) -> str:
    """The teachers whose embeddings the student matched: "`x@1`", or "`x@1` and `y`"."""
    matched = [_name(each) for each in _recorded(manifest) if each.get("weight")]
    *first, last = [f"`{each}`" for each in matched or [manifest["teacher"]]]
    return f"{', '.join(first)} and {last}" if first else last


def table(manifest: dict[str, Any]) -> str:
    """A row for each teacher that the run has recorded; nothing for runs that have recorded none."""
    recorded = _recorded(manifest)
    if not recorded:
        return ""
    weighted = any(each.get("weight") is not None for each in recorded) and len(recorded) > 1
    head = ["teacher", "revision", "licence, as stated by the recipe or by the model's card"]
    head += ["share of the targets"] if weighted else []
    rows = [[f"`{each['name']}`{_use(each)}", each.get("revision") or "—", each.get("licence") or "not stated"] for each in recorded]
    if weighted:
        rows = [[*row, f"{each['weight']:.0%}" if each.get("weight") else "—"] for row, each in zip(rows, recorded, strict=True)]
    rule = ["---", "---", "---", *(["---:"] if weighted else [])]
    return "\n".join(f"| {' | '.join(cell(text) for text in row)} |" for row in [head, rule, *rows])


def _recorded(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return list(manifest["run"].get("teachers", []))


def _name(teacher: dict[str, Any]) -> str:
    return f"{teacher['name']}@{teacher['revision']}" if teacher.get("revision") else str(teacher["name"])


def _use(teacher: dict[str, Any]) -> str:
    return f" ({teacher['use']})" if teacher.get("use") else ""


def cell(text: str) -> str:
    """On one line, and within its column."""
    return " ".join(str(text).split()).replace("|", "\\|")
