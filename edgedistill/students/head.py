"""What follows the pooling of every kind of student, and how parameters are counted."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from edgedistill import recipe
from edgedistill.students.product_quantization import ProductQuantizedEmbedding


class Headed(nn.Module):
    """A student whose pooled embedding (B, pooled_dims) goes through its head, where it has one, and through
    a tanh, where it has that."""

    head: nn.Linear | None
    tanh: bool
    pooled_dims: int

    @property
    def dims(self) -> int:
        return self.pooled_dims if self.head is None else self.head.out_features

    @property
    def layers_after_pooling(self) -> list[nn.Module]:
        head = [] if self.head is None else [self.head]
        return [*head, nn.Tanh()] if self.tanh else [*head]

    def through_head(self, pooled: Tensor) -> Tensor:
        """(B, pooled_dims) -> (B, dims)."""
        embeddings = pooled if self.head is None else self.head(pooled)
        return embeddings.tanh() if self.tanh else embeddings


def shape(spec: recipe.BuiltStudent, teacher_dims: int) -> dict[str, Any]:
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


def counts(student: nn.Module, embedding: int, *after_pooling: nn.Module | None) -> dict[str, int]:
    """Parameters {embedding, encoder, head, total}: the head is what follows the pooling, the encoder the
    rest."""
    total, head = count(student), sum(count(each) for each in after_pooling)
    return {"embedding": embedding, "encoder": total - embedding - head, "head": head, "total": total}


def with_more(counts: dict[str, int], *layers: nn.Module | None) -> dict[str, int]:
    """The counts of a student behind whose head further layers follow."""
    more = sum(count(each) for each in layers)
    return {**counts, "head": counts["head"] + more, "total": counts["total"] + more}


def copy(head: nn.Linear | None, source: nn.Linear | None) -> None:
    """Copy a source's head in place where the student's has the same shape."""
    if source is not None and head is not None and head.weight.shape == source.weight.shape:
        head.load_state_dict(source.state_dict())
