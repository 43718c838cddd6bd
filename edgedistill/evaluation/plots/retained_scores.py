"""Bars of the share of the teacher's score that each student retains, one panel per suite."""

from __future__ import annotations

from html import escape

from edgedistill.evaluation.number_format import retained, shorten
from edgedistill.evaluation.plots.svg import Caption, drawing
from edgedistill.evaluation.report import Report, reference

ROW, LEFT, WIDE, RIGHT = 26.0, 250.0, 512.0, 58.0


def section(reports: list[Report], names: list[str], colours: dict[str, str]) -> str:
    """The page's section; empty without a teacher. Bars start at zero. colours: bundle name -> CSS colour."""
    figures = []
    teacher = reference(reports)
    for number, name in enumerate(names):
        students = [report for report in reports if report is not teacher and report["kept"].get(name) is not None]
        if students:
            figures.append(f"<figure><figcaption>{escape(name)}</figcaption>{_bars(students, name, colours, number)}</figure>")
    return f'<section><h2>Retained of the teacher\'s score</h2><div class="multiples">{"".join(figures)}</div></section>' if figures else ""


def _bars(students: list[Report], suite: str, colours: dict[str, str], number: int) -> str:
    scale = (WIDE - LEFT - RIGHT) / max(1.0, *(report["kept"][suite] for report in students))
    high = ROW * len(students) + 30
    full = LEFT + scale
    parts = [f'<line class="teacher-line" x1="{full:.1f}" x2="{full:.1f}" y1="18" y2="{high - 6}"/>']
    parts.append(f'<text class="hint" x="{full:.1f}" y="12" text-anchor="end">teacher, 100%</text>')
    for at, report in enumerate(students):
        y, share = 22 + ROW * at, max(0.0, report["kept"][suite])
        name = report["bundle"]["name"]
        label = f'<tspan class="name">{escape(shorten(name, 26))}</tspan> {escape(report["bundle"]["precision"])}'
        parts.append(f'<text class="label" x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{label}</text>')
        size = f'width="{share * scale:.1f}" height="{ROW - 9}"'
        parts.append(f'<rect x="{LEFT}" y="{y + 2}" {size} rx="3" style="fill:{colours[name]}"/>')
        parts.append(f'<text class="note" x="{WIDE - 2}" y="{y + 14}" text-anchor="end">{retained(report, suite)}</text>')
    about = "; ".join(f"{r['bundle']['name']} {r['bundle']['precision']} {retained(r, suite)}" for r in students)
    return drawing(WIDE, high, Caption(f"retained{number}", f"Retained on {suite}", about), parts)
