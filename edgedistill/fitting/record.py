"""The record of a fit: what it was asked and all that was found, in a JSON file that is written whole as
things are found, so that a killed fit goes on where it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from edgedistill import files, recipe
from edgedistill.fitting.judge import Measures
from edgedistill.fitting.queries import Pairs
from edgedistill.fitting.shapes import Shape

STATE, RESULT, RECIPE = "state.json", "fit.json", "mine.yaml"
TRIALS = "trials"  # the folder of the candidates' runs
BUNDLE = "bundle"
REPORTED = ("name", "precision", "size_mb", "p50_ms", "steps", "seconds", "measures", "problem")

Space = Literal["own", "teacher"]


@dataclass(frozen=True)
class Budget:
    """What the student may cost: graph and tokenizer.json together in 10⁶ bytes, and the p50 of one text on
    one thread."""

    max_mb: float
    max_p50_ms: float

    def __str__(self) -> str:
        return f"{self.max_mb:g} MB and {self.max_p50_ms:g} ms"


@dataclass(frozen=True)
class FitRequest:
    """What a user asks of a fit.

    `texts` are globs, or `documentation`. `pairs` are a table of queries and the texts that answer them.
    `space`: whether the student may embed in a space of its own, or must in the teacher's, where an index of
    the teacher's embeddings exists. Relative paths start from `data`.
    """

    teacher: recipe.Teacher
    texts: tuple[str, ...]
    budget: Budget
    minutes: float = 60.0
    column: str | None = None
    space: Space = "own"
    seed: int = 0
    pairs: Pairs | None = None
    data: Path | None = field(default=None, compare=False)

    def settings(self) -> dict[str, Any]:
        """The request as plain data, its places as they were given: another process goes on from it."""
        settings: dict[str, Any] = TypeAdapter(FitRequest).dump_python(
            self, mode="json", exclude={"data"}, by_alias=True
        )
        return settings


@dataclass
class Costed:
    """A shape and what it costs: graph and tokenizer.json together, exactly (in int8 to some ten bytes, as
    constants are named by their values), and the p50 of one text, tokenization included."""

    shape: Shape
    size_mb: float
    p50_ms: float

    @property
    def precision(self) -> str:
        return self.shape.precision

    def excess(self, budget: Budget) -> float:
        """By how much it exceeds a budget, as a share: 0.2 is a fifth too much of one of the two; at most 0
        where it fits."""
        return max(self.size_mb / budget.max_mb, self.p50_ms / budget.max_p50_ms) - 1

    def __str__(self) -> str:
        """bert-4-t64-12000: int8 4.31 MB, 0.52 ms"""
        return f"{self.shape.name}: {self.precision} {self.size_mb:.3g} MB, {self.p50_ms:.3g} ms"


@dataclass(kw_only=True)
class Candidate(Costed):
    """A student as it starts, or after a training; until it is `done` it is being trained or measured.

    `taken` are the steps of each stage, `seconds` are of all of it. `problem` says why it has no measures.
    """

    name: str
    recipe: dict[str, Any]
    measures: Measures = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)
    seconds: float = 0.0
    problem: str = ""

    @property
    def done(self) -> bool:
        return bool(self.measures or self.problem)

    @property
    def steps(self) -> int:
        return sum(self.taken)

    @property
    def setup_s(self) -> float:
        """The seconds before its first step and after its last."""
        planned = sum(60 * stage.get("minutes", 0) for stage in self.recipe["stages"])
        return max(0.0, self.seconds - planned)

    @property
    def report(self) -> dict[str, Any]:
        """Its entry in fit.json."""
        return {name: getattr(self, name) for name in REPORTED}


@dataclass
class State:
    """What was decided and found; None where it was not yet.

    `teacher` and `corpus` are sections of recipes, `pairs` are those asked for, with their numbers. `fits`
    are the shapes that keep to the budget. To build a shape and to measure an encoder takes `setup_s`. The
    fit has worked for `spent_s`, of which `planned_s` were over before the first training.
    """

    settings: dict[str, Any]
    teacher: dict[str, Any] | None = None
    corpus: dict[str, Any] | None = None
    pairs: Pairs | None = None
    fits: list[Costed] | None = None
    teacher_measures: Measures | None = None
    candidates: list[Candidate] = field(default_factory=list)
    setup_s: float = 0.0
    planned_s: float | None = None
    spent_s: float = 0.0

    @property
    def measured(self) -> list[Candidate]:
        """The candidates that were measured, the best first; of equals, the one that was found first."""
        measured = [candidate for candidate in self.candidates if candidate.measures]
        return sorted(measured, key=lambda candidate: -candidate.measures["score"])

    @property
    def start(self) -> Candidate | None:
        """The best candidate that was not trained."""
        return next((candidate for candidate in self.measured if not candidate.steps), None)

    def candidate(self, name: str) -> Candidate | None:
        """The candidate of that name."""
        return next((candidate for candidate in self.candidates if candidate.name == name), None)

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
    content = files.read_json(path)
    run = folder / TRIALS / content["winner"]["candidate"]
    return {**content, "recipe": str(folder / RECIPE), "bundle": str(folder / BUNDLE), "run": str(run)}
