"""A first-in, first-out queue of embeddings, as in MoCo, and cross-entropy over the similarities to it and to
the batch.

The queue's logits are multiplied in the queue's dtype (float32 or bfloat16), those of the batch, which holds
the positives, in the rows' dtype, in which all are then summed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize


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
    predicted = logits(rows, queue, batch).log_softmax(-1)
    return -(targets * predicted).sum(-1).mean(1)


@torch.no_grad()
def probabilities(rows: Tensor, queue: Tensor, batch: Tensor) -> Tensor:
    """softmax(rows · [batch; queue]), (B, B + K), without a gradient."""
    return logits(rows, queue, batch).softmax(-1)
