"""Cross-entropy over the similarities to a queue and to the batch, with a hand-written gradient that only the
rows receive.

The logits are kept as two blocks: the queue's columns and the batch's own. The queue's block is multiplied in
    the queue's dtype
(float32 or bfloat16). The batch's block holds the positives, where small differences matter; it and all sums
use the rows' dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def products(rows: Tensor, queue: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Dot products of rows (M, d) with the queue (K, d), in its dtype, and with the batch (B, d): (M, K), (M,
    B)."""
    return rows.to(queue.dtype) @ queue.T, rows @ batch.T


def softmax_(in_queue: Tensor, in_batch: Tensor) -> tuple[Tensor, Tensor]:
    """Replace both blocks (M, K), (M, B) by exp(x − max), in place; returns (log Σ exp, 1 / Σ exp(x − max)),
    (M, 1) each."""
    top = in_batch.amax(1, keepdim=True)
    if in_queue.shape[1]:
        # rounded to the queue's dtype, so that both blocks subtract exactly the same number
        top = torch.maximum(top, in_queue.amax(1, keepdim=True)).to(in_queue.dtype).to(in_batch.dtype)
    total = in_batch.sub_(top).exp_().sum(1, keepdim=True)
    total = total + in_queue.sub_(top.to(in_queue.dtype)).exp_().sum(1, keepdim=True, dtype=in_batch.dtype)
    return top + total.log(), total.reciprocal_()


def _weighted_columns(in_queue: Tensor, in_batch: Tensor, queue: Tensor, batch: Tensor) -> Tensor:
    """Weights of the columns (M, K), (M, B) times the columns: (M, d) in the dtype of `batch`."""
    return torch.addmm((in_queue @ queue).to(batch.dtype), in_batch, batch)


class _OnePositive(torch.autograd.Function):
    """Row i (M, d) has row i of the batch as its only positive."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, queue: Tensor, batch: Tensor) -> Tensor:
        in_queue, in_batch = products(rows, queue, batch)
        positive = in_batch.diagonal().clone()
        log_total, inverse_total = softmax_(in_queue, in_batch)
        gradient = _weighted_columns(in_queue, in_batch, queue, batch).mul_(inverse_total).sub_(batch)
        ctx.save_for_backward(gradient)
        return (log_total.squeeze(1) - positive).mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * (incoming / len(gradient)), None, None


class _SoftTargets(torch.autograd.Function):
    """The rows of every view (V, B, d) have the target probabilities (B, K), (B, B) over the columns."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, queue_targets: Tensor, batch_targets: Tensor, queue: Tensor, batch: Tensor
    ) -> Tensor:
        views, size, dims = rows.shape
        in_queue, in_batch = products(rows.reshape(-1, dims), queue, batch)
        blocks = [
            (target, block.view(views, size, -1))
            for target, block in ((queue_targets, in_queue), (batch_targets, in_batch))
        ]
        dots = torch.stack(
            [sum(torch.linalg.vecdot(target, block[at]) for target, block in blocks) for at in range(views)]
        )
        log_total, inverse_total = softmax_(in_queue, in_batch)
        for target, block in blocks:
            torch.addcmul(
                target, block, inverse_total.to(block.dtype).view(views, size, 1), value=-1, out=block
            )
        ctx.save_for_backward(_weighted_columns(in_queue, in_batch, queue, batch).neg_().view(rows.shape))
        return (log_total.view(views, size) - dots).mean(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * (incoming / gradient.shape[1]).view(-1, 1, 1), None, None, None, None


def one_positive(rows: Tensor, queue: Tensor, batch: Tensor) -> Tensor:
    """−log softmax(rows_i · [queue; batch])[batch_i], mean over rows: cross-entropy with one positive column.

    rows, batch (M, d), queue (K, d). Returns (). Only the rows receive a gradient. It is computed together
    with the loss, so that no (M, K) matrix is kept for the backward pass.
    """
    result: Tensor = _OnePositive.apply(rows, queue, batch)
    return result


def soft_targets(rows: Tensor, targets: tuple[Tensor, Tensor], queue: Tensor, batch: Tensor) -> Tensor:
    """−Σ_k targets[i, k] log softmax(rows_vi · [queue; batch])_k, mean over i, for each view v.

    rows (V, B, d), queue (K, d), batch (B, d); targets (B, K), (B, B): probabilities over both blocks, which
    sum to 1 together. Returns (V,). The views share their matrix products. Only the rows receive a gradient.
    """
    result: Tensor = _SoftTargets.apply(rows, *targets, queue, batch)
    return result


@torch.no_grad()
def probabilities(rows: Tensor, queue: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(rows · [queue; batch]) as its two blocks, (B, K) and (B, B), without a gradient."""
    in_queue, in_batch = products(rows, queue, batch)
    _, inverse_total = softmax_(in_queue, in_batch)
    return in_queue.mul_(inverse_total.to(in_queue.dtype)), in_batch.mul_(inverse_total)
