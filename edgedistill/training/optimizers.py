"""The optimizers of a stage, and their learning rate at each step."""

from __future__ import annotations

import math

import torch
from torch import nn

from edgedistill import recipe

FUSED = ("cpu", "cuda")  # devices with a fused Adam kernel: one pass over the parameters per step


def optimizers(module: nn.Module, stage: recipe.Stage, device: str) -> list[torch.optim.Optimizer]:
    """AdamW, fused where the device has it; no weight decay on vectors (biases, norms) and on embedding
    tables.

    The names of the parameters of `module`, a `TrainedModule`, start with `student.` where they are the
    student's. With `optimizer: muon` the weight matrices of the student's layers are given to Muon instead;
    its steps are scaled to the usual size of AdamW's (Liu et al. 2025, Eq. 4), so that both use the same
    learning rate.
    """
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    muon, decayed, spared = [], [], []
    for name, parameter in module.named_parameters():
        layers = name.startswith("student.") and "embedding" not in name and ".head." not in name
        if parameter.ndim < 2 or id(parameter) in tables:
            spared.append(parameter)
        elif layers and stage.optimizer == "muon":
            muon.append(parameter)
        else:
            decayed.append(parameter)
    rate, decay = stage.learning_rate, stage.weight_decay
    groups = [{"params": decayed, "weight_decay": decay}, {"params": spared, "weight_decay": 0.0}]
    trained = [group for group in groups if group["params"]]
    adam = torch.optim.AdamW(trained, lr=rate, betas=stage.betas, eps=stage.epsilon, fused=device in FUSED)
    if not muon:
        return [adam]
    return [torch.optim.Muon(muon, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"), adam]


def set_learning_rate(
    optimizers: list[torch.optim.Optimizer], stage: recipe.Stage, rate: float, step: int
) -> None:
    """Give every parameter group what it is to use at a step, counted from 0.

    Without `bias_correction`, AdamW's own correction is undone: with c₁ = 1 − β₁ᵗ and c₂ = √(1 − β₂ᵗ) at t =
    step + 1, a rate of rate·c₁/c₂ with ε/c₂ is the uncorrected step rate·m / (√v + ε); the weight decay,
    which is multiplied by the rate, is divided by c₁/c₂.
    """
    first, second = 1 - stage.betas[0] ** (step + 1), math.sqrt(1 - stage.betas[1] ** (step + 1))
    for optimizer in optimizers:
        uncorrected = not stage.bias_correction and isinstance(optimizer, torch.optim.AdamW)
        for group in optimizer.param_groups:
            group["lr"] = rate * first / second if uncorrected else rate
            if uncorrected:
                decayed = group.setdefault("decayed", group["weight_decay"] > 0)
                group["eps"] = stage.epsilon / second
                group["weight_decay"] = stage.weight_decay * second / first if decayed else 0.0


def learning_rate_factor(stage: recipe.Stage, step: int, steps: int) -> float:
    """What the learning rate is multiplied by at a step: linear warm-up to 1, then linear or cosine decay to
    0, or constant."""
    warmup = round(stage.warmup * steps)
    if step < warmup:
        return (step + 1) / warmup
    if stage.schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return 1 - done if stage.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
