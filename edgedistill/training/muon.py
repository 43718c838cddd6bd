"""Muon: orthogonalized momentum for matrices. In float32 too: torch's own is in bfloat16, for which a
processor without bfloat16 takes 35 times as long (bench/LOG.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

# As in torch.optim.Muon: of Jordan et al. 2024, and the steps' size of Liu et al. 2025, Eq. 4.
MOMENTUM, ITERATIONS, COEFFICIENTS, EPSILON = 0.95, 5, (3.4445, -4.7750, 2.0315), 1e-7
SIZE_OF_ADAMW = 0.2


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum, for matrices; its products are computed in `dtype`."""

    def __init__(
        self, matrices: Iterable[Tensor], lr: float, weight_decay: float, dtype: torch.dtype
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step for all matrices that have a gradient; `closure` is not called."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                buffer = state["momentum_buffer"].lerp_(matrix.grad, 1 - MOMENTUM)
                update = orthogonalized(matrix.grad.lerp(buffer, MOMENTUM).to(self.dtype))
                rate = SIZE_OF_ADAMW * math.sqrt(max(matrix.shape)) * group["lr"]
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)


def orthogonalized(matrix: Tensor) -> Tensor:
    """A matrix with its singular values near 1, by Newton-Schulz iterations.

    matrix (n, m). Returns (n, m), of the same dtype.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalized(matrix.T).T
    a, b, c = COEFFICIENTS
    wide = matrix / matrix.norm().clamp(min=EPSILON)
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide
