"""Open a bundle, check it, turn texts into unit vectors: the reference runner. numpy, tokenizers and onnxruntime, nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from edgedistill import files, machine
from edgedistill.errors import AnswerIsNo, UserError, unknown

SCHEMA = 1  # of manifest.json
PRECISIONS = ("w8", "int8", "fp32")  # in the order load() prefers them
BATCH_TOKENS = {"cpu": 1_024, "cuda": 16_384}  # padding included: as much as stays in a processor's cache; it bounds memory too
WINDOW = 32_768  # texts tokenized and sorted at a time: what is held beside the answer
KEYS = ("name", "kind", "dims", "max_tokens", "prompt", "precisions", "files", "output")


Item = str | Sequence[str]  # what a classifier judges: a text, or a pair of texts
INPUTS = ("input_ids", "attention_mask", "input_ids_2", "attention_mask_2")  # of one text, of a pair


class Classes(NamedTuple):
    """What a classifier says: each item's label, and the probability of every label, (n, C) in the order of the bundle's `labels`."""

    labels: list[str]
    probabilities: np.ndarray


class Bundle:
    """An opened bundle in one precision: `encode(texts) -> (n, d)` unit rows; of a fine-tuned student `classify(texts)` instead."""

    def __init__(self, folder: Path, manifest: dict[str, Any], precision: str, threads: int, device: str) -> None:
        self.folder = folder
        self.manifest = manifest
        self.precision = precision
        self.threads = threads
        self.dims: list[int] = manifest["dims"]
        self.max_tokens: int = manifest["max_tokens"]
        self.labels: list[str] = manifest.get("labels", [])
        self.pair: bool = len(manifest.get("inputs", ())) == 4
        self._device = device
        self._session = onnxruntime.InferenceSession(
            folder / manifest["precisions"][precision]["file"], _options(threads), providers=_providers(device)
        )
        self._outputs = [manifest["output"]]
        self._prompt: str = manifest["prompt"]
        self._pad: int = manifest.get("pad_id", 0)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_tokens)

    def __repr__(self) -> str:
        gives = f"{len(self.labels)} labels a {'pair' if self.pair else 'text'}" if self.labels else f"{self.dims[0]} numbers a text"
        return f"<{self.manifest['name']}, {self.precision}: {gives}>"

    def encode(self, texts: Sequence[str], dim: int | None = None, batch_tokens: int | None = None, progress: bool = False) -> np.ndarray:
        """(n, d) float32 unit rows, in the order of the texts; `dim` keeps the first numbers of a Matryoshka student's vectors.

        Raises UserError for an item that is not text (its index is named) and for a `dim` the student was not trained for.
        """
        dim = self._dim(dim)
        _are_texts(texts)
        if self.labels:
            raise UserError(
                f"{self.manifest['name']}: was fine-tuned and gives labels ({', '.join(self.labels)}), not vectors; call classify"
            )
        out = np.empty((len(texts), dim), np.float32)
        with counting(len(texts), progress) as done:
            for start in range(0, len(texts), WINDOW):
                rows = self._tokenized(texts[start : start + WINDOW], start)
                self._run(rows, out[start : start + len(rows)], batch_tokens, done)
        return out

    def tokenize(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of each text, prompt and special tokens included, cut at `max_tokens`; int64."""
        _are_texts(texts)
        return self._tokenized(texts, 0)

    def encode_ids(self, ids: Sequence[np.ndarray], dim: int | None = None, batch_tokens: int | None = None) -> np.ndarray:
        """(n, d) float32 unit rows of texts that are token ids already. Raises UserError when there are none, or too many, in one."""
        out = np.empty((len(ids), self._dim(dim)), np.float32)
        for at, row in enumerate(ids):
            if not 0 < len(row) <= self.max_tokens:
                raise UserError(f"ids[{at}]: {len(row)} tokens; this bundle takes 1 to {self.max_tokens}")
        self._run(ids, out, batch_tokens, lambda number: None)
        return out

    def classify(self, items: Sequence[Item], batch_tokens: int | None = None) -> Classes:
        """Each item's label, and all probabilities (n, C); an item is a text or, of a bundle for pairs, two texts.

        Raises UserError for an item that is not that (its index is named), and where the bundle gives vectors.
        """
        probabilities = softmax(self.logits(items, batch_tokens))
        return Classes([self.labels[at] for at in probabilities.argmax(1).tolist()], probabilities)

    def logits(self, items: Sequence[Item], batch_tokens: int | None = None) -> np.ndarray:
        """(n, C) float32, before softmax, in the order of the items."""
        if not self.labels:
            raise UserError(f"{self.manifest['name']}: gives vectors, not labels; call encode, or end its recipe with a finetune stage")
        out = np.empty((len(items), len(self.labels)), np.float32)
        for start in range(0, len(items), WINDOW):
            out[start : start + WINDOW] = self.logits_ids(self.tokenize_items(items[start : start + WINDOW], start), batch_tokens)
        return out

    def tokenize_items(self, items: Sequence[Item], first: int = 0) -> list[list[np.ndarray]]:
        """Token ids of the text, or of the two texts, of every item; `first` is the place of items[0] among all, for errors."""
        if isinstance(items, str):
            raise UserError("items: one string; put it in a list")
        for at, item in enumerate(items):
            texts = list(item) if isinstance(item, Iterable) and not isinstance(item, str) else [item]
            if len(texts) != 1 + self.pair or not all(isinstance(text, str) for text in texts):
                wanted = "two texts" if self.pair else "one text"
                raise UserError(
                    f"items[{first + at}]: {self.manifest['name']} takes {wanted} an item; give {'pairs' if self.pair else 'texts'}"
                )
        columns = [[item] if isinstance(item, str) else list(item) for item in items]
        rows = [self._tokenized([item[side] for item in columns], first) for side in range(1 + self.pair)]
        return [list(each) for each in zip(*rows, strict=True)]

    def logits_ids(self, ids: Sequence[Sequence[np.ndarray]], batch_tokens: int | None = None) -> np.ndarray:
        """(n, C) float32 of items that are token ids already: longest first, items of nearly one length together."""
        out = np.empty((len(ids), len(self.labels)), np.float32)
        budget = batch_tokens or BATCH_TOKENS[self._device]
        lengths = np.array([max(len(row) for row in item) for item in ids])
        order, start = np.argsort(-lengths, kind="stable"), 0
        while start < len(order):
            batch = order[start : start + max(1, budget // (int(lengths[order[start]]) * (1 + self.pair)))]
            given = [each for side in range(1 + self.pair) for each in padded([ids[at][side] for at in batch], self._pad)]
            out[batch] = self._session.run(self._outputs, dict(zip(INPUTS, given, strict=False)))[0]
            start += len(batch)
        return out

    def _dim(self, dim: int | None) -> int:
        if dim is None or dim in self.dims:
            return dim or self.dims[0]
        if len(self.dims) == 1:
            raise UserError(f"dim={dim}: {self.manifest['name']} gives {self.dims[0]}; only Matryoshka students can be cut, leave dim out")
        raise UserError(f"dim={dim}: {self.manifest['name']} was trained to be cut at {', '.join(map(str, self.dims))}; choose one")

    @property
    def unknown_id(self) -> int | None:
        """The id of what the tokenizer has no piece for; None where it has a piece for every byte."""
        model = json.loads(self._tokenizer.to_str())["model"]
        if model.get("byte_fallback"):
            return None
        named = model.get("unk_token")
        return self._tokenizer.token_to_id(named) if named is not None else model.get("unk_id")

    def _tokenized(self, texts: Sequence[str], first: int) -> list[np.ndarray]:
        """Token ids; `first` is the place of texts[0] among all of them, for the error."""
        try:
            rows = self._tokenizer.encode_batch_fast([self._prompt + text for text in texts] if self._prompt else list(texts))
        except (TypeError, UnicodeError):
            for at, text in enumerate(texts):
                if not _is_unicode(text):
                    raise UserError(f"texts[{first + at}]: holds half a surrogate pair, which is no text; decode it again") from None
            raise
        return [np.array(row.ids, np.int64) for row in rows]

    def _run(self, rows: Sequence[np.ndarray], out: np.ndarray, batch_tokens: int | None, done: Callable[[int], None]) -> None:
        """Write the vector of each row into `out`: longest first, rows of nearly one length together."""
        if len(rows) == 1:  # a query: nothing to sort or to pad
            self._write(rows[0][None], np.ones((1, len(rows[0])), np.int64), out, slice(None))
            done(1)
            return
        budget = batch_tokens or BATCH_TOKENS[self._device]
        lengths = np.array([len(row) for row in rows])
        order = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(order):
            width = int(lengths[order[start]])
            batch = order[start : start + max(1, budget // width)]
            mask = np.arange(width) < lengths[batch][:, None]
            ids = np.full(mask.shape, self._pad, np.int64)
            ids[mask] = np.concatenate([rows[row] for row in batch])
            self._write(ids, mask.astype(np.int64), out, batch)
            start += len(batch)
            done(len(batch))

    def _write(self, ids: np.ndarray, mask: np.ndarray, out: np.ndarray, where: Any) -> None:
        vectors = self._session.run(self._outputs, {"input_ids": ids, "attention_mask": mask})[0]
        if out.shape[1] != vectors.shape[1]:
            vectors = vectors[:, : out.shape[1]]
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        out[where] = vectors


def padded(rows: Sequence[np.ndarray], pad: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids, mask), each (n, T) int64, right-padded."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad, np.int64)
    ids[mask] = np.concatenate(rows)
    return ids, mask.astype(np.int64)


def softmax(logits: np.ndarray) -> np.ndarray:
    """(n, C) logits -> probabilities, rows summing to 1."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def apart(logits: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The largest difference of a label's probability, row by row: (n, C) twice -> (n,)."""
    return np.asarray(np.abs(softmax(logits.astype(np.float64)) - softmax(others.astype(np.float64))).max(1))


def load(folder: str | Path, precision: str | None = None, threads: int | None = None, device: str = "cpu") -> Bundle:
    """Open a bundle: a folder, a name under bundles/, or a shipped one; `folder:w8` names a precision. Default: w8, else int8, else fp32.

    Every file it reads is checked against its sha256 first: AnswerIsNo when a byte changed. UserError for what is no bundle, not
    whole, or from a newer edgedistill. `threads`: default, the processors this process may use.
    """
    place, named = split(str(folder))
    manifest = read_manifest(place)
    precision = _choose(manifest, place, precision or named)
    problems = check_files(place, manifest, ("tokenizer.json", manifest["precisions"][precision]["file"]))
    if problems:
        raise AnswerIsNo("\n".join(problems), {"problems": problems})
    threads = threads or machine.processors()
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # the tokenizer's pool; read when it first starts
    return Bundle(place, manifest, precision, threads, device)


def split(name: str) -> tuple[Path, str | None]:
    """`bundles/x:w8` -> (bundles/x, w8); a bare name that no folder has is looked for under bundles/, then among the shipped ones."""
    place, colon, last = name.rpartition(":")
    named = colon and place and (last in PRECISIONS or (Path(place) / "manifest.json").is_file())
    path, precision = (Path(place), last) if named else (Path(name), None)
    under = Path("bundles") / path
    if path.exists() or under.exists():
        return (path if path.exists() else under), precision
    shipped = files.shipped("bundle").get(str(path))
    return (shipped.parent if shipped else path), precision


def read_manifest(folder: Path) -> dict[str, Any]:
    """A bundle's manifest.json. Raises UserError: no bundle, not whole, or from a newer schema."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise UserError(f"{folder}: not a bundle (no manifest.json); make one with edgedistill export")
    try:
        manifest = files.read_json(path)
    except ValueError:
        raise UserError(f"{path}: not whole JSON; it was cut short or edited: copy the bundle again") from None
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if not isinstance(schema, int):
        raise UserError(f"{path}: no schema number, so no bundle's manifest; copy the bundle again")
    if schema > SCHEMA:
        raise UserError(f"{path}: schema {schema}, this edgedistill reads up to {SCHEMA}; pip install --upgrade edgedistill")
    missing = [key for key in KEYS if key not in manifest]
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} missing; it was cut short or edited: copy the bundle again")
    return dict(manifest)


def digest(manifest: dict[str, Any]) -> str:
    """The hash of a manifest without the digest it may hold."""
    return files.key(**{name: value for name, value in manifest.items() if name != "digest"})


def check_files(folder: Path, manifest: dict[str, Any], names: Sequence[str]) -> list[str]:
    """A line for each of the files that is missing, or has not the bytes it was made with; and for a manifest that was edited."""
    problems = []
    if "digest" in manifest and manifest["digest"] != digest(manifest):
        problems.append(f"{folder / 'manifest.json'}: not what it was made as (its digest differs); copy the bundle again")
    for name in names:
        path, expected = folder / name, manifest["files"].get(name)
        if not path.is_file():
            problems.append(f"{path}: missing; copy the bundle again")
        elif files.sha256_file(path) != expected:
            problems.append(f"{path}: not the bytes it was made with (sha256 differs from manifest.json); copy the bundle again")
    return problems


def _choose(manifest: dict[str, Any], folder: Path, asked: str | None) -> str:
    there = manifest["precisions"]
    if asked is None:
        return next(precision for precision in (*PRECISIONS, *there) if precision in there)
    if asked in there:
        return asked
    if asked in PRECISIONS:
        raise UserError(f"{folder}: no {asked} here, only {', '.join(there)}; choose one, or export again with --precision {asked}")
    raise UserError(f"{folder}: {unknown('precision', asked, there)}")


def _options(threads: int) -> onnxruntime.SessionOptions:
    """Memory that stays flat over texts of all lengths, and no processor kept busy between two queries."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # it keeps the largest batch ever seen
    options.enable_mem_pattern = False  # it keeps a plan for each shape
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return options


def _providers(device: str) -> list[str]:
    if device == "cpu":
        return ["CPUExecutionProvider"]
    if device != "cuda":
        raise UserError(f"device: {unknown('device', device, ('cpu', 'cuda'))}")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise UserError("device cuda: onnxruntime here has no CUDA; pip install onnxruntime-gpu, or use the cpu")
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]


def _are_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise UserError("texts: one string; put it in a list")
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"texts[{at}]: {type(text).__name__}, not text; give strings")


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def counting(total: int | None, progress: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr where one is wanted; gives the function that moves it on."""
    if not progress:
        yield lambda number: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("embedding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda number: bar.advance(task, number)


# Files of any size, in constant memory
