"""Cross-entropy over the columns of a memory, written out: its gradient comes with it, and no column gets one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def products(rows: Tensor, queue: Tensor, more: Tensor) -> Tensor:
    """rows (M, d) times every vector of the queue (K, d) and of `more` (B, d): (M, K + B), written once, not joined afterwards."""
    out = rows.new_empty(len(rows), len(queue) + len(more))
    torch.mm(rows, queue.T, out=out[:, : len(queue)])
    torch.mm(rows, more.T, out=out[:, len(queue) :])
    return out


def softmax_(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to exp(x − max), in place; returns (log Σ exp, 1 / Σ exp(x − max)), (M, 1) each."""
    top = logits.amax(1, keepdim=True)
    total = logits.sub_(top).exp_().sum(1, keepdim=True)
    return top + total.log(), total.reciprocal_()


class _Told(torch.autograd.Function):
    """Row i (M, d) is to be told by column K + i of [queue; own]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, queue: Tensor, own: Tensor) -> Tensor:
        logits = products(rows, queue, own)
        right = logits[:, len(queue) :].diagonal().clone()
        level, share = softmax_(logits)
        gradient = torch.addmm(logits[:, len(queue) :] @ own, logits[:, : len(queue)], queue).mul_(share).sub_(own)
        ctx.save_for_backward(gradient)
        return (level.squeeze(1) - right).mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * (incoming / len(gradient)), None, None


class _Followed(torch.autograd.Function):
    """Every view's rows (V, B, d) are to have the shares `wanted` (B, K + B) of the columns [queue; own]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, wanted: Tensor, queue: Tensor, own: Tensor) -> Tensor:
        views, batch, dims = rows.shape
        logits = products(rows.reshape(-1, dims), queue, own)
        dots = torch.stack([torch.linalg.vecdot(wanted, view) for view in logits.view(views, batch, -1)])
        level, share = softmax_(logits)
        away = torch.addcmul(
            wanted, logits.view(views, batch, -1), share.view(views, batch, 1), value=-1, out=logits.view(views, batch, -1)
        )
        away = away.view(views * batch, -1)
        ctx.save_for_backward(torch.addmm(away[:, len(queue) :] @ own, away[:, : len(queue)], queue).neg_().view(rows.shape))
        return (level.view(views, batch) - dots).mean(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * (incoming / gradient.shape[1]).view(-1, 1, 1), None, None, None


def told(rows: Tensor, queue: Tensor, own: Tensor) -> Tensor:
    """−log softmax(rows_i · [queue; own])[own_i], mean over rows: cross-entropy with one right column; returns ().

    rows, own (M, d), queue (K, d). Gradients reach the rows alone, and are computed beside the loss: no (M, K) matrix outlives it.
    """
    result: Tensor = _Told.apply(rows, queue, own)
    return result


def followed(rows: Tensor, wanted: Tensor, queue: Tensor, own: Tensor) -> Tensor:
    """−Σ_k wanted[i, k] log softmax(rows_vi · [queue; own])_k, mean over i: (V,), one a view; the views share their products.

    rows (V, B, d), wanted (B, K + B) with rows that sum to 1, queue (K, d), own (B, d). Gradients reach the rows alone.
    """
    result: Tensor = _Followed.apply(rows, wanted, queue, own)
    return result


@torch.no_grad()
def shares(rows: Tensor, queue: Tensor, own: Tensor) -> Tensor:
    """softmax(rows · [queue; own]), (B, K + B), without a gradient."""
    logits = products(rows, queue, own)
    _, share = softmax_(logits)
    return logits.mul_(share)
