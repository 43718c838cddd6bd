"""A student with a classifier head: texts, or pairs of texts, -> logits (SRA, arXiv 2004.03097, §3.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgedistill.students import head


class Classifier(nn.Module):
    """`forward(ids, mask) -> (B, C)`, for pairs `forward(ids, mask, ids_2, mask_2) -> (B, C)`: x → hidden, ReLU → C.

    x is the student's embedding u (B, d), not scaled to unit length; for pairs it is [u; v; |u − v|; u ⊙ v] (B, 4d), with one encoder
    for both texts.
    """

    def __init__(self, encoder: nn.Module, dims: int, labels: int, pair: bool, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = encoder
        self.pair = pair
        self.hidden = nn.Linear(4 * dims if pair else dims, hidden)
        self.out = nn.Linear(hidden, labels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, mask: Tensor, ids_2: Tensor | None = None, mask_2: Tensor | None = None) -> Tensor:
        """All (B, T) int64, right-padded; T may differ for the second text. Returns logits (B, C)."""
        x = self.encoder(ids, mask)
        if self.pair:
            assert ids_2 is not None and mask_2 is not None
            x = pair_features(x, self.encoder(ids_2, mask_2))
        return self.out(self.dropout(self.hidden(self.dropout(x)).relu()))

    def head_state(self) -> dict[str, Tensor]:
        """The state dict of the classifier head, without the encoder."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith("encoder.")}


def pair_features(u: Tensor, v: Tensor) -> Tensor:
    """[u; v; |u − v|; u ⊙ v]: (B, d) twice -> (B, 4d)."""
    return torch.cat([u, v, (u - v).abs(), u * v], -1)


def parameters(encoder: dict[str, int], classifier: Classifier) -> dict[str, int]:
    """An encoder's counts, with the classifier's layers added to the head."""
    more = head.count(classifier.hidden) + head.count(classifier.out)
    return {**encoder, "head": encoder["head"] + more, "total": encoder["total"] + more}
