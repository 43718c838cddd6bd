"""Accuracy against latency, one plot per suite: x p50 of a single text (log), y the suite's average, marker
area the graph's size."""

from __future__ import annotations

import math
from html import escape

from edgedistill.evaluation.number_format import megabytes, millions, milliseconds, retained, score, shorten
from edgedistill.evaluation.plots import labels
from edgedistill.evaluation.plots.svg import (
    Box,
    Caption,
    Circle,
    Scale,
    drawing,
    grid,
    latency_axes,
    line,
    linear_scale,
    log_scale,
    log_ticks,
)
from edgedistill.evaluation.report import Report, is_teacher, reference
from edgedistill.evaluation.suites import MEASURES

MAX_RADIUS, MIN_RADIUS = 36.0, 3.5
CROWDED = 10  # reports above which labels are shorter and have no note
WIDE, HIGH = 1120.0, 580.0
FRAME = Box(62.0, 88.0, WIDE - 16, HIGH - 56)


def measure(report: Report, suite: str) -> str:
    """What a suite's average is: `Spearman × 100`."""
    return MEASURES[report["quality"][suite].get("kind", "sts")][1]


def radius(report: Report, largest: int) -> float:
    """A marker whose area is proportional to the graph's bytes; `largest` has MAX_RADIUS."""
    return max(MIN_RADIUS, MAX_RADIUS * math.sqrt(report["size_bytes"]["graph"] / largest))


def frontier(points: list[Circle]) -> list[Box]:
    """The Pareto frontier as steps: every better bundle is slower."""
    steps: list[Box] = []
    px, py = min(points)[:2]
    for x, y, _ in sorted(points):
        if y < py:
            steps += [Box(px, py, x, py), Box(x, y, x, py)]
            px, py = x, y
    return steps


def size_key(largest: int, right: float, y: float) -> str:
    """Circles that explain the marker area, right-aligned at `right`, centred on `y`."""
    power = 10 ** math.floor(math.log10(largest))
    multiple = max((m * power for m in (2, 5) if m * power <= largest), default=0)
    parts, px = [], right - 8.0
    for size in sorted((size for size in (power / 10, power, multiple) if size), reverse=True):
        key_radius = max(MIN_RADIUS, MAX_RADIUS * math.sqrt(size / largest))
        text = f"{size / 1e6:g} MB"
        px -= 6.0 * len(text)
        parts.append(f'<text class="tick" x="{px:.1f}" y="{y + 4:.1f}">{text}</text>')
        px -= key_radius + 6
        parts.append(f'<circle class="key" cx="{px:.1f}" cy="{y:.1f}" r="{key_radius:.1f}"/>')
        px -= key_radius + 16
    parts.append(
        f'<text class="hint" x="{px + 6:.1f}" y="{y + 4:.1f}" text-anchor="end">area: graph on disk</text>'
    )
    return "".join(parts)


def plot(reports: list[Report], suite: str, colours: dict[str, str], number: int) -> str:
    """The <svg> of one suite. colours: bundle name -> CSS colour; number: of the plot on its page."""
    left, top, right, _ = FRAME
    shown = [report for report in reports if suite in report["quality"]]
    times = [value for report in shown for value in _interval(report)]
    x = log_scale(times, left + 60, right - 60)
    y, y_ticks = linear_scale(
        [100 * r["quality"][suite]["average"] for r in shown], FRAME.bottom - 30, top + 36
    )
    largest = max(report["size_bytes"]["graph"] for report in shown)
    points = [
        Circle(x(r["single"]["p50_ms"]), y(100 * r["quality"][suite]["average"]), radius(r, largest))
        for r in shown
    ]
    steps = frontier(points)
    drawn = list(steps)
    parts = [
        grid(x, log_ticks(times), y, y_ticks, FRAME),
        latency_axes(FRAME, measure(shown[0], suite), HIGH - 12, FRAME.top - 14),
    ]
    if (teacher := reference(shown)) is not None:
        at = y(100 * teacher["quality"][suite]["average"])
        parts.append(f'<line class="teacher-line" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(
            f'<text class="hint" x="{left + 8}" y="{at - 6:.1f}">teacher, {score(teacher, suite)}</text>'
        )
        drawn += [Box(left, at - 1, right, at + 1), Box(left, at - 18, left + 140, at)]
    parts += [line("frontier", step) for step in steps]
    for report, point in sorted(
        zip(shown, points, strict=True), key=lambda pair: -pair[1].radius
    ):  # the small ones on top
        parts.append(_dot(report, suite, point, colours, x))
    parts.append(_labels(shown, labels.Surroundings(FRAME, drawn, points)))
    parts.append(size_key(largest, right, top - 46))
    about = "; ".join(
        f"{r['bundle']['name']} {r['bundle']['precision']}: {score(r, suite)} at "
        f"{milliseconds(r['single']['p50_ms'])} ms"
        for r in shown
    )
    return drawing(WIDE, HIGH, Caption(f"plot{number}", f"{suite}: accuracy against latency", about), parts)


def _interval(report: Report) -> list[float]:
    """p50 and, where known, the ends of its interval."""
    single = report["single"]
    return [single["p50_ms"], *(single.get("interval95") or {}).get("p50_ms", [])]


def _dot(report: Report, suite: str, point: Circle, colours: dict[str, str], x: Scale) -> str:
    px, py, size = point
    low, high = (_interval(report)[1:] + [report["single"]["p50_ms"]] * 2)[:2]
    kind = " teacher" if is_teacher(report) else ""
    tip = (
        f"{report['bundle']['name']} · "
        f"{report['bundle']['precision']}\n{measure(report, suite).split(' ')[0]} {score(report, suite)}"
    )
    tip += f", {retained(report, suite)} of the teacher's" if retained(report, suite) else ""
    tip += (
        f"\np50 {milliseconds(report['single']['p50_ms'])} ms, p99 "
        f"{milliseconds(report['single']['p99_ms'])} ms"
    )
    tip += (
        f"\n{megabytes(report['size_bytes']['graph'])} MB, {millions(report['parameters']['total'])} "
        "parameters"
    )
    return (
        f'<g class="dot{kind}" tabindex="0" data-tip="{escape(tip)}" '
        f'style="--c:{colours[report["bundle"]["name"]]}">'
        f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{size:.1f}"/><line x1="{x(low):.1f}" x2="{x(high):.1f}" '
        f'y1="{py:.1f}" y2="{py:.1f}"/>'
        f'<circle class="core" cx="{px:.1f}" cy="{py:.1f}" r="2"/></g>'
    )


def _labels(reports: list[Report], surroundings: labels.Surroundings) -> str:
    """A label per point, teachers first. In a crowded plot a bundle's name stands at its first point only."""
    crowded = len(reports) > CROWDED
    named: set[str] = set()
    found = []
    points = surroundings.points
    for at in sorted(range(len(reports)), key=lambda i: (not is_teacher(reports[i]), points[i].x)):
        report = reports[at]
        name, precision = report["bundle"]["name"], report["bundle"]["precision"]
        short = "" if crowded and name in named else shorten(name, 26 if crowded else 32)
        named.add(name)
        note = (
            f"{megabytes(report['size_bytes']['graph'])} MB · {milliseconds(report['single']['p50_ms'])} ms"
        )
        found.append(labels.Label(points[at], short, precision, "" if crowded else note))
    boxes = labels.place(found, surroundings)
    return "".join(labels.draw(label, box) for label, box in zip(found, boxes, strict=True))
