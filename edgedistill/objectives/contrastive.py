"""Contrastive losses: pick a text's own embedding out of all others (CKD, SimCSE)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from edgedistill.objectives.queue import Queue
from edgedistill.objectives.queue_cross_entropy import one_positive


def ckd(student: Tensor, teacher: Tensor, queue: Tensor, scale: Tensor | float) -> Tensor:
    """Contrastive knowledge distillation: −log exp(κ s_i·t_i) / (Σ_j exp(κ s_i·t_j) + Σ_q exp(κ s_i·q)), mean
    over i.

    student, teacher (B, d): scaled to unit rows here; queue (Q, d): unit rows, earlier teacher embeddings, Q
    may be 0; scale κ = 1/τ. Returns (). DistilCSE, Eq. 5 and 6; with Q = 0 it is InfoNCE between student and
    teacher.
    Relation: `seed` and `congen` replace the single positive by the teacher's own similarities.
    """
    student, teacher = normalize(student, dim=-1), normalize(teacher, dim=-1)
    return one_positive(scale * student, queue, teacher.detach())


def simcse(one: Tensor, other: Tensor, scale: Tensor | float, negatives: Tensor | None = None) -> Tensor:
    """InfoNCE between two views: −log exp(κ a_i·b_i) / Σ_j exp(κ a_i·b_j), with hard negatives among the b_j
    where given.

    one, other, negatives (B, d): scaled to unit rows here. Returns ().
    Gao et al. 2021 (SimCSE): unsupervised with two dropout masks of one text; supervised, DistilCSE Eq. 7,
    with an entailed text and a contradicting one.
    """
    one, other = normalize(one, dim=-1), normalize(other, dim=-1)
    keys = other if negatives is None else torch.cat([other, normalize(negatives, dim=-1)])
    return cross_entropy(scale * one @ keys.T, torch.arange(len(one), device=one.device))


class CkdLoss(nn.Module):
    """`ckd` with its queue and its scale 1/τ, learned or fixed. The queue starts empty; a batch is pushed
    after it is scored."""

    def __init__(self, dims: int, queue: int, temperature: float, learn_temperature: bool) -> None:
        super().__init__()
        self.queue = Queue(queue, dims)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learn_temperature)

    def forward(self, views: list[Tensor], teacher: Tensor) -> Tensor:
        return ckd(views[0], teacher, self.queue.vectors, self.log_scale.exp())


class SimcseLoss(nn.Module):
    """`simcse` of two views, or of the columns of triples; it ignores the teacher.

    The scale is fixed: the reference code declares it learnable, but it stays at its initial 20 there.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.scale = 1 / temperature

    def forward(self, views: list[Tensor], teacher: Tensor | None) -> Tensor:
        return simcse(views[0], views[1], self.scale, views[2] if len(views) > 2 else None)
