"""A classifier head behind the student's embeddings, and its loss on labels and on a teacher's logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from edgedistill.objectives.targets import Targets


class ClassifierHead(nn.Module):
    """x → hidden, ReLU → C logits (SRA, arXiv 2004.03097, §3.2).

    x is the student's embedding u (B, d), not scaled to unit length; for pairs it is [u; v; |u − v|; u ⊙ v]
    (B, 4d).
    """

    def __init__(self, dims: int, labels: int, pair: bool, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.pair = pair
        self.hidden = nn.Linear(4 * dims if pair else dims, hidden)
        self.out = nn.Linear(hidden, labels)
        self.dropout = nn.Dropout(dropout)

    def logits(self, *embeddings: Tensor) -> Tensor:
        """The embeddings (B, d) of one text or of both -> (B, C)."""
        x = pair_features(*embeddings) if self.pair else embeddings[0]
        return self.out(self.dropout(self.hidden(self.dropout(x)).relu()))


class CrossEntropyLoss(ClassifierHead):
    """A classifier head with its `loss`; `alpha` is the weight of the labels beside a teacher's logits."""

    def __init__(self, dims: int, labels: int, pair: bool, hidden: int, dropout: float, alpha: float) -> None:
        super().__init__(dims, labels, pair, hidden, dropout)
        self.alpha = alpha

    def forward(self, views: list[Tensor], targets: Targets) -> Tensor:
        return loss(self.logits(*views), targets.labels, targets.logits, self.alpha)


def loss(logits: Tensor, labels: Tensor, teacher_logits: Tensor | None, alpha: float) -> Tensor:
    """α·cross-entropy + (1 − α)·mean squared difference of logits; without a teacher the cross-entropy alone.

    logits, teacher_logits (B, C), labels (B,). Returns (). Tang et al. 2019, Eq. 4, who set α = 0; SRA, §3.2.
    """
    if teacher_logits is None:
        return cross_entropy(logits, labels)
    distance = mse_loss(logits, teacher_logits)
    return distance if alpha == 0 else alpha * cross_entropy(logits, labels) + (1 - alpha) * distance


def pair_features(u: Tensor, v: Tensor) -> Tensor:
    """[u; v; |u − v|; u ⊙ v]: (B, d) twice -> (B, 4d)."""
    return torch.cat([u, v, (u - v).abs(), u * v], -1)
