"""What a fit has found so far: every candidate with its cost, its score and its fate; the front of those that none beats in all three."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgedistill.fitting.storage import RECIPE, Entry, Storage

SHOWN = 14  # candidates in the terminal's table


@dataclass(frozen=True)
class Standing:
    """A candidate that races or has raced. rung: reached, from 1, 0 before the first; score and agreement 0 to 1; fate: in words."""

    name: str
    precision: str
    size_mb: float
    p50_ms: float
    rung: int
    step: int
    steps: int
    score: float | None
    details: dict[str, Any]
    fate: str
    racing: bool
    on_front: bool = False


@dataclass(frozen=True)
class Front:
    """All candidates, the best first; those that were measured and not raced; who is at work. recipe: mine.yaml, once it is written."""

    rows: list[Standing]
    rungs: int
    over_budget: list[dict[str, Any]]
    processes: list[dict[str, Any]]
    budget: dict[str, Any]
    texts: dict[str, Any]
    stage: str
    winner: dict[str, Any] | None = None
    recipe: str = ""


def read(storage: Storage, processes: list[dict[str, Any]], winner: dict[str, Any] | None = None) -> Front:
    """The state of a fit."""
    entries, schedule, settings = storage.entries(), storage.get("schedule"), storage.get("settings")
    rungs = len(schedule["counts"]) if schedule else 0
    rows = sorted((_row(entry, rungs) for entry in entries), key=lambda row: (-(row.score or -1), row.name))
    rows = [_marked(row, rows) for row in rows]
    raced = {entry.name for entry in entries}
    over = _unraced(storage.get("survey") or [], raced, settings["budget"])
    stage = "finished" if winner else "racing" if schedule else "planning"
    written = storage.folder / RECIPE
    recipe = written.read_text(encoding="utf-8") if winner and written.exists() else ""
    return Front(rows, rungs, over, processes, settings["budget"], storage.get("texts") or {}, stage, winner, recipe)


def _row(entry: Entry, rungs: int) -> Standing:
    rung = max(entry.scores, default=-1)
    details = entry.scores.get(rung, {})
    cost, precision = entry.cost, entry.precision
    steps = int(entry.recipe["stages"][0]["steps"])
    return Standing(
        entry.name,
        precision,
        cost["size_bytes"][precision] / 1e6,
        cost["p50_ms"][precision],
        rung + 1,
        int(details.get("step", 0)),
        steps,
        entry.last_score,
        details,
        _fate(entry, rungs),
        entry.racing,
    )


def _fate(entry: Entry, rungs: int) -> str:
    if entry.fell is not None:
        return f"fell {entry.fell}"
    if entry.state == "complete":
        return "trained to the end"
    return f"{'trains' if entry.worker else 'waits'} for rung {entry.goal + 1} of {rungs}"


def _marked(row: Standing, rows: list[Standing]) -> Standing:
    """The row, on the front where no other is better in one of score, size and latency and at least as good in the others."""
    if row.score is None:
        return row
    mine = (row.score, -row.size_mb, -row.p50_ms)
    others = [(other.score, -other.size_mb, -other.p50_ms) for other in rows if other.score is not None and other is not row]
    beaten = any(all(a >= b for a, b in zip(other, mine, strict=True)) and other != mine for other in others)
    return Standing(**{**row.__dict__, "on_front": not beaten})


def _unraced(survey: list[Any], raced: set[str], budget: dict[str, Any]) -> list[dict[str, Any]]:
    """{name, why} of the shapes that were measured, or could not be built, and did not race."""
    from edgedistill.fitting.candidates import Choice
    from edgedistill.fitting.request import Budget
    from edgedistill.fitting.student_cost import Cost

    limits, found = Budget(**budget), []
    for params, cost, reason in survey:
        choice = Choice(**params)
        if choice.name in raced:
            continue
        if cost is None:
            found.append({"name": choice.name, "why": f"cannot be built: {reason}"})
            continue
        known = Cost(**cost)
        fits = known.fitting(limits)
        described = known.described(fits[0] if fits else known.nearest(limits)[1])
        why = f"{described}: fits, but there was no time to race it" if fits else f"{described}: over the budget of {limits}"
        found.append({"name": choice.name, "why": why})
    return found


def line(name: str, rung: int, rungs: int, score: dict[str, Any]) -> str:
    """A rung's result for the log. rung: from 0."""
    kept = f", keeps {score['kept']:.1%} of the suite" if "kept" in score else ""
    return (
        f"{name}: rung {rung + 1} of {rungs}, {score['step']:,} of {score['steps']:,} steps: score {score['score']:.3f} "
        f"(neighbours {score['neighbours']:.3f}, cosines {score['cosines']:.3f}{kept}), {score['seconds']:.0f} s"
    )


def table(front: Front) -> RenderableType:
    """The front for the terminal, at most SHOWN candidates."""
    sheet = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    sheet.add_column("candidate", no_wrap=True)
    for head in ("", "MB", "p50 ms", "score", "steps"):
        sheet.add_column(head, justify="right", no_wrap=True)
    sheet.add_column("", no_wrap=True)
    for row in front.rows[:SHOWN]:
        score = f"{row.score:.3f}" if row.score is not None else "–"
        steps = f"{row.step:,} of {row.steps:,}"
        fate = row.fate.split(",")[0].split(":")[0]
        cells = [("● " if row.on_front else "  ") + row.name, row.precision, f"{row.size_mb:.2f}", f"{row.p50_ms:.3f}", score, steps, fate]
        sheet.add_row(*cells, style="bold" if row.on_front else "" if row.racing else "dim")
    lines = [f"{each['host']} {each['pid']}: {each['doing']}" for each in front.processes]
    more = [f"and {len(front.rows) - SHOWN} more"] if len(front.rows) > SHOWN else []
    legend = "● none of the others is better, smaller and faster" if front.rows else ""
    return Group(sheet, Text("\n".join(filter(None, [*more, legend, *lines])), style="dim")) if front.rows else Text("\n".join(lines))
