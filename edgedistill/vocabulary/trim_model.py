"""Trim a sentence encoder to the tokens that texts use: its tokenizer, embedding table and config; all else
stays unchanged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from edgedistill import files, resolve
from edgedistill.data import file_patterns, readers
from edgedistill.errors import CheckFailed, UserError
from edgedistill.session import QUIET, Session, progress_bar
from edgedistill.students import model_folder
from edgedistill.students import sentence_transformer as encoder
from edgedistill.students.bert_layers import COUNTED_FROM_PADDING
from edgedistill.teacher import tokenizer_files
from edgedistill.vocabulary import trim_report, trim_tokenizer

MAX_DIFFERENCE = 1e-5  # between two runs of the same arithmetic, of token embeddings of size 1
MOST_NAMED = 20  # files of a pattern that are reported each by itself
HEADS = (
    "lm_head",
    "predictions",
    "shared",
    "embed_tokens",
)  # parts of a checkpoint that may have one row per token, as the table has
TOKENIZER = (
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
)
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "*.index.json")


class TrimCorpus(NamedTuple):
    """The texts that decide which tokens stay: tokens that the files of `texts` use at least `min_count`
    times.

    `texts`, `report_texts`: GLOB or GLOB:COLUMN, relative to the data folder, without one to the current
        folder; what trimming changes
    is reported for both.
    """

    texts: Sequence[str]
    report_texts: Sequence[str] = ()
    min_count: int = 1


def trim(
    model: str, corpus: TrimCorpus, out: Path, session: Session = QUIET, revision: str | None = None
) -> dict[str, Any]:
    """Write the encoder `model` (a folder, a hub id, packaged:NAME), trimmed to the tokens of a corpus, to
    the folder `out`.

    The folder is written atomically. Returns tokens and bytes before and after, what changed for the texts of
    each file, and the largest difference of a token embedding on unchanged texts. Raises UserError: `out`
    exists, no such model or file, a run or a bundle in place of a model, a tokenizer that cannot be trimmed;
    CheckFailed, with nothing written, where the token embeddings of an unchanged text differ.
    """
    if out.exists():
        raise UserError(f"{out}: exists already; choose another --out, or delete it")
    found = resolve.resolve(model)
    _check_model(found, revision)
    texts = _found(corpus.texts, session.data, "--corpus")
    report_texts = _found(corpus.report_texts, session.data, "--report")
    folder = resolve.model_files(found, revision, "trim")
    tokenizer = tokenizer_files.load_tokenizer(folder)
    opened = model_folder.read(folder)
    if opened.chain:
        encoder.read(
            folder, None
        )  # the modules behind the transformer are copied as they are, so they must open
    transformer = opened.transformer
    config = files.read_json(transformer / "config.json")
    prompts = [
        "",
        *dict.fromkeys(prompt for prompt in opened.prompts.values() if prompt),
    ]  # what may come before a text
    session.log(f"{model}: counting the tokens of {sum(len(each.paths) for each in texts):,} file(s)")
    with progress_bar(None, session.progress, "reading") as advance:
        sources, reported = (
            [each.named(prompts, advance) for each in found] for found in (texts, report_texts)
        )
        trimmed = trim_tokenizer.trimmed(tokenizer, sources, reported, corpus.min_count, _fixed_ids(config))
    with files.new_folder(out) as temporary:
        inside = temporary / transformer.relative_to(folder)
        _copy(folder, temporary, transformer)
        _write_tokenizer(trimmed.tokenizer, inside)
        save_file(
            _trimmed_tensors(folder, transformer, trimmed.old_ids),
            inside / "model.safetensors",
            {"format": "pt"},
        )
        (inside / "model.safetensors").chmod(0o644)
        files.write_json(inside / "config.json", _config(config, trimmed.old_ids))
        difference = _difference(
            transformer, inside, tokenizer, trimmed, tokenizer_files.max_input_tokens(folder, tokenizer)
        )
        if not difference <= MAX_DIFFERENCE:
            fact = (
                f"token embeddings of an unchanged text differ by {difference:.2e}, {MAX_DIFFERENCE} is "
                "allowed"
            )
            raise CheckFailed(f"{out} was not written: {fact}", {"difference": difference})
        before = sum((transformer / name).stat().st_size for name in _weights(transformer))
        report = {
            **trimmed.report,
            "size_bytes": {"before": before, "after": (inside / "model.safetensors").stat().st_size},
        }
        report |= {"compared": len(trimmed.examples), "max_difference": difference}
        files.write_json(
            temporary / "trim.json",
            {"model": model, "revision": revision, "min_count": corpus.min_count, **report},
        )
    return {"model": str(out), **report}


def _check_model(found: resolve.Resolved, revision: str | None) -> None:
    """Raise UserError for a run, a bundle, and a name that is neither a folder nor a hub id with its
    revision."""
    if isinstance(found, resolve.RunFolder):
        way_out = (
            "student: {weights: assistant, tokenizer: assistant, trim: {}}, with that run as the "
            "assistant and no stages"
        )
        raise UserError(
            f"{found.name}: a run, which a recipe trims: {way_out} (see multi-stage-c96-m3-trimmed)"
        )
    if isinstance(found, resolve.BundleFolder):
        raise UserError(
            f"{found.name}: a bundle; trim needs a model folder or a hub id: trim what the bundle was "
            "exported from, then export that"
        )
    if isinstance(found, resolve.HubId) and revision is None:
        way_out = "if it is a hub id, add --revision" if found.possible else "give a folder or a hub id"
        raise UserError(f"{found.name}: no such folder; {way_out}")


class _Texts(NamedTuple):
    """Files whose texts are counted together, and the column of those that are tables."""

    name: str
    paths: list[Path]
    column: str
    option: str

    def named(self, prompts: list[str], advance: Callable[[int], None]) -> trim_report.NamedTexts:
        """The texts, each once with each prompt; `advance` is called with how many were read."""
        return trim_report.NamedTexts(self.name, partial(self._read, prompts, advance))

    def _read(self, prompts: list[str], advance: Callable[[int], None]) -> Iterator[str]:
        texts = chain.from_iterable(
            readers.texts_in(path, self.column, f"{self.option} GLOB:COLUMN") for path in self.paths
        )
        for chunk in trim_report.chunks(texts):
            yield from (prompt + text for text in chunk for prompt in prompts)
            advance(len(chunk))


def _found(patterns: Sequence[str], data: Path | None, option: str) -> list[_Texts]:
    """The texts of each file; those of a pattern with many files are taken together."""
    found: list[_Texts] = []
    for given in patterns:
        pattern, colon, column = given.rpartition(":")
        if not (colon and pattern and column.isidentifier()):
            pattern, column = given, "text"
        paths = file_patterns.matching_files([pattern], data or Path(), option)
        if len(paths) > MOST_NAMED:
            found.append(_Texts(f"{given} ({len(paths):,} files)", paths, column, option))
        else:
            found += [
                _Texts(path.name if pattern == given else f"{path.name}:{column}", [path], column, option)
                for path in paths
            ]
    return found


def _fixed_ids(config: dict[str, Any]) -> range:
    """Ids that must not change: the padding id, and where positions are counted from it, all ids below it
    too."""
    pad = config.get("pad_token_id")
    if pad is None:
        return range(0)
    return range(pad + 1) if config.get("model_type") in COUNTED_FROM_PADDING else range(pad, pad + 1)


def _copy(folder: Path, out: Path, transformer: Path) -> None:
    """All files but the tokenizer's, the transformer's weights, and the same weights in other formats."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        parts = path.relative_to(folder).parts
        other = any(fnmatch(part, pattern) for part in parts for pattern in (*resolve.OTHER_FORMATS, ".*"))
        remade = path.parent == transformer and any(
            fnmatch(path.name, pattern) for pattern in (*TOKENIZER, *WEIGHTS)
        )
        if not other and not remade:
            (out / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, out / path.relative_to(folder))


def _write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    files.write_json(
        path, {**files.read_json(path), "tokenizer_class": "PreTrainedTokenizerFast"}
    )  # a class that all versions of transformers know
    files.write_json(folder / "special_tokens_map.json", tokenizer.special_tokens_map)


def _weights(transformer: Path) -> list[str]:
    """The files that hold the transformer's weights: one, or those an index names."""
    name = next(name for name in model_folder.WEIGHTS if (transformer / name).exists())
    return (
        sorted(set(files.read_json(transformer / name)["weight_map"].values()))
        if name.endswith(".index.json")
        else [name]
    )


def _trimmed_tensors(folder: Path, transformer: Path, old_ids: np.ndarray) -> dict[str, Tensor]:
    """The transformer's tensors, with only the kept rows of the embedding table and of heads that have one
    row per token.

    Raises UserError: no weights, no embedding table among them.
    """
    if not any((transformer / name).exists() for name in model_folder.WEIGHTS):
        raise UserError(
            f"{folder}: a model without weights (none of {', '.join(model_folder.WEIGHTS)}); fetch it whole"
        )
    tensors: dict[str, Tensor] = {}
    for name in _weights(transformer):
        path = transformer / name
        with model_folder.opening(path, "its weights do not open"):
            safe = path.suffix == ".safetensors"
            tensors |= load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    table, rows = _embedding_table(transformer)
    kept, found = torch.from_numpy(old_ids), False
    for name, tensor in tensors.items():
        is_table = name.endswith(table)
        head = any(part in HEADS for part in name.split("."))
        if (is_table or head) and tensor.ndim and tensor.shape[0] == rows:
            tensors[name] = tensor[kept]
            found |= is_table
    if not found:
        raise UserError(
            f"{folder}: its weights hold no {table} of {rows:,} rows; the embedding table is not where the "
            "config says"
        )
    return {name: tensor.clone().contiguous() for name, tensor in tensors.items()}


def _embedding_table(transformer: Path) -> tuple[str, int]:
    """(the name of the embedding table's parameter in the bare encoder, its number of rows)."""
    from transformers import AutoConfig

    with torch.device("meta"), encoder.quiet():
        model = AutoModel.from_config(AutoConfig.from_pretrained(transformer, trust_remote_code=False))
    table: Any = model.get_input_embeddings().weight
    return next(name for name, parameter in model.named_parameters() if parameter is table), int(
        table.shape[0]
    )


def _config(config: dict[str, Any], old_ids: np.ndarray) -> dict[str, Any]:
    """config.json with the new vocabulary size and the new ids of special tokens; that of a removed token is
    null."""
    new_ids = {old: new for new, old in enumerate(old_ids.tolist())}
    special = {
        name: new_ids.get(value)
        for name, value in config.items()
        if name.endswith("_token_id") and isinstance(value, int)
    }
    return {**config, **special, "vocab_size": len(old_ids)}


def _difference(
    before: Path,
    after: Path,
    tokenizer: PreTrainedTokenizerBase,
    trimmed: trim_tokenizer.TrimmedTokenizer,
    max_tokens: int,
) -> float:
    """The largest difference of a token embedding between the two folders, as transformers opens them, over
    unchanged texts.

    Each text is encoded in a batch of its own.
    """
    opened = AutoTokenizer.from_pretrained(after, trust_remote_code=False)
    with encoder.quiet(), torch.inference_mode():
        models = [
            AutoModel.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
            for folder in (before, after)
        ]
        differences = [torch.zeros(())]
        for text in trimmed.examples:
            outputs = []
            for each, model in zip((tokenizer, opened), models, strict=True):
                ids = torch.from_numpy(
                    tokenizer_files.encode_ids(each, [text], max_tokens)[0].astype(np.int64)
                )[None]
                outputs.append(model(input_ids=ids, attention_mask=torch.ones_like(ids))[0])
            if outputs[0].shape != outputs[1].shape:
                return float("inf")
            differences.append((outputs[0] - outputs[1]).abs().max())
    return float(torch.stack(differences).max())  # keeps NaN, which Python's max() may drop
