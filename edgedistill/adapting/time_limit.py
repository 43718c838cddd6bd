"""How many steps, and over how many texts, the minutes of an adaptation allow on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from edgedistill import recipe
from edgedistill.adapting.adaptation_recipe import BATCH, Limits, limits, seconds_for
from edgedistill.errors import UserError
from edgedistill.planning import training_time
from edgedistill.planning.cost import duration
from edgedistill.session import Session
from edgedistill.training.open_recipe import Opened, open_recipe

LEAST_STEPS = 20
AFTER_TRAINING = (
    0.12  # of the minutes: export and comparison, and steps that take longer than those that were timed
)


class TimeLimit(NamedTuple):
    """minutes: that all of it may take; started: when it began (`time.perf_counter`)."""

    minutes: float
    started: float

    @property
    def seconds(self) -> float:
        """Those left for teacher and training."""
        return max(0.0, 60 * (1 - AFTER_TRAINING) * self.minutes - (time.perf_counter() - self.started))

    def minutes_for(self, seconds: float) -> float:
        """The minutes, rounded up, of which so many seconds would be left for teacher and training."""
        return (
            math.ceil(10 * (seconds + time.perf_counter() - self.started) / (60 * (1 - AFTER_TRAINING))) / 10
        )


def affordable(
    spec: recipe.Recipe, time_left: TimeLimit, session: Session, limited: Callable[[Limits], recipe.Recipe]
) -> recipe.Recipe:
    """The recipe that the time allows on this machine, by the speed of teacher and student on samples of the
    texts.

    limited: the recipe within limits. Its texts are other ones than those of `spec`, more of them whole and
        long, so its steps are timed
    again. Raises UserError: next to nothing.
    """
    session.log("measuring how fast teacher and student are here")
    opened = open_recipe(spec, session)
    for warning in opened.warnings:
        session.log(f"warning: {warning}")
    wanted, whole = _steps(spec), _measured(opened, session)
    most = limits(time_left.seconds, whole.per_text, whole.per_sample)
    if LEAST_STEPS <= most.steps < wanted:
        again = _measured(open_recipe(limited(most), session), session)
        most = most._replace(
            steps=max(0, int((time_left.seconds - again.texts * again.per_text) / (BATCH * again.per_sample)))
        )
    if most.steps < LEAST_STEPS:
        fact = f"only {most.steps} training steps fit on this machine, at least {LEAST_STEPS} are needed"
        needed = time_left.minutes_for(1.2 * seconds_for(LEAST_STEPS, whole.per_text, whole.per_sample))
        raise UserError(f"--minutes {time_left.minutes:g}: {fact}; give --minutes {needed:g}")
    if most.steps < wanted:
        drawn = (
            f"{most.rows:,} of {whole.rows:,} texts and parts of texts, and "
            if most.rows < whole.rows
            else ""
        )
        allowed = f"there is time for {drawn}{most.steps:,} steps"
        session.log(
            f"{wanted:,} steps over all texts would take about {duration(whole.seconds(wanted))}; {allowed}"
        )
    return limited(most)


class _Measured(NamedTuple):
    """What a recipe takes here. rows: texts to train on; texts: those that the teacher has still to embed;
    per_text, per_sample: seconds in which the teacher embeds a text, and in which the student is trained on
    one.
    """

    rows: int
    texts: int
    per_text: float
    per_sample: float

    def seconds(self, steps: int) -> float:
        """Of the teacher's pass and of so many steps."""
        return self.texts * self.per_text + steps * BATCH * self.per_sample


def _measured(opened: Opened, session: Session) -> _Measured:
    assert opened.texts is not None, "an adaptation's recipe has texts"
    missing = training_time.texts_to_embed(opened, session)
    seconds = training_time.estimate_seconds(opened, missing, session)
    texts, samples = sum(each.missing for each in missing), training_time.training_samples(opened)
    return _Measured(
        opened.texts.training_count, texts, seconds["teacher"] / max(1, texts), seconds["student"] / samples
    )


def _steps(spec: recipe.Recipe) -> int:
    steps = spec.distilling[0].steps
    assert steps is not None, "every adaptation's recipe has steps"
    return steps
