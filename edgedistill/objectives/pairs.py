"""Losses on pairs and tuples: one objective for either side, or the student's cosines between the sides of a
batch of translations."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from edgedistill.objectives.ranking import cosines
from edgedistill.objectives.targets import Targets


class OneSide(nn.Module):
    """An objective over one side of every pair or tuple: 0 the source texts or queries, 1 their translations
    or the documents."""

    def __init__(self, part: nn.Module, side: int) -> None:
        super().__init__()
        self.part, self.side = part, side

    def read(self, targets: Targets) -> Targets:
        return Targets(targets.embeddings[self.side : self.side + 1])

    def forward(self, views: list[Tensor], targets: Targets) -> Tensor:
        return self.part([views[self.side]], self.read(targets))


def mcl(source: Tensor, target: Tensor, teacher: Tensor) -> Tensor:
    """Cosines between sides match the teacher's among the source texts: mean over i, j of (cos(t_i, t_j) −
    cos(a_i, b_j))².

    source, target (B, d), teacher (B, e) of the source texts: scaled to unit rows here; d and e may differ.
    Returns (). Ding et al. 2022 (multi-stage distillation), Eq. 5, the diagonal included: a text and its
    translation get the same embedding.
    The loss is 0 where both sides are the teacher's embeddings.
    """
    return (cosines(teacher, teacher) - cosines(source, target)).square().mean()


def mcl_bool(source: Tensor, target: Tensor, teacher: Tensor) -> Tensor:
    """`mcl` with 1 and 0 in place of the teacher's cosines: mean over i, j of (δ(t_i, t_j) − cos(a_i, b_j))².

    source, target (B, d), teacher (B, e) of the source texts; δ is 1 where two rows are equal, also for a
    text that occurs twice in the batch. Returns (). Ding et al. 2022, Eq. 8 (Bool).
    """
    _, group = torch.unique(teacher, dim=0, return_inverse=True)
    same = (group[:, None] == group[None]).to(source.dtype)
    return (same - cosines(source, target)).square().mean()


def mcl_ce(source: Tensor, target: Tensor, teacher: Tensor, scale: float, reduction: str = "mean") -> Tensor:
    """−mean over i of Σ_j cos(t_i, t_j) log softmax_j(κ cos(a_i, b_j)), κ = 1/τ.

    source, target (B, d), teacher (B, e): scaled to unit rows here. Returns (). The weights are the teacher's
    cosines as they are: they do not sum to 1 and may be negative, so it is not least where both sides are the
    teacher's embeddings. reduction: `sum` over i is Ding et al. 2022, Eq. 9 (CE), as printed; `pairs` divides
    that by B², as their Eq. 5 and 8 do.
    Relation: with the identity matrix as weights it is InfoNCE.
    """
    total = -(cosines(teacher, teacher) * log_softmax(scale * cosines(source, target), dim=-1)).sum()
    return total / {"mean": len(source), "sum": 1, "pairs": len(source) ** 2}[reduction]
