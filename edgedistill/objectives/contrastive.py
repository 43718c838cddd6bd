"""Tell the text's own vector from all others."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from edgedistill.objectives.queue import Queue
from edgedistill.objectives.softmax import told


def ckd(student: Tensor, teacher: Tensor, queue: Tensor, scale: Tensor | float) -> Tensor:
    """−log exp(κ s_i·t_i) / (Σ_j exp(κ s_i·t_j) + Σ_q exp(κ s_i·q)): the student's vector must find its teacher's.

    student, teacher (B, d): scaled to unit rows here; queue (Q, d): unit rows, earlier teacher vectors, Q may be 0; scale κ = 1/τ.
    Returns (). DistilCSE, Eq. 5 and 6; with Q = 0 InfoNCE between student and teacher.
    Relation: `seed` and `congen` put the teacher's own similarities in place of the one right answer.
    """
    student, teacher = normalize(student, dim=-1), normalize(teacher, dim=-1)
    return told(scale * student, queue, teacher.detach())


def simcse(one: Tensor, other: Tensor, scale: Tensor | float, negatives: Tensor | None = None) -> Tensor:
    """−log exp(κ a_i·b_i) / Σ_j exp(κ a_i·b_j), over the other views, then over the hard negatives where there are any.

    one, other, negatives (B, d): scaled to unit rows here. Returns ().
    Gao et al. 2021 (SimCSE): unsupervised with two dropout masks of one text; supervised, DistilCSE Eq. 7, with an entailed text
    and a contradicting one.
    """
    one, other = normalize(one, dim=-1), normalize(other, dim=-1)
    keys = other if negatives is None else torch.cat([other, normalize(negatives, dim=-1)])
    return cross_entropy(scale * one @ keys.T, torch.arange(len(one), device=one.device))


class Ckd(nn.Module):
    """`ckd` with its memory, which starts empty and takes in each batch after it is scored, and its scale, learned or fixed."""

    def __init__(self, dims: int, queue: int, temperature: float, learned: bool) -> None:
        super().__init__()
        self.queue = Queue(queue, dims)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learned)

    def forward(self, views: list[Tensor], teacher: Tensor) -> Tensor:
        return ckd(views[0], teacher, self.queue.vectors, self.log_scale.exp())


class Simcse(nn.Module):
    """`simcse` of two views, or of the columns of triples; reads no teacher.

    The reference code's scale is nominally learned and stays at its 20; here it is fixed.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.scale = 1 / temperature

    def forward(self, views: list[Tensor], teacher: Tensor | None) -> Tensor:
        return simcse(views[0], views[1], self.scale, views[2] if len(views) > 2 else None)
