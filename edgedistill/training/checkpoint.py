"""The state in a checkpoint: everything that a killed run needs to end with the same bytes. Safetensors and
JSON, never pickle.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file

from edgedistill import files, run
from edgedistill.files import Json
from edgedistill.run import Weights
from edgedistill.students.model_folder import opening

FOLDER = "checkpoints"  # in the folder of the unfinished run
EVERY_SECONDS = 60.0  # between two checkpoints


class Checkpoint(NamedTuple):
    """The position of a run as plain data (`state`), and groups of named tensors (`tensors`): weights,
    optimizer, random state."""

    state: Json
    tensors: dict[str, Weights]


def save(partial: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint of the unfinished run in `partial` atomically, and delete those before it."""
    name = f"{checkpoint.state['stage']:02d}-{checkpoint.state['step']:08d}"
    with files.new_folder(partial / FOLDER / name) as temporary:
        for group, values in checkpoint.tensors.items():
            run.save_weights(values, temporary / f"{group}.safetensors")
        files.write_json(temporary / "state.json", checkpoint.state)
    for older in _all(partial)[:-1]:
        shutil.rmtree(older)


def newest(partial: Path) -> Checkpoint | None:
    """The last checkpoint of the unfinished run in `partial`, or None."""
    folders = _all(partial)
    if not folders:
        return None
    with opening(folders[-1], "a damaged checkpoint", f"delete {partial} and train again"):
        tensors = {path.stem: load_file(path) for path in sorted(folders[-1].glob("*.safetensors"))}
        return Checkpoint(files.read_json(folders[-1] / "state.json"), tensors)


def exists(partial: Path) -> bool:
    """Whether the unfinished run in `partial` has a checkpoint."""
    return bool(_all(partial))


def _all(partial: Path) -> list[Path]:
    return sorted(p for p in (partial / FOLDER).glob("[0-9]*-*") if (p / "state.json").exists())


def optimizer_state(optimizers: list[torch.optim.Optimizer]) -> Weights:
    """The state of optimizers: `NUMBER/PARAMETER/exp_avg` and so on, both counted from 0."""
    state = Weights()
    for number, optimizer in enumerate(optimizers):
        for parameter, values in optimizer.state_dict()["state"].items():
            state |= {f"{number}/{parameter}/{what}": value for what, value in values.items()}
    return state


def load_optimizer(optimizers: list[torch.optim.Optimizer], saved: Weights) -> None:
    """Give optimizers of the same parameters the state that `optimizer_state` returned."""
    states: list[dict[int, Weights]] = [{} for _ in optimizers]
    for key, value in saved.items():
        number, parameter, what = key.split("/")
        entries = states[int(number)].setdefault(int(parameter), {})
        entries[what] = value
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def random_state() -> Weights:
    """The state of torch's generators (numpy's and Python's own are not used)."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Weights) -> None:
    """Give torch's generators the state that `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
