"""A recipe's stages with their numbers: where error messages place them, their seeds, their number of
optimizer steps; their optimizers, the learning rate at each step, and the errors of one that diverges."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from edgedistill.errors import UserError
from edgedistill.recipe import Finetune, Recipe, Stage
from edgedistill.students import finite_weights
from edgedistill.teacher.encoder import resolve_dtype
from edgedistill.training.muon import Muon

FUSED = ("cpu", "cuda")  # devices with a fused Adam kernel: one pass over the parameters per step
MOST_STEPS = 10**9  # where only the clock ends a stage


@dataclass(frozen=True)
class NumberedStage:
    """A stage of a recipe, its number counted from 0, and its own seed. A stage that fine-tunes is trained
    once for each of its learning rates: `attempt` counts them."""

    spec: Stage
    number: int
    seed: int
    attempt: int = 0
    rate_key: str = "learning_rate"

    @property
    def position(self) -> int:
        """Its place among all that is trained, one after the other."""
        return self.number + self.attempt

    @property
    def place(self) -> str:
        """Its name in error messages."""
        return f"stages[{self.number}]"


def distillation_stages(spec: Recipe) -> list[NumberedStage]:
    """The stages that distil, in order."""
    return [
        NumberedStage(stage, number, stage_seed(spec.seed, number))
        for number, stage in enumerate(spec.distilling)
    ]


def stage_seed(seed: int, number: int) -> int:
    """Each stage has its own random draws, whatever the stages before it have drawn."""
    return seed * 1_000_003 + number


def steps(stage: Stage | Finetune, texts: int) -> int:
    """Optimizer steps of a stage over `texts` texts or labelled rows, at most where it has `minutes`; when
    fine-tuning, those at one learning rate."""
    if stage.steps is not None:
        return stage.steps
    if getattr(stage, "minutes", None) is not None:
        return MOST_STEPS
    return max(1, math.floor(texts * stage.epochs / stage.batch))


def optimizers(module: nn.Module, stage: Stage, device: str) -> list[torch.optim.Optimizer]:
    """AdamW, fused where the device has it; no weight decay on vectors (biases, norms) and on embedding
    tables.

    The names of the parameters of `module`, a `TrainedModule`, start with `student.` where they are the
    student's. With `optimizer: muon` the weight matrices of the student's layers are given to Muon instead;
    its steps are scaled to the usual size of AdamW's (Liu et al. 2025, Eq. 4), so that both use the same
    learning rate.
    """
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    muon = []
    decayed = []
    spared = []
    for name, parameter in module.named_parameters():
        layers = name.startswith("student.") and "embedding" not in name and ".head." not in name
        if parameter.ndim < 2 or id(parameter) in tables:
            spared.append(parameter)
        elif layers and stage.optimizer == "muon":
            muon.append(parameter)
        else:
            decayed.append(parameter)
    rate = stage.learning_rate
    decay = stage.weight_decay
    groups = [{"params": decayed, "weight_decay": decay}, {"params": spared, "weight_decay": 0.0}]
    trained = [group for group in groups if group["params"]]
    adam = torch.optim.AdamW(trained, lr=rate, betas=stage.betas, eps=stage.epsilon, fused=device in FUSED)
    if not muon:
        return [adam]
    return [Muon(muon, rate, decay, resolve_dtype("auto", device)), adam]


def set_learning_rate(optimizers: list[torch.optim.Optimizer], stage: Stage, rate: float, step: int) -> None:
    """Give every parameter group what it is to use at a step, counted from 0.

    Without `bias_correction`, AdamW's own correction is undone: with c₁ = 1 − β₁ᵗ and c₂ = √(1 − β₂ᵗ) at t =
    step + 1, a rate of rate·c₁/c₂ with ε/c₂ is the uncorrected step rate·m / (√v + ε); the weight decay,
    which is multiplied by the rate, is divided by c₁/c₂.
    """
    first = 1 - stage.betas[0] ** (step + 1)
    second = math.sqrt(1 - stage.betas[1] ** (step + 1))
    for optimizer in optimizers:
        uncorrected = not stage.bias_correction and isinstance(optimizer, torch.optim.AdamW)
        for group in optimizer.param_groups:
            group["lr"] = rate * first / second if uncorrected else rate
            if uncorrected:
                decayed = group.setdefault("decayed", group["weight_decay"] > 0)
                group["eps"] = stage.epsilon / second
                group["weight_decay"] = stage.weight_decay * second / first if decayed else 0.0


def learning_rate_factor(stage: Stage, step: int, steps: int) -> float:
    """What the learning rate is multiplied by at a step: linear warm-up to 1, then linear or cosine decay to
    0, or constant."""
    warmup = round(stage.warmup * steps)
    if step < warmup:
        return (step + 1) / warmup
    if stage.schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return 1 - done if stage.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def check_loss(loss: float, where: str, step: int) -> None:
    """Raise UserError for a loss that is NaN or infinite: no later step makes it finite again."""
    if not math.isfinite(loss):
        raise _stopped(f"the loss is {loss}", where, step)


def check_weights(module: nn.Module, where: str, step: int) -> None:
    """Raise UserError for a weight that is not finite: the last step's may be, where its loss was finite."""
    if problem := finite_weights.problem(module):
        raise _stopped(problem, where, step)


def _stopped(fact: str, where: str, step: int) -> UserError:
    return UserError(f"{where}: {fact} at step {step:,}; lower it, add warmup, or set `clip`")
