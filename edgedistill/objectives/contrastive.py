"""Contrastive losses: pick a text's own embedding out of all others (CKD, InfoNCE); and the queue of
embeddings, as in MoCo, that CKD and ConGen compare with.

The queue's logits are multiplied in the queue's dtype (float32 or bfloat16), those of the batch, which holds
the positives, in the rows' dtype, in which all are then summed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from edgedistill.objectives.targets import Targets


def ckd(student: Tensor, teacher: Tensor, queue: Tensor, scale: Tensor | float) -> Tensor:
    """Contrastive knowledge distillation: −log exp(κ s_i·t_i) / (Σ_j exp(κ s_i·t_j) + Σ_q exp(κ s_i·q)), mean
    over i.

    student, teacher (B, d): scaled to unit rows here; queue (Q, d): unit rows, earlier teacher embeddings, Q
    may be 0; scale κ = 1/τ. Returns (). DistilCSE, Eq. 5 and 6; with Q = 0 it is InfoNCE between student and
    teacher.
    Relation: `congen` replaces the single positive by the teacher's own similarities.
    """
    student = normalize(student, dim=-1)
    teacher = normalize(teacher, dim=-1)
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


class Queue(nn.Module):
    """The last `length` embeddings that were pushed, scaled to unit length and detached.

    MoCo's queue (He et al. 2020), filled with teacher embeddings as in DistilCSE §3.2 and ConGen §3.2. It is
    a ring buffer, so that a step writes only the new rows. State: ring (length, dims); at, the row that is
    written next; filled, the rows in use.

    The rows are the teacher's, not the student's: they do not age while the student learns, so no second,
    slowly moving encoder is kept as MoCo does. They are pushed after a step's loss, so that a text is never
    its own negative. The counters are buffers, because a resumed run must find the queue as it was.
    """

    ring: Tensor
    at: Tensor
    filled: Tensor

    def __init__(self, length: int, dims: int) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(length, dims))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    def __len__(self) -> int:
        return int(self.filled)

    @property
    def vectors(self) -> Tensor:
        """The rows in use (n, d), in no particular order; a view of the buffer."""
        return self.ring[: int(self.filled)]

    @torch.no_grad()
    def push(self, vectors: Tensor) -> None:
        """Append embeddings (n, d), the last row newest, scaled to unit length; the oldest rows are
        overwritten."""
        length = len(self.ring)
        new = normalize(vectors.detach(), dim=-1)[-length:] if length else vectors[:0]
        if len(new) == 0:
            return
        places = (self.at + torch.arange(len(new), device=self.ring.device)) % length
        self.ring[places] = new.to(self.ring.dtype)
        self.at.fill_((self.at + len(new)) % length)
        self.filled.clamp_(min=min(length, int(self.filled) + len(new)))


def logits(rows: Tensor, queue: Tensor, batch: Tensor) -> Tensor:
    """Dot products of rows (…, d) with the batch (B, d), then with the queue (K, d): (…, B + K)."""
    return torch.cat([rows @ batch.T, (rows.to(queue.dtype) @ queue.T).to(rows.dtype)], -1)


def one_positive(rows: Tensor, queue: Tensor, batch: Tensor) -> Tensor:
    """−log softmax(rows_i · [batch; queue])[i], mean over rows: cross-entropy with one positive column.

    rows, batch (M, d), queue (K, d). Returns ().
    """
    return cross_entropy(logits(rows, queue, batch), torch.arange(len(rows), device=rows.device))


def soft_targets(rows: Tensor, targets: Tensor, queue: Tensor, batch: Tensor) -> Tensor:
    """−Σ_k targets[i, k] log softmax(rows_vi · [batch; queue])_k, mean over i, for each view v.

    rows (V, B, d), queue (K, d), batch (B, d), targets (B, B + K): probabilities. Returns (V,).
    """
    return -(targets * logits(rows, queue, batch).log_softmax(-1)).sum(-1).mean(1)


@torch.no_grad()
def probabilities(rows: Tensor, queue: Tensor, batch: Tensor) -> Tensor:
    """softmax(rows · [batch; queue]), (B, B + K), without a gradient."""
    return logits(rows, queue, batch).softmax(-1)
