"""Weights that no embedding can be computed from: NaN, infinite, or so large that the sum of their squares is
no float32."""

from __future__ import annotations

import math
from typing import TypeVar

from torch import nn
from torch.linalg import vector_norm

from edgedistill.errors import UserError

# a norm or a unit length squares its input: 4,096 such squares add up to an eighth of float32's largest
# number
LARGEST = 1e17

M = TypeVar("M", bound=nn.Module)


def checked(module: M, place: object) -> M:
    """The module. Raises UserError where a weight cannot be computed with; `place` says where its weights
    come from."""
    if fact := problem(module):
        raise UserError(
            f"{place}: {fact}, so embeddings would not be finite; restore the file, or train the model again"
        )
    return module


def problem(module: nn.Module) -> str | None:
    """The first tensor that cannot be computed with: its name, the value and the row; None where there is
    none.

    Buffers may hold infinity, as the masks of some architectures do.
    """
    for most, tensors in ((LARGEST, module.named_parameters()), (math.inf, module.named_buffers())):
        for name, tensor in tensors:
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            values = tensor.detach()
            if not float(vector_norm(values, math.inf)) <= most:  # NaN where any value is
                at = tuple((~(values.abs() <= most)).nonzero()[0].tolist())
                row = f" in row {at[0]}" if len(at) > 1 else ""
                return f"{name} holds {float(values[at]):.3g}{row}"
    return None
