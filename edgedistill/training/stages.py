"""A recipe's stages with their numbers: where error messages place them, their seeds, their number of
optimizer steps; and the errors of one that diverges."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import nn

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.students import finite_weights

MOST_STEPS = 10**9  # where only the clock ends a stage

Section = TypeVar("Section", recipe.Stage, recipe.Finetune)


@dataclass(frozen=True)
class NumberedStage(Generic[Section]):
    """A stage of a recipe, its number counted from 0, and its own seed. A stage that fine-tunes is trained
    once for each of its learning rates: `attempt` counts them."""

    spec: Section
    number: int
    seed: int
    attempt: int = 0
    rate_key: str = "learning_rate"

    @property
    def position(self) -> int:
        """Its place among all that is trained, one after the other."""
        return self.number + self.attempt

    @property
    def place(self) -> str:
        """Its name in error messages."""
        return f"stages[{self.number}]"


def distillation_stages(spec: recipe.Recipe) -> list[NumberedStage[recipe.Stage]]:
    """The stages that distil, in order."""
    return [
        NumberedStage(stage, number, stage_seed(spec.seed, number))
        for number, stage in enumerate(spec.distilling)
    ]


def stage_seed(seed: int, number: int) -> int:
    """Each stage has its own random draws, whatever the stages before it have drawn."""
    return seed * 1_000_003 + number


def steps(stage: recipe.Stage | recipe.Finetune, texts: int) -> int:
    """Optimizer steps of a stage over `texts` texts or labelled rows, at most where it has `minutes`; when
    fine-tuning, those at one learning rate."""
    if stage.steps is not None:
        return stage.steps
    if getattr(stage, "minutes", None) is not None:
        return MOST_STEPS
    return max(1, math.floor(texts * stage.epochs / stage.batch))


def check_loss(loss: float, where: str, step: int) -> None:
    """Raise UserError for a loss that is NaN or infinite: no later step makes it finite again."""
    if not math.isfinite(loss):
        raise _stopped(f"the loss is {loss}", where, step)


def check_weights(module: nn.Module, where: str, step: int) -> None:
    """Raise UserError for a weight that is not finite: the last step's may be, where its loss was finite."""
    if found := finite_weights.problem(module):
        raise _stopped(found, where, step)


def _stopped(fact: str, where: str, step: int) -> UserError:
    return UserError(f"{where}: {fact} at step {step:,}; lower it, add warmup, or set `clip`")
