"""The linear layer after pooling, which every kind of student may have; and how parameters are counted."""

from __future__ import annotations

from typing import Any

from torch import nn

from edgedistill import recipe
from edgedistill.students.product_quantization import ProductQuantizedEmbedding

StudentSpec = recipe.BuiltStudent


def shape(spec: StudentSpec, teacher_dims: int) -> dict[str, Any]:
    """The head's part of a student's shape; None for a head that is only used in training."""
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
    """Parameters of a module, each tensor once; a code of a product-quantized embedding table counts as one
    parameter."""
    if module is None:
        return 0
    codes = sum(
        part.codes.numel() for part in module.modules() if isinstance(part, ProductQuantizedEmbedding)
    )
    return codes + sum(p.numel() for p in module.parameters())


def copy(head: nn.Linear | None, source: nn.Linear | None) -> None:
    """Copy a source's head in place where the student's has the same shape."""
    if source is not None and head is not None and head.weight.shape == source.weight.shape:
        head.load_state_dict(source.state_dict())
