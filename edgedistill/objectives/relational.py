"""Relational losses: match the similarities among the teacher's embeddings (ConGen, SEED)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from edgedistill.objectives.queue import Queue
from edgedistill.objectives.queue_cross_entropy import probabilities, soft_targets
from edgedistill.objectives.targets import Targets


def congen(
    views: list[Tensor],
    weights: list[float],
    teacher: Tensor,
    queue: Tensor,
    tau_student: float,
    tau_teacher: float,
) -> Tensor:
    """Match the teacher's similarities to a queue, in every view: −Σ_v w_v mean_i Σ_k P_T[i, k] log P_v[i,
    k].

    P_T = softmax(t_i·Q / τ_T), P_v = softmax(v_i·Q / τ_S), Q = [queue; teacher]: the batch itself is among
    the columns. views (B, d) each, teacher (B, d): scaled to unit rows here; queue (K, d): unit rows. Returns
    (): a cross-entropy, never below the entropy of P_T. ConGen, Eq. 1 to 4 as its reference code computes
    them; w = (α, 1 − α) for control and generalization.
    Relation: one view is SEED with the batch in its queue; τ_T → 0 is `ckd`.
    """
    teacher = normalize(teacher.detach(), dim=-1)
    targets = probabilities(teacher / tau_teacher, queue, teacher)
    losses = soft_targets(
        torch.stack([normalize(view, dim=-1) / tau_student for view in views]), targets, queue, teacher
    )
    return (losses * losses.new_tensor(weights)).sum()


def seed(student: Tensor, teacher: Tensor, queue: Tensor, tau_student: float, tau_teacher: float) -> Tensor:
    """Match the teacher's similarities to its own embedding and a queue: −mean_i Σ_k P_T[i, k] log P_S[i, k].

    Columns of row i: [t_i; queue], K + 1 of them. student, teacher (B, d): scaled to unit rows here; queue
        (K, d): unit rows.
    Returns (). Fang et al. 2021 (SEED), as ConGen's §4 uses it.
    Relation: `congen` with one view uses the whole batch as columns, instead of t_i alone.
    """
    student, teacher = normalize(student, dim=-1), normalize(teacher, dim=-1)

    def cosines(rows: Tensor) -> Tensor:
        return torch.cat(
            [(rows * teacher).sum(-1, keepdim=True), (rows.to(queue.dtype) @ queue.T).to(rows.dtype)], 1
        )

    return cross_entropy(cosines(student / tau_student), cosines(teacher / tau_teacher).softmax(-1))


class CongenLoss(nn.Module):
    """`congen` with its queue; `alpha` is the weight of the first view. At 1 no second view is read, at 0 the
    second alone is."""

    def __init__(self, dims: int, queue: int, tau_student: float, tau_teacher: float, alpha: float) -> None:
        super().__init__()
        self.queue = Queue(queue, dims)
        self.tau_student, self.tau_teacher = tau_student, tau_teacher
        self.read = slice(int(alpha == 0), 2 - int(alpha == 1))
        self.weights = [alpha, 1 - alpha] if 0 < alpha < 1 else [1.0]

    def forward(self, views: list[Tensor], targets: Targets) -> Tensor:
        return congen(
            views[self.read],
            self.weights,
            targets.embeddings[0],
            self.queue.vectors,
            self.tau_student,
            self.tau_teacher,
        )


class SeedLoss(nn.Module):
    """`seed` with its queue, which is randomly initialized; a batch is pushed after it is scored."""

    def __init__(self, dims: int, queue: int, tau_student: float, tau_teacher: float) -> None:
        super().__init__()
        self.queue = Queue(queue, dims)
        self.queue.push(torch.randn(queue, dims))
        self.tau_student, self.tau_teacher = tau_student, tau_teacher

    def forward(self, views: list[Tensor], targets: Targets) -> Tensor:
        return seed(views[0], targets.embeddings[0], self.queue.vectors, self.tau_student, self.tau_teacher)
