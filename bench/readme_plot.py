"""The README's plot: accuracy against latency of one suite, as two SVG files for light and dark
backgrounds."""

from __future__ import annotations

from html import escape
from pathlib import Path

from edgedistill import files
from edgedistill.evaluation.number_format import milliseconds, score
from edgedistill.evaluation.plots import labels
from edgedistill.evaluation.plots.svg import (
    Box,
    Circle,
    grid,
    latency_axes,
    line,
    linear_scale,
    log_scale,
    log_ticks,
)
from edgedistill.evaluation.plots.tradeoff import frontier, measure, radius, size_key
from edgedistill.evaluation.report import Report, is_teacher, reference, suites

WIDE, HIGH = 880.0, 480.0
FRAME = Box(58.0, 66.0, WIDE - 18, HIGH - 54)
MARGINS = Box(64.0, 44.0, 74.0, 46.0)  # between the frame and the outermost points
FONT = (
    "-apple-system,BlinkMacSystemFont,'Segoe UI','Noto Sans',Helvetica,Arial,sans-serif"  # as GitHub's pages
)
THEMES = {  # ink, soft text, grid lines, background, student, teacher
    "light": ("#1f2328", "#59636e", "#d1d9e0", "#ffffff", "#0969da", "#9a6700"),
    "dark": ("#f0f6fc", "#9198a1", "#3d444d", "#0d1117", "#4493f8", "#d29922"),
}


def write(folder: Path, reports: list[Report], suite: str) -> bool:
    """Write accuracy-latency-light.svg and -dark.svg. Returns whether any of them changed."""
    changed = False
    for theme in THEMES:
        path, drawn = folder / f"accuracy-latency-{theme}.svg", svg(reports, suite, theme)
        if not path.is_file() or path.read_text(encoding="utf-8") != drawn:
            files.write_text(path, drawn)
            changed = True
    return changed


def svg(reports: list[Report], suite: str, theme: str) -> str:
    """The plot of one suite in a theme: x p50 of a single text (log), y the suite's average, marker area the
    graph's size.

    Returns one self-contained SVG document; the same reports give the same bytes.
    """
    assert suite in suites(reports), f"no report has the suite {suite}"
    shown = [report for report in reports if suite in report["quality"]]
    times = [report["single"]["p50_ms"] for report in shown]
    scores = [100 * report["quality"][suite]["average"] for report in shown]
    x = log_scale(times, FRAME.left + MARGINS.left, FRAME.right - MARGINS.right)
    y, y_ticks = linear_scale(scores, FRAME.bottom - MARGINS.bottom, FRAME.top + MARGINS.top)
    largest = max(report["size_bytes"]["graph"] for report in shown)
    points = [
        Circle(x(time), y(value), radius(report, largest))
        for time, value, report in zip(times, scores, shown, strict=True)
    ]
    steps = frontier(points)
    parts = [
        grid(x, log_ticks(times), y, y_ticks, FRAME),
        latency_axes(FRAME, f"{suite}, {measure(shown[0], suite)}", HIGH - 10, FRAME.top - 26),
        *[line("frontier", s) for s in steps],
    ]
    drawn = list(steps)
    if (teacher := reference(shown)) is not None:
        at = y(100 * teacher["quality"][suite]["average"])
        parts.append(line("teacher-line", Box(FRAME.left, at, FRAME.right, at)))
        drawn.append(Box(FRAME.left, at - 1, FRAME.right, at + 1))
    for report, (px, py, size) in sorted(
        zip(shown, points, strict=True), key=lambda pair: -pair[1].radius
    ):  # the small ones on top
        kind = "teacher" if is_teacher(report) else "student"
        parts.append(f'<circle class="{kind}" cx="{px:.1f}" cy="{py:.1f}" r="{size:.1f}"/>')
        parts.append(f'<circle class="{kind} core" cx="{px:.1f}" cy="{py:.1f}" r="2"/>')
    parts += [
        _labels(shown, labels.Surroundings(FRAME, drawn, points)),
        size_key(largest, FRAME.right, FRAME.top - 30),
    ]
    about = "; ".join(
        f"{_name(r)}: {score(r, suite)} at {milliseconds(r['single']['p50_ms'])} ms" for r in shown
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE:g} {HIGH:g}" width="{WIDE:g}" '
        f'height="{HIGH:g}" role="img">'
        "<title>Accuracy against latency on "
        f"{escape(suite)}</title><desc>{escape(about)}</desc><style>{_style(theme)}</style>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _name(report: Report) -> str:
    """A bundle's name; of a teacher that of the model."""
    bundle = report["bundle"]
    return (
        f"{bundle['teacher'].removeprefix('packaged:')} (teacher)"
        if is_teacher(report) and bundle.get("teacher")
        else bundle["name"]
    )


def _labels(reports: list[Report], surroundings: labels.Surroundings) -> str:
    """The teacher's label first, then from fast to slow."""

    def first(pair: tuple[Report, Circle]) -> tuple[bool, float]:
        return not is_teacher(pair[0]), pair[1].x

    found = [
        labels.Label(
            point,
            _name(report),
            "",
            f"{_megabytes(report)} MB · {milliseconds(report['single']['p50_ms'])} ms",
        )
        for report, point in sorted(zip(reports, surroundings.points, strict=True), key=first)
    ]
    boxes = labels.place(found, surroundings)
    return "".join(labels.draw(label, box) for label, box in zip(found, boxes, strict=True))


def _megabytes(report: Report) -> str:
    size = report["size_bytes"]["graph"] / 1e6
    return f"{size:.1f}" if size < 10 else f"{size:.0f}"


def _style(theme: str) -> str:
    ink, soft, lines, background, student, teacher = THEMES[theme]
    return (
        f"text{{font-family:{FONT};fill:{soft};font-size:12px}}.axis{{font-size:12.5px}}.hint{{font-style:italic}}"
        f".label{{fill:{soft};font-size:12.5px}}.name{{fill:{ink};font-weight:600}}.note{{font-size:11.5px}}"
        f".label,.note{{paint-order:stroke;stroke:{background};stroke-width:3px;stroke-linejoin:round}}"
        f".grid{{stroke:{lines};stroke-opacity:.6}}.base{{stroke:{soft};stroke-opacity:.6}}"
        f".frontier{{stroke:{student};stroke-opacity:.45;stroke-width:1.5;stroke-dasharray:5 4}}"
        f".teacher-line{{stroke:{teacher};stroke-opacity:.7;stroke-dasharray:2 "
        f"5}}.leader{{stroke:{soft};stroke-opacity:.6}}"
        f".student{{fill:{student};fill-opacity:.25;stroke:{student};stroke-width:1.5}}"
        f".teacher{{fill:{teacher};fill-opacity:.14;stroke:{teacher};stroke-width:1.5;stroke-dasharray:4 3}}"
        f".core{{fill-opacity:1;stroke:none}}.key{{fill:none;stroke:{soft}}}"
    )
