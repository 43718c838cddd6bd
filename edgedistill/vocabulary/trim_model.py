"""Trim a sentence encoder to the tokens that texts use: its tokenizer, embedding table and config; all else
that it embeds with stays unchanged."""

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
from torch import nn
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from edgedistill import files, resolve
from edgedistill.data import file_patterns, readers
from edgedistill.errors import CheckFailed, UserError
from edgedistill.session import QUIET, Session, progress_bar
from edgedistill.students import model_folder
from edgedistill.students import sentence_transformer as encoder
from edgedistill.students.bert_layers import COUNTED_FROM_PADDING
from edgedistill.students.model_folder import ModelFolder
from edgedistill.teacher import tokenizer_files
from edgedistill.vocabulary import trim_tokenizer
from edgedistill.vocabulary.trim_tokenizer import NamedTexts

MAX_DIFFERENCE = 1e-5  # between two runs of the same arithmetic, of token embeddings of size 1
WEIGHTS = ("*.safetensors", "*.bin")
REWRITTEN = (  # files beside a transformer that hold its tokenizer or its weights
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.index.json",
    *WEIGHTS,
)


class TrimCorpus(NamedTuple):
    """The texts that decide which tokens stay: tokens that the files of `texts` use at least `min_count`
    times.

    `texts` and `report_texts` are GLOB or GLOB:COLUMN, relative to the data folder, without one to the
    current folder; what trimming changes is reported for each of them.
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
    each pattern, and the largest difference of a token embedding on unchanged texts. Raises UserError where
    `out` exists, for a model or file that is not there, for a run or a bundle in place of a model, and for a
    tokenizer that cannot be trimmed; CheckFailed, with nothing written, where the token embeddings of an
    unchanged text differ.
    """
    if out.exists():
        raise UserError(f"{out}: exists already; choose another --out, or delete it")
    found = resolve.resolve(model)
    _check_model(found, revision)
    texts = [_files(given, session.data, "--corpus") for given in corpus.texts]
    report_texts = [_files(given, session.data, "--report") for given in corpus.report_texts]
    folder = resolve.model_files(found, revision, "trim")
    tokenizer, opened = tokenizer_files.load_tokenizer(folder), model_folder.read(folder)
    # whole, so that the modules behind the transformer, which are copied as they are, are seen to open
    before: Any = encoder.read(folder, None if opened.chain else "mean").model
    transformer = opened.transformer
    config = files.read_json(transformer / "config.json")
    prompts = ["", *dict.fromkeys(prompt for prompt in opened.prompts.values() if prompt)]  # before a text
    session.log(f"{model}: counting the tokens of {sum(len(each.paths) for each in texts):,} file(s)")
    with progress_bar(None, session.progress, "reading") as advance:
        sources, reported = (
            [NamedTexts(each.name, partial(_read, each, prompts, advance)) for each in given]
            for given in (texts, report_texts)
        )
        # ids that must not change: the padding id, and all below it where positions are counted from it
        pad = config.get("pad_token_id")
        start = 0 if config.get("model_type") in COUNTED_FROM_PADDING else pad
        fixed = range(0) if pad is None else range(start, pad + 1)
        trimmed = trim_tokenizer.trimmed(tokenizer, sources, reported, corpus.min_count, fixed)
    with files.new_folder(out) as temporary:
        inside = temporary / transformer.relative_to(folder)
        _copy(folder, temporary, transformer)
        _write_tokenizer(trimmed.tokenizer, inside)
        _write_model(opened, trimmed.old_ids, inside)
        weights = inside / "model.safetensors"
        max_tokens = tokenizer_files.max_input_tokens(folder, tokenizer)
        difference = _difference((tokenizer, before), inside, trimmed.examples, max_tokens)
        if not difference <= MAX_DIFFERENCE:
            fact = (
                f"token embeddings of an unchanged text differ by {difference:.2e}, {MAX_DIFFERENCE} is "
                "allowed"
            )
            raise CheckFailed(f"{out} was not written: {fact}", {"difference": difference})
        whole = sum(path.stat().st_size for pattern in WEIGHTS for path in transformer.glob(pattern))
        report = {
            **trimmed.report,
            "size_bytes": {"before": whole, "after": weights.stat().st_size},
            "compared": len(trimmed.examples),
            "max_difference": difference,
        }
        about = {"model": model, "revision": revision, "min_count": corpus.min_count}
        files.write_json(temporary / "trim.json", {**about, **report})
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


class _Files(NamedTuple):
    """The files of a pattern, whose texts are counted together, and the column of those that are tables."""

    name: str
    paths: list[Path]
    column: str
    option: str


def _files(given: str, data: Path | None, option: str) -> _Files:
    """The files of GLOB or GLOB:COLUMN. Raises UserError where there are none."""
    pattern, colon, column = given.rpartition(":")
    if not (colon and pattern and column.isidentifier()):
        pattern, column = given, "text"
    return _Files(given, file_patterns.matching_files([pattern], data or Path(), option), column, option)


def _read(source: _Files, prompts: list[str], advance: Callable[[int], None]) -> Iterator[str]:
    """The texts of files, each once with each prompt; `advance` is called with how many were read."""
    place = f"{source.option} GLOB:COLUMN"
    texts = chain.from_iterable(readers.texts_in(path, source.column, place) for path in source.paths)
    for chunk in trim_tokenizer.chunks(texts):
        yield from (prompt + text for text in chunk for prompt in prompts)
        advance(len(chunk))


def _copy(folder: Path, out: Path, transformer: Path) -> None:
    """All files but the tokenizer's, the transformer's weights, and the same weights in other formats."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        parts = path.relative_to(folder).parts
        other = any(fnmatch(part, pattern) for part in parts for pattern in (*resolve.OTHER_FORMATS, ".*"))
        remade = path.parent == transformer and any(fnmatch(path.name, pattern) for pattern in REWRITTEN)
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


def _write_model(opened: ModelFolder, old_ids: np.ndarray, folder: Path) -> None:
    """The transformer with the rows of `old_ids` alone, in the dtype of its weights; without heads, and
    without a pooler that its pooling does not read. The id of a removed special token is null."""
    options = {} if "cls_pooler" in opened.poolings else encoder.without_pooler(opened)
    model = encoder.load_model(opened, dtype="auto", **options)
    kept = model.get_input_embeddings().weight.detach()[torch.from_numpy(old_ids)]
    model.set_input_embeddings(nn.Embedding.from_pretrained(kept))
    new_ids = {old: new for new, old in enumerate(old_ids.tolist())}
    special = {
        name: new_ids.get(value)
        for name, value in model.config.to_dict().items()
        if name.endswith("_token_id") and isinstance(value, int)
    }
    model.config.update({**special, "vocab_size": len(old_ids)})
    with encoder.quiet():
        model.save_pretrained(folder)


def _difference(
    before: tuple[PreTrainedTokenizerBase, Any], after: Path, texts: list[str], max_tokens: int
) -> float:
    """The largest difference of a token embedding between a tokenizer and model and those in a folder, as
    transformers opens them.

    Each text is encoded in a batch of its own.
    """
    with encoder.quiet(), torch.inference_mode():
        options: dict[str, Any] = {"trust_remote_code": False}
        tokenizer = AutoTokenizer.from_pretrained(after, **options)
        model = AutoModel.from_pretrained(after, dtype=torch.float32, **options).eval()
        differences = [torch.zeros(())]
        for text in texts:
            outputs = []
            for words, network in (before, (tokenizer, model)):
                ids = tokenizer_files.encode_ids(words, [text], max_tokens)[0].astype(np.int64)
                given = torch.from_numpy(ids)[None]
                outputs.append(network(input_ids=given, attention_mask=torch.ones_like(given))[0])
            if outputs[0].shape != outputs[1].shape:
                return float("inf")
            differences.append((outputs[0] - outputs[1]).abs().max())
    return float(torch.stack(differences).max())  # keeps NaN, which Python's max() may drop


def summary(report: dict[str, Any]) -> str:
    """The report on a trimmed model: a line of totals, then one line per file."""
    tokens, size = report["tokens"], report["size_bytes"]
    lines = [
        f"{tokens['after']:,} of {tokens['before']:,} tokens; {size['after'] / 1e6:.1f} of "
        f"{size['before'] / 1e6:.1f} MB; "
        f"token embeddings of {report['compared']} unchanged texts differ by {report['max_difference']:.1e} "
        "at most"
    ]
    lines += [
        f"{source['name']}: {source['texts']:,} texts, {source['identical'] or 0:.2%} tokenized as before"
        for source in report["sources"]
    ]
    return "\n".join(lines)
