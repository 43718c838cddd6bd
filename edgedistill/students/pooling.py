"""Token embeddings -> one embedding per text."""

from __future__ import annotations

import torch
from torch import Tensor

MODES = ("mean", "cls", "cls_pooler", "max", "last", "mean_sqrt_len", "weighted_mean")


def pool(tokens: Tensor, mask: Tensor, mode: str) -> Tensor:
    """Pool each text's token embeddings; padding never counts.

    tokens (B, T, H), mask (B, T) of 0 and 1, right-padded. Returns (B, H). `cls_pooler` is pooled like `cls`
    here: its tanh layer belongs to the model. `weighted_mean` weights the t-th token by t (SGPT);
    `mean_sqrt_len` divides the sum by √length.
    """
    if mode in ("cls", "cls_pooler"):
        return tokens[:, 0]
    weights = mask.to(tokens.dtype).unsqueeze(-1)
    if mode == "max":
        return tokens.masked_fill(weights == 0, torch.finfo(tokens.dtype).min).amax(1)
    if mode == "last":
        following = torch.nn.functional.pad(weights, (0, 0, 0, 1))[
            :, 1:
        ]  # 0 behind the last token, whose weight is then 1 − 0
        return (tokens * (weights - following)).sum(1)
    if mode == "weighted_mean":
        weights = weights * weights.cumsum(1)
    length = weights.sum(1).clamp(min=1)
    return (tokens * weights).sum(1) / (length.sqrt() if mode == "mean_sqrt_len" else length)
