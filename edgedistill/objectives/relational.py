"""Relational losses: match the similarities among the teacher's embeddings (ConGen; MCL of multi-stage
distillation)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from edgedistill.objectives.contrastive import Queue, probabilities, soft_targets
from edgedistill.objectives.ranking import cosines
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


class CongenLoss(nn.Module):
    """`congen` with its queue; `alpha` is the weight of the first view. At 1 no second view is read, at 0 the
    second alone is."""

    def __init__(self, dims: int, queue: int, tau_student: float, tau_teacher: float, alpha: float) -> None:
        super().__init__()
        self.queue = Queue(queue, dims)
        self.tau_student = tau_student
        self.tau_teacher = tau_teacher
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


def mcl(source: Tensor, target: Tensor, teacher: Tensor) -> Tensor:
    """Cosines between sides match the teacher's among the source texts: mean over i, j of (cos(t_i, t_j) −
    cos(a_i, b_j))².

    source, target (B, d), teacher (B, e) of the source texts: scaled to unit rows here; d and e may differ.
    Returns (). Ding et al. 2022 (multi-stage distillation), Eq. 5, the diagonal included: a text and its
    translation get the same embedding.
    The loss is 0 where both sides are the teacher's embeddings.
    """
    return (cosines(teacher, teacher) - cosines(source, target)).square().mean()
