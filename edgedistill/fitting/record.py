"""The record of a fit: what it was asked and all that was found, in a JSON file that is written whole as
things are found, so that a killed fit goes on where it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from edgedistill import files, recipe
from edgedistill.evaluation import page
from edgedistill.fitting.candidates import Choice
from edgedistill.fitting.cost import Budget, Cost
from edgedistill.fitting.pace import SHARES, Schedule
from edgedistill.fitting.search import Pairs

STATE, RESULT, RECIPE, PAGE = "state.json", "fit.json", "mine.yaml", "fit.html"
TRIALS, VOCABULARIES = "trials", "vocabularies"  # the folders of the candidates' runs, of their tokenizers
BUNDLE, RUN = "bundle", "run"
PLACES = {"recipe": RECIPE, "bundle": BUNDLE, "run": RUN, "page": PAGE}  # of a result, in its folder
TEMPLATE = Path(__file__).with_name("fit.html")


@dataclass(frozen=True)
class FitRequest:
    """What a user asks of a fit.

    `texts` are globs, or `documentation`. `pairs` are a table of queries and the texts that answer them.
    Relative paths start from `data`.
    """

    teacher: recipe.Teacher
    texts: tuple[str, ...]
    budget: Budget
    minutes: float = 60.0
    column: str | None = None
    suite: str = "sts-small"
    seed: int = 0
    pairs: Pairs | None = None
    data: Path | None = field(default=None, compare=False)

    def settings(self) -> dict[str, Any]:
        """The request as plain data, its places as they were given: another process goes on from it."""
        found: dict[str, Any] = json.loads(
            json.dumps(TypeAdapter(FitRequest).dump_python(self, exclude={"data"}))
        )
        return found


@dataclass
class Candidate:
    """A student in the race, or a shipped one as it is, whose recipe has no stages.

    `scores` has the details of each rung that it reached, and `fell` why it is not trained on.
    """

    name: str
    kind: str
    recipe: dict[str, Any]
    cost: Cost
    precision: str
    scores: list[dict[str, Any]] = field(default_factory=list)
    fell: str = ""

    @property
    def is_trained(self) -> bool:
        """Whether it learns."""
        return bool(self.recipe["stages"])

    @property
    def is_racing(self) -> bool:
        """Whether it may still be trained."""
        return self.is_trained and not self.fell and len(self.scores) < len(SHARES)

    @property
    def steps(self) -> int:
        """Of its whole training."""
        return sum(stage["steps"] for stage in self.recipe["stages"])

    @property
    def score(self) -> float:
        """That of its last rung."""
        return float(self.scores[-1]["score"])


@dataclass
class State:
    """What was decided and found; None where it was not yet.

    `teacher` and `corpus` are sections of recipes, `pairs` are those asked for, with their numbers. `survey`
    has the cost of each shape that was measured, or why it cannot be built. Planning took `planned_s`.
    """

    settings: dict[str, Any]
    teacher: dict[str, Any] | None = None
    texts: dict[str, list[str]] = field(default_factory=dict)
    corpus: dict[str, Any] | None = None
    survey: list[tuple[Choice, Cost | str]] = field(default_factory=list)
    surveyed: bool = False
    planned_s: float = 0.0
    schedule: Schedule | None = None
    candidates: list[Candidate] = field(default_factory=list)
    pairs: Pairs | None = None

    @property
    def finalists(self) -> list[Candidate]:
        """The candidates that were trained to the end, or need no training, the best first."""
        found = [each for each in self.candidates if not each.is_racing and not each.fell]
        return sorted(found, key=lambda each: -each.score)

    def write(self, folder: Path) -> None:
        files.write_json(folder / STATE, TypeAdapter(State).dump_python(self, mode="json"))


def read(folder: Path) -> State | None:
    """The state of a fit; None where none was begun in this folder."""
    path = folder / STATE
    return TypeAdapter(State).validate_python(files.read_json(path)) if path.exists() else None


def result(folder: Path) -> dict[str, Any] | None:
    """The result of a finished fit, with the places of what it made; None where it is not finished."""
    path = folder / RESULT
    if not path.exists():
        return None
    return {**files.read_json(path), **{key: str(folder / name) for key, name in PLACES.items()}}


def empty(folder: Path) -> None:
    """Delete what was found and trained."""
    for name in (RESULT, STATE):
        (folder / name).unlink(missing_ok=True)
    for name in (TRIALS, VOCABULARIES):
        shutil.rmtree(folder / name, ignore_errors=True)


# ---- what the page and fit.json hold


def standings(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Every candidate that raced or races, the best first. Where `on_front`, none is better, smaller and
    faster."""
    rows = [_standing(each) for each in candidates]
    scored = [row for row in rows if row["score"] is not None]
    for row in rows:
        row["on_front"] = row in scored and not any(_beats(other, row) for other in scored)
    return sorted(rows, key=lambda row: (-(row["score"] or -1), row["name"]))


def _standing(candidate: Candidate) -> dict[str, Any]:
    cost, precision = candidate.cost, candidate.precision
    details = candidate.scores[-1] if candidate.scores else {}
    fate = "in the race" if candidate.is_racing else "trained to the end"
    if not candidate.is_trained:
        fate = "as it ships"
    return {
        "name": candidate.name,
        "precision": precision,
        "size_mb": cost.size_bytes[precision] / 1e6,
        "p50_ms": cost.p50_ms[precision],
        "rung": len(candidate.scores) if candidate.is_trained else 0,
        "step": details.get("step", 0),
        "steps": candidate.steps,
        "score": details.get("score"),
        "details": details,
        "fate": f"fell {candidate.fell}" if candidate.fell else fate,
    }


def _beats(other: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether another candidate is better in one of score, size and latency, and at least as good in all of
    them."""
    theirs, mine = ((each["score"], -each["size_mb"], -each["p50_ms"]) for each in (other, row))
    return theirs != mine and all(a >= b for a, b in zip(theirs, mine, strict=True))


def not_raced(state: State, budget: Budget) -> list[dict[str, str]]:
    """{name, why} of the shapes that were measured, or could not be built, and did not race."""
    raced, found = {each.name for each in state.candidates}, list[dict[str, str]]()
    for choice, cost in state.survey:
        if choice.name in raced:
            continue
        if isinstance(cost, str):
            why = f"cannot be built: {cost}"
        else:
            over = f"over the budget of {budget}"
            why = "fits, but there was no time to race it" if cost.fitting(budget) else over
            why = f"{cost.described(cost.best(budget))}: {why}"
        found.append({"name": choice.name, "why": why})
    return found


def write_page(state: State, budget: Budget, folder: Path, winner: dict[str, Any] | None = None) -> None:
    """Write the page as things stand. Its template draws what is put into it as JSON. `winner` is the entry
    of fit.json, once there is one."""
    found = {
        "budget": state.settings["budget"],
        "texts": state.texts,
        "candidates": standings(state.candidates),
        "not_raced": not_raced(state, budget),
        "winner": winner,
        "recipe": (folder / RECIPE).read_text(encoding="utf-8") if winner else "",
    }
    files.write_text(folder / PAGE, page.filled(TEMPLATE, found))
