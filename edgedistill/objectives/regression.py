"""Match the teacher's vector itself."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize


def mse(student: Tensor, teacher: Tensor, unit: bool = False, scale: float = 1.0) -> Tensor:
    """Mean squared difference over batch and dims.

    student, teacher (B, d); `unit` scales both to unit length first, `scale` multiplies the teacher's rows. Returns ().
    DistilCSE's KD as its reference code computes it; the paper writes a sum over the batch.
    Relation: with `unit`, mse = 4/d · `cosine`.
    """
    if unit:
        student, teacher = normalize(student, dim=-1), normalize(teacher, dim=-1)
    return torch.nn.functional.mse_loss(student, scale * teacher)


def cosine(student: Tensor, teacher: Tensor) -> Tensor:
    """½ (1 − cos(s_i, t_i)), mean over the batch: 0 when parallel, 1 when opposite.

    student, teacher (B, d). Returns ().
    SRA, Eq. 1 (arXiv 2004.03097).
    Relation: blind to length, unlike `mse`; gradient parallel to that of `mse(unit=True)`.
    """
    return 0.5 * (1 - cosine_similarity(student, teacher, dim=-1)).mean()


def dual_l2(one: Tensor, other: Tensor, teacher: Tensor) -> Tensor:
    """The teacher's vector of a text from the text and from another view of it: ‖t̂ − ŝ₁‖² + ‖t̂ − ŝ₂‖², mean over batch and dims.

    one, other, teacher (B, d): scaled to unit length here. Returns ().
    ConGen §4.2, after Reimers and Gurevych 2020.
    Relation: with equal views, twice `mse(unit=True)`.
    """
    return mse(one, teacher, unit=True) + mse(other, teacher, unit=True)


def skd(one: Tensor, other: Tensor, teacher: Tensor) -> Tensor:
    """`dual_l2` + ‖ŝ₁ − ŝ₂‖², mean over batch and dims: the views must agree with each other too.

    one, other, teacher (B, d): scaled to unit length here. Returns ().
    ConGen §4.2, after Limkonchotiwat et al. 2022.
    """
    return dual_l2(one, other, teacher) + mse(one, other, unit=True)


def softcos(student: Tensor, teacher: Tensor, detach: bool = False) -> Tensor:
    """‖m̂ − ŝ‖², m̂ the unit vector half-way between both: 2 − 2 cos(θ/2) = 2 − √(2 (1 + ŝ·t̂)), mean over the batch.

    student, teacher (B, d): scaled to unit rows here; `detach`: no gradient through m̂, which doubles it. Returns ().
    Malashenko, Text-level distillation, L_SoftCos, its inner bars read as scaling to unit length (without, it is `cosine` / 2).
    Relation: gradient parallel to that of `cosine`; that one vanishes between opposite vectors, this one does not.
    """
    student, teacher = normalize(student, dim=-1), normalize(teacher, dim=-1)
    if detach:
        return (normalize(student + teacher, dim=-1).detach() - student).square().sum(-1).mean()
    # 1 + cos is the square of a length over 2: not below 0, and the root's slope there is infinite
    return (2 - (2 * (1 + (student * teacher).sum(-1)).clamp(min=1e-6)).sqrt()).mean()
