"""The state in a checkpoint: everything that a killed run needs to end with the same bytes. Safetensors and
JSON, never pickle.

From which checkpoint a run resumes is decided in resume.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from edgedistill import files

EVERY_SECONDS = 60.0  # between two checkpoints


class Checkpoint(NamedTuple):
    """state: plain data, with the run's position. tensors: groups of named tensors (weights, optimizer,
    random state, average)."""

    state: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint under `folder` atomically, and delete those before it."""
    name = f"{checkpoint.state['stage']:02d}-{checkpoint.state['step']:08d}"
    with files.new_folder(folder / name) as temporary:
        for group, values in checkpoint.tensors.items():
            save_file(
                {k: v.detach().cpu().contiguous() for k, v in values.items()},
                temporary / f"{group}.safetensors",
            )
        files.write_json(temporary / "state.json", checkpoint.state)
    for older in _all(folder)[:-1]:
        shutil.rmtree(older)


def newest(folder: Path) -> Checkpoint | None:
    """The last checkpoint under `folder`, or None."""
    found = _all(folder)
    if not found:
        return None
    tensors = {path.stem: load_file(path) for path in sorted(found[-1].glob("*.safetensors"))}
    return Checkpoint(files.read_json(found[-1] / "state.json"), tensors)


def exists(folder: Path) -> bool:
    """Whether there is a checkpoint under `folder`."""
    return bool(_all(folder))


def _all(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("[0-9]*-*") if (p / "state.json").exists())


def optimizer_state(
    optimizers: list[torch.optim.Optimizer], names: Mapping[nn.Parameter, str]
) -> dict[str, Tensor]:
    """The state of optimizers by parameter name: `exp_avg/model.x`, `momentum_buffer/model.y` and so on."""
    states = ((optimizer.state[p], names[p]) for optimizer in optimizers for p in _parameters(optimizer))
    return {f"{what}/{name}": value for state, name in states for what, value in state.items()}


def load_optimizer(
    optimizers: list[torch.optim.Optimizer], names: Mapping[nn.Parameter, str], saved: dict[str, Tensor]
) -> None:
    """Give optimizers the state that `optimizer_state` returned."""
    for optimizer in optimizers:
        for p in _parameters(optimizer):
            values = {
                key.split("/", 1)[0]: value
                for key, value in saved.items()
                if key.split("/", 1)[1] == names[p]
            }
            if values:
                optimizer.state[p] = {
                    what: value.to(p.device) if what != "step" else value for what, value in values.items()
                }


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def random_state() -> dict[str, Tensor]:
    """The state of torch's generators (numpy's and Python's own are not used)."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Tensor]) -> None:
    """Give torch's generators the state that `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
