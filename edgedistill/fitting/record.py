"""The record of a fit: what it was asked and all that was found, in a JSON file that is written whole as
things are found, so that a killed fit goes on where it was."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from edgedistill import files, recipe
from edgedistill.fitting.judge import Measures
from edgedistill.fitting.queries import Pairs
from edgedistill.fitting.shapes import PRECISIONS, Shape

STATE, RESULT, RECIPE = "state.json", "fit.json", "mine.yaml"
TRIALS, VOCABULARIES = "trials", "vocabularies"  # the folders of the candidates' runs, of their tokenizers
BUNDLE, RUN = "bundle", "run"
PLACES = {"recipe": RECIPE, "bundle": BUNDLE, "run": RUN}  # of a result, in its folder

Space = Literal["own", "teacher"]


@dataclass(frozen=True)
class Budget:
    """What the student may cost: graph and tokenizer.json together in 10⁶ bytes, and the p50 of one text on
    one thread."""

    max_mb: float
    max_p50_ms: float

    def excess(self, size_bytes: float, p50_ms: float) -> float:
        """By how much a cost exceeds the budget, as a share: 0.2 is a fifth too much of one of the two; at
        most 0 where it fits."""
        return max(size_bytes / 1e6 / self.max_mb, p50_ms / self.max_p50_ms) - 1

    def __str__(self) -> str:
        return f"{self.max_mb:g} MB and {self.max_p50_ms:g} ms"


@dataclass(frozen=True)
class Cost:
    """What a candidate costs in each precision.

    `size_bytes` counts the graph and tokenizer.json together, exactly (in int8 to some ten bytes, as
    constants are named by their values). `p50_ms` is of one text, tokenization included.
    """

    size_bytes: dict[str, int]
    p50_ms: dict[str, float]

    def fitting(self, budget: Budget) -> list[str]:
        """The precisions that keep to the budget, the preferred one first."""
        return [name for name in PRECISIONS if budget.excess(self.size_bytes[name], self.p50_ms[name]) <= 0]

    def best(self, budget: Budget) -> str:
        """The preferred precision that keeps to the budget; the nearest one where none does."""
        return next(iter(self.fitting(budget)), self.nearest(budget)[1])

    def nearest(self, budget: Budget) -> tuple[float, str]:
        """(by how much it exceeds the budget, in which precision): the least."""
        return min(
            (budget.excess(self.size_bytes[name], self.p50_ms[name]), name) for name in self.size_bytes
        )

    def described(self, precision: str) -> str:
        """int8 4.31 MB, 0.52 ms"""
        return f"{precision} {self.size_bytes[precision] / 1e6:.3g} MB, {self.p50_ms[precision]:.3g} ms"


@dataclass(frozen=True)
class FitRequest:
    """What a user asks of a fit.

    `texts` are globs, or `documentation`. `pairs` are a table of queries and the texts that answer them.
    `space`: whether the student may embed in a space of its own, or must in the teacher's, where an index of
    the teacher's embeddings exists. With `steps` they end the trainings, not the clock: so many of the best
    candidate, a quarter of them of each other. Relative paths start from `data`.
    """

    teacher: recipe.Teacher
    texts: tuple[str, ...]
    budget: Budget
    minutes: float = 60.0
    column: str | None = None
    space: Space = "own"
    steps: int | None = None
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
    """A student that was measured, or is to be: as it starts, or after a training.

    `taken` are the steps of each stage, `seconds` are of all of it, `setup_s` those before its first step
    and after its last. `problem` says why it has no measures.
    """

    name: str
    shape: Shape
    recipe: dict[str, Any]
    precision: str
    measures: Measures = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)
    seconds: float = 0.0
    setup_s: float = 0.0
    problem: str = ""

    @property
    def steps(self) -> int:
        return sum(self.taken)


@dataclass
class State:
    """What was decided and found; None where it was not yet.

    `teacher` and `corpus` are sections of recipes, `pairs` are those asked for, with their numbers. `costs`
    has the cost of each shape that was measured, or why it cannot be built, and `fits` those that keep to the
    budget. The fit has worked for `spent_s`.
    """

    settings: dict[str, Any]
    teacher: dict[str, Any] | None = None
    texts: list[str] = field(default_factory=list)
    corpus: dict[str, Any] | None = None
    pairs: Pairs | None = None
    costs: list[tuple[Shape, Cost | str]] = field(default_factory=list)
    fits: list[Shape] | None = None
    teacher_measures: Measures | None = None
    candidates: list[Candidate] = field(default_factory=list)
    spent_s: float = 0.0

    @property
    def measured(self) -> list[Candidate]:
        """The candidates that were measured, the best first; of equals, the one that was found first."""
        return sorted(
            (each for each in self.candidates if each.measures), key=lambda each: -each.measures["score"]
        )

    @property
    def start(self) -> Candidate | None:
        """The best candidate that was not trained."""
        return next((each for each in self.measured if not each.steps), None)

    def cost(self, shape: Shape) -> Cost:
        """What a shape that was built costs."""
        cost = dict(self.costs)[shape]
        assert isinstance(cost, Cost), "it was built"
        return cost

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


def standings(state: State) -> list[dict[str, Any]]:
    """Every candidate, the best first."""
    rows = []
    for candidate in [*state.measured, *(each for each in state.candidates if not each.measures)]:
        cost = state.cost(candidate.shape)
        rows.append(
            {
                "name": candidate.name,
                "precision": candidate.precision,
                "size_mb": cost.size_bytes[candidate.precision] / 1e6,
                "p50_ms": cost.p50_ms[candidate.precision],
                "steps": candidate.steps,
                "seconds": candidate.seconds,
                "measures": candidate.measures,
                "problem": candidate.problem,
            }
        )
    return rows
