"""How the minutes of a fit are shared, and how many candidates can be raced in them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from edgedistill.errors import UserError
from edgedistill.evaluation.speed import MeasurementPlan

MEASUREMENT = MeasurementPlan(queries=256, rounds=3, seconds=0.3)  # of the winner and its teacher


@dataclass(frozen=True)
class Pace:
    """What a fit spends its minutes on.

    teacher_share, survey_share: of all minutes, at most. finish_s, finish_share: kept for export and measurement. shortest_rung_s: of
    training, below which a comparison says nothing. most_epochs: more passes over the texts bring nothing. safety: share of the time
    left that is planned with. wanted: candidates to find that keep to the budget.
    """

    teacher_share: float = 0.2
    survey_share: float = 0.1
    finish_s: float = 45.0
    finish_share: float = 0.05
    shortest_rung_s: float = 15.0
    timing_s: float = 4.0
    most_epochs: float = 40.0
    safety: float = 0.9
    wanted: int = 12
    measurement: MeasurementPlan = MEASUREMENT


PACE = Pace()


@dataclass(frozen=True)
class Schedule:
    """A race. counts: how many candidates train up to each rung; shares: of their whole training at the rungs; seconds: of the whole
    training of one candidate; proposed: how many of the first are proposed by the sampler, from the scores of the others.
    """

    counts: tuple[int, ...]
    shares: tuple[float, ...]
    seconds: float
    proposed: int = 0

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


# (candidates at each rung, shares of the whole training), the thorough ones first
RACES = (
    ((16, 4, 2), (1 / 16, 1 / 4, 1.0)),
    ((12, 4, 2), (1 / 16, 1 / 4, 1.0)),
    ((8, 3, 2), (1 / 16, 1 / 4, 1.0)),
    ((6, 2), (1 / 4, 1.0)),
    ((4, 1), (1 / 4, 1.0)),
    ((3, 1), (1 / 4, 1.0)),
    ((2, 1), (1 / 4, 1.0)),
    ((1,), (1.0,)),
)
PROPOSED_SHARE = 1 / 4  # of the candidates of a race of eight or more


@dataclass(frozen=True)
class Means:
    """What a race has: seconds left, processes that train side by side, seconds to set up a run and to resume one."""

    seconds: float
    workers: int
    setup_s: float
    resume_s: float


def schedule(means: Means, candidates: int, pace: Pace = PACE) -> Schedule:
    """The most thorough race that the means allow. candidates: those that keep to the budget.

    Raises UserError where the time is too short for a single rung.
    """
    for counts, shares in _possible(candidates):
        seconds = training_seconds(counts, shares, means, pace.safety)
        if seconds * shares[0] >= pace.shortest_rung_s:
            proposed = math.floor(counts[0] * PROPOSED_SHARE) if counts[0] >= 8 else 0
            return Schedule(counts, shares, seconds, proposed)
    raise UserError(_too_short(means, candidates, pace))


def _possible(candidates: int) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """The races for so many candidates; one alone is trained without a race."""
    return [race for race in RACES if min(2, candidates) <= race[0][0] <= candidates]


def training_seconds(counts: tuple[int, ...], shares: tuple[float, ...], means: Means, safety: float) -> float:
    """How long each candidate's whole training may take."""
    before, setups, training = 0.0, 0.0, 0.0
    for rung, (count, share) in enumerate(zip(counts, shares, strict=True)):
        turns = math.ceil(count / means.workers)
        setups += turns * (means.resume_s if rung else means.setup_s)
        training += turns * (share - before)
        before = share
    return (safety * means.seconds - setups) / training


def _too_short(means: Means, candidates: int, pace: Pace) -> str:
    counts, shares = _possible(candidates)[-1]
    setups = math.ceil(counts[0] / means.workers) * means.setup_s + (len(counts) - 1) * means.resume_s
    turns = math.ceil(counts[0] / means.workers) * shares[0] + (1 - shares[0])
    needed = (setups + turns * pace.shortest_rung_s / shares[0]) / pace.safety
    more = math.ceil(max(1.0, needed - means.seconds) / 60)
    compared = f"the race of {counts[0]} candidates" if counts[0] > 1 else "training one candidate"
    fact = f"{max(0.0, means.seconds):.0f} s are left for training, and {compared} needs {needed:.0f} s"
    return f"--minutes: too few for one rung: {fact}; give {more} minutes more"


def steps(schedule: Schedule, step_seconds: float, epoch_steps: float, pace: Pace) -> int:
    """The steps of a candidate's whole training. epoch_steps: of one pass over the texts."""
    return max(len(schedule.shares), min(int(schedule.seconds / step_seconds), math.ceil(pace.most_epochs * epoch_steps)))


def rung_steps(whole: int, share: float) -> int:
    """The step at which a rung ends."""
    return whole if share >= 1 else max(1, math.ceil(whole * share))
