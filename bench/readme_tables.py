"""Generated parts of Markdown documents: result tables between markers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from report_files import half

from edgedistill import files
from edgedistill.errors import UserError
from edgedistill.evaluation import tables
from edgedistill.evaluation.report import Report, disturbances, is_teacher, suites

COSTS = 4  # the last columns: p50, p99, texts/s, RSS


def markers(name: str) -> tuple[str, str]:
    """The comments before and after the table of this name."""
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def markdown(reports: list[Report], notes: Iterable[str] = ()) -> str:
    """A table of bench/RESULTS.md, one row per report, and below it the conditions, the widest interval of
    each suite and further notes; it has `retained` columns only where a teacher was measured, and shares only
    of its own students. Of several runs it has no costs, which are comparable only within one."""
    names = suites(reports)
    shares = tables.compared(reports)
    teachers = {report["bundle"].get("teacher") for report in reports if is_teacher(report)}
    last = None if len(set(map(tables.conditions, reports))) == 1 else -COSTS
    rows, widest = [], dict[str, float]()
    for report in reports:
        own = {**report, "kept": report["kept"] if report["bundle"].get("teacher") in teachers else {}}
        row = tables.cells(own, names, shares, disturbances([report]))[:last]
        name = f"**{tables.title(report)}**" if is_teacher(report) else tables.title(report)
        for suite, quality in report["quality"].items():
            if "interval95" in quality:
                widest[suite] = max(widest.get(suite, 0), half(quality))
        rows.append([text.replace("|", "\\|") for text in (name, *(cell.shown for cell in row))])
    heads = ["bundle", *(cell.head for cell in row)]
    lines = [f"| {' | '.join(line)} |" for line in (heads, ["---", *["---:"] * len(row)], *rows)]
    spread = ", ".join(f"{suite} ± {half:.1f}" for suite, half in widest.items())
    below = [*tables.below(reports), *notes]
    if spread:
        below.append(f"95% interval over the test items, at most: {spread}")
    conditioned = "<br>\n".join(below)
    return "\n".join([*lines, "", f"<sub>Measured on: {conditioned}</sub>", ""])


def update(path: Path, table: str, name: str) -> bool:
    """Write a Markdown table between a document's markers of that name. Returns whether anything changed.

    Raises UserError: a marker is missing or there twice.
    """
    text = path.read_text(encoding="utf-8")
    begin, end = markers(name)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise UserError(
            f"{path}: the markers {begin} and {end} must be there once each, in this order; add them where "
            "the table goes"
        )
    before, after = text.split(begin)[0], text.split(end)[1]
    updated = f"{before}{begin}\n{table}{end}{after}"
    if updated != text:
        files.write_text(path, updated)
    return updated != text
