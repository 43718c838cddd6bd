"""Attention as plain matrix products, where torch's fused kernel is slow to train with."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from torch import nn

from edgedistill.students.bert import BertStudent
from edgedistill.students.output import own
from edgedistill.students.sentence_transformer import PretrainedEncoder


def use_where_faster(student: nn.Module, accelerator: Accelerator) -> None:
    """Let a transformer compute plain attention in place of the fused kernel where it is trained in bf16 on a
    CPU.

    There the fused kernel's gradients take up to twice a step's time; the results are the same but for
    rounding.
    """
    inner = own(student)
    if (
        isinstance(inner, BertStudent | PretrainedEncoder)
        and accelerator.device.type == "cpu"
        and accelerator.mixed_precision == "bf16"
    ):
        model: Any = inner.model
        model.set_attn_implementation("eager")
