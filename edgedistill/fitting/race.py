"""Successive halving: which candidate trains next and how far, and which fall at a rung (Jamieson and Talwalkar 2016).

Every candidate trains to the first rung; the best of them go on from their checkpoints to the second, and so on. Learning rates follow
the whole training from the first step, so a candidate that is trained rung by rung ends as if it was trained at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from edgedistill.fitting.pace import Schedule
from edgedistill.fitting.storage import Entry


class Train(NamedTuple):
    """A candidate that is to be trained to a rung."""

    entry: Entry


class Propose(NamedTuple):
    """Another candidate is to be proposed."""


class Promote(NamedTuple):
    """All have reached a rung: `best` go on, best first, `others` fall."""

    rung: int
    best: list[Entry]
    others: list[Entry]


class Wait(NamedTuple):
    """Other processes are at work on all that can be done now."""


class Over(NamedTuple):
    """Nobody races any more."""


Step = Train | Propose | Promote | Wait | Over


def next_step(entries: Sequence[Entry], schedule: Schedule, exhausted: bool, alive: Callable[[str | None], bool]) -> Step:
    """What is to be done now. exhausted: the sampler has no more candidates; alive: whether a process is at work."""
    racing = [entry for entry in entries if entry.racing]
    waiting = [entry for entry in racing if entry.waiting]
    free = [entry for entry in waiting if not alive(entry.worker)]
    if free:
        return Train(min(free, key=lambda entry: (entry.goal, entry.number)))
    missing = schedule.counts[0] - len(entries)
    if missing > 0 and not exhausted and all(entry.goal == 0 for entry in racing):
        return Propose()
    if waiting:
        return Wait()
    if not racing:
        return Over()
    rung = racing[0].goal
    ranked = sorted(racing, key=lambda entry: (-_score(entry, rung), entry.number))
    last = rung == len(schedule.counts) - 1
    count = len(ranked) if last else schedule.counts[rung + 1]
    return Promote(rung, ranked[:count], ranked[count:])


def _score(entry: Entry, rung: int) -> float:
    score = float(entry.scores[rung]["score"])
    return score if math.isfinite(score) else -math.inf


def why_it_fell(entry: Entry, rung: int, place: int, step: Promote, schedule: Schedule) -> str:
    """Why a candidate was not trained on. place: its place at the rung, from 1."""
    score = entry.scores[rung]
    others = len(step.best) + len(step.others)
    last = step.best[-1].scores[rung]["score"]
    at = f"at rung {rung + 1} of {len(schedule.counts)}, after {score['step']:,} of {score['steps']:,} steps"
    return f"{at}: {score['score']:.3f}, place {place} of {others}; the best {len(step.best)} went on, from {last:.3f}"


def finalists(step: Promote, schedule: Schedule, seconds: float, workers: int) -> Promote:
    """The promotion to the last rung, with only as many as can be trained in the seconds left; one always is."""
    if step.rung + 1 < len(schedule.counts) - 1 or step.rung == len(schedule.counts) - 1:
        return step
    count = len(step.best)
    while count > 1 and math.ceil(count / workers) * max(_seconds_left(entry, step.rung) for entry in step.best[:count]) > seconds:
        count -= 1
    return Promote(step.rung, step.best[:count], [*step.best[count:], *step.others])


def _seconds_left(entry: Entry, rung: int) -> float:
    """How long the rest of a candidate's training takes, by the last rung's measured speed."""
    score = entry.scores[rung]
    return float((score["steps"] - score["step"]) * score["step_seconds"])
