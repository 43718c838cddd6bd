"""How the minutes of a fit are shared, and how many candidates can be raced in them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgedistill.errors import UserError

SHARES = (1 / 16, 1 / 4, 1.0)  # of a candidate's whole training: where the rungs are
# About how many candidates train up to each rung, the thorough races first. Where as many train to the second
# rung as to the first, the first one is for the growth of their scores only: after so few seconds, the scores
# themselves say little.
RACES = ((16, 6, 2), (12, 5, 2), (8, 4, 2), (6, 6, 2), (4, 4, 2), (3, 3, 2), (2, 2, 2), (1, 1, 1))
PROPOSED_SHARE = 1 / 4  # of the candidates of a race of eight or more


@dataclass(frozen=True)
class Pace:
    """What a fit spends its minutes on.

    `teacher_share` and `survey_share` of all minutes may go there at most. `finish_s` and `finish_share` are
    kept for export and measurement. After `shortest_rung_s` candidates can be compared. The steps of one are
    timed for `timing_s`, and `safety` is the share of the time left that is planned with. More passes over
    the texts than `most_epochs` bring nothing. `wanted` candidates are looked for.
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


PACE = Pace()


@dataclass(frozen=True)
class Schedule:
    """A race.

    About so many candidates as `counts` says train up to each rung; all of the first do. The whole training
    of one takes `seconds`. The sampler proposes `proposed` of the first, from the scores of the others. It
    was decided for a fit of so many `minutes`; with more of them there may be more candidates.
    """

    counts: list[int]
    seconds: float
    proposed: int
    minutes: float

    def candidates(self, minutes: float) -> int:
        """How many candidates there may be in a fit of so many minutes."""
        return int(self.counts[0] * minutes / self.minutes)

    @property
    def first_rung(self) -> int:
        """The first rung at which candidates fall."""
        return first_rung(self.counts)


def first_rung(counts: list[int] | tuple[int, ...]) -> int:
    """The first rung of a race after which fewer candidates are trained on; the last one where all are
    trained to the end.
    """
    return next((rung for rung in range(len(counts) - 1) if counts[rung + 1] < counts[rung]), len(counts) - 1)


def schedule(candidates: int, minutes: float, seconds: float, setup_s: float, pace: Pace = PACE) -> Schedule:
    """The most thorough race for which there is time.

    `candidates` is how many keep to the budget. Of the `minutes` of the whole fit, `seconds` are left.
    Setting up a run takes `setup_s`. Raises UserError where the time is too short to compare any.
    """
    possible = [counts for counts in RACES if min(2, candidates) <= counts[0] <= candidates]
    for counts in possible:
        training_s = (pace.safety * seconds - _setups(counts) * setup_s) / _trainings(counts)
        if training_s * SHARES[first_rung(counts)] >= pace.shortest_rung_s:
            proposed = math.floor(counts[0] * PROPOSED_SHARE) if counts[0] >= 8 else 0
            return Schedule(list(counts), training_s, proposed, minutes)
    raise UserError(_too_short(possible[-1], seconds, setup_s, pace))


def _setups(counts: tuple[int, ...]) -> float:
    """How often the runs of a race are set up; one that is resumed takes a third of it."""
    return counts[0] + sum(counts[1:]) / 3


def _trainings(counts: tuple[int, ...]) -> float:
    """How many whole trainings a race takes as long as."""
    lengths = [share - before for share, before in zip(SHARES, (0.0, *SHARES), strict=False)]
    return sum(count * length for count, length in zip(counts, lengths, strict=True))


def _too_short(counts: tuple[int, ...], seconds: float, setup_s: float, pace: Pace) -> str:
    training_s = _trainings(counts) * pace.shortest_rung_s / SHARES[first_rung(counts)]
    needed = (_setups(counts) * setup_s + training_s) / pace.safety
    more = math.ceil(max(1.0, needed - seconds) / 60)
    compared = f"the race of {counts[0]} candidates" if counts[0] > 1 else "training one candidate"
    fact = f"{max(0.0, seconds):.0f} s are left for training, and {compared} needs {needed:.0f} s"
    return f"--minutes: too few for one rung: {fact}; give {more} minutes more"


def steps(schedule: Schedule, step_seconds: float, epoch_steps: float, pace: Pace) -> int:
    """The steps of a candidate's whole training. One pass over the texts takes `epoch_steps`."""
    return max(
        len(SHARES), min(int(schedule.seconds / step_seconds), math.ceil(pace.most_epochs * epoch_steps))
    )


def rung_steps(whole: int, rung: int) -> int:
    """The step at which a rung ends."""
    return max(1, math.ceil(whole * SHARES[rung]))
