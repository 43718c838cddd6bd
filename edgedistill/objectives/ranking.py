"""Ranking losses: order the documents of a batch, for each of its queries, as a teacher scores them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from edgedistill.objectives.targets import Targets


def listwise(
    queries: Tensor,
    documents: Tensor,
    ranking: Targets,
    scale: float,
    teacher_scale: float,
    own: bool = True,
) -> Tensor:
    """KL(softmax_j κ_t s_ij ‖ softmax_j κ q_i·d_j), mean over i, over the documents that have scores.

    queries (B, d), documents (M, d): scaled to unit rows here; scores s (B, M). Without `own` the positives
    are left out of both distributions, as a document's own sentences score far above all else. Returns ().
    Cao et al. 2007 (ListNet, top one); as a distillation loss Lu et al. 2022 (ERNIE-Search), Tamber et al.
    2025 (CADET).
    Relation: `info_nce` where the teacher's distribution has all its mass on the positive.
    """
    ranked = ~ranking.scores.isnan()
    if not own:
        ranked = ranked.scatter(1, ranking.positives[:, None], False)
    compared = ranked.sum(1) > 1  # one document alone is ranked anyhow
    if not compared.any():
        return 0 * queries.sum()
    others = ~ranked[compared]
    wanted = teacher_scale * ranking.scores[compared]
    predicted = scale * cosines(queries[compared], documents)
    wanted, predicted = (
        logits.masked_fill(others, -torch.inf).log_softmax(1) for logits in (wanted, predicted)
    )
    return (wanted.exp() * (wanted - predicted).masked_fill(others, 0)).sum(1).mean()


def margin_mse(queries: Tensor, documents: Tensor, ranking: Targets, scale: float) -> Tensor:
    """Mean over i, j of ((q_i·d_p(i) − q_i·d_j) − κ (s_ip(i) − s_ij))², over the documents j ≠ p(i) that have
    scores.

    queries (B, d), documents (M, d): scaled to unit rows here; scores s (B, M), times κ = `scale` on the
    scale of cosines. Returns (). Hofstätter et al. 2020, Eq. 3, there on dot products.
    Relation: unlike `listwise`, it weights near and far documents alike.
    """
    at = ranking.positives[:, None]
    predicted = cosines(queries, documents)
    compared = ~ranking.scores.isnan() & ~ranking.scores.gather(1, at).isnan()
    compared = compared.scatter(1, at, False)
    wanted = scale * (ranking.scores.gather(1, at) - ranking.scores).nan_to_num()
    errors = (predicted.gather(1, at) - predicted - wanted).square()
    return errors.masked_fill(~compared, 0).sum() / compared.sum().clamp_min(1)


def cosines(one: Tensor, other: Tensor) -> Tensor:
    """Cosines of all rows of one with all of the other, (B, M)."""
    return normalize(one, dim=-1) @ normalize(other, dim=-1).T
