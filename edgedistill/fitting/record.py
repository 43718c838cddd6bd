"""The record of a fit: an Optuna study in a SQLite file, written as things are found, so that a killed fit
goes on where it was.

What was decided once is an attribute of the study: `settings`, `teacher`, `texts`, `corpus`, `start`,
`vocabularies`, `survey`, `schedule`. A candidate is a trial. Its parameters are its shape, its intermediate
values what the pruner compares at the rungs. It is running while it may still be trained, pruned once it
fell, complete when it was trained to the end. Its attributes are `name`, `recipe`, `cost`, `precision`,
`scores` (the details of each rung) and `fell` (why).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from edgedistill import files
from edgedistill.errors import UserError

STUDY, LOCK, RESULT, RECIPE = "fit.db", "fit.lock", "fit.json", "mine.yaml"


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
    that one ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        lock.close()
        raise UserError(
            f"{folder}: another process works on this fit; wait for it, or give another --out"
        ) from None
    try:
        yield
    finally:
        lock.close()


def agree(study: optuna.Study, settings: dict[str, Any], folder: Path) -> None:
    """Record the settings of a fit, or raise UserError where it was begun with others. Only its minutes may
    grow.
    """
    known = study.user_attrs.get("settings", settings)
    for key, value in settings.items():
        if known[key] != value and not (key == "minutes" and value > known[key]):
            fact = f"{key} was {known[key]!r}, is now {value!r}"
            raise UserError(f"{folder}: a fit with other settings ({fact}); give another --out, or delete it")
    study.set_user_attr("settings", settings)


def candidates(study: optuna.Study) -> list[FrozenTrial]:
    """All candidates that may be trained or were, in the order in which they were added."""
    return study.get_trials(deepcopy=False)


def is_racing(candidate: FrozenTrial) -> bool:
    """Whether a candidate may still be trained."""
    return candidate.state == TrialState.RUNNING


def finalists(study: optuna.Study) -> list[FrozenTrial]:
    """The candidates that were trained to the end, the best first."""
    found = [each for each in candidates(study) if each.state == TrialState.COMPLETE]
    return sorted(found, key=lambda each: -(each.value or 0.0))
