"""How the minutes of a fit are shared, and how many candidates can be raced in them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from edgedistill.errors import UserError

SHARES = (1 / 16, 1 / 4, 1.0)  # of a candidate's whole training: where the rungs are
# About how many candidates train up to each rung, the thorough races first. Where as many train to the second
# rung as to the first, the first one is for the growth of their scores only: after so few seconds, the scores
# themselves say little. The last one trains a single candidate, as `adapt` does.
RACES = ((16, 6, 2), (12, 5, 2), (8, 4, 2), (6, 6, 2), (4, 4, 2), (3, 3, 2), (2, 2, 2), (1, 1, 1))
# Of a candidate's whole training. Below, it has hardly learned: `adapt`, which takes as many at least, brings
# more in these minutes.
FEW_STEPS = 200


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
    of one takes `seconds`. It was decided for a fit of so many `minutes`; with more of them there may be more
    candidates. Where these were too few to learn in, `enough` says how many would do.
    """

    counts: list[int]
    seconds: float
    minutes: float
    enough: int | None = None

    def candidates(self, minutes: float) -> int:
        """How many candidates there may be in a fit of so many minutes."""
        return int(self.counts[0] * minutes / self.minutes)


def first_rung(counts: list[int] | tuple[int, ...]) -> int:
    """The first rung of a race after which fewer candidates are trained on; the last one where all are
    trained to the end.
    """
    return next((rung for rung in range(len(counts) - 1) if counts[rung + 1] < counts[rung]), len(counts) - 1)


def schedule(
    candidates: int, minutes: float, seconds: float, setup_s: float, step_s: float, pace: Pace = PACE
) -> Schedule:
    """The most thorough race in which candidates learn; where there is no time for any, the one with the
    longest training.

    `candidates` is how many keep to the budget. Of the `minutes` of the whole fit, `seconds` are left.
    Setting up a run takes `setup_s`, a step `step_s`. Raises UserError where the time is too short to train
    one.
    """
    found = None
    for counts in RACES:
        if counts[0] > candidates:
            continue
        training_s = (pace.safety * seconds - _setups(counts) * setup_s) / _trainings(counts)
        if training_s * SHARES[first_rung(counts)] >= pace.shortest_rung_s:
            found = Schedule(list(counts), training_s, minutes)
            if training_s >= FEW_STEPS * step_s:
                return found
    least = FEW_STEPS * step_s if found else pace.shortest_rung_s
    needed = (_setups(RACES[-1]) * setup_s + _trainings(RACES[-1]) * least) / pace.safety
    share = 1 - pace.finish_share - pace.teacher_share - pace.survey_share  # of what is added, for training
    enough = math.ceil(minutes + max(0.0, needed - seconds) / 60 / max(share, 0.1))
    if found is None:
        fact = f"{max(0.0, seconds):.0f} s are left for training, and one candidate needs {needed:.0f} s"
        raise UserError(f"--minutes {minutes:g}: too few: {fact}; give --minutes {enough}")
    return replace(found, enough=enough)


def _setups(counts: tuple[int, ...]) -> float:
    """How often the runs of a race are set up; one that is resumed takes a third of it."""
    return counts[0] + sum(counts[1:]) / 3


def _trainings(counts: tuple[int, ...]) -> float:
    """How many whole trainings a race takes as long as."""
    lengths = [share - before for share, before in zip(SHARES, (0.0, *SHARES), strict=False)]
    return sum(count * length for count, length in zip(counts, lengths, strict=True))


def steps(schedule: Schedule, step_seconds: float, epoch_steps: float, pace: Pace) -> int:
    """The steps of a candidate's whole training. One pass over the texts takes `epoch_steps`."""
    return max(
        len(SHARES), min(int(schedule.seconds / step_seconds), math.ceil(pace.most_epochs * epoch_steps))
    )


def rung_steps(whole: int, rung: int) -> int:
    """The step at which a rung ends."""
    return max(1, math.ceil(whole * SHARES[rung]))
