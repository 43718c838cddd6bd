"""Assistants: a finished run as a teacher, and a teacher's embedding layer alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgedistill import files, recipe, run
from edgedistill.errors import UserError
from edgedistill.students.bert import BertStudent
from edgedistill.teacher import encoder
from edgedistill.teacher.encoder import Forward, Teacher, through_torch


class OfRun(Teacher):
    """The student of a finished run, read as a teacher; its vectors are cached under its weights.

    Raises UserError: a run that is not finished, and what goes with a model's folder alone (`pooling`, `prompt_name`).
    """

    def __init__(self, spec: recipe.Teacher) -> None:
        assert spec.model is not None
        opened = run.open_run(Path(spec.model))
        if spec.pooling or spec.prompt_name:
            raise UserError(f"{spec.model}: a run brings its own pooling and has no named prompts; leave both out")
        self.spec, self.folder, self.run = spec, opened.folder, opened
        self.tokenizer = opened.tokenizer()
        self.module: Any = opened.student()
        self.prompt = spec.prompt or opened.prompt
        self.max_tokens = min(spec.max_tokens, opened.max_tokens)
        self.dtype = encoder.dtype(spec.dtype)
        self._open = None

    def made_of(self) -> dict[str, Any]:
        """What decides its vectors: the bytes of weights, shape and tokenizer, and how it is read."""
        parts = ("student.safetensors", "student.json", "tokenizer/tokenizer.json", "model/model.safetensors")
        shas = {name: files.sha256_file(self.folder / name) for name in parts if (self.folder / name).exists()}
        return {"run": shas, "prompt": self.prompt, "max_tokens": self.max_tokens, "dtype": str(self.dtype)}


class Embedded(nn.Module):
    """`forward(input_ids, attention_mask) -> (B, H)`: the mean of an encoder's embedding layer."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.dims = int(inner.model.config.hidden_size)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids, attention_mask (B, T) int64, right-padded. Returns (B, H)."""
        return self.inner.embedded(input_ids, attention_mask)


class EmbeddingLayer(Teacher):
    """The embedding layer of a teacher in the teacher's place: word, position and segment tables and their norm, then the mean.

    What the student's embedding layer is to match before it has any other (multi-stage distillation, Eq. 3).
    """

    def __init__(self, whole: Teacher) -> None:
        inner = whole.module
        if not isinstance(inner, BertStudent) and not hasattr(getattr(inner, "model", None), "embeddings"):
            raise UserError(f"assistant: {whole.spec.name} has no embedding layer of tables and a norm; leave `at: embeddings` out")
        self.whole, self.spec, self.folder, self.tokenizer = whole, whole.spec, whole.folder, whole.tokenizer
        self.module: Any = Embedded(inner).eval()
        self.prompt, self.max_tokens, self.dtype = whole.prompt, whole.max_tokens, torch.float32

    def made_of(self) -> dict[str, Any]:
        """What decides its vectors."""
        return {**self.whole.made_of(), "dtype": str(self.dtype), "layer": "embeddings"}

    def _forward(self, device: str) -> Forward:
        """Looking up and adding: torch is fast enough, on any device."""
        return through_torch(self.module.to(device), torch.device(device))


def open_assistant(spec: recipe.Teacher) -> Teacher:
    """An assistant: a run's folder, a model's folder, or a hub id at a revision."""
    return OfRun(spec) if run.is_run(spec.model) else Teacher(spec)
