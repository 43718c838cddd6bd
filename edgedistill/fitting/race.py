"""Successive halving: which candidate trains next and how far, and which fall at a rung (Jamieson and Talwalkar 2016).

Every candidate trains to the first rung; the best of them go on from their checkpoints to the second, and so on. Learning rates follow
the whole training from the first step, so a candidate that is trained rung by rung ends as if it was trained at once.

Kinds learn at different speeds: a static student is at its end when a transformer has begun. So the best of every kind leaves the first
rung, and from the second on candidates are compared by the scores that they are expected to end with.
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
    """All have reached a rung: `best` go on, `others` fall, each the best first. expected: of each by number, its score at the end."""

    rung: int
    best: list[Entry]
    others: list[Entry]
    expected: dict[int, float]


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
    expected = {entry.number: expected_score(entry, rung, schedule.shares) for entry in racing}
    ranked = sorted(racing, key=lambda entry: (-expected[entry.number], entry.number))
    last = rung == len(schedule.counts) - 1
    count = len(ranked) if last else schedule.counts[rung + 1]
    first = _best_of_each_kind(ranked) if rung == 0 and not last else []
    chosen = {entry.number for entry in [*first, *(entry for entry in ranked if entry not in first)][:count]}
    best = [entry for entry in ranked if entry.number in chosen]
    return Promote(rung, best, [entry for entry in ranked if entry.number not in chosen], expected)


def expected_score(entry: Entry, rung: int, shares: Sequence[float]) -> float:
    """The score at the end, where it goes on to grow with the logarithm of the steps as between the last two rungs; at the first, and at
    the last, the score itself.
    """
    score = _score(entry, rung)
    if rung == 0 or not math.isfinite(score):
        return score
    growth = (score - _score(entry, rung - 1)) / math.log(shares[rung] / shares[rung - 1])
    return score + growth * math.log(shares[-1] / shares[rung])


def _score(entry: Entry, rung: int) -> float:
    score = float(entry.scores[rung]["score"])
    return score if math.isfinite(score) else -math.inf


def _best_of_each_kind(ranked: list[Entry]) -> list[Entry]:
    found: dict[str, Entry] = {}
    for entry in ranked:
        found.setdefault(entry.params["kind"], entry)
    return list(found.values())


def why_it_fell(entry: Entry, place: int, step: Promote, schedule: Schedule) -> str:
    """Why a candidate was not trained on. place: its place at the rung, from 1."""
    score, rung = entry.scores[step.rung], step.rung
    count = len(step.best) + len(step.others)
    at = f"at rung {rung + 1} of {len(schedule.counts)}, after {score['step']:,} of {score['steps']:,} steps"
    if rung == 0:
        return f"{at}: {score['score']:.3f}, place {place} of {count}; {_went_on(step)} went on"
    ends, lowest = step.expected[entry.number], step.expected[step.best[-1].number]
    expects = f"{score['score']:.3f}, {ends:.3f} to be expected at the end"
    return f"{at}: {expects}, place {place} of {count}; {_went_on(step)} went on, from {lowest:.3f}"


def _went_on(step: Promote) -> str:
    kinds = {entry.params["kind"] for entry in step.best}
    return f"the best {len(step.best)}, with one of each kind," if step.rung == 0 and len(kinds) > 1 else f"the best {len(step.best)}"


def finalists(step: Promote, schedule: Schedule, seconds: float, workers: int) -> Promote:
    """The promotion to the last rung, with only as many as can be trained in the seconds left.

    One always is, and as many as there are workers: side by side they take no longer, and a fair share of the kinds should be among them.
    """
    if step.rung + 1 < len(schedule.counts) - 1 or step.rung == len(schedule.counts) - 1:
        return step
    count = len(step.best)
    while count > workers and math.ceil(count / workers) * max(_seconds_left(entry, step.rung) for entry in step.best[:count]) > seconds:
        count -= 1
    return Promote(step.rung, step.best[:count], [*step.best[count:], *step.others], step.expected)


def _seconds_left(entry: Entry, rung: int) -> float:
    """How long the rest of a candidate's training takes, by the last rung's measured speed."""
    score = entry.scores[rung]
    return float((score["steps"] - score["step"]) * score["step_seconds"])
