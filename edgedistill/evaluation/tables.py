"""Reports as tables: for the terminal, and as Markdown for the README. No table is typed
by hand."""

from __future__ import annotations

import io
import math
import re
import shutil
import textwrap
from typing import NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgedistill.errors import counted
from edgedistill.evaluation.report import (
    Report,
    disturbances,
    is_teacher,
    resolution,
    retained,
    suites,
    ties,
    title,
)
from edgedistill.evaluation.suites.retrieval import by_cosine

WIDTH = 100  # columns at most
SHORTEST_NAME = 20  # columns of a bundle's name, for which a narrow terminal lacks
DISPENSABLE = ("RSS MB", "params", "p99 ms")
LONGEST_HEAD = 12  # of a column in the terminal
SHOWN_TIES = 6  # pairs of bundles
# Instruction sets that decide how fast a quantized graph runs; the first two found are printed.
TELLING_FLAGS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx512f", "avx2", "i8mm", "asimddp")


class Cell(NamedTuple):
    """A value of a report under the head of its column: as it is shown, and as the page sorts by it."""

    head: str
    shown: str
    value: float | None


def cells(report: Report, names: list[str], shares: bool, noise: list[str]) -> list[Cell]:
    """Return the row of a report in every table: its sizes, its scores on the named suites, its costs.

    Where `shares`, each score is followed by the share of the teacher's score that is retained; where
    there was `noise`, each time is marked and has two digits.
    """
    parameters, graph = report["parameters"]["total"], report["size_bytes"]["graph"]
    p50, p99 = report["single"]["p50_ms"], report["single"]["p99_ms"]
    rate, peak = report["offline"]["texts_s"], report["peak_rss_bytes"]
    about, digits = ("~", 2) if noise else ("", 3)
    return [
        Cell("params", f"{parameters / 1e6:.2f}M", parameters),
        Cell("MB", f"{graph / 1e6:.{1 if graph > 1e6 else 2}f}", graph),
        *_scores(report, names, shares),
        Cell("p50 ms", about + significant(p50, digits), p50),
        Cell("p99 ms", about + significant(p99, digits), p99),
        Cell("texts/s", about + significant(rate, digits), rate),
        Cell("RSS MB", "–" if peak is None else f"{peak / 1e6:,.0f}", peak),
    ]


def _scores(report: Report, names: list[str], shares: bool) -> list[Cell]:
    """Return the average on each suite × 100 and, where `shares`, per cent of the teacher's."""
    found = []
    for name in names:
        average = (report["quality"].get(name) or {}).get("average")
        found.append(Cell(name, _hundredfold(average), average))
        if shares:
            share = retained(report, name)
            found.append(Cell("retained", "" if share is None else f"{100 * share:.1f}%", share))
    return found


def embeddings(reports: list[Report]) -> list[tuple[Report, list[Cell]]]:
    """Return a row for each report and precision of its embeddings: bytes of an embedding, and the average on
    each suite × 100; none where suites were scored in float32 alone."""
    rows, qualities = [], [report["quality"] for report in reports]
    names = [name for name in suites(reports) if any("embeddings" in q.get(name, ()) for q in qualities)]
    for report in reports:
        scored = [report["quality"].get(name, {}).get("embeddings", {}) for name in names]
        for precision in dict.fromkeys(each for found in scored for each in found):
            found = [each.get(precision, {}) for each in scored]
            size = max(each.get("bytes", 0) for each in found)
            averages = zip(names, (each.get("average") for each in found), strict=True)
            scores = [Cell(name, _hundredfold(average), average) for name, average in averages]
            stored = [Cell("embeddings", precision, None), Cell("bytes", f"{size:,}", size)]
            rows.append((report, stored + scores))
    return rows


def compared(reports: list[Report]) -> bool:
    """Return whether any report retains a share of a teacher's score."""
    return any(retained(report, name) is not None for report in reports for name in suites(reports))


def _hundredfold(average: float | None) -> str:
    return "–" if average is None else f"{100 * average:.1f}"


def significant(value: float, digits: int = 3) -> str:
    """Show a time or rate to that many significant digits, at most three of them decimals."""
    places = min(3, max(0, digits - 1 - math.floor(math.log10(value or 1))))
    return f"{float(f'{value:.{digits}g}'):,.{places}f}"


def shorten(text: str, width: int) -> str:
    """Cut a text to at most `width` characters, in the middle, because names differ at their ends."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def conditions(report: Report) -> str:
    """Name what a latency depends on: GPU, processor, threads, relevant instruction sets, runtime and day."""
    machine, threads = report["machine"], report.get("threads")
    runtime = report["versions"].get("onnxruntime")
    cpu = re.sub(r"\((?:R|TM|C)\)|\bCPU\b|@.*", "", machine.get("cpu") or "")
    parts = [" ".join(cpu.split())]
    if report.get("device") == "cuda":
        parts.insert(0, (machine.get("gpu") or {}).get("name") or "cuda")
    if threads:
        parts.append(counted(threads, "thread"))
    flags = machine.get("flags") or []
    parts.append(" ".join([flag for flag in TELLING_FLAGS if flag in flags][:2]))
    if runtime:
        parts.append(f"onnxruntime {runtime}")
    return " · ".join(part for part in [*parts, report["made_at"][:10]] if part)


def terminal(reports: list[Report]) -> str:
    """Return plain text that fits the terminal: a table of costs, one row per report, with the scores of a
    single suite in it; each of several suites has a table."""
    names, shares, noise = suites(reports), compared(reports), disturbances(reports)
    single_suite = names if len(names) == 1 else []
    parts: list[RenderableType] = [
        _table([(report, cells(report, single_suite, shares, noise)) for report in reports])
    ]
    for name in names if not single_suite else ():
        measured = [report for report in reports if name in report["quality"]]
        parts.append(_table([(report, _scores(report, [name], shares)) for report in measured]))
    if precisions := embeddings(reports):
        parts.append(_table(precisions))
    parts.append(Text("\n".join(_notes(reports)), style="dim"))
    return plain(Group(*parts))


def markdown(reports: list[Report]) -> str:
    """Return the README's table, one row per report, and below it the conditions; it has `retained` columns
    only where a teacher was measured."""
    names, shares = suites(reports), compared(reports)
    kept = [cells(report, names, shares, disturbances([report])) for report in reports]
    heads = ["bundle", *(cell.head for cell in kept[0])]
    rows = [heads, ["---", *["---:"] * len(kept[0])]]
    for report, row in zip(reports, kept, strict=True):
        name = f"**{title(report)}**" if is_teacher(report) else title(report)
        rows.append([text.replace("|", "\\|") for text in (name, *(cell.shown for cell in row))])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    conditioned = "<br>\n".join(below(reports))
    return "\n".join(lines) + f"\n\n<sub>{conditioned}</sub>\n"


def plain(sheet: RenderableType, columns: int | None = None) -> str:
    """Return what rich would print, as text of so many columns, by default what fits the terminal."""
    screen = Console(width=columns or width(), file=io.StringIO(), record=True)
    screen.print(sheet)
    return "\n".join(line.rstrip() for line in screen.export_text().rstrip().splitlines())


def width() -> int:
    """The columns of a table: those of the terminal, at most WIDTH."""
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def _table(rows: list[tuple[Report, list[Cell]]]) -> Table:
    """Return a table whose first column takes what the others leave of the terminal; where that is too
    little, it lacks some of DISPENSABLE."""
    heads = [cell.head for cell in rows[0][1]]
    kept = list(range(len(heads)))

    def left() -> int:
        """What the columns that are kept leave for the first one."""
        longest = [
            max(len(shorten(heads[at], LONGEST_HEAD)), *(len(row[at].shown) for _, row in rows))
            for at in kept
        ]
        return width() - 3 - sum(2 + each for each in longest)

    for head in DISPENSABLE:
        if left() < SHORTEST_NAME and head in heads:
            kept.remove(heads.index(head))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("bundle", no_wrap=True)
    for at in kept:
        table.add_column(shorten(heads[at], LONGEST_HEAD), justify="right", no_wrap=True)
    room = max(SHORTEST_NAME, left())
    for report, row in rows:
        name = report["bundle"]["name"]
        rest = shorten(title(report).removeprefix(name), room - 8)
        style = "bold" if is_teacher(report) else ""
        shown = shorten(name, room - len(rest)) + rest
        table.add_row(shown, *(row[at].shown for at in kept), style=style)
    return table


def below(reports: list[Report]) -> list[str]:
    """Return the lines that stand with every table: the conditions of all reports, each once, and the scores
    of BM25 alone, by suite, where any was measured."""
    alone = [
        f"BM25 alone: {by_cosine(name)} {_hundredfold(scores['bm25'])}; its weight: {scores['weight']:g}"
        for report in reports
        for name, scores in report["quality"].items()
        if "bm25" in scores
    ]
    return list(dict.fromkeys([*map(conditions, reports), *alone]))


def _notes(reports: list[Report]) -> list[str]:
    """Return what is `below`, and what the columns mean, each line as wide as the terminal."""
    notes = [shorten(line, width()) for line in below(reports)]
    if compared(reports):
        notes.append("retained: share of the teacher's score.")
    if tied := tie_note(reports):
        notes += textwrap.wrap(tied, width())
    return notes + noise_note(disturbances(reports))


def noise_note(disturbed: list[str]) -> list[str]:
    """Return what the mark ~ means, in lines as wide as the terminal; none on a quiet machine."""
    return textwrap.wrap(f"~ noisy machine: {'; '.join(disturbed)}.", width()) if disturbed else []


def tie_note(reports: list[Report]) -> str:
    """What differences of p50 between its bundles the run can tell, and which it cannot; nothing without an
    A/A test."""
    measured = [report for report in reports if "resolution" in (report.get("noise") or {})]
    if not measured:
        return ""
    worst = max(map(resolution, measured))
    least = f"from {worst:.1%} on" if worst < 1 else f"from a factor of {1 + worst:.0f} on"
    resolved = f"Bundles took turns, which tells their p50 apart {least}"
    pairs = [" = ".join(shorten(title(each), 30) for each in pair) for pair in ties(measured)]
    more = [f"and {len(pairs) - SHOWN_TIES} more pairs"] if len(pairs) > SHOWN_TIES else []
    return f"{resolved}{'; ties: ' if pairs else ''}{', '.join(pairs[:SHOWN_TIES] + more)}."
