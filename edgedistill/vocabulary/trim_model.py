"""A sentence encoder's folder -> the same encoder with the pieces a corpus uses: tokenizer, word table, config; nothing else changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from edgedistill import files, recipe
from edgedistill import run as runs
from edgedistill.data import readers
from edgedistill.errors import AnswerIsNo, UserError
from edgedistill.session import QUIET, Session
from edgedistill.students import sentence_transformer as encoder
from edgedistill.teacher import encoder as teachers
from edgedistill.vocabulary import trim_tokenizer

SAME = 1e-5  # largest difference between two runs of the same arithmetic, token vectors being of size 1
HEADS = ("lm_head", "predictions", "shared", "embed_tokens")  # tensors of a row a piece beside the word table, where a checkpoint has them
TOKENIZER = ("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model")
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "*.index.json")


def trim(
    model: str,
    chosen: list[str],
    out: Path,
    session: Session = QUIET,
    others: list[str] | None = None,
    min_count: int = 1,
    revision: str | None = None,
) -> dict[str, Any]:
    """Write the encoder `model` (a folder, a hub id, packaged:NAME) with the pieces that the chosen files use, whole or not at all.

    `chosen`, `others`: GLOB or GLOB:COLUMN, relative ones under `data`; others are reported on only. Returns pieces and bytes before and
    after, what each file lost, and the largest difference of a token vector on kept texts. Raises UserError: `out` exists, no such model
    or file, a tokenizer that cannot be trimmed; AnswerIsNo, with nothing written, where a kept text gets other vectors.
    """
    if out.exists():
        raise UserError(f"{out}: exists already; choose another --out, or delete it")
    if runs.is_run(model):
        way_out = "student: {weights: assistant, tokenizer: assistant, trim: {}}, with that run as the assistant and no stages"
        raise UserError(f"{model}: a run, which a recipe trims: {way_out} (see multi-stage-c96-m3-trimmed)")
    if (Path(model) / "manifest.json").exists():
        raise UserError(f"{model}: a bundle, which stays as it is; trim the model or the run it was made of, then export that")
    if not model.startswith("packaged:") and not Path(model).is_dir() and revision is None:
        raise UserError(f"{model}: no such folder; if it is a hub id, say --revision too, or its files may change unseen")
    folder = teachers.locate(recipe.Teacher(model=model, revision=revision))
    words = teachers.tokenizer(folder)
    transformer, _ = encoder.layout(folder)
    config = files.read_json(transformer / "config.json")
    prompts = _prompts(folder)
    sources, reported = _sources(chosen, session.data, "--corpus", prompts), _sources(others or [], session.data, "--report", prompts)
    session.log(f"{model}: looking for the pieces of {len(sources)} file(s)")
    made = trim_tokenizer.trimmed(words, sources, reported, min_count, _fixed(config))
    with files.new_folder(out) as temporary:
        inside = temporary / transformer.relative_to(folder)
        _copy(folder, temporary, transformer)
        _write_tokenizer(made.words, inside)
        save_file(_sliced(folder, transformer, made.ids), inside / "model.safetensors", {"format": "pt"})
        (inside / "model.safetensors").chmod(0o644)
        files.write_json(inside / "config.json", _config(config, made.ids))
        difference = _difference(transformer, inside, words, made, teachers.own_limit(folder, words))
        if not difference <= SAME:
            raise AnswerIsNo(f"{out} was not written: a kept text's token vectors differ by {difference:.2e}", {"difference": difference})
        before = sum((transformer / name).stat().st_size for name in _weights(transformer))
        found = {**made.report, "size_bytes": {"before": before, "after": (inside / "model.safetensors").stat().st_size}}
        found |= {"compared": len(made.examples), "max_difference": difference}
        files.write_json(temporary / "trim.json", {"model": model, "revision": revision, "min_count": min_count, **found})
    return {"model": str(out), **found}


def _prompts(folder: Path) -> list[str]:
    """What may stand before a text: nothing, and each of the model's own prompts."""
    own = folder / "config_sentence_transformers.json"
    prompts = (files.read_json(own).get("prompts") or {}) if own.exists() else {}
    return ["", *dict.fromkeys(prompt for prompt in prompts.values() if prompt)]


def _sources(patterns: list[str], data: Path | None, where: str, prompts: list[str]) -> list[trim_tokenizer.Texts]:
    """A source for each file and column; every text once for each prompt."""
    found: list[trim_tokenizer.Texts] = []
    for given in patterns:
        pattern, colon, column = given.rpartition(":")
        if not (colon and pattern and column.isidentifier()):
            pattern, column = given, "text"
        for path in readers.matching([pattern], data, where):
            name = path.name if pattern == given else f"{path.name}:{column}"
            found.append((name, partial(_prompted, path, column, prompts)))
    return found


def _prompted(path: Path, column: str, prompts: list[str]) -> Iterator[str]:
    return (prompt + text for text in readers.texts_in(path, column) for prompt in prompts)


def _fixed(config: dict[str, Any]) -> range:
    """Old ids that must stay what they are: where positions are counted from behind the padding id, all up to it."""
    pad = config.get("pad_token_id")
    if pad is None:
        return range(0)
    return range(pad + 1) if config.get("model_type") in teachers.COUNTS_FROM_PAD else range(pad, pad + 1)


def _copy(folder: Path, out: Path, transformer: Path) -> None:
    """All files but the tokenizer's, the transformer's weights, and the same weights in other formats."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        parts = path.relative_to(folder).parts
        other = any(fnmatch(part, pattern) for part in parts for pattern in (*teachers.OTHER_FORMATS, ".*"))
        remade = path.parent == transformer and any(fnmatch(path.name, pattern) for pattern in (*TOKENIZER, *WEIGHTS))
        if not other and not remade:
            (out / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, out / path.relative_to(folder))


def _write_tokenizer(words: PreTrainedTokenizerBase, folder: Path) -> None:
    words.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    files.write_json(path, {**files.read_json(path), "tokenizer_class": "PreTrainedTokenizerFast"})  # the name that all versions know
    files.write_json(folder / "special_tokens_map.json", words.special_tokens_map)


def _weights(transformer: Path) -> list[str]:
    """The files that hold the transformer's weights: one, or those an index names."""
    name = next(name for name in encoder.WEIGHTS if (transformer / name).exists())
    return sorted(set(files.read_json(transformer / name)["weight_map"].values())) if name.endswith(".index.json") else [name]


def _sliced(folder: Path, transformer: Path, ids: np.ndarray) -> dict[str, Tensor]:
    """The transformer's tensors, of the word table (and of heads with a row a piece) the kept rows. Raises UserError: no word table."""
    if not any((transformer / name).exists() for name in encoder.WEIGHTS):
        raise UserError(f"{folder}: a model without weights (none of {', '.join(encoder.WEIGHTS)}); fetch it whole")
    tensors: dict[str, Tensor] = {}
    for name in _weights(transformer):
        path = transformer / name
        tensors |= load_file(path) if path.suffix == ".safetensors" else torch.load(path, map_location="cpu", weights_only=True)
    table, rows = _word_table(transformer)
    kept, sliced = torch.from_numpy(ids), False
    for name, tensor in tensors.items():
        is_table = name.endswith(table)
        head = any(part in HEADS for part in name.split("."))
        if (is_table or head) and tensor.ndim and tensor.shape[0] == rows:
            tensors[name] = tensor[kept]
            sliced |= is_table
    if not sliced:
        raise UserError(f"{folder}: its weights hold no {table} of {rows:,} rows; the word table is not where its config says")
    return {name: tensor.clone().contiguous() for name, tensor in tensors.items()}


def _word_table(transformer: Path) -> tuple[str, int]:
    """(the name of the word table's parameter in the bare encoder, its rows)."""
    from transformers import AutoConfig

    with torch.device("meta"), encoder.quiet():
        model = AutoModel.from_config(AutoConfig.from_pretrained(transformer))
    table: Any = model.get_input_embeddings().weight
    return next(name for name, parameter in model.named_parameters() if parameter is table), int(table.shape[0])


def _config(config: dict[str, Any], ids: np.ndarray) -> dict[str, Any]:
    """config.json with the new number of pieces and the new ids of special ones; a trimmed one is null."""
    new = {old: at for at, old in enumerate(ids.tolist())}
    moved = {name: new.get(value) for name, value in config.items() if name.endswith("_token_id") and isinstance(value, int)}
    return {**config, **moved, "vocab_size": len(ids)}


def _difference(before: Path, after: Path, words: PreTrainedTokenizerBase, made: trim_tokenizer.Trimmed, limit: int) -> float:
    """The largest difference of a token vector between the two folders as others open them, over some kept texts, each alone."""
    opened = AutoTokenizer.from_pretrained(after)
    with encoder.quiet(), torch.inference_mode():
        models = [AutoModel.from_pretrained(folder, dtype=torch.float32).eval() for folder in (before, after)]
        found = [torch.zeros(())]
        for text in made.examples:
            vectors = []
            for tokenizer, model in zip((words, opened), models, strict=True):
                ids = torch.from_numpy(teachers.encode_ids(tokenizer, [text], limit)[0].astype(np.int64))[None]
                vectors.append(model(input_ids=ids, attention_mask=torch.ones_like(ids))[0])
            if vectors[0].shape != vectors[1].shape:
                return float("inf")
            found.append((vectors[0] - vectors[1]).abs().max())
    return float(torch.stack(found).max())  # NaN stays, where Python's max() may drop it


def table(found: dict[str, Any]) -> str:
    """What was kept and lost, as people read it: a line of totals, then a line a file."""
    pieces, size = found["pieces"], found["size_bytes"]
    lines = [
        f"{pieces['after']:,} of {pieces['before']:,} pieces; {size['after'] / 1e6:.1f} of {size['before'] / 1e6:.1f} MB; "
        f"token vectors of {found['compared']} kept texts differ by {found['max_difference']:.1e} at most"
    ]
    for source in found["sources"]:
        lost = source["dropped"]
        text = f"{source['name']}: {source['texts']:,} texts, {source['identical'] or 0:.2%} cut as before"
        if lost["texts"]:
            tokens, unknown = lost["tokens_mean"], lost["unknown"]
            text += f"; the other {lost['texts']:,}: {tokens['before']:.1f} → {tokens['after']:.1f} tokens, "
            text += f"unknown {unknown['before']:.2%} → {unknown['after']:.2%}"
        lines.append(text)
    return "\n".join(lines)
