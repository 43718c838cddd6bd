"""The state of a fit, in Optuna's journal: its settings, its plan, and every candidate as a trial. All of a fit's processes share it.

A trial's parameters are the candidate's shape, its intermediate values the scores at the rungs. It is running while it is in the race,
pruned when it falls, complete when it was trained to the end. User attributes, all plain data: `recipe`, `cost`, `precision`, `goal` (the
rung it may train to), `worker` (who trains it now), `scores` (details of each rung), `fell` (why).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedistill import files
from edgedistill.errors import UserError, require

if TYPE_CHECKING:
    import optuna

JOURNAL, RESULT, RECIPE = "fit.journal", "fit.json", "mine.yaml"
STUDY = "fit"
LOCK_S = 10  # a turn takes milliseconds, on a slow network's disk a second


@dataclass(frozen=True)
class Entry:
    """A candidate of the race. scores: of each rung that it has reached; goal: the rung up to which it may train."""

    number: int
    name: str
    params: dict[str, Any]
    recipe: dict[str, Any]
    precision: str
    cost: dict[str, Any]
    goal: int
    scores: dict[int, dict[str, Any]]
    worker: str | None
    fell: str | None
    state: str

    @property
    def racing(self) -> bool:
        return self.state == "running"

    @property
    def waiting(self) -> bool:
        """Whether it may train to a rung that it has not reached."""
        return self.racing and self.goal not in self.scores

    @property
    def last_score(self) -> float | None:
        return float(self.scores[max(self.scores)]["score"]) if self.scores else None


class Storage:
    """A fit's journal, opened. Raises UserError where Optuna is missing."""

    def __init__(self, folder: Path) -> None:
        require("optuna", "fit", "train")
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.folder, self.path = folder, folder / JOURNAL
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = JournalFileOpenLock(str(folder / "turn"), LOCK_S)
        journal_lock = JournalFileOpenLock(str(self.path), LOCK_S)
        _drop_torn_line(self.path, journal_lock)
        backend = JournalFileBackend(str(self.path), lock_obj=journal_lock)
        self._storage = optuna.storages.JournalStorage(backend)
        self.study: optuna.Study = optuna.create_study(
            storage=self._storage,
            study_name=STUDY,
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(seed=0),
        )

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One process at a time; one that was killed in its turn loses it after LOCK_S."""
        self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    # ---- of the whole fit

    def get(self, name: str) -> Any:
        """A value of the whole fit, None where it is not set."""
        return self.study.user_attrs.get(name)

    def set(self, name: str, value: Any) -> None:
        self.study.set_user_attr(name, value)

    def agree(self, settings: dict[str, Any]) -> None:
        """Record the settings of the fit, or raise UserError where it has others."""
        with self.turn():
            known = self.get("settings")
            if known is None:
                self.set("settings", settings)
                self.set("started", time.time())
                return
        if changed := files.difference(known, settings):
            raise UserError(f"{self.folder}: a fit with other settings ({changed}); give another --out, or delete it")

    # ---- of candidates

    def entries(self) -> list[Entry]:
        """All candidates that were raced, in the order in which they were added."""
        return [_entry(trial) for trial in self.study.get_trials(deepcopy=False)]

    def add(self, params: dict[str, Any], axes: dict[str, list[Any]], attributes: dict[str, Any]) -> int:
        """Add a candidate to the race, in a turn. axes: all values that each parameter can have. Returns its number."""
        from optuna.distributions import CategoricalDistribution
        from optuna.trial import TrialState, create_trial

        distributions = {name: CategoricalDistribution(tuple(values)) for name, values in axes.items()}
        trial = create_trial(state=TrialState.RUNNING, params=params, distributions=distributions, user_attrs=attributes)
        self.study.add_trial(trial)
        return len(self.study.get_trials(deepcopy=False)) - 1

    def update(self, number: int, **attributes: Any) -> None:
        """Set attributes of a candidate."""
        trial = self._trial(number)
        for name, value in attributes.items():
            trial.set_user_attr(name, value)

    def report(self, number: int, rung: int, score: dict[str, Any]) -> None:
        """Record the score of a candidate at a rung, with its details."""
        trial, known = self._trial(number), self.entries()[number].scores
        trial.report(score["score"], rung)
        trial.set_user_attr("scores", {**{str(at): found for at, found in known.items()}, str(rung): score})

    def fall(self, number: int, reason: str) -> None:
        """End a candidate's race."""
        from optuna.trial import TrialState

        self.update(number, fell=reason, worker=None)
        self.study.tell(number, state=TrialState.PRUNED)

    def complete(self, number: int, score: float) -> None:
        """End the race of a candidate that was trained to the end."""
        self.update(number, worker=None)
        self.study.tell(number, score)

    def _trial(self, number: int) -> optuna.Trial:
        import optuna

        return optuna.trial.Trial(self.study, self.study.get_trials(deepcopy=False)[number]._trial_id)


def _entry(trial: Any) -> Entry:
    known = trial.user_attrs
    scores = {int(rung): found for rung, found in known.get("scores", {}).items()}
    facts = {name: known[name] for name in ("name", "recipe", "precision", "cost", "goal")}
    state = trial.state.name.lower()
    return Entry(trial.number, params=trial.params, scores=scores, worker=known.get("worker"), fell=known.get("fell"), state=state, **facts)


def _drop_torn_line(path: Path, lock: Any) -> None:
    """Remove the end of a line that was being written when its process was killed or the disk was full."""
    if not path.exists():
        return
    lock.acquire()
    try:
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)
    finally:
        lock.release()


def is_fit(folder: Path) -> bool:
    """Whether a fit was begun in this folder."""
    return (folder / JOURNAL).exists()


def result(folder: Path) -> dict[str, Any] | None:
    """The result of a finished fit, None where it is not finished."""
    path = folder / RESULT
    return dict(files.read_json(path)) if path.exists() else None
