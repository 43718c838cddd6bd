"""The record of a fit: what it was asked, and an Optuna study in a SQLite file, written as things are found,
so that a killed fit goes on where it was.

What was decided once is an attribute of the study: `settings`, `teacher`, `texts`, `corpus`, `survey`,
`surveyed`, `planned_s`, `schedule`. A candidate is a trial. Its intermediate values are what the pruner
compares at the rungs. It is running while it may still be trained, pruned once it fell, complete when it was
trained to the end, or is a shipped student as it is, whose recipe has no stages. Its attributes are `name`,
`kind`, `recipe`, `cost`, `precision`, `scores` (the details of each rung) and `fell` (why).
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from pydantic import TypeAdapter

from edgedistill import files, recipe
from edgedistill.errors import UserError
from edgedistill.evaluation import page
from edgedistill.fitting.candidates import Choice
from edgedistill.fitting.cost import Budget, Cost

STUDY, LOCK, RESULT, RECIPE, PAGE = "fit.db", "fit.lock", "fit.json", "mine.yaml", "fit.html"
TRIALS, VOCABULARIES = "trials", "vocabularies"  # the folders of the candidates' runs, of their tokenizers
TEMPLATE = Path(__file__).with_name("fit.html")


@dataclass(frozen=True)
class FitRequest:
    """What a user asks of a fit.

    `texts` are globs, or `documentation`. With a `suite`, candidates are scored on it too. `min_kept` is a
    share of the teacher's score. Relative paths start from `data`.
    """

    teacher: recipe.Teacher
    texts: tuple[str, ...]
    budget: Budget
    minutes: float = 60.0
    column: str = "text"
    min_kept: float | None = None
    suite: str | None = None
    seed: int = 0
    data: Path | None = field(default=None, compare=False)

    def settings(self) -> dict[str, Any]:
        """The request as plain data; `of_settings` reads it."""
        found: dict[str, Any] = TypeAdapter(FitRequest).dump_python(self, mode="json", exclude={"data"})
        return found


def of_settings(settings: dict[str, Any], data: Path | None) -> FitRequest:
    """The request that `FitRequest.settings` described."""
    return TypeAdapter(FitRequest).validate_python({**settings, "data": data})


def open_study(folder: Path) -> optuna.Study:
    """The study of a fit's folder; both are created where they are not there."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{folder.resolve() / STUDY}"
    return optuna.create_study(storage=storage, study_name="fit", direction="maximize", load_if_exists=True)


def is_fit(folder: Path) -> bool:
    """Whether a fit was begun in this folder."""
    return (folder / STUDY).exists()


def result(folder: Path) -> dict[str, Any] | None:
    """The result of a finished fit, None where it is not finished."""
    path = folder / RESULT
    return dict(files.read_json(path)) if path.exists() else None


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes out of a fit's folder. SQLite's lock ends with the process that holds it, however
    that one ends."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        lock.close()
        fact = "another process works on this fit; wait for it, or give another --out"
        raise UserError(f"{folder}: {fact}") from None
    try:
        yield
    finally:
        lock.close()


def agree(study: optuna.Study, settings: dict[str, Any], folder: Path) -> None:
    """Raise UserError where a fit was begun with other settings. Only its minutes may grow."""
    known = study.user_attrs.get("settings", settings)
    for key, value in settings.items():
        if known[key] != value and not (key == "minutes" and value > known[key]):
            fact = f"{key} was {known[key]!r}, is now {value!r}"
            raise UserError(f"{folder}: a fit with other settings ({fact}); give another --out, or delete it")


def emptied(study: optuna.Study, folder: Path) -> optuna.Study:
    """The study without what was found, and without what was trained."""
    (folder / RESULT).unlink(missing_ok=True)
    for name in (TRIALS, VOCABULARIES):
        shutil.rmtree(folder / name, ignore_errors=True)
    optuna.delete_study(study_name=study.study_name, storage=study._storage)
    return open_study(folder)


def candidates(study: optuna.Study) -> list[FrozenTrial]:
    """All candidates that may be trained or were, in the order in which they were added."""
    return study.get_trials(deepcopy=False)


def is_racing(candidate: FrozenTrial) -> bool:
    """Whether a candidate may still be trained."""
    return candidate.state == TrialState.RUNNING


def is_trained(candidate: FrozenTrial) -> bool:
    """Whether a candidate learns; a shipped student stands as it is."""
    return bool(candidate.user_attrs["recipe"]["stages"])


def steps(candidate: FrozenTrial) -> int:
    """The steps of a candidate's whole training."""
    return sum(stage["steps"] for stage in candidate.user_attrs["recipe"]["stages"])


def finalists(study: optuna.Study) -> list[FrozenTrial]:
    """The candidates that were trained to the end, or need no training, the best first."""
    found = [each for each in candidates(study) if each.state == TrialState.COMPLETE]
    return sorted(found, key=lambda each: -(each.value or 0.0))


# ---- what the page and fit.json hold


def standings(study: optuna.Study) -> list[dict[str, Any]]:
    """Every candidate that raced or races, the best first. Where `on_front`, none is better, smaller and
    faster."""
    rows = [_standing(trial) for trial in candidates(study)]
    scored = [row for row in rows if row["score"] is not None]
    for row in rows:
        row["on_front"] = row in scored and not any(_beats(other, row) for other in scored)
    return sorted(rows, key=lambda row: (-(row["score"] or -1), row["name"]))


def _standing(trial: FrozenTrial) -> dict[str, Any]:
    known = trial.user_attrs
    cost, precision = known["cost"], known["precision"]
    details = known["scores"][-1] if known["scores"] else {}
    fate = "in the race" if is_racing(trial) else "trained to the end"
    if not is_trained(trial):
        fate = "as it ships"
    return {
        "name": known["name"],
        "precision": precision,
        "size_mb": cost["size_bytes"][precision] / 1e6,
        "p50_ms": cost["p50_ms"][precision],
        "rung": len(known["scores"]) if is_trained(trial) else 0,
        "step": details.get("step", 0),
        "steps": steps(trial),
        "score": details.get("score"),
        "details": details,
        "fate": f"fell {known['fell']}" if "fell" in known else fate,
    }


def _beats(other: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether another candidate is better in one of score, size and latency, and at least as good in all of
    them."""
    theirs, mine = ((each["score"], -each["size_mb"], -each["p50_ms"]) for each in (other, row))
    return theirs != mine and all(a >= b for a, b in zip(theirs, mine, strict=True))


def not_raced(study: optuna.Study) -> list[dict[str, str]]:
    """{name, why} of the shapes that were measured, or could not be built, and did not race."""
    budget = TypeAdapter(Budget).validate_python(study.user_attrs["settings"]["budget"])
    raced = {trial.user_attrs["name"] for trial in candidates(study)}
    found = {}
    for params, measured, reason in study.user_attrs.get("survey", []):
        name = Choice(**params).name
        if measured is None:
            found[name] = f"cannot be built: {reason}"
            continue
        cost = Cost(**measured)
        why = (
            "fits, but there was no time to race it"
            if cost.fitting(budget)
            else f"over the budget of {budget}"
        )
        found[name] = f"{cost.described(cost.best(budget))}: {why}"
    return [{"name": name, "why": why} for name, why in found.items() if name not in raced]


def write_page(study: optuna.Study, folder: Path, winner: dict[str, Any] | None = None) -> None:
    """Write the page as things stand. Its template draws what is put into it as JSON. `winner` is the entry
    of fit.json, once there is one."""
    found = {
        "budget": study.user_attrs["settings"]["budget"],
        "texts": study.user_attrs["texts"],
        "candidates": standings(study),
        "not_raced": not_raced(study),
        "winner": winner,
        "recipe": (folder / RECIPE).read_text(encoding="utf-8") if winner else "",
    }
    files.write_text(folder / PAGE, page.filled(TEMPLATE, found))
