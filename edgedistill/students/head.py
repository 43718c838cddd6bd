"""The linear layer after the pooled vector, which students share."""

from __future__ import annotations

from typing import Any

from torch import nn

from edgedistill import recipe
from edgedistill.students.embedding_tables import Coded

Headed = recipe.Bert | recipe.BiLSTM | recipe.Recurrent | recipe.Static


def shape(spec: Headed, teacher_dims: int) -> dict[str, Any]:
    """What a student's shape says of its head: none where it serves training only."""
    kept = spec.head != "none" and spec.head_kept
    return {
        "head": {"dims": spec.dims or teacher_dims, "bias": spec.head_bias} if kept else None,
        "tanh": kept and spec.head == "linear_tanh",
    }


def build(shape: dict[str, Any], width: int) -> nn.Linear | None:
    """(B, width) -> (B, dims), with weights drawn from torch's generator."""
    head = shape["head"]
    return nn.Linear(width, head["dims"], bias=head["bias"]) if head else None


def count(module: nn.Module | None) -> int:
    """Parameters of a part, each tensor once; a code of a product-quantized table is one."""
    if module is None:
        return 0
    codes = sum(part.codes.numel() for part in module.modules() if isinstance(part, Coded))
    return codes + sum(p.numel() for p in module.parameters())
