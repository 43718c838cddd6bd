"""The whole page: header, plots, tables and notes."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from edgedistill import files
from edgedistill.evaluation.html_report import html_tables
from edgedistill.evaluation.html_report.style import CSS, JS
from edgedistill.evaluation.number_format import conditions, megabytes, milliseconds, retained, shorten, whole
from edgedistill.evaluation.plots import latencies, retained_scores, tradeoff
from edgedistill.evaluation.report import NOISY, Report, is_teacher, noisy, reference, suites

COLOURS = 9  # of the style sheet: --c0 is the teachers', --c1 to --c8 the students', then --c1 again
GOOD_SHARE = 0.95  # the summary names the smallest student that retains at least this share


def write(path: Path, reports: list[Report]) -> None:
    """Write the page atomically."""
    files.write_text(path, html(reports))


def html(reports: list[Report]) -> str:
    """The page as a string. It loads nothing from elsewhere."""
    colours = _colours(reports)
    names = suites(reports)
    body = [_header(reports, names, colours)]
    if names:
        body.append(tradeoff.section(reports, names, colours))
    body += [html_tables.measurements(reports, names, colours), latencies.section(reports, colours)]
    body += [retained_scores.section(reports, names, colours), html_tables.tasks(reports, names)]
    body += [html_tables.agreement(reports), _notes(reports)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>edgedistill · {escape(_subject(reports))}</title><style>{CSS}</style></head>\n<body><main>\n"
        + "\n".join(part for part in body if part)
        + f'\n</main><div id="tip" role="status"></div><script>{JS}</script></body></html>\n'
    )


def _subject(reports: list[Report]) -> str:
    names = list(dict.fromkeys(report["bundle"]["name"] for report in reports))
    return shorten(names[0], 40) if len(names) == 1 else f"{len(names)} bundles"


def _colours(reports: list[Report]) -> dict[str, str]:
    """A bundle's name -> its colour; all teachers share one."""
    students = list(dict.fromkeys(report["bundle"]["name"] for report in reports if not is_teacher(report)))
    found = {name: f"var(--c{1 + at % (COLOURS - 1)})" for at, name in enumerate(students)}
    return {report["bundle"]["name"]: found.get(report["bundle"]["name"], "var(--c0)") for report in reports}


def _header(reports: list[Report], names: list[str], colours: dict[str, str]) -> str:
    places = "<br>".join(escape(line) for line in dict.fromkeys(conditions(report) for report in reports))
    lead, tiles = _lead(reports, names, colours)
    noise = f"Noisy machine: the p50 of the same bundle differed by more than {NOISY:.0%} between rounds; compare times with care."
    noise = f'<p class="noise">{noise}</p>' if any(noisy(report) for report in reports) else ""
    return f'<header><p class="brand">edgedistill bench</p><h1>{lead}</h1>{tiles}<p class="where">{places}</p>{noise}</header>'


def _lead(reports: list[Report], names: list[str], colours: dict[str, str]) -> tuple[str, str]:
    """The heading and its figures: the smallest student that retains GOOD_SHARE, else the one that retains most."""
    teacher = reference(reports)
    students = [report for report in reports if not is_teacher(report) and names and report["kept"].get(names[0])]
    if teacher is None or not students:
        return f"{escape(_subject(reports))}, measured", ""
    good = [report for report in students if report["kept"][names[0]] >= GOOD_SHARE]
    best = min(good, key=lambda r: r["size_bytes"]["graph"]) if good else max(students, key=lambda r: r["kept"][names[0]])
    smaller = teacher["size_bytes"]["graph"] / best["size_bytes"]["graph"]
    faster = teacher["single"]["p50_ms"] / best["single"]["p50_ms"]
    name = escape(shorten(best["bundle"]["name"], 44))
    name = f'<span style="color:{colours[best["bundle"]["name"]]}">{name}</span> in {best["bundle"]["precision"]}'
    lead = f"{name} retains {retained(best, names[0])} of its teacher’s score on {escape(names[0])}"
    figures = [
        (megabytes(best["size_bytes"]["graph"]) + " MB", f"graph, {_times(smaller, 'smaller', 'larger')}"),
        (milliseconds(best["single"]["p50_ms"]) + " ms", f"per text at p50, {_times(faster, 'faster', 'slower')}"),
        (whole(best["offline"]["texts_s"]), f"texts/s; teacher: {whole(teacher['offline']['texts_s'])}"),
    ]
    return lead, '<dl class="tiles">' + "".join(f"<div><dt>{small}</dt><dd>{big}</dd></div>" for big, small in figures) + "</dl>"


def _times(ratio: float, more: str, less: str) -> str:
    return f"{ratio:.1f}× {more}" if ratio >= 1 else f"{1 / ratio:.1f}× {less}"


def _notes(reports: list[Report]) -> str:
    """How the numbers were measured, and the machine."""
    first = reports[0]
    machine = ", ".join(f"{escape(str(key))} {escape(_plain(value))}" for key, value in first["machine"].items() if value not in (None, []))
    versions = ", ".join(f"{escape(key)} {escape(str(value))}" for key, value in first["versions"].items())
    single = first["single"]
    counted = f"{single['queries']:,} single texts after {single['warmups']} warm-up calls" if "queries" in single else "single texts"
    return (
        "<section><h2>How it was measured</h2><p>Each measurement ran in a fresh process, and bundles alternated. Times include "
        f"tokenization. Latency: {counted} per bundle, with 95% bootstrap intervals over rounds and texts. Memory: the peak of a "
        "separate process, after texts of many lengths. Throughput: all texts at once, sorted by length into batches. Retained: the "
        "score as a share of the teacher’s. Batch sensitivity: the largest 1 − cosine between a text’s embedding encoded alone "
        f"and in a batch.</p><p><b>Machine</b> {machine}</p><p><b>Versions</b> {versions}</p></section>"
    )


def _plain(value: Any) -> str:
    return " ".join(str(part) for part in value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else str(value)
