"""Plots of accuracy against latency, as two SVG files for light and dark backgrounds: what ships beside other
libraries, and the students of a table of reports. The report's own JavaScript draws them, in Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from edgedistill.errors import UserError
from edgedistill.evaluation.report import Report, is_teacher, suites
from edgedistill.evaluation.suites import FAMILIES
from edgedistill.evaluation.tables import significant

WIDE, HIGH = 880, 480
FONT = (
    "-apple-system,BlinkMacSystemFont,'Segoe UI','Noto Sans',Helvetica,Arial,sans-serif"  # as GitHub's pages
)
TEACHERS = {  # rows of the teacher itself: what the plot calls them
    "sentence-transformers": "sentence-transformers (teacher)",
    "edgedistill, int8": "all-MiniLM, int8 (teacher)",
}
OTHERS = "others"  # what is no bundle of ours: in place of a colour, for the style sheet to find
THEMES = {  # ink, soft text, grid lines, background, student, teacher
    "light": ("#1f2328", "#59636e", "#d1d9e0", "#ffffff", "#0969da", "#9a6700"),
    "dark": ("#f0f6fc", "#9198a1", "#3d444d", "#0d1117", "#4493f8", "#d29922"),
}


Drawing = dict[str, Any]  # points and options, as accuracy_plot.js takes them


def reference(reports: list[Report]) -> Report | None:
    """The teacher that students are compared with, in fp32 where that was measured."""
    teachers = [report for report in reports if is_teacher(report)]
    return min(teachers, key=lambda report: report["bundle"]["precision"] != "fp32", default=None)


def of_reports(reports: list[Report], suite: str) -> Drawing:
    """The bundles of reports of `edgedistill bench`, on one suite."""
    assert suite in suites(reports), f"no report has the suite {suite}"
    measured = [report for report in reports if suite in report["quality"]]
    teacher = reference(measured)
    line = None if teacher is None else {"score": _score(teacher, suite), "text": ""}
    kind = measured[0]["quality"][suite]["kind"]
    return _drawing([point(report, suite) for report in measured], suite, FAMILIES[kind].title, line)


def of_peers(
    report: dict[str, Any], baseline: str, names: list[str], published: list[dict[str, Any]]
) -> Drawing:
    """Rows of bench/peers/run.py, on sts7: the baseline as the teacher, other libraries in another colour,
    and lines for models of which only a published score is known."""
    rows = [row for row in report["rows"] if row["name"] in names and {"time", "quality"} <= row.keys()]
    points = []
    for row in rows:
        ms, size, score = row["time"]["p50_ms"], row["size_bytes"], 100 * row["quality"]["sts7"]
        point = _marked(TEACHERS.get(row["name"], row["name"]), ms, size, score, row["name"] == baseline)
        points.append(point if row["ours"] else {**point, "colour": OTHERS})
    (teacher,) = (point for point in points if point["teacher"])
    line = {"score": teacher["score"], "text": "all-MiniLM-L6-v2"}
    found = _drawing(points, "sts7", FAMILIES["sts"].title, line)
    found["options"]["area"] = "weights on disk"
    found["options"]["levels"] += [
        {"score": 100 * row["sts7"], "text": f"{row['name']}, published", "right": True} for row in published
    ]
    return {**found, "key": ("edgedistill", "other libraries")}


def _drawing(points: list[dict[str, Any]], suite: str, measure: str, line: dict[str, Any] | None) -> Drawing:
    options = {
        "wide": WIDE,
        "high": HIGH,
        "title": f"Accuracy against latency on {suite}",
        "measure": f"{suite}, {measure}",
        "levels": [line] if line else [],
    }
    return {"points": points, "options": options}


def svg(drawing: Drawing, theme: str) -> str:
    """A plot in a theme, a self-contained SVG document; the same drawing gives the same bytes.

    Raises UserError where Node is not installed.
    """
    if shutil.which("node") is None:
        raise UserError("the README's plot: Node draws it, and is not installed; install Node 20 or newer")
    drawn = subprocess.run(
        ["node", Path(__file__).with_suffix(".mjs")],
        input=json.dumps({"points": drawing["points"], "options": drawing["options"]}),
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    ).stdout
    size = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{HIGH}"'
    drawn = drawn.replace("<svg", size, 1).replace("<desc", f"<style>{_style(theme)}</style><desc", 1)
    return f"{drawn.removesuffix('</svg>')}{_key(drawing.get('key', ()))}</svg>\n"


def _key(names: tuple[str, ...]) -> str:
    """What the colours are, in the top left corner: the first is ours."""
    drawn, x = "", 68
    for name, style in zip(names, ("", f' style="--c:{OTHERS}"'), strict=False):
        drawn += f'\n<g class="dot"{style}><circle cx="{x}" cy="40" r="6"></circle></g>'
        drawn += f'<text class="tick" x="{x + 12}" y="44">{name}</text>'
        x += 12 + 7 * len(name) + 24
    return drawn


def point(report: Report, suite: str) -> dict[str, Any]:
    """A report as accuracy_plot.js takes it, without an interval; a teacher has the name of its model."""
    bundle, ms, size = report["bundle"], report["single"]["p50_ms"], report["size_bytes"]["graph"]
    name = bundle["name"]
    if is_teacher(report) and bundle.get("teacher"):
        name = f"{bundle['teacher'].removeprefix('packaged:')} (teacher)"
    return _marked(name, ms, size, _score(report, suite), is_teacher(report))


def _marked(name: str, ms: float, size: int, score: float, teacher: bool) -> dict[str, Any]:
    note = f"{significant(ms)} ms"
    point = {**dict.fromkeys(("ms", "low", "high"), ms), "score": score, "bytes": size, "name": name}
    return {**point, "detail": "", "note": note, "teacher": teacher}


def _score(report: Report, suite: str) -> float:
    return 100 * float(report["quality"][suite]["average"])


def _style(theme: str) -> str:
    ink, soft, lines, background, student, teacher = THEMES[theme]
    return (
        f"text{{font-family:{FONT};fill:{soft};font-size:12px}}.axis{{font-size:12.5px}}.hint{{font-style:italic}}"
        f".label{{fill:{soft};font-size:12.5px}}.name{{fill:{ink};font-weight:600}}.note{{font-size:11.5px}}"
        f".label,.note{{paint-order:stroke;stroke:{background};stroke-width:3px;stroke-linejoin:round}}"
        f".grid{{stroke:{lines};stroke-opacity:.6}}.base{{stroke:{soft};stroke-opacity:.6}}"
        f".frontier{{stroke:{student};stroke-opacity:.45;stroke-width:1.5;stroke-dasharray:5 4}}"
        f".teacher-line{{stroke:{teacher};stroke-opacity:.7;stroke-dasharray:2 "
        f"5}}.leader{{stroke:{soft};stroke-opacity:.6}}.key{{fill:none;stroke:{soft}}}"
        f".dot circle{{fill:{student};fill-opacity:.25;stroke:{student};stroke-width:1.5}}"
        f".dot.teacher circle{{fill:{teacher};fill-opacity:.14;stroke:{teacher};stroke-dasharray:4 3}}"
        f".dot[style] circle{{fill:{soft};fill-opacity:.2;stroke:{soft}}}"
        f".dot .core,.dot[style] .core,.dot.teacher .core{{fill-opacity:1;stroke:none}}"
    )
