"""The optimizers of a stage, and their learning rate at each step."""

from __future__ import annotations

import math

import torch
from torch import nn

from edgedistill import recipe

FUSED = ("cpu", "cuda")  # devices with a fused Adam kernel: one pass over the parameters per step


def optimizers(module: nn.Module, stage: recipe.Stage, device: str) -> list[torch.optim.Optimizer]:
    """AdamW, fused where the device has it; no weight decay on vectors (biases, norms) and on embedding tables.

    module: a `loop.TrainedModule`, whose parameter names start with `student.` where they are the student's.
    With `optimizer: muon` the weight matrices of the student's layers are given to Muon instead; its steps are scaled to the usual size
    of AdamW's (Liu et al. 2025, Eq. 4), so that both use the same learning rate.
    """
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    groups: dict[str, list[nn.Parameter]] = {"muon": [], "decayed": [], "spared": []}
    for name, parameter in module.named_parameters():
        matrix = parameter.ndim > 1 and id(parameter) not in tables
        layers = name.startswith("student.") and "embedding" not in name and ".head." not in name
        groups["muon" if matrix and layers and stage.optimizer == "muon" else "decayed" if matrix else "spared"].append(parameter)
    decays = [{"params": groups["decayed"], "weight_decay": stage.weight_decay}, {"params": groups["spared"], "weight_decay": 0.0}]
    adam = torch.optim.AdamW([g for g in decays if g["params"]], lr=stage.learning_rate, betas=stage.betas, fused=device in FUSED)
    if not groups["muon"]:
        return [adam]
    muon = torch.optim.Muon(groups["muon"], lr=stage.learning_rate, weight_decay=stage.weight_decay, adjust_lr_fn="match_rms_adamw")
    return [muon, adam]


def learning_rate_factor(stage: recipe.Stage | recipe.Finetune, step: int, steps: int) -> float:
    """What the learning rate is multiplied by at a step: linear warm-up to 1, then linear or cosine decay to 0, or constant."""
    warmup = round(stage.warmup * steps)
    if step < warmup:
        return (step + 1) / warmup
    if stage.schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return 1 - done if stage.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
