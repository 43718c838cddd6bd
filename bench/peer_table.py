"""The table of bench/peers/README.md, from bench/reports/peers.json."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).with_name("peers")))
from peer_list import BASELINE, GROUPS

Row = dict[str, Any]
SUITES = {"sts7": "sts7", "SciFact": "SciFact", "Cranfield": "Cranfield"}


def _time(*keys: str) -> Callable[[Row], float | None]:
    def value(row: Row) -> float | None:
        found: Any = row.get("time")
        for key in keys:
            found = None if found is None else found[key]
        return found

    return value


def _score(suite: str) -> Callable[[Row], float | None]:
    return lambda row: 100 * row["quality"][suite] if "quality" in row else None


def _number(value: float) -> str:
    """Three digits, and no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _drift(value: float) -> str:
    return "0" if value < 5e-7 else f"{value:.0e}".replace("e-0", "e-")


# head, what a row has, how it is shown, and whether the least is the best
COLUMNS: list[tuple[str, Callable[[Row], float | None], Callable[[float], str], bool]] = [
    ("MB", lambda row: row["size_bytes"] / 1e6, _number, True),
    ("params, M", lambda row: (row.get("parameters") or 0) / 1e6 or None, _number, True),
    *((title, _score(suite), lambda value: f"{value:.1f}", False) for suite, title in SUITES.items()),
    ("drift", lambda row: row.get("drift"), _drift, True),
    ("p50 ms", _time("p50_ms"), _number, True),
    ("×", _time("times_as_fast", "single"), _number, False),
    ("texts/s", _time("texts_s"), lambda value: f"{value:,.0f}", False),
    ("×", _time("times_as_fast", "batch"), _number, False),
    ("RSS MB", lambda row: (row.get("time") or {}).get("peak_rss_bytes", 0) / 1e6 or None, _number, True),
    (
        "min",
        lambda row: row.get("minutes", 0) if row.get("minutes", 0) > 0.05 else None,
        lambda value: f"{value:.1f}",
        True,
    ),
]
CONTINUED = ("edgedistill fit", "edgedistill adapt")  # they train nano further
RANKED = ("MB", *SUITES.values(), "drift", "p50 ms", "texts/s", "RSS MB")  # the best of each group is bold


def table(report: dict[str, Any]) -> str:
    """The report as Markdown: a part for each group, the best of each column in it bold; then the conditions,
    how each was made, and what failed."""
    rows = report["rows"]
    columns = [each for each in COLUMNS if any(each[1](row) is not None for row in rows if "version" in row)]
    heads = ["", *(head for head, *_ in columns)]
    lines = [f"| {' | '.join(heads)} |", f"| --- {'| ---: ' * len(columns)}|"]
    for group, title in GROUPS.items():
        found = [row for row in rows if row["group"] == group and "version" in row]
        if found:
            lines.append(f"| *{title}* {'| ' * len(columns)}|")
        shown = [_cells(column, found) for column in columns]
        for at, row in enumerate(found):
            name = f"`{row['name']}`" if row["ours"] else row["name"]
            name += " †" * (row["name"] in CONTINUED)
            lines.append(f"| {name} | {' | '.join(cells[at] for cells in shown)} |")
    return "\n".join([*lines, "", _conditions(report), "", *_made(rows), ""])


def _cells(column: tuple[Any, ...], rows: list[Row]) -> list[str]:
    head, value, shown, least = column
    cells = ["" if value(row) is None else shown(value(row)) for row in rows]
    known = [value(row) for row in rows if value(row) is not None]
    if head not in RANKED or len(known) < 2:
        return cells
    best = shown(min(known) if least else max(known))
    return [f"**{cell}**" if cell == best else cell for cell in cells]


def _made(rows: list[Row]) -> list[str]:
    """A line for each peer: its version, how it was made, whose accuracy it has, or why it failed."""
    lines = []
    for row in rows:
        facts = [f"{row['version']}; {row['how']}" if "version" in row else row["how"]]
        facts += [f"{value:,} {name}" for name, value in row.get("made", {}).items() if name in COUNTS]
        facts += [f"accuracy as `{row['same_as']}`, whose embeddings it gives"] if "same_as" in row else []
        facts += [f"**failed**: {row['error']}"] if "error" in row else []
        lines.append(f"* {row['name']}: {'; '.join(facts)}.")
    return lines


COUNTS = ("texts", "documents", "steps")  # what a trained peer says it learned from


def _conditions(report: dict[str, Any]) -> str:
    timing = report.get("timing")
    parts = [
        f"{report['machine']['cpu']} · trainers were given {report['minutes']:g} minutes of one processor"
    ]
    if timing is None:
        parts.append("not timed yet")
    else:
        again = timing["again"]["between_rounds"]
        noise = max(abs(end - 1) for ends in again.values() for end in ends)
        plural = "" if timing["threads"] == 1 else "s"
        parts.append(
            f"times: {timing['machine']['cpu']}, {timing['threads']} thread{plural}, medians of "
            f"{timing['rounds']} rounds; ×: times as fast as {BASELINE} in the same round, whose second "
            f"process was within {noise:.0%} of its first"
        )
        others = [
            row["name"]
            for row in report["rows"]
            if row.get("time", timing).get("timed_at") != timing.get("timed_at")
        ]
        parts += [f"timed in another run: {'; '.join(others)}"] if others else []
        parts += [f"{name} could not be timed: {error}" for name, error in timing["failed"].items()]
    return f"<sub>{'<br>'.join(parts)}</sub>"
