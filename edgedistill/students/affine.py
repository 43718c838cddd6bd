"""Affine maps that `targets` apply to a teacher's embeddings, stored as targets.safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from edgedistill import files

FORMAT = 1


class Affine(NamedTuple):
    """x -> x W + b: weight (e, d), bias (d,)."""

    weight: np.ndarray
    bias: np.ndarray

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        return vectors @ self.weight + self.bias


def write_maps(folder: Path, maps: list[Affine], about: dict[str, Any]) -> None:
    """Write maps to a new folder, atomically: targets.safetensors (float32, as they are used) and
    targets.json."""
    tensors = {}
    for number, each in enumerate(maps):
        tensors[f"{number}.weight"] = np.ascontiguousarray(each.weight, np.float32)
        tensors[f"{number}.bias"] = np.ascontiguousarray(each.bias, np.float32)
    with files.new_folder(folder) as temporary:
        save_file(tensors, temporary / "targets.safetensors")
        files.write_json(temporary / "targets.json", {"format": FORMAT, **about})


def read_maps(folder: Path) -> list[Affine]:
    """Read the maps of a folder."""
    tensors = load_file(folder / "targets.safetensors")
    return [
        Affine(tensors[f"{number}.weight"], tensors[f"{number}.bias"]) for number in range(len(tensors) // 2)
    ]
