"""What is left of numbers once they are stored in 8 or 4 bits: the rounding rules of every precision, float32 in and float32 out.

Each rule takes (…, K) and scales along the last axis: rows of an embedding table, output channels of a linear layer (out, in) and
activations of a token are all rows. It must give what the rule of that name in `quantization` stores, times its scale.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 32  # numbers that share a scale in w8 and w4, along the input
SMALLEST = 1e-12  # a row of zeros is divided by this instead of 0
SMALLEST_HALF = 2.0**-24  # of float16, in which the scales of 4 bits are stored
LARGEST_HALF = 65504.0
# what the farthest number of a 4-bit group is multiplied by for each of the scales that are tried
SHARES = [float(factor / limit) for limit in (-8, 7) for factor in np.linspace(0.65, 1.0, 15, dtype=np.float32)]
AT_ONCE = 512  # groups, each at 30 scales: 2 MB, about what a core caches


def rows_in_8_bits(values: Tensor) -> Tensor:
    """−127 to 127, a scale for each row: max|v| / 127."""
    return rounded(values, scale_in_8_bits(values))


def scale_in_8_bits(values: Tensor) -> Tensor:
    """(…, K) -> (…, 1)."""
    return values.abs().amax(-1, keepdim=True).clamp_(min=SMALLEST) / 127  # an infinity norm takes ten times as long


def rounded(values: Tensor, scale: Tensor) -> Tensor:
    """The multiples of the scale nearest to the values; of two equally near, the even one."""
    return (values / scale).round_().mul_(scale)


def blocks_in_8_bits(values: Tensor) -> Tensor:
    """−127 to 127, a scale for each block of 32 within a row."""
    return _in_blocks(values, rows_in_8_bits)


def rows_in_8_bits_without_saturation(values: Tensor) -> Tensor:
    """−127 to 127, a scale for each row, large enough that the int8 of a pair (2k, 2k + 1) with the same sign cannot saturate 16 bits.

    Processors without VNNI add two products uint8 · int8 in 16 bits: 255 · 128 is the largest sum that fits.
    """
    pairs = pad(values, (0, values.shape[-1] % 2)).unflatten(-1, (-1, 2))
    same_sign = torch.maximum(pairs.clamp(min=0).sum(-1), -pairs.clamp(max=0).sum(-1)).amax(-1, keepdim=True)
    return rounded(values, torch.maximum(scale_in_8_bits(values), same_sign / 127))


def rows_after_gelu(values: Tensor) -> Tensor:
    """0 to 255 with the zero at 24, a scale for each row from its maximum: GELU gives nothing below −0.17."""
    return _above(values, 24, 0.17 / 24)


def rows_after_relu(values: Tensor) -> Tensor:
    """0 to 255, a scale for each row from its maximum."""
    return _above(values, 0, SMALLEST)


def _above(values: Tensor, zero: int, least: float) -> Tensor:
    scale = (values.amax(-1, keepdim=True) * (1 / (255 - zero))).clamp_(min=least)
    return (values / scale).round_().clamp_(-zero, 255 - zero).mul_(scale)


def blocks_in_4_bits(values: Tensor) -> Tensor:
    """−8 to 7, a scale for each block of 32 within a row: of 30 scales that of the least squared error, in float16.

    The number farthest from 0 lies at −8 or 7, or up to 1 / 0.65 times as far out, and is cut off there.
    """
    return _in_blocks(values, _in_4_bits)


def _in_4_bits(groups: Tensor) -> Tensor:
    flat = groups.reshape(-1, groups.shape[-1])
    return torch.cat([_with_best_scale(part) for part in flat.split(AT_ONCE)]).view(groups.shape)


def _with_best_scale(groups: Tensor) -> Tensor:
    """(G, 32) -> (G, 32), with the scale of least squared error for each group."""
    farthest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scales = farthest * torch.tensor(SHARES, device=groups.device).view(-1, 1, 1)
    scales = scales.clamp_(-LARGEST_HALF, LARGEST_HALF).half().float()
    scales.masked_fill_(scales == 0, SMALLEST_HALF)
    best = _to_4_bits(groups, scales).sub_(groups).square_().sum(-1).argmin(0)
    return _to_4_bits(groups, scales.squeeze(-1).gather(0, best.unsqueeze(0)).view(-1, 1))


def _to_4_bits(groups: Tensor, scale: Tensor) -> Tensor:
    return (groups / scale).round_().clamp_(-8, 7).mul_(scale)


def _in_blocks(values: Tensor, rule: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a rule to each block of 32; a last block that is shorter is filled with zeros, which change no scale."""
    width = values.shape[-1]
    blocks = pad(values, (0, -width % BLOCK)).unflatten(-1, (-1, BLOCK))
    return rule(blocks).flatten(-2)[..., :width]
