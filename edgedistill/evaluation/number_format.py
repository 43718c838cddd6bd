"""How tables, plots and pages print a report's names and numbers."""

from __future__ import annotations

import re

from edgedistill.evaluation import report
from edgedistill.evaluation.report import Report

# Instruction sets that decide how fast a quantized graph runs; the first two found are printed.
TELLING_FLAGS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx512f", "avx2", "i8mm", "asimddp")


def shorten(text: str, width: int) -> str:
    """At most `width` characters; the middle is cut, because names differ at their ends."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def short_title(report: Report, width: int) -> str:
    """`name:precision` in at most `width` characters; only the name is shortened."""
    precision = report["bundle"]["precision"]
    return f"{shorten(report['bundle']['name'], width - len(precision) - 1)}:{precision}"


def score(report: Report, suite: str) -> str:
    """The suite's average × 100."""
    found = report["quality"].get(suite)
    return f"{100 * found['average']:.2f}" if found else "–"


def retained(measured: Report, suite: str) -> str:
    """Per cent of the teacher's score; empty without a teacher, and for the reference itself."""
    share = report.retained(measured, suite)
    return "" if share is None else f"{100 * share:.1f}%"


def millions(count: int | None) -> str:
    """A count in 10⁶, two decimals."""
    return "–" if count is None else f"{count / 1e6:.2f}M"


def megabytes(size_bytes: int | None) -> str:
    """10⁶ bytes, two decimals below 100."""
    return (
        "–"
        if size_bytes is None
        else f"{size_bytes / 1e6:.2f}"
        if size_bytes < 1e8
        else f"{size_bytes / 1e6:.0f}"
    )


def milliseconds(value: float | None) -> str:
    """Three significant digits or the next whole number."""
    return (
        "–"
        if value is None
        else f"{value:.3f}"
        if value < 1
        else f"{value:.2f}"
        if value < 100
        else f"{value:.0f}"
    )


def p50(report_: Report) -> str:
    """p50 of a single text in ms, marked ~ where the machine was noisy."""
    return ("~" if report.noisy(report_) else "") + milliseconds(report_["single"]["p50_ms"])


def whole(value: float | None) -> str:
    """A whole number with thousands separators."""
    return "–" if value is None else f"{value:,.0f}"


def batch_sensitivity(report: Report) -> str:
    """The largest 1 − cosine between a text's embedding encoded alone and in a batch."""
    low = report["drift"]["min"]
    return "–" if low is None else "0" if low > 1 - 5e-5 else f"{1 - low:.4f}"


def conditions(report: Report) -> str:
    """GPU, processor, threads, relevant instruction sets, runtime and day: what a latency depends on."""
    machine, flags = report["machine"], report["machine"].get("flags") or []
    threads = report.get("threads")
    cpu = re.sub(r"\((?:R|TM|C)\)|\bCPU\b|@.*", "", machine.get("cpu") or "")
    gpu = (machine.get("gpu") or {}).get("name") or "cuda"
    parts = [
        gpu if report.get("device") == "cuda" else None,
        " ".join(cpu.split()) or None,
        f"{threads} thread{'' if threads == 1 else 's'}" if threads else None,
        " ".join([flag for flag in TELLING_FLAGS if flag in flags][:2]) or None,
    ]
    runtime = report["versions"].get("onnxruntime")
    parts += [f"onnxruntime {runtime}" if runtime else None, report["made_at"][:10]]
    return " · ".join(str(part) for part in parts if part)
