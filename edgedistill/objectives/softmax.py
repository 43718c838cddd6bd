"""Cross-entropy over the columns of a memory, written out: its gradient comes with it, and no column gets one.

Columns lie in two blocks, the queue's and the batch's own. What the queue is kept in (fp32, bf16) its block is multiplied in; the
batch's, where the right answers are and differences of nearly equal numbers decide, is in the rows' own precision, as are all sums.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def products(rows: Tensor, queue: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """rows (M, d) times every vector of the queue (K, d), in its dtype, and of `own` (B, d): (M, K), (M, B)."""
    return rows.to(queue.dtype) @ queue.T, rows @ own.T


def softmax_(far: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to exp(x − max) over both blocks (M, K), (M, B), in place; returns (log Σ exp, 1 / Σ exp(x − max)), (M, 1) each."""
    top = near.amax(1, keepdim=True)
    if far.shape[1]:
        top = torch.maximum(top, far.amax(1, keepdim=True)).to(far.dtype).to(near.dtype)  # the same for both, to the last bit
    total = near.sub_(top).exp_().sum(1, keepdim=True) + far.sub_(top.to(far.dtype)).exp_().sum(1, keepdim=True, dtype=near.dtype)
    return top + total.log(), total.reciprocal_()


def _back(far: Tensor, near: Tensor, queue: Tensor, own: Tensor) -> Tensor:
    """Weights of the columns times the columns: (M, d) in the dtype of `own`."""
    return torch.addmm((far @ queue).to(own.dtype), near, own)


class _Told(torch.autograd.Function):
    """Row i (M, d) is to be told by row i of `own`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, queue: Tensor, own: Tensor) -> Tensor:
        far, near = products(rows, queue, own)
        right = near.diagonal().clone()
        level, share = softmax_(far, near)
        gradient = _back(far, near, queue, own).mul_(share).sub_(own)
        ctx.save_for_backward(gradient)
        return (level.squeeze(1) - right).mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * (incoming / len(gradient)), None, None


class _Followed(torch.autograd.Function):
    """Every view's rows (V, B, d) are to have the shares (B, K), (B, B) of the columns."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, far_wanted: Tensor, near_wanted: Tensor, queue: Tensor, own: Tensor) -> Tensor:
        views, batch, dims = rows.shape
        far, near = products(rows.reshape(-1, dims), queue, own)
        blocks = [(wanted, block.view(views, batch, -1)) for wanted, block in ((far_wanted, far), (near_wanted, near))]
        dots = torch.stack([sum(torch.linalg.vecdot(wanted, block[at]) for wanted, block in blocks) for at in range(views)])
        level, share = softmax_(far, near)
        for wanted, block in blocks:
            torch.addcmul(wanted, block, share.to(block.dtype).view(views, batch, 1), value=-1, out=block)
        ctx.save_for_backward(_back(far, near, queue, own).neg_().view(rows.shape))
        return (level.view(views, batch) - dots).mean(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * (incoming / gradient.shape[1]).view(-1, 1, 1), None, None, None, None


def told(rows: Tensor, queue: Tensor, own: Tensor) -> Tensor:
    """−log softmax(rows_i · [queue; own])[own_i], mean over rows: cross-entropy with one right column; returns ().

    rows, own (M, d), queue (K, d). Gradients reach the rows alone, and are computed beside the loss: no (M, K) matrix outlives it.
    """
    result: Tensor = _Told.apply(rows, queue, own)
    return result


def followed(rows: Tensor, wanted: tuple[Tensor, Tensor], queue: Tensor, own: Tensor) -> Tensor:
    """−Σ_k wanted[i, k] log softmax(rows_vi · [queue; own])_k, mean over i: (V,), one a view; the views share their products.

    rows (V, B, d), queue (K, d), own (B, d); wanted (B, K), (B, B): shares of either block, their rows sum to 1 together. Gradients
    reach the rows alone.
    """
    result: Tensor = _Followed.apply(rows, *wanted, queue, own)
    return result


@torch.no_grad()
def shares(rows: Tensor, queue: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(rows · [queue; own]) in its two blocks, (B, K) and (B, B), without a gradient."""
    far, near = products(rows, queue, own)
    _, share = softmax_(far, near)
    return far.mul_(share.to(far.dtype)), near.mul_(share)
