"""The whole page: header, plots, tables and notes."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from edgedistill import files
from edgedistill.evaluation.html_report.style import CSS, JS
from edgedistill.evaluation.number_format import (
    batch_sensitivity,
    conditions,
    megabytes,
    millions,
    milliseconds,
    p50,
    retained,
    score,
    shorten,
    whole,
)
from edgedistill.evaluation.plots import latencies, retained_scores, tradeoff
from edgedistill.evaluation.report import NOISY, Report, is_teacher, noisy, reference, suites
from edgedistill.evaluation.suites import MEASURES

COLOURS = 9  # of the style sheet: --c0 is the teachers', --c1 to --c8 the students', then --c1 again
COSTS = ("p50 ms", "p99 ms", "texts/s", "load ms", "RSS MB", "batch sensitivity")
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
    body += [_measurements(reports, names, colours), latencies.section(reports, colours)]
    body += [retained_scores.section(reports, names, colours), _tasks(reports, names)]
    body += [_agreement(reports), _notes(reports)]
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


def _measurements(reports: list[Report], names: list[str], colours: dict[str, str]) -> str:
    """Sizes, scores and costs, one row per report; sortable."""
    heads = ["bundle", "params", "MB", *[head for name in names for head in (name, "retained")], *COSTS]
    rows = [_measurement(report, names, colours[report["bundle"]["name"]]) for report in reports]
    head = "".join(f'<th scope="col"><button>{escape(each)}</button></th>' for each in heads)
    return f"<section><h2>Measurements</h2>{_table(head, rows, 'sortable')}</section>"


def _tasks(reports: list[Report], names: list[str]) -> str:
    """For each suite with several tasks: every task's score, shaded from the column's lowest to its highest."""
    blocks = []
    for name in names:
        measured = [report for report in reports if name in report["quality"]]
        tasks = list(measured[0]["quality"][name]["tasks"])
        if len(tasks) < 2:
            continue
        values = {(at, task): task_score(r["quality"][name], task) for at, r in enumerate(measured) for task in tasks}
        rows = []
        for at, report in enumerate(measured):
            cells = []
            for task in tasks:
                column = [values[i, task] for i in range(len(measured))]
                spread = max(column) - min(column)
                shade = (values[at, task] - min(column)) / spread if spread > 0 else 0.0
                cells.append(f'<td class="shade" style="--s:{100 * shade:.0f}%">{100 * values[at, task]:.2f}</td>')
            rows.append(f'<tr><th scope="row">{_label(report)}</th>{"".join(cells)}<td><b>{score(report, name)}</b></td></tr>')
        head = "".join(f'<th scope="col">{escape(task)}</th>' for task in [*tasks, "average"])
        head = f'<th scope="col">{tradeoff.measure(measured[0], name)}</th>{head}'
        blocks.append(f"<h3>{escape(name)}</h3>{_table(head, rows)}")
    return f"<section><h2>Scores by task</h2>{''.join(blocks)}</section>" if blocks else ""


def task_score(scores: dict[str, Any], task: str) -> float:
    """The measure of a task that its suite averages."""
    return float((scores["tasks"].get(task) or {}).get(MEASURES[scores.get("kind", "sts")][0], 0.0))


def _agreement(reports: list[Report]) -> str:
    """Agreement with the teacher, over all texts and by length; empty where it was not measured."""
    measured = [report for report in reports if report.get("agreement")]
    if not measured:
        return ""
    lengths = list(dict.fromkeys(length for report in measured for length in report["agreement"]["by_length"]))
    heads = ["", "Spearman of cosines", "mean cosine", "top-10 overlap", *[f"{length} tokens" for length in lengths]]
    rows = []
    for report in measured:
        found = report["agreement"]
        cells = [_decimals(found["spearman"], 4), _decimals(found["cosine_mean"], 4), _decimals(found["top10_overlap"], 3)]
        cells += [_decimals((found["by_length"].get(length) or {}).get("spearman"), 4) for length in lengths]
        rows.append(f'<tr><th scope="row">{_label(report)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    about = measured[0]["agreement"]
    source = f"On {about['texts']:,} unlabelled texts ({escape(str(about.get('source', '')))}). Columns by length: Spearman of cosines."
    return f"<section><h2>Agreement with the teacher</h2><p>{source}</p>{_table(head, rows)}</section>"


def _measurement(report: Report, names: list[str], colour: str) -> str:
    """One row; cells carry the plain value to sort by."""
    single, sizes, total = report["single"], report["size_bytes"], report["parameters"]["total"]
    cells = [f'<th scope="row" data-v="{escape(report["bundle"]["name"])}"><i style="background:{colour}"></i>{_label(report)}</th>']
    cells += [_cell(millions(total), total), _cell(megabytes(sizes["graph"]), sizes["graph"])]
    for name in names:
        share = report["kept"].get(name) if retained(report, name) else None
        cells.append(_cell(score(report, name), (report["quality"].get(name) or {}).get("average")))
        cells.append(_cell(retained(report, name) or "–", share, min(share or 0.0, 1.0)))
    rate, rss = report["offline"]["texts_s"], report["peak_rss_bytes"]
    cells += [_cell(p50(report), single["p50_ms"]), _cell(milliseconds(single["p99_ms"]), single["p99_ms"]), _cell(whole(rate), rate)]
    cells += [_cell(whole(report["load_ms"]), report["load_ms"]), _cell(whole(rss / 1e6), rss)]
    cells.append(_cell(batch_sensitivity(report), report["drift"]["min"]))
    return f"<tr{' class=teacher' if is_teacher(report) else ''}>{''.join(cells)}</tr>"


def _cell(shown: str, value: float | None, bar: float = 0.0) -> str:
    style = f' style="--bar:{100 * bar:.1f}%"' if bar else ""
    return f'<td data-v="{"" if value is None else value}"{style}{" class=bar" if bar else ""}>{shown}</td>'


def _label(report: Report, width: int = 32) -> str:
    name, precision = report["bundle"]["name"], report["bundle"]["precision"]
    return f'<span title="{escape(name)}">{escape(shorten(name, width))}</span> <span class="prec">{escape(precision)}</span>'


def _table(head: str, rows: list[str], kind: str = "plain") -> str:
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _decimals(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


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
