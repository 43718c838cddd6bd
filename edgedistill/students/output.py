"""What follows a student's own vector: an affine map (a reduced teacher), blocks of unit length (a student of several teachers)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize


class Output(nn.Module):
    """`forward(input_ids, attention_mask) -> (B, d)`: a student, then `linear` on its unit vector, then `blocks`.

    `blocks`: (numbers, weight) each, weights summing to 1. Every block is scaled to the root of its weight, so that the cosine of two
    such vectors is the weighted sum of their blocks' cosines.
    """

    def __init__(self, inner: nn.Module, linear: nn.Linear | None = None, blocks: list[tuple[int, float]] | None = None) -> None:
        super().__init__()
        self.inner, self.linear, self.blocks = inner, linear, blocks

    @property
    def dims(self) -> int:
        inner: Any = self.inner
        return self.linear.out_features if self.linear is not None else int(inner.dims)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids, attention_mask (B, T) int64, right-padded. Returns (B, d)."""
        return self.after(self.inner(input_ids, attention_mask))

    def after(self, vectors: Tensor) -> Tensor:
        """(B, d): what becomes of the inner student's vectors (B, e)."""
        if self.linear is not None:
            vectors = self.linear(normalize(vectors, dim=-1))
        if self.blocks is None:
            return vectors
        parts = vectors.split([size for size, _ in self.blocks], dim=-1)
        return torch.cat([weight**0.5 * normalize(part, dim=-1) for part, (_, weight) in zip(parts, self.blocks, strict=True)], -1)


def own(student: nn.Module) -> nn.Module:
    """The student without what follows its own vector."""
    return student.inner if isinstance(student, Output) else student
