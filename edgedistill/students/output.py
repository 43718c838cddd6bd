"""What follows a student's own embedding: an affine map (a reduced teacher), or blocks of unit length (a
student of several teachers); and such maps on disk."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from edgedistill import files
from edgedistill.students.graph_writer import GraphWriter, unit_length


class Output(nn.Module):
    """`forward(input_ids, attention_mask) -> (B, d)`: a student, then `linear` on its unit-length embedding,
    then `blocks`.

    `blocks` holds (dimensions, weight) of each block, with weights that sum to 1. Every block is scaled to
    the root of its weight, so that the cosine of two embeddings is the weighted sum of their blocks' cosines.
    """

    def __init__(
        self, inner: nn.Module, linear: nn.Linear | None = None, blocks: list[tuple[int, float]] | None = None
    ) -> None:
        super().__init__()
        self.inner, self.linear, self.blocks = inner, linear, blocks

    @property
    def dims(self) -> int:
        inner: Any = self.inner
        return self.linear.out_features if self.linear is not None else int(inner.dims)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, *token_embeddings: Tensor) -> Tensor:
        """input_ids, attention_mask (B, T) int64, right-padded; `token_embeddings` are passed on to the inner
        student. Returns (B, d)."""
        return self.after(self.inner(input_ids, attention_mask, *token_embeddings))

    def after(self, embeddings: Tensor) -> Tensor:
        """Apply `linear` and `blocks` to the inner student's embeddings: (B, e) -> (B, d)."""
        if self.linear is not None:
            embeddings = self.linear(normalize(embeddings, dim=-1))
        if self.blocks is None:
            return embeddings
        parts = embeddings.split([size for size, _ in self.blocks], dim=-1)
        return torch.cat(
            [
                weight**0.5 * normalize(part, dim=-1)
                for part, (_, weight) in zip(parts, self.blocks, strict=True)
            ],
            -1,
        )


def own(student: nn.Module) -> nn.Module:
    """The student without its `Output`."""
    return student.inner if isinstance(student, Output) else student


def append(model: onnx.ModelProto, student: Output) -> onnx.ModelProto:
    """Add the affine map behind the unit-length embedding of the inner student's graph, then the blocks; in
    place."""
    inner, writer = model.graph, GraphWriter(student, first=1_000_000)  # far from the inner graph's names
    last = next(node for node in inner.node if "sentence_embedding" in node.output)
    last.name = last.output[0] = "own_embedding"
    rows = "own_embedding" if student.linear is None else writer.linear("own_embedding", student.linear)
    if student.blocks:
        ends = list(itertools.accumulate(size for size, _ in student.blocks))
        parts = []
        for end, (size, weight) in zip(ends, student.blocks, strict=True):
            bounds = [writer.constant(np.array([at], np.int64), "at") for at in (end - size, end, 1)]
            part = unit_length(writer, writer.add("Slice", rows, *bounds))
            parts.append(writer.add("Mul", part, writer.constant(np.float32(weight**0.5), "root")))
        rows = writer.add("Concat", *parts, axis=1)
    unit_length(writer, rows, outputs=["sentence_embedding"])
    inner.node.extend(writer.nodes)
    inner.initializer.extend(writer.constants)
    inner.output[0].type.tensor_type.shape.dim[1].dim_value = student.dims
    return model


class Affine(NamedTuple):
    """x -> x W + b: weight (e, d), bias (d,); `targets` apply it to a teacher's embeddings."""

    weight: np.ndarray
    bias: np.ndarray

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        return vectors @ self.weight + self.bias


def write_maps(folder: Path, maps: list[Affine]) -> None:
    """Write maps to a new folder, atomically: targets.safetensors, in float32, as they are used."""
    tensors = {}
    for number, each in enumerate(maps):
        tensors[f"{number}.weight"] = np.ascontiguousarray(each.weight, np.float32)
        tensors[f"{number}.bias"] = np.ascontiguousarray(each.bias, np.float32)
    with files.new_folder(folder) as temporary:
        save_file(tensors, temporary / "targets.safetensors")


def read_maps(folder: Path) -> list[Affine]:
    """Read the maps of a folder."""
    tensors = load_file(folder / "targets.safetensors")
    return [
        Affine(tensors[f"{number}.weight"], tensors[f"{number}.bias"]) for number in range(len(tensors) // 2)
    ]
