"""Distributions of single-text latencies: one row per report on a shared log scale, p50 and p99 marked."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

import numpy as np

from edgedistill.evaluation.number_format import milliseconds, shorten
from edgedistill.evaluation.plots.scales import Scale, log_scale, log_ticks
from edgedistill.evaluation.plots.svg import Caption, drawing
from edgedistill.evaluation.report import Report

ROW, LEFT, RIGHT, WIDE = 46.0, 300.0, 128.0, 1120.0
PEAK = 36.0  # height of a distribution
SMOOTHING = [0.1, 0.2, 0.4, 0.2, 0.1]


class Row(NamedTuple):
    """Where a report's distribution is drawn: its base line, colour, and the shared scale."""

    base: float
    colour: str
    x: Scale


def section(reports: list[Report], colours: dict[str, str]) -> str:
    """The page's section. colours: bundle name -> CSS colour."""
    samples = [np.array(report["single"].get("samples_ms") or [[report["single"]["p50_ms"]]], dtype=float).ravel() for report in reports]
    low = min(float(np.quantile(values, 0.001)) for values in samples)
    high = max(float(np.quantile(values, 0.999)) for values in samples)
    bottom = ROW * len(reports) + 14
    x = log_scale([low, high], LEFT + 16, WIDE - RIGHT)
    parts = []
    for tick in log_ticks([low, high]):
        if LEFT <= x(tick) <= WIDE - RIGHT:
            parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="6" y2="{bottom}"/>')
            parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 17}" text-anchor="middle">{tick:g} ms</text>')
    for at, (report, values) in enumerate(zip(reports, samples, strict=True)):
        name, single = report["bundle"]["name"], report["single"]
        row = Row(ROW * (at + 1) + 4, colours[name], x)
        parts.append(_distribution(report, np.clip(values, low, high), row))
        parts.append(
            f'<text class="label" x="{LEFT - 14}" y="{row.base - 8}" text-anchor="end"><tspan class="name">{escape(shorten(name, 30))}'
            f"</tspan> {escape(report['bundle']['precision'])}</text>"
        )
        ends = f"{milliseconds(single['p50_ms'])} · {milliseconds(single['p99_ms'])}"
        parts.append(f'<text class="note" x="{WIDE - 4}" y="{row.base - 8}" text-anchor="end">{ends}</text>')
    parts.append(f'<text class="tick" x="{WIDE - 4}" y="{bottom + 17}" text-anchor="end">p50 · p99, ms</text>')
    about = "; ".join(
        f"{r['bundle']['name']} {r['bundle']['precision']}: p50 {r['single']['p50_ms']}, p99 {r['single']['p99_ms']} ms" for r in reports
    )
    drawn = drawing(WIDE, bottom + 26, Caption("latencies", "Latency of single texts", about), parts)
    return f'<section><h2>Latency distributions</h2><div class="scroll">{drawn}</div></section>'


def _distribution(report: Report, values: np.ndarray, row: Row) -> str:
    """A smoothed histogram over the log of time, with p50 and p99. values (n,) in ms."""
    base, colour, x = row
    logs = np.log10(values)
    edges = np.linspace(logs.min() - 0.02, logs.max() + 0.02, max(24, int(np.ptp(logs) * 120)))
    counts = np.histogram(logs, edges)[0].astype(float)
    counts = np.convolve(np.pad(counts, 2), SMOOTHING, "valid")
    heights = counts / counts.max() * PEAK
    at = [x(10**value) for value in (edges[:-1] + edges[1:]) / 2]
    top = "".join(f"L{px:.1f} {base - height:.1f}" for px, height in zip(at, heights.tolist(), strict=True))
    marks = "".join(
        f'<line class="mark" x1="{x(v):.1f}" x2="{x(v):.1f}" y1="{base - tall}" y2="{base + 3}"/>'
        for v, tall in ((report["single"]["p50_ms"], PEAK), (report["single"]["p99_ms"], PEAK / 3))
    )
    return (
        f'<g class="distribution" style="--c:{colour}"><path d="M{at[0]:.1f} {base:.1f}{top}L{at[-1]:.1f} {base:.1f}Z"/>'
        f'<line class="base" x1="{at[0]:.1f}" x2="{at[-1]:.1f}" y1="{base}" y2="{base}"/>{marks}</g>'
    )
