"""Reports as one HTML file that needs nothing else: what is kept at which cost, plotted and in tables; light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files
from edgedistill.report import (
    NOISY,
    Report,
    drift,
    is_teacher,
    kept,
    megabytes,
    millions,
    milliseconds,
    noisy,
    reference,
    score,
    shorten,
    suites,
    where,
    whole,
)
from edgedistill.suites import MEASURES

COLOURS = 9  # --c0 is the teacher's, --c1 to --c8 the students'; then from the start again
Box = tuple[float, float, float, float]  # left, top, right, bottom
Point = tuple[float, float, float]  # x, y, radius


def write(path: Path, reports: list[Report]) -> None:
    """Write the page; whole or not at all."""
    files.write_text(path, html(reports))


def html(reports: list[Report]) -> str:
    """The whole page."""
    colours = _colours(reports)
    names = suites(reports)
    body = [_header(reports, names, colours)]
    if names:
        body.append(_plots(reports, names, colours))
    body += [_table(reports, names, colours), _latencies(reports, colours)]
    body += [_kept(reports, names, colours), _tasks(reports, names), _agreement(reports), _notes(reports)]
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


# ---- words ----


def _header(reports: list[Report], names: list[str], colours: dict[str, str]) -> str:
    places = "<br>".join(escape(line) for line in dict.fromkeys(where(report) for report in reports))
    lead, tiles = _lead(reports, names, colours)
    noise = f"A noisy machine: the same bundle's p50 differed by more than {NOISY:.0%} between rounds; read times with care."
    noise = f'<p class="noise">{noise}</p>' if any(noisy(report) for report in reports) else ""
    return f'<header><p class="brand">edgedistill bench</p><h1>{lead}</h1>{tiles}<p class="where">{places}</p>{noise}</header>'


def _lead(reports: list[Report], names: list[str], colours: dict[str, str]) -> tuple[str, str]:
    """The page's first sentence, and its figures: the smallest student that keeps 95%, or the one that keeps most."""
    teacher = reference(reports)
    students = [report for report in reports if not is_teacher(report) and names and report["kept"].get(names[0])]
    if teacher is None or not students:
        return f"{escape(_subject(reports))}, measured", ""
    good = [report for report in students if report["kept"][names[0]] >= 0.95]
    best = min(good, key=lambda r: r["size_bytes"]["graph"]) if good else max(students, key=lambda r: r["kept"][names[0]])
    smaller = teacher["size_bytes"]["graph"] / best["size_bytes"]["graph"]
    faster = teacher["single"]["p50_ms"] / best["single"]["p50_ms"]
    name = escape(shorten(best["bundle"]["name"], 44))
    name = f'<span style="color:{colours[best["bundle"]["name"]]}">{name}</span> in {best["bundle"]["precision"]}'
    lead = f"{name} keeps {kept(best, names[0])} of its teacher on {escape(names[0])}"
    figures = [
        (megabytes(best["size_bytes"]["graph"]) + " MB", f"graph, {_times(smaller, 'smaller', 'larger')}"),
        (milliseconds(best["single"]["p50_ms"]) + " ms", f"a text at p50, {_times(faster, 'faster', 'slower')}"),
        (whole(best["offline"]["texts_s"]), f"texts/s, the teacher {whole(teacher['offline']['texts_s'])}"),
    ]
    return lead, '<dl class="tiles">' + "".join(f"<div><dt>{small}</dt><dd>{big}</dd></div>" for big, small in figures) + "</dl>"


def _times(ratio: float, more: str, less: str) -> str:
    return f"{ratio:.1f}× {more}" if ratio >= 1 else f"{1 / ratio:.1f}× {less}"


def _notes(reports: list[Report]) -> str:
    first = reports[0]
    machine = ", ".join(f"{escape(str(key))} {escape(_plain(value))}" for key, value in first["machine"].items() if value not in (None, []))
    versions = ", ".join(f"{escape(key)} {escape(str(value))}" for key, value in first["versions"].items())
    single = first["single"]
    counted = f"{single['queries']:,} single texts after {single['warmups']} warm-ups" if "queries" in single else "single texts"
    return (
        "<section><h2>How it was measured</h2><p>Every measurement ran in a fresh process, bundles taking turns; times include "
        f"tokenization. {counted} a bundle, with 95% bootstrap intervals over rounds and texts; memory in a pass of its own, after "
        "texts of many lengths. Throughput: all texts at once, sorted into batches by length. Kept: a score as a share of the teacher's. "
        "Drift: 1 − cosine of a text's vectors alone and in a batch, at worst."
        f"</p><p><b>Machine</b> {machine}</p><p><b>Versions</b> {versions}</p></section>"
    )


def _plain(value: Any) -> str:
    return " ".join(str(part) for part in value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else str(value)


# ---- tables ----


def _label(report: Report, width: int = 32) -> str:
    name, precision = report["bundle"]["name"], report["bundle"]["precision"]
    return f'<span title="{escape(name)}">{escape(shorten(name, width))}</span> <span class="prec">{escape(precision)}</span>'


def _table(reports: list[Report], names: list[str], colours: dict[str, str]) -> str:
    def cell(shown: str, value: float | None, bar: float = 0.0) -> str:
        style = f' style="--bar:{100 * bar:.1f}%"' if bar else ""
        return f'<td data-v="{"" if value is None else value}"{style}{" class=bar" if bar else ""}>{shown}</td>'

    heads = ["bundle", "params", "MB", *[h for n in names for h in (n, "kept")]]
    heads += ["p50 ms", "p99 ms", "texts/s", "load ms", "peak MB", "drift"]
    rows = []
    for report in reports:
        single, sizes = report["single"], report["size_bytes"]
        colour = colours[report["bundle"]["name"]]
        cells = [f'<th scope="row" data-v="{escape(report["bundle"]["name"])}"><i style="background:{colour}"></i>{_label(report)}</th>']
        cells += [
            cell(millions(report["parameters"]["total"]), report["parameters"]["total"]),
            cell(megabytes(sizes["graph"]), sizes["graph"]),
        ]
        for name in names:
            share = report["kept"].get(name) if kept(report, name) else None
            cells.append(cell(score(report, name), (report["quality"].get(name) or {}).get("average")))
            cells.append(cell(kept(report, name) or "–", share, min(share or 0.0, 1.0)))
        cells += [cell(("~" if noisy(report) else "") + milliseconds(single["p50_ms"]), single["p50_ms"])]
        cells += [cell(milliseconds(single["p99_ms"]), single["p99_ms"])]
        cells += [
            cell(whole(report["offline"]["texts_s"]), report["offline"]["texts_s"]),
            cell(whole(report["load_ms"]), report["load_ms"]),
        ]
        cells += [cell(whole(report["peak_rss_bytes"] / 1e6), report["peak_rss_bytes"]), cell(drift(report), report["drift"]["min"])]
        rows.append(f"<tr{' class=teacher' if is_teacher(report) else ''}>{''.join(cells)}</tr>")
    head = "".join(f'<th scope="col"><button>{escape(h)}</button></th>' for h in heads)
    return f"<section><h2>In numbers</h2>{_grid_of(head, rows, 'sortable')}</section>"


def _tasks(reports: list[Report], names: list[str]) -> str:
    """Per suite with several tasks: every task's score, shaded from its lowest to its highest."""
    blocks = []
    for name in names:
        measured = [report for report in reports if name in report["quality"]]
        tasks = list(measured[0]["quality"][name]["tasks"])
        if len(tasks) < 2:
            continue
        values = {(at, task): _headline(r["quality"][name], task) for at, r in enumerate(measured) for task in tasks}
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
        head = f'<th scope="col">{_measure(measured[0], name)}</th>{head}'
        blocks.append(f"<h3>{escape(name)}</h3>{_grid_of(head, rows)}")
    return f"<section><h2>Task by task</h2>{''.join(blocks)}</section>" if blocks else ""


def _headline(found: dict[str, Any], task: str) -> float:
    """The number of a task that its suite averages."""
    return float((found["tasks"].get(task) or {}).get(MEASURES[found.get("kind", "sts")][0], 0.0))


def _measure(report: Report, suite: str) -> str:
    return MEASURES[report["quality"][suite].get("kind", "sts")][1]


def _agreement(reports: list[Report]) -> str:
    """Agreement with the teacher, over all texts and by length."""
    having = [report for report in reports if report.get("agreement")]
    if not having:
        return ""
    lengths = list(dict.fromkeys(length for report in having for length in report["agreement"]["by_length"]))
    heads = ["", "Spearman of cosines", "mean cosine", "top-10 in common", *[f"{length} tokens" for length in lengths]]
    rows = []
    for report in having:
        found = report["agreement"]
        cells = [_share(found["spearman"], 4), _share(found["cosine_mean"], 4), _share(found["top10_overlap"], 3)]
        cells += [_share((found["by_length"].get(length) or {}).get("spearman"), 4) for length in lengths]
        rows.append(f'<tr><th scope="row">{_label(report)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    about = having[0]["agreement"]
    source = f"On {about['texts']:,} texts without labels ({escape(str(about.get('source', '')))}). By length: Spearman of cosines."
    return f"<section><h2>Agreement with the teacher</h2><p>{source}</p>{_grid_of(head, rows)}</section>"


def _grid_of(head: str, rows: list[str], kind: str = "plain") -> str:
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _share(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


# ---- plots ----


def _plots(reports: list[Report], names: list[str], colours: dict[str, str]) -> str:
    """Accuracy against latency, a plot a suite, behind tabs where there are several."""
    tabs, rules = [], []
    for at, name in enumerate(names):
        checked = " checked" if at == 0 else ""
        tabs.append(f'<input type="radio" name="suite" id="s{at}"{checked}><label for="s{at}">{escape(name)}</label>')
        rules.append(f"#s{at}:checked~#p{at}{{display:block}}")
    panels = [f'<div class="panel scroll" id="p{at}">{_plot(reports, name, colours, at)}</div>' for at, name in enumerate(names)]
    kind = "tabs" if len(names) > 1 else "one"
    inside = f"<style>{''.join(rules)}</style>{''.join(tabs)}{''.join(panels)}"
    return f'<section><h2>What accuracy costs</h2><div class="{kind}">{inside}</div></section>'


def _plot(reports: list[Report], suite: str, colours: dict[str, str], number: int) -> str:
    """One suite: x p50 of a single text (log), y the average, area the graph's size on disk."""
    wide, high, left, right, top, bottom = 1120.0, 580.0, 62.0, 16.0, 88.0, 56.0
    shown = [report for report in reports if suite in report["quality"]]
    x = _log_scale([v for r in shown for v in _interval(r)], left + 60, wide - right - 60)
    scores = [100 * report["quality"][suite]["average"] for report in shown]
    y, y_ticks = _linear_scale(scores, high - bottom - 30, top + 36)
    largest = max(report["size_bytes"]["graph"] for report in shown)
    parts = [_grid(x, y, y_ticks, (left, top, wide - right, high - bottom), [v for r in shown for v in _interval(r)])]
    middle = (top + high - bottom) / 2
    centre = (left + wide - right) / 2
    parts.append(f'<text class="axis" x="{centre}" y="{high - 12}" text-anchor="middle">milliseconds a text, p50, log scale</text>')
    parts.append(
        f'<text class="axis" transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">{_measure(shown[0], suite)}</text>'
    )
    parts.append(f'<text class="hint" x="{left}" y="{top - 14}">↖ better and faster</text>')
    teacher = reference(shown)
    if teacher is not None:
        at = y(100 * teacher["quality"][suite]["average"])
        parts.append(f'<line class="teacher-line" x1="{left}" x2="{wide - right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="hint" x="{left + 8}" y="{at - 6:.1f}">the teacher, {score(teacher, suite)}</text>')
    points = [(x(r["single"]["p50_ms"]), y(100 * r["quality"][suite]["average"]), _radius(r, largest)) for r in shown]
    steps = _frontier(points)
    parts += [f'<line class="frontier" x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}"/>' for a, b, c, d in steps]
    for report, point in sorted(zip(shown, points, strict=True), key=lambda pair: -pair[1][2]):  # the small ones on top
        parts.append(_dot(report, suite, point, colours, x))
    drawn = steps if teacher is None else [*steps, (left, at - 1, wide - right, at + 1), (left, at - 18, left + 140, at)]
    parts.append(_labels(shown, points, (left, top, wide - right, high - bottom), drawn))
    parts.append(_size_key(largest, wide - right, top))
    about = "; ".join(
        f"{r['bundle']['name']} {r['bundle']['precision']}: {score(r, suite)} at {milliseconds(r['single']['p50_ms'])} ms" for r in shown
    )
    return _svg(f"plot{number}", wide, high, f"{suite}: accuracy against latency", about, parts)


def _svg(name: str, wide: float, high: float, title: str, about: str, parts: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {wide:g} {high:g}" role="img" aria-labelledby="{name}t {name}d"><title id="{name}t">{escape(title)}</title>'
        f'<desc id="{name}d">{escape(about)}</desc>{"".join(parts)}</svg>'
    )


def _interval(report: Report) -> list[float]:
    single = report["single"]
    return [single["p50_ms"], *(single.get("interval95") or {}).get("p50_ms", [])]


def _radius(report: Report, largest: int) -> float:
    return max(3.5, 36 * math.sqrt(report["size_bytes"]["graph"] / largest))


def _log_scale(values: list[float], left: float, right: float) -> Callable[[float], float]:
    low, high = math.log10(min(values)), math.log10(max(values))
    if high - low < 0.5:  # at least half a decade, so that noise does not look like distance
        low, high = (low + high) / 2 - 0.25, (low + high) / 2 + 0.25
    return lambda value: left + (math.log10(value) - low) / (high - low) * (right - left)


def _log_ticks(values: list[float]) -> list[float]:
    fine = max(values) / min(values) < 12
    steps = [base * 10.0**power for power in range(-4, 6) for base in ((1, 1.5, 2, 3, 4, 5, 7) if fine else (1, 2, 5))]
    low, high = min(values) / 1.9, max(values) * 1.9
    return [step for step in steps if low <= step <= high]


def _linear_scale(values: list[float], bottom: float, top: float) -> tuple[Callable[[float], float], list[float]]:
    """The scale and its ticks; at least two points high."""
    low, high = min(values), max(values)
    if high - low < 2:
        low, high = (low + high) / 2 - 1, (low + high) / 2 + 1
    raw = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
    first = math.floor((low - (high - low) * 0.2) / step) * step
    ticks = [round(first + step * i, 6) for i in range(20) if first + step * i <= high + (high - low) * 0.2]
    return lambda value: bottom - (value - low) / (high - low) * (bottom - top), ticks


def _grid(x: Callable[[float], float], y: Callable[[float], float], y_ticks: list[float], box: Box, values: list[float]) -> str:
    left, top, right, bottom = box
    lines = []
    for tick in _log_ticks(values):
        if left <= x(tick) <= right:
            lines.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top}" y2="{bottom}"/>')
            lines.append(f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    for tick in y_ticks:
        if top <= y(tick) <= bottom:
            lines.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
            lines.append(f'<text class="tick" x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    return "".join(lines) + f'<line class="base" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'


def _frontier(points: list[Point]) -> list[Box]:
    """The steps of the line that no bundle lies above: whatever is better is slower."""
    steps: list[Box] = []
    px, py = min(points)[:2]
    for x, y, _ in sorted(points):
        if y < py:
            steps += [(px, py, x, py), (x, y, x, py)]
            px, py = x, y
    return steps


def _dot(report: Report, suite: str, point: Point, colours: dict[str, str], x: Callable[[float], float]) -> str:
    px, py, radius = point
    low, high = (_interval(report)[1:] + [report["single"]["p50_ms"]] * 2)[:2]
    kind = " teacher" if is_teacher(report) else ""
    tip = f"{report['bundle']['name']} · {report['bundle']['precision']}\n{_measure(report, suite).split(' ')[0]} {score(report, suite)}"
    tip += f", {kept(report, suite)} kept" if kept(report, suite) else ""
    tip += f"\np50 {milliseconds(report['single']['p50_ms'])} ms, p99 {milliseconds(report['single']['p99_ms'])} ms"
    tip += f"\n{megabytes(report['size_bytes']['graph'])} MB, {millions(report['parameters']['total'])} parameters"
    return (
        f'<g class="dot{kind}" tabindex="0" data-tip="{escape(tip)}" style="--c:{colours[report["bundle"]["name"]]}">'
        f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{radius:.1f}"/><line x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{py:.1f}" y2="{py:.1f}"/>'
        f'<circle class="core" cx="{px:.1f}" cy="{py:.1f}" r="2"/></g>'
    )


def _labels(reports: list[Report], points: list[Point], frame: Box, taken: list[Box]) -> str:
    """A label a point where it hides least: the cheapest of many places around it, with a line to the point where it lies apart."""
    taken = list(taken)
    circles = [(px - r, py - r, px + r, py + r) for px, py, r in points]
    named: set[str] = set()
    crowded = len(reports) > 10
    parts = []
    for at in sorted(range(len(reports)), key=lambda i: (not is_teacher(reports[i]), points[i][0])):
        report, (px, py, radius) = reports[at], points[at]
        name, precision = report["bundle"]["name"], report["bundle"]["precision"]
        short = precision if crowded and name in named else f"{shorten(name, 26 if crowded else 32)} {precision}"
        named.add(name)
        note = f"{megabytes(report['size_bytes']['graph'])} MB · {milliseconds(report['single']['p50_ms'])} ms"
        wide, high = (max(7.1 * len(short), 6.2 * len(note)) + 4, 28.0) if not crowded else (7.1 * len(short) + 4, 15.0)
        box = _place(px, py, radius, wide, high, frame, taken, circles)
        taken.append(box)
        gap = math.hypot(max(box[0] - px, 0, px - box[2]), max(box[1] - py, 0, py - box[3])) - radius
        if gap > 12:
            ex, ey = min(max(px, box[0]), box[2]), min(max(py, box[1]), box[3])
            reach = radius / math.hypot(ex - px, ey - py)
            parts.append(
                f'<line class="leader" x1="{px + (ex - px) * reach:.1f}" y1="{py + (ey - py) * reach:.1f}" x2="{ex:.1f}" y2="{ey:.1f}"/>'
            )
        bold = f'<tspan class="name">{escape(short.removesuffix(precision))}</tspan>{escape(precision)}'
        anchor = f'x="{box[2] - 2:.1f}" text-anchor="end"' if box[2] < px else f'x="{box[0] + 2:.1f}"'
        parts.append(f'<text class="label" {anchor} y="{box[1] + 11.5:.1f}">{bold}</text>')
        if not crowded:
            parts.append(f'<text class="note" {anchor} y="{box[1] + 25:.1f}">{note}</text>')
    return "".join(parts)


def _place(px: float, py: float, radius: float, wide: float, high: float, frame: Box, taken: list[Box], circles: list[Box]) -> Box:
    best, least = (px, py, px + wide, py + high), math.inf
    for distance in (4.0, 12.0, 22.0, 36.0, 54.0, 76.0, 100.0):
        for angle in range(0, 360, 15):
            cx, cy = math.cos(math.radians(angle)), -math.sin(math.radians(angle))
            mx = px + cx * (radius + distance) + wide / 2 * max(-1.0, min(1.0, 1.7 * cx))
            my = py + cy * (radius + distance) + high / 2 * max(-1.0, min(1.0, 1.7 * cy))
            box = (mx - wide / 2, my - high / 2, mx + wide / 2, my + high / 2)
            outside = max(0, frame[0] - box[0]) + max(0, box[2] - frame[2]) + max(0, frame[1] - box[1]) + max(0, box[3] - frame[3])
            hidden = sum(_overlap(box, other, 3) for other in taken) * 4 + sum(_overlap(box, other, 1) for other in circles) * 2
            cost = outside * 400 + hidden + distance * 1.5 + (0 if abs(cx) > 0.9 else 3) + (2 if cx < 0 else 0)
            if cost < least:
                best, least = box, cost
    return best


def _overlap(a: Box, b: Box, margin: float) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0]) + margin) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]) + margin)


def _size_key(largest: int, right: float, top: float) -> str:
    """Three circles that say what an area means."""
    power = 10 ** math.floor(math.log10(largest))
    sizes = [
        size for size in (power / 10, power, max(m * power for m in (2, 5) if m * power <= largest) if largest >= 2 * power else 0) if size
    ]
    parts, px = [], right - 8.0
    for size in sorted(sizes, reverse=True):
        radius = max(3.5, 36 * math.sqrt(size / largest))
        text = f"{size / 1e6:g} MB"
        px -= 6.0 * len(text)
        parts.append(f'<text class="tick" x="{px:.1f}" y="{top - 42:.1f}">{text}</text>')
        px -= radius + 6
        parts.append(f'<circle class="key" cx="{px:.1f}" cy="{top - 46:.1f}" r="{radius:.1f}"/>')
        px -= radius + 16
    parts.append(f'<text class="hint" x="{px + 6:.1f}" y="{top - 42:.1f}" text-anchor="end">area: graph on disk</text>')
    return "".join(parts)


def _latencies(reports: list[Report], colours: dict[str, str]) -> str:
    """How the times of single texts are spread: a row a bundle, one log scale, p50 and p99 marked."""
    samples = [np.array(report["single"].get("samples_ms") or [[report["single"]["p50_ms"]]], dtype=float).ravel() for report in reports]
    low = min(float(np.quantile(values, 0.001)) for values in samples)
    high = max(float(np.quantile(values, 0.999)) for values in samples)
    row, left, right, wide = 46.0, 300.0, 128.0, 1120.0
    bottom = row * len(reports) + 14
    x = _log_scale([low, high], left + 16, wide - right)
    parts = []
    for tick in _log_ticks([low, high]):
        if left <= x(tick) <= wide - right:
            parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="6" y2="{bottom}"/>')
            parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 17}" text-anchor="middle">{tick:g} ms</text>')
    for at, (report, values) in enumerate(zip(reports, samples, strict=True)):
        base = row * (at + 1) + 4
        parts.append(_hill(report, np.clip(values, low, high), x, base, colours[report["bundle"]["name"]]))
        name, single = report["bundle"]["name"], report["single"]
        parts.append(
            f'<text class="label" x="{left - 14}" y="{base - 8}" text-anchor="end"><tspan class="name">{escape(shorten(name, 30))}</tspan>'
            f" {escape(report['bundle']['precision'])}</text>"
        )
        ends = f"{milliseconds(single['p50_ms'])} · {milliseconds(single['p99_ms'])}"
        parts.append(f'<text class="note" x="{wide - 4}" y="{base - 8}" text-anchor="end">{ends}</text>')
    parts.append(f'<text class="tick" x="{wide - 4}" y="{bottom + 17}" text-anchor="end">p50 · p99, ms</text>')
    about = "; ".join(
        f"{r['bundle']['name']} {r['bundle']['precision']}: p50 {r['single']['p50_ms']}, p99 {r['single']['p99_ms']} ms" for r in reports
    )
    drawn = _svg("spread", wide, bottom + 26, "Latency of single texts", about, parts)
    return f'<section><h2>How the times are spread</h2><div class="scroll">{drawn}</div></section>'


def _hill(report: Report, values: np.ndarray, x: Callable[[float], float], base: float, colour: str) -> str:
    """One row: a smoothed histogram over the log of time, its p50 and p99."""
    logs = np.log10(values)
    edges = np.linspace(logs.min() - 0.02, logs.max() + 0.02, max(24, int(np.ptp(logs) * 120)))
    counts = np.histogram(logs, edges)[0].astype(float)
    counts = np.convolve(np.pad(counts, 2), [0.1, 0.2, 0.4, 0.2, 0.1], "valid")
    heights = counts / counts.max() * 36
    at = [x(10**value) for value in (edges[:-1] + edges[1:]) / 2]
    top = "".join(f"L{px:.1f} {base - height:.1f}" for px, height in zip(at, heights.tolist(), strict=True))
    marks = "".join(
        f'<line class="mark" x1="{x(v):.1f}" x2="{x(v):.1f}" y1="{base - tall}" y2="{base + 3}"/>'
        for v, tall in ((report["single"]["p50_ms"], 36), (report["single"]["p99_ms"], 12))
    )
    return (
        f'<g class="hill" style="--c:{colour}"><path d="M{at[0]:.1f} {base:.1f}{top}L{at[-1]:.1f} {base:.1f}Z"/>'
        f'<line class="base" x1="{at[0]:.1f}" x2="{at[-1]:.1f}" y1="{base}" y2="{base}"/>{marks}</g>'
    )


def _kept(reports: list[Report], names: list[str], colours: dict[str, str]) -> str:
    """Bars from zero to what each student keeps of its teacher, a panel a suite."""
    figures = []
    for number, name in enumerate(names):
        teacher = reference(reports)
        students = [report for report in reports if report is not teacher and report["kept"].get(name) is not None]
        if not students:
            continue
        row, left, wide, right = 26.0, 250.0, 512.0, 58.0
        full = max(1.0, *(report["kept"][name] for report in students))
        scale = (wide - left - right) / full
        high = row * len(students) + 30
        line = left + scale
        parts = [f'<line class="teacher-line" x1="{line:.1f}" x2="{line:.1f}" y1="18" y2="{high - 6}"/>']
        parts.append(f'<text class="hint" x="{line:.1f}" y="12" text-anchor="end">the teacher, 100%</text>')
        for at, report in enumerate(students):
            y, share = 22 + row * at, max(0.0, report["kept"][name])
            colour = colours[report["bundle"]["name"]]
            label = f'<tspan class="name">{escape(shorten(report["bundle"]["name"], 26))}</tspan> {escape(report["bundle"]["precision"])}'
            parts.append(f'<text class="label" x="{left - 10}" y="{y + 14}" text-anchor="end">{label}</text>')
            parts.append(f'<rect x="{left}" y="{y + 2}" width="{share * scale:.1f}" height="{row - 9}" rx="3" style="fill:{colour}"/>')
            parts.append(f'<text class="note" x="{wide - 2}" y="{y + 14}" text-anchor="end">{kept(report, name)}</text>')
        about = "; ".join(f"{r['bundle']['name']} {r['bundle']['precision']} {kept(r, name)}" for r in students)
        figures.append(
            f"<figure><figcaption>{escape(name)}</figcaption>{_svg(f'kept{number}', wide, high, f'Kept on {name}', about, parts)}</figure>"
        )
    return f'<section><h2>What is kept</h2><div class="multiples">{"".join(figures)}</div></section>' if figures else ""


CSS = """
:root{--bg:#fbfaf6;--card:#fff;--ink:#1d2126;--soft:#5d6670;--line:#e4e1d8;--shade:#2f6fed;--c0:#3a3f46;--c1:#2f6fed;--c2:#d9480f;
--c3:#0c8f7d;--c4:#a61e8f;--c5:#b07d00;--c6:#6741d9;--c7:#3f8f1f;--c8:#d0306b;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--card:#1b1f25;--ink:#eceae4;--soft:#9aa4af;--line:#2c323a;--shade:#5b93ff;
--c0:#cfd5dc;--c1:#6b9dff;--c2:#ff8552;--c3:#35c9b2;--c4:#e56fd0;--c5:#e3b341;--c6:#a78bfa;--c7:#86cf5f;--c8:#ff7aa8}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}main{max-width:1240px;margin:0 auto;
padding:44px 28px 60px}header{margin-bottom:8px}.brand{margin:0;color:var(--soft);font-size:13px;letter-spacing:.08em;
text-transform:uppercase}h1{font-size:clamp(24px,3.4vw,36px);line-height:1.2;font-weight:650;letter-spacing:-.015em;margin:6px 0 18px;
max-width:26em;overflow-wrap:anywhere;text-wrap:balance}h2{font-size:19px;font-weight:650;margin:0 0 10px}h3{font-size:15px;
margin:18px 0 6px}section{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:22px 24px;margin:20px 0}
.where{color:var(--soft);font-size:14px;margin:14px 0 0}.noise{color:var(--c2);font-size:14px;margin:6px 0 0}.tiles{display:flex;
flex-wrap:wrap;gap:12px 44px;margin:0}.tiles div{display:flex;flex-direction:column-reverse}.tiles dt{color:var(--soft);font-size:14px}
.tiles dd{margin:0;font-size:27px;font-weight:600;letter-spacing:-.01em;font-variant-numeric:tabular-nums}.scroll{overflow-x:auto}
svg{display:block;width:100%;height:auto;font-family:inherit;overflow:visible}.scroll>svg{min-width:760px}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums;white-space:nowrap}th,td{padding:7px 7px;
text-align:right;border-bottom:1px solid var(--line);font-weight:400}th:first-child{text-align:left;padding-left:0}
thead th{color:var(--soft);font-size:13px}tbody tr:last-child>*{border-bottom:0}
tbody tr:hover>*{background:color-mix(in srgb,var(--ink) 4%,transparent)}tr.teacher>*{font-weight:650}th i{display:inline-block;
width:10px;height:10px;border-radius:50%;margin-right:8px}th button{all:unset;cursor:pointer}
th button:hover,th button:focus-visible{color:var(--ink);text-decoration:underline}th[aria-sort] button{color:var(--ink)}
th[aria-sort=ascending] button::after{content:" ↑"}th[aria-sort=descending] button::after{content:" ↓"}.prec{color:var(--soft);
font-weight:400}
td.bar{background:linear-gradient(90deg,color-mix(in srgb,var(--shade) 18%,transparent) var(--bar),
transparent var(--bar)) no-repeat 0 50%/100% 64%}
td.shade{background:color-mix(in srgb,var(--shade) calc(var(--s)*.3),transparent)}.tabs input{position:absolute;opacity:0}
.tabs label{display:inline-block;padding:3px 13px;margin:0 6px 10px 0;border:1px solid var(--line);border-radius:99px;font-size:14px;
color:var(--soft);cursor:pointer}.tabs input:checked+label{background:var(--ink);color:var(--bg);border-color:var(--ink)}
.tabs input:focus-visible+label{outline:2px solid var(--shade);outline-offset:2px}.one input,.one label{display:none}
.panel{display:none}.grid{stroke:var(--line)}.base{stroke:var(--soft);stroke-opacity:.5}.tick,.note,.hint,.axis{fill:var(--soft);
font-size:12px}.hint{font-style:italic}.note{font-size:11.5px;font-variant-numeric:tabular-nums}.label{font-size:12px;fill:var(--soft)}
.label .name{font-weight:600;fill:var(--ink)}.panel .label,.panel .note{paint-order:stroke;stroke:var(--card);stroke-width:3px;
stroke-linejoin:round}.teacher-line{stroke:var(--c0);stroke-dasharray:2 5;stroke-opacity:.75}.frontier{fill:none;stroke:var(--soft);
stroke-opacity:.35;stroke-width:1.5;stroke-linejoin:round}.dot{outline:none;color:var(--c)}.dot circle{fill:var(--c);fill-opacity:.28;
stroke:var(--c);stroke-width:1.5}.dot .core{fill-opacity:1;stroke:none}.dot line{stroke:var(--c);stroke-width:1.5}
.dot:hover circle,.dot:focus-visible circle{fill-opacity:.55}.dot.teacher circle{fill-opacity:.12;stroke-dasharray:4 3}
.dot.teacher .core{fill-opacity:1}.leader{stroke:var(--soft);stroke-opacity:.6}.key{fill:none;stroke:var(--soft)}
.hill path{fill:var(--c);fill-opacity:.35;stroke:var(--c);stroke-width:1.2}.mark{stroke:var(--ink);stroke-width:1.5}
.multiples{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:14px 36px}figure{margin:0;
max-width:640px}figcaption{font-size:14px;font-weight:600;margin-bottom:4px}section p{font-size:14px;color:var(--soft);margin:6px 0;
overflow-wrap:anywhere}section p b{color:var(--ink)}#tip{position:fixed;display:none;white-space:pre;pointer-events:none;
background:var(--ink);color:var(--bg);font-size:13px;line-height:1.45;padding:8px 12px;border-radius:8px;max-width:90vw;z-index:9}
@media(max-width:640px){main{padding:24px 12px}section{padding:16px 14px;border-radius:10px}}@media print{section{break-inside:avoid}
body{background:#fff}}
"""

JS = """
const tip=document.getElementById('tip');const show=(e,x,y)=>{tip.textContent=e.dataset.tip;tip.style.display='block';
tip.style.left=Math.min(x+14,innerWidth-tip.offsetWidth-8)+'px';tip.style.top=Math.max(8,Math.min(y+14,
innerHeight-tip.offsetHeight-8))+'px'};document.querySelectorAll('[data-tip]').forEach(e=>{e.onmousemove=v=>show(e,v.clientX,v.clientY);
e.onfocus=()=>{const b=e.getBoundingClientRect();show(e,b.right,b.top)};e.onmouseleave=e.onblur=()=>tip.style.display='none'});
document.querySelectorAll('.sortable thead th').forEach((th,i)=>th.firstChild.onclick=()=>{
const up=th.getAttribute('aria-sort')==='descending'||(i===0&&!th.hasAttribute('aria-sort')),body=th.closest('table').tBodies[0];
th.parentNode.querySelectorAll('th').forEach(o=>o.removeAttribute('aria-sort'));th.setAttribute('aria-sort',
up?'ascending':'descending');const key=r=>r.cells[i].dataset.v,empty=v=>v==='';[...body.rows].sort((a,b)=>{const x=key(a),y=key(b);
if(empty(x)||empty(y))return empty(x)-empty(y);return(i===0?x.localeCompare(y):x-y)*(up?1:-1)}).forEach(r=>body.append(r))});
"""
