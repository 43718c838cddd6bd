"""Embed a batch of texts of unlike length in parts of like length, so that little padding is computed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

PASS_TOKENS = (
    256  # a further pass costs about as much as so many tokens (bench/LOG.md, "Unsorted batches in parts")
)
CUTS = 32  # how many places of a batch are tried as the end of a part

Embed = Callable[..., Tensor]  # (ids, mask), or (ids, mask, rows of the embedding table) -> (B, d)


def parts(lengths: np.ndarray) -> list[int]:
    """The ends of the parts of rows sorted by length (n,) that cost least: padded tokens, and PASS_TOKENS for
    each part."""
    ends = np.unique(np.linspace(0, len(lengths), min(CUTS, len(lengths)) + 1).astype(int))
    least, best = np.zeros(len(ends)), np.zeros(len(ends), int)
    for at in range(1, len(ends)):
        costs = least[:at] + (ends[at] - ends[:at]) * lengths[ends[at] - 1] + PASS_TOKENS
        best[at] = costs.argmin()
        least[at] = costs[best[at]]
    found, at = [], len(ends) - 1
    while at:
        found.append(int(ends[at]))
        at = best[at]
    return found[::-1]


def embed_by_length(embed: Embed, table: Callable[[Tensor], Tensor], ids: Tensor, mask: Tensor) -> Tensor:
    """What `embed(ids, mask)` returns, (B, d), computed in parts of like length, each padded to its longest
    text.

    ids, mask: (B, T) int64, right-padded, on the CPU. Exact but for rounding, since no text's embedding
        depends on another's or on padding.
    table: ids (n,) -> (n, H), the student's embedding table. It is read once for all parts, because each
        reading has a gradient of the
    whole table's size.
    """
    lengths, order = mask.sum(1).sort()
    ends = parts(lengths.numpy())
    if len(ends) == 1:
        return embed(ids, mask)
    cuts = [(order[start:end], max(1, int(lengths[end - 1]))) for start, end in pairwise([0, *ends])]
    inputs = [ids[rows, :longest] for rows, longest in cuts]
    tokens = table(torch.cat([each.flatten() for each in inputs])).split([each.numel() for each in inputs])
    found = [
        embed(each, mask[rows, :longest], of_part.unflatten(0, each.shape))
        for (rows, longest), each, of_part in zip(cuts, inputs, tokens, strict=True)
    ]
    return torch.cat(found)[order.argsort()]
