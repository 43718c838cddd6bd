"""The page of a fit: accuracy against latency and size as the race goes on, and why each candidate fell; one file, nothing loaded."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

from edgedistill import files
from edgedistill.evaluation.html_report.page import template
from edgedistill.evaluation.plots import labels
from edgedistill.evaluation.plots.svg import Box, Caption, Circle, drawing, grid, latency_axes, line, linear_scale, log_scale, log_ticks
from edgedistill.fitting.front import Front, Standing

REFRESH_S = 5
WIDE, HIGH = 1120.0, 520.0
FRAME = Box(62.0, 60.0, WIDE - 16, HIGH - 56)
MAX_RADIUS, MIN_RADIUS = 30.0, 4.0
LABELLED = 10
CSS, JS = template("page.css"), template("interaction.js")
OWN_CSS = "td.why{text-align:left;white-space:normal}pre{font-size:13px;overflow-x:auto;margin:0}"


def write(path: Path, front: Front) -> None:
    """Write the page atomically; until the fit is finished it loads itself again."""
    files.write_text(path, html(front))


def html(front: Front) -> str:
    """The page as a string."""
    refresh = "" if front.stage == "finished" else f'<meta http-equiv="refresh" content="{REFRESH_S}">'
    parts = [_header(front), _plot(front), _table(front), _recipe(front), _over_budget(front), _texts(front), _notes()]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{refresh}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>edgedistill fit · {escape(front.stage)}</title><style>{CSS}{OWN_CSS}</style></head>\n"
        "<body><main>\n"
        + "\n".join(part for part in parts if part)
        + f'\n</main><div id="tip" role="status"></div><script>{JS}</script></body></html>\n'
    )


def _header(front: Front) -> str:
    budget = f"at most {front.budget['max_mb']:g} MB and {front.budget['max_p50_ms']:g} ms, {front.budget['target']}"
    if front.winner is not None:
        won = front.winner
        lead = f"{escape(won['candidate'])} in {won['precision']}: agreement with its teacher {won['score']['agreement']:.3f}"
        figures = [(f"{won['size_mb']:.2f} MB", "graph and tokenizer"), (f"{won['p50_ms']:.3f} ms", "per text at p50")]
        figures += [(f"{won['kept']:.1%}", f"of its teacher’s score on {escape(won['suite'])}")] if won.get("kept") is not None else []
        tiles = '<dl class="tiles">' + "".join(f"<div><dt>{small}</dt><dd>{big}</dd></div>" for big, small in figures) + "</dl>"
    else:
        racing = sum(row.racing for row in front.rows)
        lead = f"{racing} of {len(front.rows)} candidates in the race" if front.rows else "Planning: reading texts, measuring candidates"
        tiles = ""
    work = "<br>".join(escape(f"{each['host']} {each['pid']}: {each['doing']}") for each in front.processes)
    return f'<header><p class="brand">edgedistill fit</p><h1>{lead}</h1>{tiles}<p class="where">Budget: {budget}<br>{work}</p></header>'


def _plot(front: Front) -> str:
    shown = [row for row in front.rows if row.score is not None]
    if not shown:
        return ""
    times = [row.p50_ms for row in shown]
    x = log_scale([*times, front.budget["max_p50_ms"]], FRAME.left + 50, FRAME.right - 50)
    y, y_ticks = linear_scale([100 * (row.score or 0) for row in shown], FRAME.bottom - 30, FRAME.top + 36)
    largest = front.budget["max_mb"]
    points = [Circle(x(row.p50_ms), y(100 * (row.score or 0)), _radius(row.size_mb, largest)) for row in shown]
    limit = x(front.budget["max_p50_ms"])
    parts = [grid(x, log_ticks([*times, front.budget["max_p50_ms"]]), y, y_ticks, FRAME)]
    parts += [latency_axes(FRAME, "score × 100", HIGH - 12, FRAME.top - 14)]
    parts += [line("teacher-line", Box(limit, FRAME.top, limit, FRAME.bottom))]
    parts += [f'<text class="hint" x="{limit - 6:.1f}" y="{FRAME.top + 14}" text-anchor="end">the budget</text>']
    parts += [_dot(row, point) for row, point in sorted(zip(shown, points, strict=True), key=lambda pair: -pair[1].radius)]
    named = [labels.Label(point, row.name, row.precision) for row, point in zip(shown, points, strict=True) if row.on_front][:LABELLED]
    boxes = labels.place(named, labels.Surroundings(FRAME, [], points))
    parts += [labels.draw(label, place) for label, place in zip(named, boxes, strict=True)]
    about = "; ".join(f"{row.name}: {row.score:.3f} at {row.p50_ms:.3f} ms, {row.size_mb:.2f} MB" for row in shown)
    plot = drawing(WIDE, HIGH, Caption("front", "Score against latency", about), parts)
    return f'<section><h2>Score against latency; area: size</h2><div class="scroll">{plot}</div></section>'


def _radius(size_mb: float, largest: float) -> float:
    return max(MIN_RADIUS, MAX_RADIUS * math.sqrt(size_mb / largest))


def _dot(row: Standing, point: Circle) -> str:
    colour = "var(--c1)" if row.on_front else "var(--c3)" if row.racing else "var(--soft)"
    at = f"{row.p50_ms:.3f} ms, {row.size_mb:.2f} MB"
    tip = f"{row.name} · {row.precision}\nscore {row.score:.3f} after {row.step:,} of {row.steps:,} steps\n{at}\n{row.fate}"
    place = f'cx="{point.x:.1f}" cy="{point.y:.1f}"'
    circles = f'<circle {place} r="{point.radius:.1f}"/><circle class="core" {place} r="2"/>'
    return f'<g class="dot" tabindex="0" data-tip="{escape(tip)}" style="--c:{colour}">{circles}</g>'


def _table(front: Front) -> str:
    if not front.rows:
        return ""
    heads = ("candidate", "MB", "p50 ms", "score", "neighbours", "cosines", "rung", "steps", "what became of it")
    head = "".join(f'<th scope="col"><button>{each}</button></th>' for each in heads)
    return (
        '<section><h2>Candidates</h2><div class="scroll"><table class="sortable"><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(_cells(row, front.rungs) for row in front.rows)}</tbody></table></div></section>"
    )


def _cells(row: Standing, rungs: int) -> str:
    def number(value: float | None, digits: int) -> str:
        return f'<td data-v="{"" if value is None else value}">{"–" if value is None else f"{value:.{digits}f}"}</td>'

    shown = f"<b>{escape(row.name)}</b>" if row.on_front else escape(row.name)
    name = f'<th scope="row" data-v="{escape(row.name)}">{shown} <span class="prec">{row.precision}</span></th>'
    cells = [number(row.size_mb, 2), number(row.p50_ms, 3), number(row.score, 4)]
    cells += [number(row.details.get("neighbours"), 3), number(row.details.get("cosines"), 3)]
    cells += [f'<td data-v="{row.rung}">{row.rung} of {rungs}</td>', f'<td data-v="{row.step}">{row.step:,} of {row.steps:,}</td>']
    fate = f'<td class="why" data-v="{escape(row.fate)}">{escape(row.fate)}</td>'
    return f"<tr>{name}{''.join(cells)}{fate}</tr>"


def _over_budget(front: Front) -> str:
    if not front.over_budget:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(each["name"])}</th><td class="why">{escape(each["why"])}</td></tr>' for each in front.over_budget
    )
    return f'<section><h2>Measured, and never trained</h2><div class="scroll"><table><tbody>{rows}</tbody></table></div></section>'


def _recipe(front: Front) -> str:
    return f"<section><h2>The recipe, mine.yaml</h2><pre>{escape(front.recipe)}</pre></section>" if front.recipe else ""


def _texts(front: Front) -> str:
    lines = [*map(escape, front.texts.get("facts", [])), *(f"<b>Weak:</b> {escape(each)}" for each in front.texts.get("weak", []))]
    return f"<section><h2>Texts</h2>{''.join(f'<p>{each}</p>' for each in lines)}</section>" if lines else ""


def _notes() -> str:
    return f"<section><h2>How it was found</h2><p>{' '.join(NOTES)}</p></section>"


NOTES = (
    "Every candidate was built, exported and measured before any training: size is the graph and tokenizer.json together, p50 the",
    "median time of one text on one thread, tokenization included. Those that keep to the budget race: all train to the first rung, the",
    "best go on from their own checkpoints. The score is the agreement with the teacher on held-out texts, the mean of the ten nearest",
    "neighbours in common and of the rank correlation of pairwise cosines; with --suite, also the share kept of the teacher’s score.",
    "Bold, and blue in the plot: no other is better, smaller and faster.",
    "Names: bert-4x256x640-t64-kept3 has 4 layers of width 256 with 640 feed-forward neurons, 64 bytes for a token’s embedding, and those",
    "of the teacher’s tokens that the texts use three times or more; learned12000, a vocabulary learned from the texts; from-NAME goes on",
    "from a student that ships, with a new head where it had another teacher.",
)
