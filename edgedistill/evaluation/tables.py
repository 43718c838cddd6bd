"""Reports as tables for the terminal."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from edgedistill.errors import counted
from edgedistill.evaluation.report import (
    Report,
    disturbances,
    resolution,
    retained,
    suites,
    ties,
    title,
)
from edgedistill.evaluation.suites.cosines import Measures
from edgedistill.evaluation.suites.retrieval import BESIDE
from edgedistill.session import width, wrapped

LONGEST_HEAD = 12  # of a column in the terminal
# Instruction sets that decide how fast a quantized graph runs; the first two found are printed.
TELLING_FLAGS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx512f", "avx2", "i8mm", "asimddp")


class Cell(NamedTuple):
    """A value of a report under the head of its column: as it is shown, and as the page sorts by it."""

    head: str
    shown: str
    value: float | None


Row = tuple[Report, list[Cell]]


def cells(report: Report, names: list[str], shares: bool, noise: list[str]) -> list[Cell]:
    """The row of a report in every table: its sizes, its scores on the named suites, its costs.

    Where `shares`, each score is followed by the share of the teacher's score that is retained; where
    there was `noise`, each time is marked and has two digits.
    """
    parameters = report["parameters"]["total"]
    graph = report["size_bytes"]["graph"]
    times = [Cell(f"{name} ms", "", report["single"][f"{name}_ms"]) for name in ("p50", "p99")]
    times.append(Cell("texts/s", "", report["offline"]["texts_s"]))
    about, digits = ("~", 2) if noise else ("", 3)
    peak = report["peak_rss_bytes"]
    return [
        Cell("params", f"{parameters / 1e6:.2f}M", parameters),
        Cell("MB", f"{graph / 1e6:.{1 if graph > 1e6 else 2}f}", graph),
        *_scores(report, names, shares),
        *(cell._replace(shown=about + significant(cell.value or 0, digits)) for cell in times),
        Cell("RSS MB", "–" if peak is None else f"{peak / 1e6:,.0f}", peak),
    ]


def _scores(report: Report, names: list[str], shares: bool) -> list[Cell]:
    """The average on each suite × 100 and, where `shares`, per cent of the teacher's."""
    row = []
    for name in names:
        row.append(_score(name, report["quality"].get(name)))
        share = retained(report, name)
        if shares:
            row.append(Cell("retained", "" if share is None else f"{100 * share:.1f}%", share))
    return row


def _score(head: str, quality: dict[str, float] | None) -> Cell:
    average = (quality or {}).get("average")
    return Cell(head, "–" if average is None else f"{100 * average:.1f}", average)


def embeddings(reports: list[Report]) -> list[Row]:
    """A row for each report and precision of its embeddings: bytes of an embedding, and the average on each
    suite × 100; none where suites were scored in float32 alone."""
    names = [name for name in suites(reports) if any(_compact(report, name) for report in reports)]
    rows = []
    for report in reports:
        for precision in dict.fromkeys(part for name in names for part in _compact(report, name)):
            scores = [_compact(report, name).get(precision) for name in names]
            size = max(score["bytes"] for score in scores if score)
            row = [Cell("embeddings", precision, None), Cell("bytes", f"{size:,}", size)]
            rows.append((report, row + list(map(_score, names, scores))))
    return rows


def _compact(report: Report, suite: str) -> Measures:
    """{precision: {average, bytes}} of the embeddings of a report on a suite."""
    return report["quality"].get(suite, {}).get("embeddings", {})


def compared(reports: list[Report]) -> bool:
    """Whether any report retains a share of a teacher's score."""
    return any(retained(report, name) is not None for report in reports for name in suites(reports))


def significant(value: float, digits: int = 3) -> str:
    """A time or rate to that many significant digits, at most three of them decimals."""
    places = min(3, max(0, digits - 1 - math.floor(math.log10(abs(value) or 1))))
    return f"{float(f'{value:.{digits}g}'):,.{places}f}"


def shorten(text: str, width: int) -> str:
    """Cut a text to at most `width` characters, in the middle, because names differ at their ends."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def conditions(report: Report) -> str:
    """What a latency depends on: GPU, processor, threads, relevant instruction sets, runtime and day."""
    machine = report["machine"]
    threads = report.get("threads")
    runtime = report["versions"].get("onnxruntime")
    flags = [flag for flag in TELLING_FLAGS if flag in (machine.get("flags") or [])]
    gpu = (machine.get("gpu") or {}).get("name") or "cuda"
    parts = [
        gpu if report.get("device") == "cuda" else "",
        " ".join(re.sub(r"\((?:R|TM|C)\)|\bCPU\b|@.*", "", machine.get("cpu") or "").split()),
        counted(threads, "thread") if threads else "",
        " ".join(flags[:2]),
        f"onnxruntime {runtime}" if runtime else "",
        report["made_at"][:10],
    ]
    return " · ".join(filter(None, parts))


def terminal(reports: list[Report]) -> str:
    """Plain text that fits the terminal: a table of costs, one row per report, with the scores of a single
    suite in it where no share of the teacher's stands beside them; otherwise each suite has a table."""
    names = suites(reports)
    shares = compared(reports)
    noise = disturbances(reports)
    single_suite = names if len(names) == 1 and not shares else []
    tables = [[(report, cells(report, single_suite, shares, noise)) for report in reports]]
    for name in names if not single_suite else ():
        measured = [report for report in reports if name in report["quality"]]
        tables.append([(report, _scores(report, [name], shares)) for report in measured])
    tables.append(embeddings(reports))
    notes = [*below(reports), tie_note(reports)]
    if shares:
        notes.append("retained: share of the teacher's score.")
    if noise:
        notes.append(f"~ noisy machine: {'; '.join(noise)}.")
    lines = []
    for rows in filter(None, tables):
        heads = ["bundle", *(cell.head for cell in rows[0][1])]
        shown = [[title(report), *(cell.shown for cell in row)] for report, row in rows]
        lines.append(of_cells(heads, shown))
    return "\n".join([*lines, *(line for note in notes for line in wrapped(note))])


def plain(sheet: Table, columns: int | None = None) -> str:
    """A table as text of so many columns, by default what fits the terminal; all are drawn alike."""
    sheet.box = box.SIMPLE_HEAD
    sheet.pad_edge = False
    sheet.padding = (0, 1, 0, 0)
    screen = Console(width=columns or width(), file=io.StringIO(), record=True, markup=False)
    screen.print(sheet)
    return "\n".join(line.rstrip() for line in screen.export_text().rstrip().splitlines())


def of_cells(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text. Its first column takes what the others, which are cut nowhere, leave of the
    terminal."""
    sheet = Table()
    sheet.add_column(heads[0], overflow="fold")
    for head in heads[1:]:
        sheet.add_column(shorten(head, LONGEST_HEAD), justify="right", no_wrap=True)
    for row in rows:
        sheet.add_row(*row)
    return plain(sheet)


def below(reports: list[Report]) -> list[str]:
    """The lines that stand with every table: the conditions of all reports, each once, and the scores of BM25
    alone, by suite, where any was measured."""
    lines = [conditions(report) for report in reports]
    for report in reports:
        for name, quality in report["quality"].items():
            if "bm25" in quality:
                lines.append(
                    f"BM25 alone: {name.removesuffix(BESIDE)} {100 * quality['bm25']:.1f}; its weight: "
                    f"{quality['weight']:g}"
                )
    return list(dict.fromkeys(lines))


def tie_note(reports: list[Report]) -> str:
    """What differences of p50 between its bundles the run can tell, and which it cannot; nothing without an
    A/A test."""
    tested = [report for report in reports if "resolution" in report.get("noise", {})]
    if not tested:
        return ""
    note = f"This run cannot resolve differences of p50 below {max(map(resolution, tested)):.1%}"
    tied = ", ".join(f"{shorten(title(a), 30)} = {shorten(title(b), 30)}" for a, b in ties(reports))
    return f"{note}; ties: {tied}." if tied else f"{note}."
