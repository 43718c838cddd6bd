"""The README's plot: accuracy against latency of one suite, as two SVG files for light and dark backgrounds.
The report's own JavaScript draws it, in Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from edgedistill import files
from edgedistill.errors import UserError
from edgedistill.evaluation.report import Report, is_teacher, reference, suites
from edgedistill.evaluation.suites import FAMILIES
from edgedistill.evaluation.tables import milliseconds

WIDE, HIGH = 880, 480
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
    """The plot of one suite in a theme, a self-contained SVG document; the same reports give the same bytes.

    Raises UserError where Node is not installed.
    """
    if shutil.which("node") is None:
        raise UserError("the README's plot: Node draws it, and is not installed; install Node 20 or newer")
    assert suite in suites(reports), f"no report has the suite {suite}"
    measured = [report for report in reports if suite in report["quality"]]
    teacher = reference(measured)
    title = f"{suite}, {FAMILIES[measured[0]['quality'][suite]['kind']].title}"
    options = {
        "wide": WIDE,
        "high": HIGH,
        "title": f"Accuracy against latency on {suite}",
        "measure": title,
        "teacher": None if teacher is None else {"score": _score(teacher, suite), "text": ""},
    }
    drawn = subprocess.run(
        ["node", Path(__file__).with_suffix(".mjs")],
        input=json.dumps({"points": [_point(report, suite) for report in measured], "options": options}),
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    ).stdout
    size = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{HIGH}"'
    return f"{drawn.replace('<svg', size, 1).replace('<desc', f'<style>{_style(theme)}</style><desc', 1)}\n"


def _point(report: Report, suite: str) -> dict[str, Any]:
    """A report as accuracy_plot.js takes it, without an interval; a teacher has the name of its model."""
    bundle, ms, size = report["bundle"], report["single"]["p50_ms"], report["size_bytes"]["graph"]
    name = bundle["name"]
    if is_teacher(report) and bundle.get("teacher"):
        name = f"{bundle['teacher'].removeprefix('packaged:')} (teacher)"
    return {
        **dict.fromkeys(("ms", "low", "high"), ms),
        "score": _score(report, suite),
        "bytes": size,
        "name": name,
        "detail": "",
        "note": f"{size / 1e6:.{1 if size < 1e7 else 0}f} MB · {milliseconds(ms)} ms",
        "teacher": is_teacher(report),
    }


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
        f".dot .core,.dot.teacher .core{{fill-opacity:1;stroke:none}}"
    )
