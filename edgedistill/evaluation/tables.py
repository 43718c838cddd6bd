"""Reports as tables: for the terminal within 100 columns, and as Markdown for the README. Never typed by
hand."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgedistill.evaluation.number_format import (
    batch_sensitivity,
    conditions,
    megabytes,
    millions,
    milliseconds,
    p50,
    retained,
    score,
    short_title,
    shorten,
    whole,
)
from edgedistill.evaluation.report import NOISY, Report, is_teacher, noisy, suites, title

WIDTH = 100  # columns of the terminal
Column = tuple[str, Callable[[Report, str], str]]  # a suite, and what is shown of it


def terminal(reports: list[Report]) -> str:
    """Cost, accuracy and share of the teacher's score as plain text, one row per report, at most WIDTH
    columns."""
    return plain(_tables(reports))


def plain(sheet: RenderableType, width: int = WIDTH) -> str:
    """What rich would print, as text of at most `width` columns."""
    screen = Console(width=width, file=io.StringIO(), record=True)
    screen.print(sheet)
    return "\n".join(line.rstrip() for line in screen.export_text().rstrip().splitlines())


def markdown(reports: list[Report]) -> str:
    """The README's table, one row per report, and below it the conditions; `retained` columns only where a
    teacher was measured."""
    columns = _score_columns(reports, suites(reports))
    heads = ["bundle", "params", "MB", *_score_heads(columns), "p50 ms", "p99 ms", "texts/s", "RSS MB"]
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for report in reports:
        cells = [
            f"**{title(report)}**" if is_teacher(report) else title(report),
            millions(report["parameters"]["total"]),
        ]
        cells += [megabytes(report["size_bytes"]["graph"]), *[show(report, name) for name, show in columns]]
        cells += [p50(report), milliseconds(report["single"]["p99_ms"]), whole(report["offline"]["texts_s"])]
        rows.append([cell.replace("|", "\\|") for cell in [*cells, whole(report["peak_rss_bytes"] / 1e6)]])
    places = "<br>\n".join(dict.fromkeys(conditions(report) for report in reports))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + f"\n\n<sub>{places}</sub>\n"


def _score_columns(reports: list[Report], names: list[str]) -> list[Column]:
    """The score on each suite and, where any report has one, the share of the teacher's score."""
    return [(name, show) for name in names for show in ([score, retained] if _compared(reports) else [score])]


def _compared(reports: list[Report]) -> bool:
    return any(retained(report, name) for report in reports for name in suites(reports))


def _score_heads(columns: list[Column], width: int = 1000) -> list[str]:
    return [shorten(name, width) if show is score else "retained" for name, show in columns]


def _tables(reports: list[Report]) -> RenderableType:
    """One table of costs, with the scores of a single suite in it; the scores of several suites in a second
    table."""
    names = suites(reports)
    single_suite = names if len(names) == 1 else []
    parts: list[RenderableType] = [_costs(reports, single_suite)]
    if not single_suite and names:
        parts.append(_scores(reports, names))
    parts.append(Text("\n".join(_notes(reports)), style="dim"))
    return Group(*parts)


def _costs(reports: list[Report], names: list[str]) -> Table:
    columns = _score_columns(reports, names)
    heads = ["params", "MB", *_score_heads(columns, 9)]
    heads += ["p50\nms", "p99\nms", "texts/s", "load\nms", "RSS\nMB", "batch\nsens."]
    rows = []
    for report in reports:
        cells = [millions(report["parameters"]["total"]), megabytes(report["size_bytes"]["graph"])]
        cells += [show(report, name) for name, show in columns]
        cells += [p50(report), milliseconds(report["single"]["p99_ms"]), whole(report["offline"]["texts_s"])]
        cells += [whole(report["load_ms"]), whole(report["peak_rss_bytes"] / 1e6), batch_sensitivity(report)]
        rows.append(cells)
    return _table(reports, heads, rows)


def _scores(reports: list[Report], names: list[str]) -> Table:
    width = max(5, 60 // len(names) - 8)
    columns = _score_columns(reports, names)
    rows = [[show(report, name) for name, show in columns] for report in reports]
    return _table(reports, _score_heads(columns, width), rows)


def _table(reports: list[Report], heads: list[str], rows: list[list[str]]) -> Table:
    """A table whose first column takes what the others leave of WIDTH."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    widths = [
        max(len(line) for row in [heads, *rows] for line in row[at].split("\n")) + 2
        for at in range(len(heads))
    ]
    table.add_column("bundle", no_wrap=True, vertical="bottom")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True, vertical="bottom")
    for report, row in zip(reports, rows, strict=True):
        table.add_row(
            short_title(report, max(12, WIDTH - 3 - sum(widths))),
            *row,
            style="bold" if is_teacher(report) else "",
        )
    return table


def _notes(reports: list[Report]) -> list[str]:
    """Conditions and what the columns mean, each line at most WIDTH characters."""
    notes: list[Any] = [
        shorten(line, WIDTH) for line in dict.fromkeys(conditions(report) for report in reports)
    ]
    legend = "batch sens.: largest 1 − cosine, single vs. batched."
    notes.append(f"{legend} retained: share of the teacher's score." if _compared(reports) else legend)
    if any(noisy(report) for report in reports):
        notes.append(
            f"~ noisy machine: p50 of the same bundle differed by more than {NOISY:.0%} between rounds."
        )
    return notes
