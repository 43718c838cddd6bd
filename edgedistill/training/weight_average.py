"""Averages of a student's weights: over the steps of a stage, and with those that the stage began with."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Average:
    """Exponential moving average of a module's weights; its decay rises over the first steps, so that the random start soon fades."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: value.detach().clone() for name, value in module.state_dict().items()}

    def update(self, module: nn.Module, step: int) -> None:
        """Take in the module's weights after a step, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, value in module.state_dict().items():
                if value.is_floating_point():  # the PQ codes of an embedding table never change
                    self.weights[name].lerp_(value, 1 - decay)


def interpolated(start: dict[str, Tensor], end: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """share · start + (1 − share) · end, weight by weight; what is no float, such as PQ codes, is that of `end`.

    Wortsman et al. 2022, Robust fine-tuning of zero-shot models: between a model and the same one fine-tuned, both do well.
    """
    return {name: torch.lerp(value, start[name], share) if value.is_floating_point() else value for name, value in end.items()}
