"""Weights that no embedding can be computed from: NaN, infinite, or so large that the sum of their squares is
no float32."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from torch import Tensor, nn

from edgedistill.errors import UserError

# a norm or a unit length squares its input: 4,096 such squares add up to an eighth of float32's largest
# number
LARGEST = 1e17

M = TypeVar("M", bound=nn.Module)


def checked(module: M, place: object) -> M:
    """The module. Raises UserError where a weight cannot be computed with; place: where its weights come
    from."""
    if found := problem(module.named_parameters(), module.named_buffers()):
        raise UserError(
            f"{place}: {found}, so embeddings would not be finite; restore the file, or train the model again"
        )
    return module


def problem(
    parameters: Iterable[tuple[str, Tensor]], buffers: Iterable[tuple[str, Tensor]] = ()
) -> str | None:
    """The first tensor that cannot be computed with: its name, the row and the value; None where there is
    none.

    Buffers may hold infinity, as the masks of some architectures do.
    """
    for most, tensors in ((LARGEST, parameters), (math.inf, buffers)):
        for name, tensor in tensors:
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            low, high = (float(each) for each in tensor.detach().aminmax())  # NaN where any value is
            if not (-most <= low and high <= most):
                return f"{name} holds {where(tensor.detach().float().cpu().numpy(), most)}"
    return None


def where(array: np.ndarray, most: float) -> str:
    """The first value that is NaN or beyond ± most, and its row: `nan in row 17`."""
    at = tuple(int(each[0]) for each in np.nonzero(~(np.abs(array) <= most)))
    return f"{float(array[at]):.3g}" + (f" in row {at[0]}" if array.ndim > 1 else "")
