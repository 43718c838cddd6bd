"""The race: candidates train one after another, rung by rung, and fall where too many others are better.

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
from typing import Any

from edgedistill import recipe, resolve, run
from edgedistill.errors import DiskFull, UserError
from edgedistill.fitting import plan, record
from edgedistill.fitting.pace import SHARES, first_rung, rung_steps
from edgedistill.fitting.plan import Fit
from edgedistill.fitting.record import Candidate
from edgedistill.fitting.score import encoder
from edgedistill.session import silent
from edgedistill.training import train
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.stage_in_progress import Paused

FACTOR = 4  # a quarter of those that reach a rung goes on
SEARCH_S = 60.0  # for a further candidate that fits


def run_race(fit: Fit) -> None:
    """Train candidates until none is left, or no time."""
    enter_shipped(fit)
    while True:
        racing = next((each for each in fit.state.candidates if each.is_racing), None)
        if racing is not None:
            _race(fit, racing)
        elif _time_is_up(fit, 0) or not _enter_another(fit):
            return
        fit.write_page()


def _race(fit: Fit, candidate: Candidate) -> None:
    """Train a candidate to its end, or until it falls. One that was killed goes on behind the last rung that
    it has reached.
    """
    scores, first = candidate.scores, first_rung(fit.schedule.counts)
    while candidate.is_racing:
        reached = len(scores)
        if reached > first:
            candidate.fell = why_it_falls(fit.state.candidates, candidate)
        if not candidate.fell and _time_is_up(fit, reached):
            candidate.fell = f"before rung {reached + 1} of {len(SHARES)}: the time was over"
        if not candidate.fell:
            try:
                scores.append(train_to_rung(fit, candidate, reached))
                fit.session.log(described(candidate.name, scores))
            except DiskFull:
                raise
            except UserError as error:
                candidate.fell = f"in training: {error.problems[0]}"
        if candidate.fell:
            fit.session.log(f"{candidate.name}: fell {candidate.fell}")
        fit.state.write(fit.folder)
        fit.write_page()


def why_it_falls(candidates: Sequence[Candidate], candidate: Candidate) -> str:
    """Why a candidate is not trained on behind the last rung that it has reached; "" where it is: where it is
    among the best quarter of those that came so far, at the first rung of its kind, or the best of them.
    """
    reached, score = len(candidate.scores), candidate.scores[-1]
    value, expects, among = expected_score(candidate.scores), "", ""
    came = [each for each in candidates if each.is_trained and len(each.scores) >= reached]
    if reached == 1:
        came = [each for each in came if each.kind == candidate.kind]
        among = f" of kind {candidate.kind}"
    else:
        expects = f", {value:.3f} to be expected at the end"
    values = [expected_score(each.scores[:reached]) for each in came]
    place = 1 + sum(each > value for each in values)
    if place <= max(1, len(values) // FACTOR):
        return ""
    after = f"after {score['step']:,} of {score['steps']:,} steps: {score['score']:.3f}{expects}"
    fact = f"{after}, place {place} of {len(values)}{among} that came so far; the best has {max(values):.3f}"
    return f"at rung {reached} of {len(SHARES)}, {fact}"


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


def spent_seconds(fit: Fit) -> float:
    """How long planning and all trainings took, without the time that the fit lay dead."""
    scores = [score for each in fit.state.candidates for score in each.scores]
    return float(fit.state.planned_s + sum(score["seconds"] for score in scores))


def _time_is_up(fit: Fit, rung: int) -> bool:
    """Whether training to a rung would take longer than the fit has left, and there is a student already."""
    share = SHARES[rung] - (SHARES[rung - 1] if rung else 0.0)
    late = fit.schedule.seconds * share > fit.racing_seconds - spent_seconds(fit)
    return late and any(each.is_trained for each in fit.state.finalists)


# ---- one candidate


def train_to_rung(fit: Fit, candidate: Candidate, rung: int) -> dict[str, Any]:
    """Train a candidate from its checkpoint to a rung, and score it there.

    Returns the score's details with step, steps, seconds (of this rung) and step_seconds. Raises UserError as
    `train`.
    """
    whole = candidate.steps
    step, started = rung_steps(whole, rung), time.perf_counter()
    spec = recipe.parse(candidate.recipe, candidate.name)
    student = _trained(fit, spec, step if step < whole else None)
    trained = time.perf_counter() - started
    score = fit.judge.score(encoder(student, candidate.precision))
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
    return PreparedStudent.of(run.open_run(out))


# ---- further candidates


def enter_shipped(fit: Fit) -> None:
    """Score the shipped students of this teacher as they are: the winner is no worse than any of them."""
    known = {each.name for each in fit.state.candidates}
    for choice in fit.survey.fitting:
        name = choice.vocabulary
        if choice.kind != "finished" or name in known or fit.opened(choice).student.new_head:
            continue
        made = {**fit.recipe(choice), "name": name, "stages": []}
        student = _trained(fit, recipe.parse(made, name), None)
        precision = fit.survey.costs[choice].best(fit.request.budget)
        score = fit.judge.score(encoder(student, precision))
        score |= {"step": 0, "steps": 0, "seconds": 0.0, "step_seconds": 0.0}
        plan.add(fit, choice, name, made, [score])
        fit.session.log(f"{name}, as it ships: score {score['score']:.3f}")


def _enter_another(fit: Fit) -> bool:
    """Enter the next candidate that keeps to the budget. Returns whether there is one."""
    found = fit.state.candidates
    if sum(each.is_trained for each in found) >= fit.schedule.candidates(fit.request.minutes):
        return False
    raced = {each.name for each in found}
    if all(choice.name in raced for choice in fit.survey.fitting):
        fit.survey.run(len(fit.survey.fitting) + 1, SEARCH_S)
    for choice in plan.first_choices(fit.survey):
        if choice.name not in raced:
            plan.enter(fit, choice, fit.schedule)
            return True
    return False
