"""Checkpoints: everything a killed run needs to end with the same bytes. Safetensors and JSON, never pickle."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from edgedistill import files


def save(folder: Path, state: dict[str, Any], tensors: dict[str, dict[str, Tensor]]) -> None:
    """Write one checkpoint under `folder`, whole or not at all, and drop those before it.

    `state`: plain data, with the position of the run. `tensors`: groups of named tensors.
    """
    name = f"{state['stage']:02d}-{state['step']:08d}"
    with files.new_folder(folder / name) as temporary:
        for group, values in tensors.items():
            save_file({k: v.detach().cpu().contiguous() for k, v in values.items()}, temporary / f"{group}.safetensors")
        files.write_json(temporary / "state.json", state)
    for older in _all(folder)[:-1]:
        shutil.rmtree(older)


def newest(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]] | None:
    """The last checkpoint under `folder`: (state, groups of tensors), or None."""
    found = _all(folder)
    if not found:
        return None
    return files.read_json(found[-1] / "state.json"), {p.stem: load_file(p) for p in sorted(found[-1].glob("*.safetensors"))}


def _all(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("[0-9]*-*") if (p / "state.json").exists())


def optimizer_state(optimizers: list[torch.optim.Optimizer], names: Mapping[nn.Parameter, str]) -> dict[str, Tensor]:
    """What optimizers remember, by parameter name: `exp_avg/model.x`, `momentum_buffer/model.y` and so on."""
    states = ((optimizer.state[p], names[p]) for optimizer in optimizers for p in _parameters(optimizer))
    return {f"{what}/{name}": value for state, name in states for what, value in state.items()}


def load_optimizer(optimizers: list[torch.optim.Optimizer], names: Mapping[nn.Parameter, str], saved: dict[str, Tensor]) -> None:
    """Put it back."""
    for optimizer in optimizers:
        for p in _parameters(optimizer):
            values = {key.split("/", 1)[0]: value for key, value in saved.items() if key.split("/", 1)[1] == names[p]}
            if values:
                optimizer.state[p] = {what: value.to(p.device) if what != "step" else value for what, value in values.items()}


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def random_state() -> dict[str, Tensor]:
    """torch's generators (numpy and Python's own are not used)."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


class Average:
    """Exponential moving average of a module's weights; warms up so that the random start is soon forgotten."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: value.detach().clone() for name, value in module.state_dict().items()}

    def update(self, module: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, value in module.state_dict().items():
                if value.is_floating_point():  # codes of a word table never change
                    self.weights[name].lerp_(value, 1 - decay)
