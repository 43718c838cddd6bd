"""Regression losses: match the teacher's embedding itself (MSE, cosine, SoftCos)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize


def mse(student: Tensor, teacher: Tensor, unit_length: bool = False, scale: float = 1.0) -> Tensor:
    """Mean squared difference over batch and dims.

    student, teacher (B, d); `unit_length` scales both to unit length first, `scale` multiplies the teacher's
    rows. Returns (). DistilCSE's KD as its reference code computes it; the paper writes a sum over the batch.
    Relation: with `unit_length`, mse = 4/d · `cosine`.
    """
    if unit_length:
        student = normalize(student, dim=-1)
        teacher = normalize(teacher, dim=-1)
    return torch.nn.functional.mse_loss(student, scale * teacher)


def cosine(student: Tensor, teacher: Tensor) -> Tensor:
    """½ (1 − cos(s_i, t_i)), mean over the batch: 0 when parallel, 1 when opposite.

    student, teacher (B, d). Returns ().
    SRA, Eq. 1 (arXiv 2004.03097).
    Relation: ignores length, unlike `mse`; its gradient is parallel to that of `mse(unit_length=True)`.
    """
    return 0.5 * (1 - cosine_similarity(student, teacher, dim=-1)).mean()


def softcos(student: Tensor, teacher: Tensor) -> Tensor:
    """‖m̂ − ŝ‖², m̂ the unit vector half-way between both: 2 − 2 cos(θ/2) = 2 − √(2 (1 + ŝ·t̂)), mean over
    the batch.

    student, teacher (B, d): scaled to unit rows here. Returns (). Malashenko, Text-level distillation,
    L_SoftCos, its inner bars read as scaling to unit length (without them it is `cosine` / 2).
    Relation: its gradient is parallel to that of `cosine`, but does not vanish between opposite embeddings.
    """
    student = normalize(student, dim=-1)
    teacher = normalize(teacher, dim=-1)
    # clamped: 1 + cos is never below 0, and the root has an infinite slope there
    return (2 - (2 * (1 + (student * teacher).sum(-1)).clamp(min=1e-6)).sqrt()).mean()
