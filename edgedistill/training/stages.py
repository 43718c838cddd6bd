"""A recipe's stages with their numbers: where error messages place them, their seeds, their number of
optimizer steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

from edgedistill import recipe

Section = TypeVar("Section", recipe.Stage, recipe.Finetune)


@dataclass(frozen=True)
class NumberedStage(Generic[Section]):
    """A stage of a recipe, its number counted from 0, and its own seed."""

    spec: Section
    number: int
    seed: int

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
    """Optimizer steps of a stage over `texts` texts or labelled rows; when fine-tuning, those at one learning
    rate."""
    return stage.steps or max(1, math.floor(texts * stage.epochs / stage.batch))
