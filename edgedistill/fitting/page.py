"""The page of a fit: every candidate with its cost, its score and its fate. The template fit.html draws what
is put into it as JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from edgedistill import files
from edgedistill.evaluation import page
from edgedistill.fitting import record
from edgedistill.fitting.candidates import Choice
from edgedistill.fitting.plan import Fit
from edgedistill.fitting.request import Budget
from edgedistill.fitting.student_cost import Cost

PAGE, TEMPLATE = "fit.html", Path(__file__).with_name("fit.html")


def write(fit: Fit, winner: dict[str, Any] | None = None) -> None:
    """Write the page as things stand. winner: the entry of fit.json, once there is one."""
    found = {
        "budget": fit.known("settings")["budget"],
        "texts": fit.known("texts"),
        "candidates": standings(fit.study),
        "not_raced": not_raced(fit.study),
        "winner": winner,
        "recipe": (fit.folder / record.RECIPE).read_text(encoding="utf-8") if winner else "",
    }
    files.write_text(fit.folder / PAGE, page.filled(TEMPLATE, found))


def standings(study: optuna.Study) -> list[dict[str, Any]]:
    """Every candidate that raced or races, the best first; on_front: none is better, smaller and faster."""
    rows = [_standing(trial) for trial in record.candidates(study)]
    for row in rows:
        row["on_front"] = row["score"] is not None and not any(_beats(other, row) for other in rows)
    return sorted(rows, key=lambda row: (-(row["score"] or -1), row["name"]))


def _standing(trial: FrozenTrial) -> dict[str, Any]:
    known = trial.user_attrs
    cost, precision = known["cost"], known["precision"]
    details = known["scores"][-1] if known["scores"] else {}
    return {
        "name": known["name"],
        "precision": precision,
        "size_mb": cost["size_bytes"][precision] / 1e6,
        "p50_ms": cost["p50_ms"][precision],
        "rung": len(known["scores"]),
        "step": details.get("step", 0),
        "steps": known["recipe"]["stages"][0]["steps"],
        "score": details.get("score"),
        "details": details,
        "fate": _fate(trial),
    }


def _fate(trial: FrozenTrial) -> str:
    if record.is_racing(trial):
        return "in the race"
    return f"fell {trial.user_attrs['fell']}" if "fell" in trial.user_attrs else "trained to the end"


def _beats(other: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether another candidate is better in one of score, size and latency, and at least as good in all of
    them.
    """
    theirs, mine = ((each["score"], -each["size_mb"], -each["p50_ms"]) for each in (other, row))
    return (
        other["score"] is not None
        and theirs != mine
        and all(a >= b for a, b in zip(theirs, mine, strict=True))
    )


def not_raced(study: optuna.Study) -> list[dict[str, str]]:
    """{name, why} of the shapes that were measured, or could not be built, and did not race."""
    budget = Budget(**study.user_attrs["settings"]["budget"])
    raced = {trial.user_attrs["name"] for trial in record.candidates(study)}
    found = []
    for params, cost, reason in study.user_attrs.get("survey", []):
        name = Choice(**params).name
        if name not in raced:
            why = f"cannot be built: {reason}" if cost is None else _why_not(Cost(**cost), budget)
            found.append({"name": name, "why": why})
    return found


def _why_not(cost: Cost, budget: Budget) -> str:
    why = f"over the budget of {budget}"
    if cost.fitting(budget):
        why = "fits, but there was no time to race it"
    return f"{cost.described(cost.best(budget))}: {why}"
