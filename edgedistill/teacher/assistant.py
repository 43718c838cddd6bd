"""Assistants: a finished run as a teacher, and the embedding layer of a teacher as a teacher of its own."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from edgedistill import files, recipe, run
from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.resolve import MODEL_FILES, is_run
from edgedistill.runtime import prompts
from edgedistill.runtime.prompts import OF_ROLES, Prompts
from edgedistill.session import Session
from edgedistill.students.bert import BertStudent
from edgedistill.teacher.encoder import TeacherEncoder

ANY_DEVICE = Session(device="auto")


class RunTeacher(TeacherEncoder):
    """The student of a finished run as a teacher; its embeddings are cached under the hash of its weights.

    Raises UserError: an unfinished run, or `pooling`, which only a model folder has.
    """

    def _open(self, remote_code: bool) -> None:
        opened = run.open_run(str(self.spec.model), remote_code=remote_code)
        if self.spec.pooling:
            raise UserError(f"{self.spec.model}: a run has its own pooling; leave `pooling` out")
        self.folder = opened.folder
        self.run = opened
        self.hashes = self.file_hashes()
        self.tokenizer = opened.tokenizer()
        self.module = opened.student()
        self.prompts = _prompts(self.spec, opened.prompts)
        self.max_tokens = min(self.spec.max_tokens, opened.max_tokens)

    def file_hashes(self) -> Json:
        """The hashes of weights, shape and tokenizer."""
        return {"run": run_hashes(self.run)}

    def model_identity(self) -> Json:
        """What determines the embeddings but for the arithmetic: the run's files, prompt and max tokens."""
        return {**self.hashes, "prompt": self.prompt, "max_tokens": self.max_tokens}


def _prompts(spec: recipe.Teacher, of_run: Prompts) -> Prompts:
    """The recipe's prompts, and those of the run where it gives none."""
    named = spec.model_dump(include=set(OF_ROLES), exclude_none=True)
    return prompts.read({"prompt": spec.prompt or of_run.text, **of_run.own, **named})


class MeanEmbeddingLayer(nn.Module):
    """The embedding layer of an encoder, mean-pooled: `forward(input_ids, attention_mask) -> (B, H)`."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.poolings = ["mean"]
        self.dims = int(inner.model.config.hidden_size)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids, attention_mask (B, T) int64, right-padded. Returns (B, H)."""
        return self.inner.embedded(input_ids, attention_mask)


def embedding_layer(teacher: TeacherEncoder) -> TeacherEncoder:
    """The mean-pooled embedding layer of a teacher as a teacher: token, position and segment embeddings and
    their LayerNorm.

    The student's embedding layer matches it before the student's other layers are trained (multi-stage
    distillation, Eq. 3). Raises UserError for a teacher without such a layer.
    """
    inner = teacher.module
    if not isinstance(inner, BertStudent) and not hasattr(getattr(inner, "model", None), "embeddings"):
        raise UserError(
            f"assistant: {teacher.spec.name} has no BERT-like embedding layer; leave `layer: embeddings` out"
        )
    layer = copy.copy(teacher)
    layer.module = MeanEmbeddingLayer(inner).eval()
    layer.dtype = torch.float32
    layer.layer = "embeddings"
    layer._opened = []
    return layer


def run_hashes(opened: run.Run) -> dict[str, str]:
    """The hashes of the files that decide what a run's student gives; of a teacher's own run, of the whole
    model and its `targets`."""
    names = ["student.safetensors", "student.json", "tokenizer/tokenizer.json"]
    names += ["targets/targets.safetensors"] if opened.kind == "reduced" else []
    hashes = {
        name: files.sha256_file(opened.folder / name) for name in names if (opened.folder / name).exists()
    }
    model = opened.folder / "model"
    return hashes | ({"model": files.sha256_folder(model, MODEL_FILES)} if model.exists() else {})


def open_assistant(
    spec: recipe.Teacher, place: str = "assistant", session: Session = ANY_DEVICE
) -> TeacherEncoder:
    """The assistant named by the folder of a run, the folder of a model, or a hub id with a revision.

    The recipe names it in the section `place`; the session decides the device, and whether remote code may
    run.
    """
    kind = RunTeacher if is_run(spec.model) else TeacherEncoder
    return kind(spec, place, session.device, session.remote_code)
