"""The race: candidates train one after another, rung by rung, and fall where Optuna's pruner finds too many
better ones.

This is asynchronous successive halving (Li et al. 2018, arXiv:1810.05934): one that is not among the best
quarter of those that came as far falls, one that is goes on at once from its checkpoint. Learning rates
follow the whole training from the first step, so a candidate that is trained rung by rung ends as if it was
trained at once.

Kinds learn at different speeds: a static student is at its end when a transformer has begun. So candidates
are compared within their kind at the first rung, and from the second one on by the score that they are
expected to end with.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from edgedistill import recipe, resolve, run
from edgedistill.errors import DiskFull, UserError
from edgedistill.fitting import plan, record
from edgedistill.fitting.pace import SHARES, first_rung, rung_steps
from edgedistill.fitting.plan import Fit
from edgedistill.fitting.score import encoder
from edgedistill.session import silent
from edgedistill.training import train
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.stage_in_progress import Paused

FACTOR = 4  # between two rungs' shares; a quarter of those that reach a rung goes on
SEARCH_S = 60.0  # for a further candidate that fits


def run_race(fit: Fit) -> None:
    """Train candidates until none is left, or no time."""
    enter_shipped(fit)
    fit.study.pruner = Halving(first_rung(fit.schedule.counts))
    while True:
        racing = [each for each in record.candidates(fit.study) if record.is_racing(each)]
        if racing:
            _race(fit, racing[0])
        elif _time_is_up(fit, 0) or not _enter_another(fit):
            return
        record.write_page(fit.study, fit.folder)


class Halving(optuna.pruners.SuccessiveHalvingPruner):
    """Optuna's successive halving over rungs 1, 4 and 16, from `first_rung` on; at rung 1, among candidates
    of one kind only.
    """

    def __init__(self, first_rung: int) -> None:
        super().__init__(min_resource=1, reduction_factor=FACTOR, min_early_stopping_rate=first_rung)

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether a candidate falls at the rung that it has reached last."""
        compared = _OfAKind(study, trial) if trial.last_step == 1 else study
        return bool(super().prune(compared, trial))


class _OfAKind(optuna.Study):
    """A study that shows the candidates of one kind only, as Optuna's HyperbandPruner shows those of a
    bracket.
    """

    def __init__(self, study: optuna.Study, trial: FrozenTrial) -> None:
        super().__init__(study.study_name, study._storage)
        self._kind = trial.user_attrs["kind"]

    def get_trials(self, deepcopy: bool = True, states: Any = None) -> list[FrozenTrial]:
        found = super().get_trials(deepcopy, states)
        return [each for each in found if each.user_attrs["kind"] == self._kind]


def _race(fit: Fit, candidate: FrozenTrial) -> None:
    """Train a candidate to its end, or until it falls. One that was killed goes on behind the last rung that
    it has reached.
    """
    trial, reached = optuna.Trial(fit.study, candidate._trial_id), len(SHARES)
    name, scores = candidate.user_attrs["name"], list(candidate.user_attrs["scores"])
    for rung in range(reached):
        if rung == len(scores):
            if _time_is_up(fit, rung):
                return _fall(fit, trial, f"before rung {rung + 1} of {reached}: the time was over")
            try:
                scores.append(train_to_rung(fit, candidate, rung))
            except DiskFull:
                raise
            except UserError as error:
                return _fall(fit, trial, f"in training: {error.problems[0]}")
            trial.report(expected_score(scores), FACTOR**rung)
            trial.set_user_attr("scores", scores)
            fit.session.log(described(name, scores))
            record.write_page(fit.study, fit.folder)
        if rung + 1 < reached and trial.should_prune():
            return _fall(fit, trial, why_it_fell(fit.study, trial.number, rung))
    fit.study.tell(trial.number, scores[-1]["score"])
    return None


def expected_score(scores: Sequence[dict[str, Any]]) -> float:
    """The score at the end, by those of the rungs so far; at the first rung and at the last, the score
    itself.

    Between, it is taken to grow with the logarithm of the steps: from one rung to the next always by as much.
    """
    last = float(scores[-1]["score"])
    if len(scores) in (1, len(SHARES)):
        return last
    return last + (last - float(scores[-2]["score"])) * (len(SHARES) - len(scores))


def described(name: str, scores: Sequence[dict[str, Any]]) -> str:
    """The result of the last rung in a line."""
    score = scores[-1]
    at = f"rung {len(scores)} of {len(SHARES)}, {score['step']:,} of {score['steps']:,} steps"
    return f"{name}: {at}: score {score['score']:.3f}, {score['seconds']:.0f} s"


def why_it_fell(study: optuna.Study, number: int, rung: int) -> str:
    """Why a candidate was not trained on."""
    trials, step = record.candidates(study), FACTOR**rung
    mine = trials[number]
    score, value = mine.user_attrs["scores"][rung], mine.intermediate_values[step]
    came = [each for each in trials if step in each.intermediate_values]
    expects, among = f", {value:.3f} to be expected at the end", ""
    if rung == 0:
        kind = mine.user_attrs["kind"]
        came = [each for each in came if each.user_attrs["kind"] == kind]
        expects, among = "", f" of kind {kind}"
    values = [each.intermediate_values[step] for each in came]
    after = f"after {score['step']:,} of {score['steps']:,} steps: {score['score']:.3f}"
    place = f"place {1 + sum(each > value for each in values)} of {len(values)}"
    fact = f"{after}{expects}, {place}{among} that came so far; the best has {max(values):.3f}"
    return f"at rung {rung + 1} of {len(SHARES)}, {fact}"


def _fall(fit: Fit, trial: optuna.Trial, reason: str) -> None:
    """End a candidate's race."""
    trial.set_user_attr("fell", reason)
    fit.study.tell(trial.number, state=TrialState.PRUNED)
    fit.session.log(f"{trial.user_attrs['name']}: fell {reason}")


def spent_seconds(fit: Fit) -> float:
    """How long planning and all trainings took, without the time that the fit lay dead."""
    scores = [score for each in record.candidates(fit.study) for score in each.user_attrs["scores"]]
    return float(fit.known("planned_s") + sum(score["seconds"] for score in scores))


def _time_is_up(fit: Fit, rung: int) -> bool:
    """Whether training to a rung would take longer than the fit has left, and there is a student already."""
    share = SHARES[rung] - (SHARES[rung - 1] if rung else 0.0)
    late = fit.schedule.seconds * share > fit.racing_seconds - spent_seconds(fit)
    return late and any(map(record.is_trained, record.finalists(fit.study)))


# ---- one candidate


def train_to_rung(fit: Fit, candidate: FrozenTrial, rung: int) -> dict[str, Any]:
    """Train a candidate from its checkpoint to a rung, and score it there.

    Returns the score's details with step, steps, seconds (of this rung) and step_seconds. Raises UserError as
    `train`.
    """
    known = candidate.user_attrs
    spec = recipe.parse(known["recipe"], known["name"])
    whole = spec.distilling[0].steps
    assert whole is not None, "every candidate's recipe has steps"
    step, started = rung_steps(whole, rung), time.perf_counter()
    student = _trained(fit, spec, step if step < whole else None)
    trained = time.perf_counter() - started
    score = fit.judge.score(encoder(student, known["precision"]))
    before = rung_steps(whole, rung - 1) if rung else 0
    seconds = round(time.perf_counter() - started, 2)
    times = {"seconds": seconds, "step_seconds": trained / max(1, step - before)}
    return {**score, "step": step, "steps": whole, **times}


def _trained(fit: Fit, spec: recipe.Recipe, pause_at: int | None) -> PreparedStudent:
    """The student trained to a step, or to the end."""
    out = fit.folder / record.TRIALS / spec.name
    partial = resolve.unfinished_run(out)
    # killed before the first file, or after the run was written and before its unfinished folder was gone
    if out.exists() or not (partial / "recipe.yaml").exists():
        shutil.rmtree(partial, ignore_errors=True)
    resume = out.exists() or partial.exists()
    try:
        train.train(spec, out, replace(fit.session, log=silent), resume, pause_at)
    except Paused as paused:
        return paused.student
    return open_student(out)


def open_student(folder: Path) -> PreparedStudent:
    """The student of a finished run."""
    opened = run.open_run(folder)
    return PreparedStudent(opened.student(), opened.shape, opened.tokenizer())


# ---- further candidates


def enter_shipped(fit: Fit) -> None:
    """Score the shipped students of this teacher as they are: the winner is no worse than any of them."""
    known = {trial.user_attrs["name"] for trial in record.candidates(fit.study)}
    for choice in fit.survey.fitting:
        name = choice.vocabulary
        if choice.kind != "finished" or name in known or fit.opened(choice).student.new_head:
            continue
        made = {**fit.recipe(choice), "name": name, "stages": []}
        student = _trained(fit, recipe.parse(made, name), None)
        precision = fit.survey.costs[choice].best(fit.request.budget)
        score = fit.judge.score(encoder(student, precision))
        score |= {"step": 0, "steps": 0, "seconds": 0.0, "step_seconds": 0.0}
        plan.add(fit, choice, name, made, TrialState.COMPLETE, scores=[score])
        fit.session.log(f"{name}, as it ships: score {score['score']:.3f}")


def _enter_another(fit: Fit) -> bool:
    """Enter the next candidate that keeps to the budget. Returns whether there is one."""
    trials = record.candidates(fit.study)
    if sum(map(record.is_trained, trials)) >= fit.schedule.candidates(fit.request.minutes):
        return False
    raced = {trial.user_attrs["name"] for trial in trials}
    if all(choice.name in raced for choice in fit.survey.fitting):
        fit.survey.run(len(fit.survey.fitting) + 1, SEARCH_S)
    for choice in plan.first_choices(fit.survey):
        if choice.name not in raced:
            plan.enter(fit, choice, fit.schedule)
            return True
    return False
