"""The teacher: a sentence encoder that embeds texts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from edgedistill import files, graph, recipe
from edgedistill.students import sentence_transformer
from edgedistill.teacher.locate_teacher import MODEL_FILES, locate
from edgedistill.teacher.token_batches import budget_batches, encode_ids, pad
from edgedistill.teacher.tokenizer_files import load_tokenizer, max_input_tokens, prompt_of

TOKENS_PER_BATCH = 2_048
Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (ids, mask), each (B, T) int64 -> embeddings (B, d)


class TeacherEncoder:
    """A sentence encoder ready to embed: its tokenizer, its module, and the identity that is part of its cache key."""

    def __init__(self, spec: recipe.Teacher, place: str = "teacher") -> None:
        self.spec = spec
        self.folder = locate(spec, place)
        self.tokenizer = load_tokenizer(self.folder, spec.trust_remote_code)
        self.module: Any = sentence_transformer.read(self.folder, spec.pooling, spec.trust_remote_code)
        self.prompt = prompt_of(spec, self.folder)
        self.max_tokens = min(spec.max_tokens, max_input_tokens(self.folder, self.tokenizer))
        self.dtype = resolve_dtype(spec.dtype)
        self._open: onnxruntime.InferenceSession | None = None

    @property
    def dims(self) -> int:
        return int(self.module.dims)

    def identity(self) -> dict[str, Any]:
        """Everything that determines the embeddings: the hash of the model's files, pooling, prompt, max tokens and dtype."""
        return {
            "model": files.sha256_folder(self.folder, MODEL_FILES),
            "pooling": self.module.poolings,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "dtype": str(self.dtype),
        }

    def embed(self, texts: list[str], device: str = "cpu", unit: bool = True) -> np.ndarray:
        """Embed texts: (n, d) float32 in the order of the texts, of unit length or unnormalized; batches are of similar length."""
        return self.embed_ids(encode_ids(self.tokenizer, [self.prompt + text for text in texts], self.max_tokens), device, unit)

    def embed_ids(self, ids: list[np.ndarray], device: str = "cpu", unit: bool = True) -> np.ndarray:
        """Embed token ids (n_i,) of n texts, special tokens included: (n, d) float32."""
        tokens = TOKENS_PER_BATCH if device == "cpu" else 32 * TOKENS_PER_BATCH
        return embed_in_batches(self._forward(device), ids, self.tokenizer.pad_token_id or 0, self.dims, tokens, unit)

    def _forward(self, device: str) -> Forward:
        """(ids, mask) -> unnormalized embeddings. On a CPU in fp32 by onnxruntime, about twice as fast as torch; otherwise by torch."""
        if device == "cpu" and self.dtype == torch.float32:
            return self._session()
        return torch_forward(self.module.to(device), torch.device(device), half=self.dtype == torch.bfloat16)

    def _session(self) -> Forward:
        if self._open is None:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            options.intra_op_num_threads = torch.get_num_threads()
            options.add_session_config_entry("session.intra_op.allow_spinning", "1")
            model = graph.build(self.module)
            self._rows = graph.before_unit(model)
            self._open = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        session, rows = self._open, self._rows
        return lambda ids, mask: session.run([rows], {"input_ids": ids, "attention_mask": mask})[0]


def teacher_shape(spec: recipe.TeacherItself, teacher: TeacherEncoder) -> dict[str, Any]:
    """The student.json of a student that is the teacher. Its max input tokens never exceed what the model's files allow."""
    limit = max_input_tokens(teacher.folder, teacher.tokenizer)
    most = min(spec.max_tokens or limit, limit)
    return {"kind": "teacher", "pooling": teacher.spec.pooling, "prompt": teacher.prompt, "max_tokens": most}


def resolve_dtype(name: str) -> torch.dtype:
    """The torch dtype of fp32, bf16 or auto.

    auto is bf16 where the hardware computes in it, which halves the time at a cosine above 0.9999 to fp32; otherwise fp32.
    """
    if name != "auto":
        return {"fp32": torch.float32, "bf16": torch.bfloat16}[name]
    if torch.cuda.is_available():
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    try:  # torch also reports bf16 as supported where it emulates it, four times slower than fp32; the CPU flags are reliable
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        flags = ""
    return torch.bfloat16 if "avx512_bf16" in flags or "amx_bf16" in flags else torch.float32


def torch_forward(module: torch.nn.Module, device: torch.device, half: bool = False) -> Forward:
    """A torch module as a function of numpy arrays, without gradients; `half`: under bf16 autocast."""
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=half)

    def forward(input_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode(), autocast:
            return module(torch.from_numpy(input_ids).to(device), torch.from_numpy(mask).to(device)).float().cpu().numpy()

    return forward


def embed_in_batches(forward: Forward, ids: list[np.ndarray], pad_id: int, dims: int, tokens: int, unit: bool = True) -> np.ndarray:
    """Embeddings (n, dims) float32 in the order of `ids`, computed in batches of similar length and at most `tokens` padded tokens.

    `unit`: scaled to unit length, otherwise as `forward` returns them.
    """
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    out = np.empty((len(ids), dims), np.float32)
    for rows in budget_batches(order, ids, tokens):
        embeddings = forward(*pad([ids[row] for row in rows], pad_id))
        out[rows] = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True).clip(1e-12) if unit else embeddings
    return out


def flush_denormals() -> None:
    """Flush denormals to zero in this process: Adam's moments of rare tokens become denormal and slow a CPU step down 13 times."""
    torch.set_flush_denormal(True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
