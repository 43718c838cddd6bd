"""A process of a fit: takes candidates from the storage, trains them to their rung and scores them, until the race is over."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from edgedistill.errors import DiskFull, UserError
from edgedistill.fitting import plan, race, request, sampler, trials
from edgedistill.fitting.agreement_score import Judge
from edgedistill.fitting.pace import PACE
from edgedistill.fitting.plan import Fit, open_teacher
from edgedistill.fitting.processes import Presence
from edgedistill.fitting.storage import Entry, Storage
from edgedistill.session import Session

POLL_S = 0.5  # while others are at work on all there is
TRIES = 6  # candidates measured until one fits, before the sampler is said to have no more


def run(fit: Fit, presence: Presence) -> None:
    """Work until no candidate races any more."""
    judge, schedule = fit.judge(), fit.schedule
    while True:
        step = _take(fit, presence)
        if isinstance(step, race.Over):
            return
        if isinstance(step, race.Train):
            _train(fit, step.entry, judge, presence)
        elif isinstance(step, race.Propose):
            presence.doing = "looks for another candidate"
            _propose(fit)
        elif isinstance(step, race.Promote):
            presence.doing = f"rung {step.rung + 1} of {len(schedule.counts)} is decided"
        else:
            presence.doing = "waits for the others"
            time.sleep(POLL_S)


def _take(fit: Fit, presence: Presence) -> race.Step:
    """What this process does next, claimed for it."""
    storage, schedule = fit.storage, fit.schedule
    with storage.turn():
        entries = storage.entries()
        step = race.next_step(entries, schedule, bool(storage.get("exhausted")), presence.alive)
        if isinstance(step, race.Train):
            storage.update(step.entry.number, worker=presence.name)
        elif isinstance(step, race.Propose):
            if storage.get("proposing") != presence.name and presence.alive(storage.get("proposing")):
                return race.Wait()
            storage.set("proposing", presence.name)
        elif isinstance(step, race.Promote):
            _promote(fit, race.finalists(step, schedule, _seconds_left(fit, entries), fit.workers))
    return step


def _seconds_left(fit: Fit, entries: list[Entry]) -> float:
    """Of the fit's minutes, without those that it lay dead: planned, plus what its trainings took side by side."""
    trained = sum(score["seconds"] for entry in entries for score in entry.scores.values()) / fit.workers
    total = 60 * fit.request.minutes
    return float(total - fit.storage.get("planned_s") - trained - fit.pace.finish_s - fit.pace.finish_share * total)


def _promote(fit: Fit, step: race.Promote) -> None:
    """Let the best go on and the others fall; behind the last rung the race of all is complete."""
    schedule = fit.schedule
    if step.rung == len(schedule.counts) - 1:
        for entry in step.best:
            fit.storage.complete(entry.number, entry.scores[step.rung]["score"])
        return
    ranked = sorted([*step.best, *step.others], key=lambda entry: -step.expected[entry.number])
    for place, entry in enumerate(ranked, 1):
        if entry in step.others:
            fit.storage.fall(entry.number, race.why_it_fell(entry, place, step, schedule))
    for entry in step.best:
        fit.storage.update(entry.number, goal=step.rung + 1, worker=None)


def _train(fit: Fit, entry: Entry, judge: Judge, presence: Presence) -> None:
    """Train a claimed candidate to its rung; one that cannot be trained falls."""
    rungs = len(fit.schedule.counts)
    presence.doing = f"{entry.name}: trains to rung {entry.goal + 1} of {rungs}"

    def log(line: str) -> None:
        presence.doing = f"rung {entry.goal + 1} of {rungs}: {entry.name}: {line}"

    quiet = replace(fit.session, log=log, progress=False)
    share = fit.schedule.shares[entry.goal]
    try:
        score = trials.train_to_rung(entry, share, fit.folder, judge, quiet)
    except DiskFull:
        raise
    except UserError as error:
        with fit.storage.turn():
            fit.storage.fall(entry.number, f"in training: {error.problems[0]}")
        return
    with fit.storage.turn():
        fit.storage.report(entry.number, entry.goal, score)
        fit.storage.update(entry.number, worker=None)


def _propose(fit: Fit) -> None:
    """Add a candidate that the sampler proposes and that keeps to the budget; record where there is none."""
    workshop = fit.workshop()
    survey = fit.survey(workshop)
    entries = fit.storage.entries()
    raced = {entry.name for entry in entries}
    for _ in range(TRIES):
        allowed = [choice for choice in [*survey.likely(), *survey.fitting] if choice.name not in raced]
        choice = sampler.propose(entries, survey.choices, allowed, fit.request.seed)
        if choice is None:
            break
        if choice not in survey.costs:
            plan.measure(fit, workshop, survey, choice)
        if choice in survey.costs and survey.costs[choice].fitting(fit.request.budget):
            _, attributes = plan.entry_attributes(fit, workshop, survey, choice, fit.schedule)
            with fit.storage.turn():
                fit.storage.add(choice.params, sampler.axes(survey.choices), attributes)
                fit.storage.set("proposing", None)
            return
    fit.storage.set("exhausted", True)
    fit.storage.set("proposing", None)


def main(arguments: list[str] | None = None) -> int:
    """Join the race of a fit on this machine; `fit` starts it for each further process. Exit codes as of the command."""
    parser = argparse.ArgumentParser(prog="edgedistill.fitting.worker")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--trust-remote-code", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    storage = Storage(options.folder)
    asked = request.of_settings(storage.get("settings"), options.data)
    log = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731, T201
    session = Session(options.data, options.device, log, remote_code=options.trust_remote_code)
    try:
        with Presence(options.folder, options.parent) as presence:
            run(Fit(asked, options.folder, storage, session, PACE, options.workers, open_teacher(asked, storage, session)), presence)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
