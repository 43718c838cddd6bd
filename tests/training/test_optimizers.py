"""The optimizers of a stage, against AdamW written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from edgedistill import recipe
from edgedistill.training.stages import optimizers, set_learning_rate


def stage(**changes: Any) -> recipe.Stage:
    return recipe.Stage.model_validate(
        {"name": "a", "objective": {"kind": "cosine"}, "betas": [0.8, 0.9], "epsilon": 1e-3, **changes}
    )


@pytest.mark.parametrize("corrected", [True, False])
def test_adamw_with_and_without_its_correction(corrected: bool):
    """Four steps at changing rates: m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², w ← w(1 − rate·decay) − rate·m̂ /
    (√v̂ + ε)."""
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    spec = stage(weight_decay=0.1, bias_correction=corrected)
    trained = optimizers(module, spec, "cpu")
    expected = {name: value.detach().clone().double() for name, value in module.named_parameters()}
    first = {name: torch.zeros_like(value) for name, value in expected.items()}
    second = {name: torch.zeros_like(value) for name, value in expected.items()}
    for step, rate in enumerate((0.01, 0.05, 0.02, 0.04)):
        for name, parameter in module.named_parameters():
            gradient = torch.randn(parameter.shape) * (1 + step)
            parameter.grad = gradient.clone()
            first[name] = 0.8 * first[name] + 0.2 * gradient.double()
            second[name] = 0.9 * second[name] + 0.1 * gradient.double() ** 2
            c1, c2 = (1 - 0.8 ** (step + 1), 1 - 0.9 ** (step + 1)) if corrected else (1.0, 1.0)
            decay = 0.1 if name == "weight" else 0.0
            moved = rate * (first[name] / c1) / ((second[name] / c2).sqrt() + 1e-3)
            expected[name] = expected[name] * (1 - rate * decay) - moved
        set_learning_rate(trained, spec, rate, step)
        trained[0].step()
    for name, parameter in module.named_parameters():
        assert torch.allclose(parameter.detach().double(), expected[name], atol=1e-6), name
