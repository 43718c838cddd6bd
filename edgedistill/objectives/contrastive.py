"""Contrastive losses: pick a text's own embedding out of all others (CKD, InfoNCE)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from edgedistill.objectives.queue import Queue, one_positive
from edgedistill.objectives.targets import Targets


def ckd(student: Tensor, teacher: Tensor, queue: Tensor, scale: Tensor | float) -> Tensor:
    """Contrastive knowledge distillation: −log exp(κ s_i·t_i) / (Σ_j exp(κ s_i·t_j) + Σ_q exp(κ s_i·q)), mean
    over i.

    student, teacher (B, d): scaled to unit rows here; queue (Q, d): unit rows, earlier teacher embeddings, Q
    may be 0; scale κ = 1/τ. Returns (). DistilCSE, Eq. 5 and 6; with Q = 0 it is InfoNCE between student and
    teacher.
    Relation: `congen` replaces the single positive by the teacher's own similarities.
    """
    student, teacher = normalize(student, dim=-1), normalize(teacher, dim=-1)
    return one_positive(scale * student, queue, teacher.detach())


def info_nce(
    queries: Tensor, documents: Tensor, positives: Tensor, scale: float, others: Tensor | None = None
) -> Tensor:
    """−log exp(κ q_i·d_p(i)) / Σ_j exp(κ q_i·d_j), mean over i; κ = 1/τ.

    queries (B, d), documents (M, d): scaled to unit rows here; positives (B,), the document of each query;
    others (B, M) bool, further documents that answer it, which are no negatives. Returns (). van den Oord et
    al. 2018. Of two views of texts: Gao et al. 2021 (SimCSE), unsupervised with two dropout masks of a text,
    supervised (DistilCSE, Eq. 7) with an entailed text and contradicting ones among the documents; of queries
    with mined negatives: Karpukhin et al. 2020 (DPR).
    """
    logits = scale * normalize(queries, dim=-1) @ normalize(documents, dim=-1).T
    if others is not None:
        logits = logits.masked_fill(others, -torch.inf)
    return cross_entropy(logits, positives)


class CkdLoss(nn.Module):
    """`ckd` with its queue and its scale 1/τ, learned or fixed. The queue starts empty; a batch is pushed
    after it is scored."""

    def __init__(self, dims: int, queue: int, temperature: float, learn_temperature: bool) -> None:
        super().__init__()
        self.queue = Queue(queue, dims)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learn_temperature)

    def forward(self, views: list[Tensor], targets: Targets) -> Tensor:
        return ckd(views[0], targets.embeddings[0], self.queue.vectors, self.log_scale.exp())
