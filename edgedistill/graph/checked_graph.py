"""A graph of any encoder, compared with torch: what a teacher needs, whose graph nothing else has ever run."""

from __future__ import annotations

import onnx
from torch import nn

from edgedistill.errors import CheckFailed, UserError
from edgedistill.graph.student_graph import build
from edgedistill.graph.torch_parity import ORT_ERRORS, compare

MIN_COSINE = 0.9999  # to torch, on random ids; float32 differs in the seventh digit
# Tracing runs the model's own code, which may raise nearly anything.
NOT_TRACED = (RuntimeError, ValueError, TypeError, KeyError, UserError, CheckFailed, onnx.checker.ValidationError, *ORT_ERRORS)


def build_checked(encoder: nn.Module, max_tokens: int, vocabulary_size: int) -> onnx.ModelProto:
    """`build`, with a graph that gives the same as torch for batches and lengths other than it was traced with.

    Raises CheckFailed, with the reason, for an encoder that has no such graph.
    """
    try:
        model = build(encoder)
        worst = compare(encoder, model, max_tokens, vocabulary_size)
    except NOT_TRACED as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CheckFailed(f"it cannot be written as a graph ({reason})") from error
    if not worst > MIN_COSINE:  # NaN is above nothing
        raise CheckFailed(f"its graph gives other embeddings than torch (cosine {worst:.4f} on random ids)")
    return model
