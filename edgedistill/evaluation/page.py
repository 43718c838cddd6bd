"""Reports as one self-contained HTML file with plots and tables, light and dark: html/page.js draws it in the
browser from the reports."""

from __future__ import annotations

from pathlib import Path

from edgedistill import files
from edgedistill.evaluation import tables
from edgedistill.evaluation.report import (
    Report,
    disturbances,
    is_teacher,
    suites,
    title,
    without_samples,
)
from edgedistill.evaluation.suites import FAMILIES
from edgedistill.evaluation.suites.cosines import Measures
from edgedistill.precisions import PRECISIONS

TEMPLATES = Path(__file__).with_name("html")
SHOWN_SAMPLES = 1000  # of each bundle's latencies, for its distribution
PARTS = {  # a mark in a template: the file that takes its place
    "/*CSS*/": "page.css",
    "/*DRAWING*/": "drawing.js",
    "/*ACCURACY*/": "accuracy_plot.js",
    "/*INTERACTION*/": "interaction.js",
    "/*PAGE*/": "page.js",
}


def write(path: Path, reports: list[Report], changes: list[list[str]] | None = None) -> None:
    """Write the page atomically, as one file that loads nothing from elsewhere."""
    page = (TEMPLATES / "page.html").read_text(encoding="utf-8")
    for mark, name in PARTS.items():
        page = page.replace(mark, (TEMPLATES / name).read_text(encoding="utf-8"))
    text = files.json_text(data(reports, changes), separators=(",", ":"))
    files.write_text(path, page.replace("/*DATA*/", text.replace("<", "\\u003c")))  # which ends no script


def data(reports: list[Report], changes: list[list[str]] | None = None) -> Measures:
    """Return what page.js draws: the reports themselves and, of each, the cells of its row in every table.

    `suites` holds each suite's name and kind, the measure of a task that it averages, and the title of that;
    `embeddings` the rows of embeddings in fewer bytes, `precisions` what each is.
    """
    names = suites(reports)
    noise = disturbances(reports)
    kinds = {name: quality["kind"] for report in reports for name, quality in report["quality"].items()}
    drawn = []
    for report in reports:
        times = sorted(time for times_ms in report["single"].get("samples_ms") or () for time in times_ms)
        step = max(1, (len(times) - 1) // SHOWN_SAMPLES)  # evenly from the fastest to the slowest
        shown = {
            **without_samples(report),
            "samples_ms": [*times[::step], times[-1]] if times else None,
            "variant": title(report).removeprefix(f"{report['bundle']['name']}:"),
            "teacher": is_teacher(report),
            "short": tables.shorten(report["bundle"]["name"], 28),
            "cells": [cell._asdict() for cell in tables.cells(report, names, True, noise)],
        }
        drawn.append(shown)
    return {
        "suites": [
            {"name": name, "kind": kind, "averaged": FAMILIES[kind].averaged, "measure": FAMILIES[kind].title}
            for name, kind in kinds.items()
        ],
        "reports": drawn,
        "embeddings": [
            {"report": reports.index(report), "cells": [cell._asdict() for cell in row]}
            for report, row in tables.embeddings(reports)
        ],
        "where": list(dict.fromkeys(map(tables.conditions, reports))),
        "precisions": {name: precision.description.split(";")[0] for name, precision in PRECISIONS.items()},
        "changes": changes,
        "noise": "; ".join(noise),
        "ties": tables.tie_note(reports),
    }
