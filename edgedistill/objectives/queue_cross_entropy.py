"""Cross-entropy over the similarities to a queue and to the batch.

The queue's logits are multiplied in the queue's dtype (float32 or bfloat16), those of the batch, which holds
the positives, in the rows' dtype, in which all are then summed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


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
    found = logits(rows, queue, batch).log_softmax(-1)
    return -(targets * found).sum(-1).mean(1)


@torch.no_grad()
def probabilities(rows: Tensor, queue: Tensor, batch: Tensor) -> Tensor:
    """softmax(rows · [batch; queue]), (B, B + K), without a gradient."""
    return logits(rows, queue, batch).softmax(-1)
