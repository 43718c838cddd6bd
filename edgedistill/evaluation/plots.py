"""The plots of a report's page, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

import numpy as np

from edgedistill.evaluation.report import Report, is_teacher, kept, megabytes, millions, milliseconds, reference, score, shorten
from edgedistill.evaluation.suites import MEASURES

Box = tuple[float, float, float, float]  # left, top, right, bottom
Point = tuple[float, float, float]  # x, y, radius


def measure(report: Report, suite: str) -> str:
    return MEASURES[report["quality"][suite].get("kind", "sts")][1]


def tradeoff(reports: list[Report], names: list[str], colours: dict[str, str]) -> str:
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
        f'<text class="axis" transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">{measure(shown[0], suite)}</text>'
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
    tip = f"{report['bundle']['name']} · {report['bundle']['precision']}\n{measure(report, suite).split(' ')[0]} {score(report, suite)}"
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


def latencies(reports: list[Report], colours: dict[str, str]) -> str:
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


def keeping(reports: list[Report], names: list[str], colours: dict[str, str]) -> str:
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
