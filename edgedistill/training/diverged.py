"""Training stops at a loss or a weight that is not finite: no later step makes it finite again."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import nn

from edgedistill.errors import UserError
from edgedistill.students import finite_weights


class Place(NamedTuple):
    """A stage as an error names it: the recipe's key for its learning rate, its name, its highest learning
    rate."""

    key: str
    stage: str
    rate: float


def check_loss(loss: float, place: Place, step: int) -> None:
    """Raise UserError for a loss that is NaN or infinite."""
    if not math.isfinite(loss):
        raise _stopped(f"the loss is {loss}", place, step)


def check_weights(module: nn.Module, place: Place, step: int) -> None:
    """Raise UserError for a weight that is not finite: the last step's may be, where its loss was finite."""
    if found := finite_weights.problem(module):
        raise _stopped(found, place, step)


def _stopped(fact: str, place: Place, step: int) -> UserError:
    way_out = "lower it, add warmup, or set `clip`"
    return UserError(
        f"{place.key}: {place.stage} diverged at {place.rate:g}: {fact} at step {step:,}; {way_out}"
    )
