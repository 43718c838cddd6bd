"""The teacher: a sentence encoder that embeds texts, in torch or as a graph in onnxruntime. Its int8 graph is
made as an export would make it, compared with torch, then cached, because making it takes a while."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy import ndarray
from onnxruntime import InferenceSession

from edgedistill import files, machine, quantization, recipe
from edgedistill.data.cached_folder import cached_folder
from edgedistill.errors import CheckFailed, UserError
from edgedistill.files import Json
from edgedistill.precisions import PRECISIONS
from edgedistill.quantization.sample_texts import Reader, agreement, embeddings, samples
from edgedistill.resolve import MODEL_FILES, teacher_files
from edgedistill.runtime.batching import longest_first, pad
from edgedistill.runtime.bundle import BATCH_TOKENS
from edgedistill.runtime.onnx_session import RUN_OPTIONS, open_in_memory, open_session
from edgedistill.runtime.similarity import unit_rows
from edgedistill.session import QUIET, Session
from edgedistill.students import graph, model_folder, sentence_transformer
from edgedistill.teacher.tokenizer_files import encode_ids, load_tokenizer, max_input_tokens, prompts_of

# part of an int8 graph's key: raise it when another graph is made of the same weights
INT8_FORMAT = 3
TOKENS_PER_BATCH = 2_048
SAME_EMBEDDING = 0.999  # cosine, of bf16 too
COMPARED = ["A cat.", "Zwölf Boxkämpfer, NAÏVE and LOUD!", "one text of many words " * 200]
NOT_ON_CUDA = "int8 is for processors, and this device is cuda; set it to auto, or --device cpu"
NOT_IN_INT8 = "set it to auto, bf16 or fp32"

# (ids, mask), each (B, T) int64, right-padded -> embeddings (B, d) before they are scaled to unit length
Forward = Callable[[ndarray, ndarray], ndarray]


class TeacherEncoder:
    """A sentence encoder ready to embed: its tokenizer, its module, and the identity that is part of its
    cache key.

    The recipe names it in the section `place`. The device it will embed on (auto, cpu or cuda) decides the
    dtype `auto`; int8 is refused on cuda. With `remote_code`, Python code that comes with the model may run.
    """

    role = "text"  # of the texts that are embedded
    layer: str | None = None  # whose output is embedded, where it is not the last

    def __init__(
        self, spec: recipe.Teacher, place: str = "teacher", device: str = "auto", remote_code: bool = False
    ) -> None:
        self.spec = spec
        self.place = place
        self.dtype = resolve_dtype(spec.dtype, device)
        if self.dtype == torch.int8 and device_of(device) == "cuda":
            raise UserError(f"{place}.dtype: {NOT_ON_CUDA}")
        self._opened = list[Forward]()  # one graph, for all roles
        self.module: Any
        self._open(remote_code)

    def _open(self, remote_code: bool) -> None:
        """Open the model's files."""
        self.folder = teacher_files(self.spec, self.place)
        # a folder such as a home is refused before it is hashed
        self.settings = model_folder.read(self.folder)
        self.hashes = self.file_hashes()
        self.tokenizer = load_tokenizer(self.settings, remote_code)
        self.module = sentence_transformer.read(self.settings, self.spec.pooling, remote_code)
        self.prompts = prompts_of(self.spec, self.settings)
        self.limit = max_input_tokens(self.settings, self.tokenizer)
        self.max_tokens = min(self.spec.max_tokens, self.limit)
        if self.settings.unread:
            self._compare(remote_code)

    @property
    def dims(self) -> int:
        return int(self.module.dims)

    @property
    def prompt(self) -> str:
        """What is put before every text."""
        return self.prompts.of(self.role)

    keeps_lengths = True  # whether it can embed without scaling to unit length

    def in_role(self, role: str) -> TeacherEncoder:
        """The same encoder for texts that are queries or documents: `embed` puts that role's prompt before
        each.

        Cached embeddings are keyed by the prompt and not by the role, so those of roles without a prompt of
        their own are shared. Raises UserError for an unknown role.
        """
        if self.prompts.of(role) == self.prompt:
            return self
        other = copy.copy(self)
        other.role = role
        return other

    @property
    def reader(self) -> Reader:
        """How it reads texts."""
        return Reader(self.tokenizer, self.prompt, self.max_tokens)

    def _compare(self, remote_code: bool) -> None:
        """Compare embeddings with those of sentence-transformers, whose import takes seconds. Raises
        UserError where the settings that are not read here change them."""
        settings = f"{', '.join(self.settings.unread)} (not read here)"
        with model_folder.opening(self.folder, f"{settings}, and sentence-transformers"):
            from sentence_transformers import SentenceTransformer

            options = {"trust_remote_code": remote_code, "local_files_only": not remote_code}
            with sentence_transformer.quiet():
                judge = SentenceTransformer(str(self.folder), device="cpu", **options)
            expected = np.stack([judge.encode(text, prompt="") for text in COMPARED])
            ids = encode_ids(self.tokenizer, COMPARED, self.limit)
            forward = torch_forward(self.module, torch.device("cpu"))
            rows = embed_in_batches(forward, ids, 0, self.dims, 1)
        least = 0.0
        if expected.shape == rows.shape:
            least = float((unit_rows(expected) * rows).sum(1).min())
        if not least >= SAME_EMBEDDING:
            raise UserError(
                f"{self.folder}: {settings} changes embeddings: {least:.3f} is their cosine to those of "
                f"sentence-transformers; {model_folder.ELSEWHERE}"
            )

    def file_hashes(self) -> Json:
        """The hashes of the files that the model is read from, as they are now."""
        return {"model": files.sha256_folder(self.folder, MODEL_FILES)}

    def identity(self) -> Json:
        """Everything that determines the embeddings: `model_identity`, dtype, and in int8 what decides the
        graph.

        Raises UserError where the model's files have changed since it was opened: its embeddings would be
        cached under a hash that is not its own.
        """
        if self.file_hashes() != self.hashes:
            raise UserError(
                f"{self.folder}: its files have changed since the model was opened, so its embeddings would "
                "be cached as another model's; start again, and leave the folder alone meanwhile"
            )
        in_int8 = None
        if self.dtype == torch.int8:
            texts = files.cache_key(samples=_samples(self.in_role("text").reader))
            version = ".".join(onnxruntime.__version__.split(".")[:2])
            in_int8 = {"format": INT8_FORMAT, "onnxruntime": version, "samples": texts}
        return {**self.model_identity(), "layer": self.layer, "dtype": str(self.dtype), "int8": in_int8}

    def model_identity(self) -> Json:
        """What determines the embeddings but for the arithmetic: the hash of the model's files, pooling,
        prompt and max tokens."""
        return {
            **self.hashes,
            "pooling": self.module.poolings,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "dims": self.settings.kept_dims,
            "lower_case": self.settings.lower_case,
            "truncation": self.tokenizer.truncation_side,
        }

    def prepare(self, session: Session = QUIET) -> None:
        """Open what `embed` runs on a CPU: in fp32 a graph, in int8 one from the cache, where making it may
        take a minute.

        Raises UserError: int8 of a model that has no graph or loses too much.
        """
        if self._opened or self.layer:  # lookups and additions are fast enough in torch
            return
        if self.dtype == torch.int8:
            self._opened.append(self.in_role("text")._int8_graph(session))
        elif self.dtype == torch.float32 and session.device == "cpu":
            self._opened.append(self._fp32_graph(session))

    def embed(self, texts: list[str], device: str = "cpu", unit: bool = True) -> ndarray:
        """Embed texts: (n, d) float32 in the order of the texts, of unit length or unnormalized; batches are
        of similar length."""
        prompted = [self.prompt + text for text in texts]
        return self.embed_ids(encode_ids(self.tokenizer, prompted, self.max_tokens), device, unit)

    def embed_ids(self, ids: list[ndarray], device: str = "cpu", unit: bool = True) -> ndarray:
        """Embed token ids (n_i,) of n texts, special tokens included: (n, d) float32. Raises UserError as
        `prepare`."""
        tokens = TOKENS_PER_BATCH if device == "cpu" else 32 * TOKENS_PER_BATCH
        if self.dtype == torch.int8:  # in the runner's batches, which fit a processor's cache
            tokens = BATCH_TOKENS["cpu"]
        pad_id = self.tokenizer.pad_token_id or 0
        return embed_in_batches(self._forward(device), ids, pad_id, self.dims, tokens, unit)

    def _forward(self, device: str) -> Forward:
        """(ids, mask) -> unnormalized embeddings. On a CPU in fp32 by onnxruntime, about twice as fast as
        torch, and in int8; otherwise by torch."""
        self.prepare(Session(device=device))
        if device == "cpu" and self._opened:
            return self._opened[0]
        return torch_forward(self.module.to(device), torch.device(device), half=self.dtype == torch.bfloat16)

    def _fp32_graph(self, session: Session) -> Forward:
        """The module as a graph in onnxruntime; in torch where no graph gives the same."""
        try:
            model = graph.build_checked(self.module, self.max_tokens, len(self.tokenizer))
        except CheckFailed as error:
            session.log(f"{self.place}: {self.spec.name} runs in torch, at about half the speed: {error}")
            return torch_forward(self.module.to("cpu"), torch.device("cpu"))
        rows = graph.before_unit(model)
        # a process' first session decides for its main thread whether denormal numbers are zero
        settings = {"intra_op.allow_spinning": "1", "set_denormal_as_zero": "1"}
        opened = open_in_memory(model.SerializeToString(), torch.get_num_threads(), settings)
        return _graph_forward(opened, rows)

    def _int8_graph(self, session: Session) -> Forward:
        """The int8 graph from the cache, otherwise made and cached. Raises UserError where there is no graph,
        or it loses too much."""

        def write(folder: Path) -> None:
            session.log(
                f"{self.place}: making the int8 graph of {self.spec.name}; once, and a minute or two for "
                "twelve layers"
            )
            self._write_int8(folder / "graph.onnx", session)

        folder = session.cache / "graphs" / files.cache_key(**self.identity())
        file = cached_folder(folder, write, session.log) / "graph.onnx"
        opened = open_session(file, torch.get_num_threads(), "cpu")
        last = opened.get_outputs()[-1].name  # see `graph.before_unit`
        return _graph_forward(opened, "sentence_embedding" if last == "last_hidden_state" else last)

    def _write_int8(self, file: Path, session: Session) -> None:
        """Write the int8 graph after the comparison with torch."""
        reader = self.reader
        name = self.spec.name
        required = PRECISIONS["int8"].single_cosine
        try:
            model = graph.build_checked(self.module, self.max_tokens, len(self.tokenizer))
        except CheckFailed as error:
            raise UserError(
                f"{self.place}.dtype: int8 needs a graph of {name}, and {error}; {NOT_IN_INT8}"
            ) from error
        golden = _golden(reader)
        quantized, in_w8 = quantization.within_limit(model, "int8", _samples(reader), golden)
        mean, least = agreement(quantized, embeddings(model, golden), golden)
        if not least >= required:  # NaN is above nothing
            raise UserError(
                f"{self.place}.dtype: {name} in int8 has a cosine of {least:.4f} on a text, {required} is "
                f"required; {NOT_IN_INT8}"
            )
        session.log(
            f"{self.place}: int8 graph made; cosine to torch {mean:.4f} mean, {least:.4f} min on the golden "
            f"texts, {len(in_w8)} products in w8"
        )
        graph.before_unit(quantized)
        file.write_bytes(quantized.SerializeToString())


def _golden(reader: Reader) -> list[list[int]]:
    """Token ids of the golden texts, but for those without any."""
    return list(filter(None, reader.token_ids(reader.golden_texts())))


def _samples(reader: Reader) -> list[list[int]]:
    return list(filter(None, samples(reader, _golden(reader))))


def _graph_forward(opened: InferenceSession, rows: str) -> Forward:
    return lambda ids, mask: opened.run([rows], {"input_ids": ids, "attention_mask": mask}, RUN_OPTIONS)[0]


def teacher_shape(spec: recipe.Student, teacher: TeacherEncoder) -> Json:
    """The student.json of a student that is the teacher. Its max input tokens never exceed what the model's
    files allow."""
    most = min(spec.max_tokens or teacher.limit, teacher.limit)
    prompts = {"prompt": teacher.prompts.text, **teacher.prompts.own}
    return {"kind": "teacher", "pooling": teacher.spec.pooling, **prompts, "max_tokens": most}


def resolve_dtype(name: str, device: str = "auto") -> torch.dtype:
    """The torch dtype of fp32, bf16, int8 or auto, on a device: auto (cuda where available), cpu or cuda.

    auto is bf16 where the hardware computes in it, which halves the time at a cosine above 0.9999 to fp32;
    otherwise fp32.
    """
    if name != "auto":
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}[name]
    if device != "cpu" and torch.cuda.is_available():
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    # torch also reports bf16 as supported where it emulates it, four times slower than fp32; the CPU flags
    # are reliable
    in_bf16 = {"avx512_bf16", "amx_bf16"} & set(machine.flags())
    return torch.bfloat16 if in_bf16 else torch.float32


def device_of(name: str) -> str:
    """The device that auto, cpu or cuda stands for in this process. Raises UserError where torch sees no
    CUDA."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; use --device cpu")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def torch_forward(module: torch.nn.Module, device: torch.device, half: bool = False) -> Forward:
    """A torch module as a function of numpy arrays, without gradients, and with `half` under bf16
    autocast."""
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=half)

    def forward(input_ids: ndarray, mask: ndarray) -> ndarray:
        with torch.inference_mode(), autocast:
            inputs = (torch.from_numpy(array).to(device) for array in (input_ids, mask))
            return module(*inputs).float().cpu().numpy()

    return forward


def embed_in_batches(
    forward: Forward, ids: list[ndarray], pad_id: int, dims: int, tokens: int, unit: bool = True
) -> ndarray:
    """Embeddings (n, dims) float32 in the order of `ids`, computed in batches of similar length and at most
    `tokens` padded tokens.

    With `unit` they are scaled to unit length, otherwise they are as `forward` returns them.
    """
    out = np.empty((len(ids), dims), np.float32)
    for rows in longest_first([max(1, len(row)) for row in ids], tokens):
        embeddings = forward(*pad([ids[row] for row in rows], pad_id))
        out[rows] = unit_rows(embeddings) if unit else embeddings
    return out


def flush_denormals() -> None:
    """Flush denormals to zero in this process: Adam's moments of rare tokens become denormal and slow a CPU
    step down 13 times."""
    torch.set_flush_denormal(True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
