"""The whole page: what page.js draws, as JSON in page.html."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files
from edgedistill.evaluation import number_format as shown
from edgedistill.evaluation.plots import svg, tradeoff
from edgedistill.evaluation.report import NOISY, Report, is_teacher, noisy, reference, suites
from edgedistill.evaluation.suites import MEASURES

COLOURS = 9  # of the style sheet: --c0 is the teachers', --c1 to --c8 the students', then --c1 again
COSTS = ["p50 ms", "p99 ms", "texts/s", "load ms", "RSS MB", "batch sensitivity"]
GOOD_SHARE = 0.95  # the summary names the smallest student that retains at least this share
METHOD = (
    "Each measurement ran in a fresh process, and bundles alternated. Times include tokenization. Latency: "
    "{counted} per bundle, with "
    "95% bootstrap intervals over rounds and texts. Memory: the peak of a separate process, after texts of "
    "many lengths. Throughput: all "
    "texts at once, sorted by length into batches. Retained: the score as a share of the teacher’s. Batch "
    "sensitivity: the largest 1 − "
    "cosine between a text’s embedding encoded alone and in a batch."
)

Cell = dict[str, Any]  # shown; value: to sort by; bar: 0 … 1 of the cell's width; shade: 0 … 1; bold


def write(path: Path, reports: list[Report]) -> None:
    """Write the page atomically."""
    files.write_text(path, html(reports))


def html(reports: list[Report]) -> str:
    """The page as a string. It loads nothing from elsewhere."""
    text = files.json_text(data(reports), separators=(",", ":")).replace(
        "<", "\\u003c"
    )  # no </script> in a name
    parts = {
        "/*CSS*/": template("page.css"),
        "/*JS*/": template("page.js") + template("interaction.js"),
        "/*DATA*/": text,
    }
    page = template("page.html")
    for mark, part in parts.items():
        page = page.replace(mark, part)
    return page


def template(name: str) -> str:
    """A file beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def data(reports: list[Report]) -> dict[str, Any]:
    """Everything that the page shows, as page.js reads it; `bundle` is always a report's place among the
    reports."""
    names, colours = suites(reports), _colours(reports)
    noise = (
        f"Noisy machine: the p50 of the same bundle differed by more than {NOISY:.0%} between rounds; "
        "compare times with care."
    )
    return {
        "subject": _subject(reports),
        "bundles": [_bundle(report, colours) for report in reports],
        **_lead(reports, names, colours),
        "where": list(dict.fromkeys(map(shown.conditions, reports))),
        "noise": noise if any(map(noisy, reports)) else "",
        "accuracy": {
            "tabs": names,
            "plots": [tradeoff.plot(reports, name, colours, at) for at, name in enumerate(names)],
        },
        "measurements": _measurements(reports, names),
        "latencies": _latencies(reports),
        "retained": _retained(reports, names),
        "tasks": _tasks(reports, names),
        "agreement": _agreement(reports),
        **_method(reports[0]),
    }


def _subject(reports: list[Report]) -> str:
    names = list(dict.fromkeys(report["bundle"]["name"] for report in reports))
    return shown.shorten(names[0], 40) if len(names) == 1 else f"{len(names)} bundles"


def _colours(reports: list[Report]) -> dict[str, str]:
    """A bundle's name -> its colour; all teachers share one."""
    students = list(dict.fromkeys(report["bundle"]["name"] for report in reports if not is_teacher(report)))
    found = {name: f"var(--c{1 + at % (COLOURS - 1)})" for at, name in enumerate(students)}
    return {report["bundle"]["name"]: found.get(report["bundle"]["name"], "var(--c0)") for report in reports}


def _bundle(report: Report, colours: dict[str, str]) -> dict[str, Any]:
    name, precision = report["bundle"]["name"], report["bundle"]["precision"]
    names = {
        "name": name,
        "short": shown.shorten(name, 32),
        "shorter": shown.shorten(name, 26),
        "precision": precision,
    }
    return {**names, "colour": colours[name], "teacher": is_teacher(report)}


def _lead(reports: list[Report], names: list[str], colours: dict[str, str]) -> dict[str, Any]:
    """The heading and its figures: the smallest student that retains GOOD_SHARE, else the one that retains
    most."""
    teacher = reference(reports)
    students = [
        report for report in reports if not is_teacher(report) and names and report["kept"].get(names[0])
    ]
    if teacher is None or not students:
        return {"lead": {"text": f"{_subject(reports)}, measured"}, "tiles": []}
    good = [report for report in students if report["kept"][names[0]] >= GOOD_SHARE]
    best = (
        min(good, key=lambda r: r["size_bytes"]["graph"])
        if good
        else max(students, key=lambda r: r["kept"][names[0]])
    )
    smaller = teacher["size_bytes"]["graph"] / best["size_bytes"]["graph"]
    faster = teacher["single"]["p50_ms"] / best["single"]["p50_ms"]
    name, precision = best["bundle"]["name"], best["bundle"]["precision"]
    text = f" in {precision} retains {shown.retained(best, names[0])} of its teacher’s score on {names[0]}"
    tiles = [
        (
            shown.megabytes(best["size_bytes"]["graph"]) + " MB",
            f"graph, {_times(smaller, 'smaller', 'larger')}",
        ),
        (
            shown.milliseconds(best["single"]["p50_ms"]) + " ms",
            f"per text at p50, {_times(faster, 'faster', 'slower')}",
        ),
        (
            shown.whole(best["offline"]["texts_s"]),
            f"texts/s; teacher: {shown.whole(teacher['offline']['texts_s'])}",
        ),
    ]
    return {
        "lead": {"bundle": shown.shorten(name, 44), "colour": colours[name], "text": text},
        "tiles": tiles,
    }


def _times(ratio: float, more: str, less: str) -> str:
    return f"{ratio:.1f}× {more}" if ratio >= 1 else f"{1 / ratio:.1f}× {less}"


def _measurements(reports: list[Report], names: list[str]) -> dict[str, Any]:
    """Sizes, scores and costs, one row per report; sortable."""
    heads = ["bundle", "params", "MB", *[head for name in names for head in (name, "retained")], *COSTS]
    rows = [{"bundle": at, "cells": _measured(report, names)} for at, report in enumerate(reports)]
    return {"heads": heads, "rows": rows, "sortable": True}


def _measured(report: Report, names: list[str]) -> list[Cell]:
    single, size, total = report["single"], report["size_bytes"]["graph"], report["parameters"]["total"]
    cells = [
        {"shown": shown.millions(total), "value": total},
        {"shown": shown.megabytes(size), "value": size},
    ]
    for name in names:
        text = shown.retained(report, name)
        share = report["kept"].get(name) if text else None
        cells.append(
            {"shown": shown.score(report, name), "value": (report["quality"].get(name) or {}).get("average")}
        )
        cells.append({"shown": text or "–", "value": share, "bar": min(share or 0.0, 1.0)})
    rate, load, rss = report["offline"]["texts_s"], report["load_ms"], report["peak_rss_bytes"]
    return cells + [
        {"shown": shown.p50(report), "value": single["p50_ms"]},
        {"shown": shown.milliseconds(single["p99_ms"]), "value": single["p99_ms"]},
        {"shown": shown.whole(rate), "value": rate},
        {"shown": shown.whole(load), "value": load},
        {"shown": shown.whole(rss / 1e6), "value": rss},
        {"shown": shown.batch_sensitivity(report), "value": report["drift"]["min"]},
    ]


def _latencies(reports: list[Report]) -> dict[str, Any]:
    """Every bundle's times of single texts, and the axis they share."""
    samples = [
        np.array(report["single"].get("samples_ms") or [[report["single"]["p50_ms"]]], dtype=float).ravel()
        for report in reports
    ]
    low = min(float(np.quantile(values, 0.001)) for values in samples)
    high = max(float(np.quantile(values, 0.999)) for values in samples)
    rows = []
    for report, values in zip(reports, samples, strict=True):
        p50, p99 = report["single"]["p50_ms"], report["single"]["p99_ms"]
        both = f"{shown.milliseconds(p50)} · {shown.milliseconds(p99)}"
        rows.append({"samples": values.round(5).tolist(), "p50": p50, "p99": p99, "shown": both})
    first, last = svg.log_ends([low, high])
    return {
        "low": low,
        "high": high,
        "first": first,
        "last": last,
        "ticks": svg.log_ticks([low, high]),
        "rows": rows,
    }


def _retained(reports: list[Report], names: list[str]) -> list[dict[str, Any]]:
    """For each suite the share of the teacher's score that each student retains; nothing without students."""
    teacher, found = reference(reports), []
    for name in names:
        students = [
            at
            for at, report in enumerate(reports)
            if report is not teacher and report["kept"].get(name) is not None
        ]
        rows = [
            {"bundle": at, "share": reports[at]["kept"][name], "shown": shown.retained(reports[at], name)}
            for at in students
        ]
        found += [{"suite": name, "rows": rows}] if rows else []
    return found


def _tasks(reports: list[Report], names: list[str]) -> list[dict[str, Any]]:
    """For each suite with several tasks: every task's score, shaded from the column's lowest to its
    highest."""
    found = []
    for name in names:
        measured = [at for at, report in enumerate(reports) if name in report["quality"]]
        tasks = list(reports[measured[0]]["quality"][name]["tasks"])
        if len(tasks) < 2:
            continue
        values = np.array(
            [[task_score(reports[at]["quality"][name], task) for task in tasks] for at in measured]
        )
        shades = (values - values.min(0)) / np.where(np.ptp(values, 0) > 0, np.ptp(values, 0), 1)
        rows = []
        for at, scores, shade in zip(measured, values.tolist(), shades.tolist(), strict=True):
            cells: list[Cell] = [
                {"shown": f"{100 * value:.2f}", "shade": part}
                for value, part in zip(scores, shade, strict=True)
            ]
            rows.append(
                {"bundle": at, "cells": [*cells, {"shown": shown.score(reports[at], name), "bold": True}]}
            )
        found.append(
            {
                "suite": name,
                "heads": [tradeoff.measure(reports[measured[0]], name), *tasks, "average"],
                "rows": rows,
            }
        )
    return found


def task_score(scores: dict[str, Any], task: str) -> float:
    """The measure of a task that its suite averages."""
    return float((scores["tasks"].get(task) or {}).get(MEASURES[scores.get("kind", "sts")][0], 0.0))


def _agreement(reports: list[Report]) -> dict[str, Any] | None:
    """Agreement with the teacher, over all texts and by length; None where it was not measured."""
    measured = {at: report["agreement"] for at, report in enumerate(reports) if report.get("agreement")}
    if not measured:
        return None
    about = next(iter(measured.values()))
    lengths = list(dict.fromkeys(length for found in measured.values() for length in found["by_length"]))
    rows = []
    for at, found in measured.items():
        by_length = [(found["by_length"].get(length) or {}).get("spearman") for length in lengths]
        values = [
            (found["spearman"], 4),
            (found["cosine_mean"], 4),
            (found["top10_overlap"], 3),
            *((value, 4) for value in by_length),
        ]
        rows.append(
            {
                "bundle": at,
                "cells": [
                    {"shown": "–" if value is None else f"{value:.{digits}f}"} for value, digits in values
                ],
            }
        )
    source = (
        f"On {about['texts']:,} unlabelled texts ({about.get('source', '')}). Columns by length: "
        "Spearman of cosines."
    )
    heads = [
        "",
        "Spearman of cosines",
        "mean cosine",
        "top-10 overlap",
        *[f"{length} tokens" for length in lengths],
    ]
    return {"source": source, "heads": heads, "rows": rows}


def _method(first: Report) -> dict[str, Any]:
    """How the numbers were measured, and the machine."""
    single = first["single"]
    counted = (
        f"{single['queries']:,} single texts after {single['warmups']} warm-up calls"
        if "queries" in single
        else "single texts"
    )
    machine = ", ".join(
        f"{key} {_plain(value)}" for key, value in first["machine"].items() if value not in (None, [])
    )
    versions = ", ".join(f"{key} {value}" for key, value in first["versions"].items())
    return {
        "method": METHOD.format(counted=counted),
        "made_by": [("Machine", machine), ("Versions", versions)],
    }


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
