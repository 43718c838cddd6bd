"""Trim a tokenizer to the tokens that texts use and those they depend on, so that texts of these tokens are
tokenized as before; and report for how many others that holds."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError, unknown_name

CHUNK = 8_192  # texts tokenized at a time
EXAMPLES = 16  # unchanged texts of each source that are returned, to compare embeddings on
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
BYTES = {
    f"<0x{byte:02X}>" for byte in range(256)
}  # byte fallback writes a character without a token as these

Model = dict[str, Any]  # the `model` section of tokenizer.json


class NamedTexts(NamedTuple):
    """A source of texts, which can be read more than once."""

    name: str
    read: Callable[[], Iterator[str]]


def chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts, CHUNK at a time."""
    rest = iter(texts)
    while chunk := list(itertools.islice(rest, CHUNK)):
        yield chunk


class TrimmedTokenizer(NamedTuple):
    """A smaller tokenizer. `old_ids` (V,) holds the old id of each of its tokens, `report` says what changed,
    and `examples` are unchanged texts."""

    tokenizer: PreTrainedTokenizerBase
    old_ids: np.ndarray
    report: dict[str, Any]
    examples: list[str]


def is_trimmable(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether `trimmed` takes a tokenizer of this kind."""
    return type(tokenizer.backend_tokenizer.model).__name__ in REQUIRED


def trimmed(
    tokenizer: PreTrainedTokenizerBase,
    texts: list[NamedTexts],
    report_texts: list[NamedTexts],
    min_count: int = 1,
    keep_ids: Iterable[int] = (),
) -> TrimmedTokenizer:
    """Keep the tokens that `texts` use at least `min_count` times, and report on those texts and on
    `report_texts`.

    Always kept: added tokens, the unknown token, byte tokens, the characters of kept tokens, the old ids
    `keep_ids`, and whatever the tokenizer's model must still find to tokenize texts of kept tokens as before
    (see `required`). Ids keep their order. Raises UserError for a model other than WordPiece and
    Unigram, for an unknown or padding token that the tokenizer lacks, and where there are no texts or no
    token is used often enough.
    """
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    model = data["model"]
    if model["type"] not in REQUIRED:
        fact = unknown_name("model to trim", model["type"], REQUIRED)
        raise UserError(f"tokenizer: {fact}; keep all of its tokens, or learn others")
    ids = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True)
    tokens = {number: token for token, number in ids.items()}
    special = set(_special_tokens(tokenizer).values())
    _check_special(model, ids, special, keep_ids)
    with tempfile.TemporaryFile() as before:  # the tokens of `texts`
        counts = _count(tokenizer.backend_tokenizer, texts, before)
        added = {token["content"] for token in data["added_tokens"]}
        used = {token for token, number in ids.items() if counts[number] >= min_count and token not in added}
        if not used:
            raise UserError(
                f"min_count: no token occurs {min_count:,} times in the corpus; lower it, or add texts"
            )
        unknown = _unknown_token(model)
        always = added | special | {tokens[number] for number in keep_ids}
        if unknown is not None:
            always.add(unknown)
        before.seek(0)
        # the model's tokens in their old order, then added tokens that the model lacks: they always come last
        own = {token for token, _ in model["vocab"]} if model["type"] == "Unigram" else model["vocab"]
        always |= BYTES.intersection(own) if model.get("byte_fallback") else set()
        kept = sorted(required(model, used) | always, key=lambda token: (token not in own, ids[token]))
        old_ids = np.array([ids[token] for token in kept], np.int64)
        smaller = _tokenizer(tokenizer, _reduced(data, old_ids, ids))
        sources, examples = _compare(tokenizer, smaller, old_ids, [*texts, *report_texts], before, len(texts))
        return TrimmedTokenizer(
            smaller,
            old_ids,
            {"tokens": {"before": len(ids), "after": len(old_ids)}, "sources": sources},
            examples,
        )


def summary_line(report: dict[str, Any]) -> str:
    """The report on a tokenizer in one line."""
    tokens = report["tokens"]
    shares = (
        f"{source['identical']:.1%} of {source['name']}" for source in report["sources"] if source["texts"]
    )
    return (
        f"{tokens['after']:,} of {tokens['before']:,} tokens kept; tokenized as before: {', '.join(shares)}"
    )


def corpus_texts(corpus: Corpus, prefix: str = "") -> tuple[NamedTexts, NamedTexts]:
    """The training texts and the held-out texts of a corpus; `prefix` begins their names."""

    def rows(start: int, end: int) -> Iterator[str]:
        return itertools.islice(corpus, start, end)

    size, trained = len(corpus), corpus.training_count
    return NamedTexts(f"{prefix}trained on", lambda: rows(0, trained)), NamedTexts(
        f"{prefix}held out", lambda: rows(trained, size)
    )


def _compare(
    before: PreTrainedTokenizerBase,
    after: PreTrainedTokenizerBase,
    old_ids: np.ndarray,
    sources: list[NamedTexts],
    tokenized: IO[bytes],
    counted: int,
) -> tuple[list[dict[str, Any]], list[str]]:
    """For each source {name, texts, identical}, the last the share of texts tokenized as before, None without
    texts; and some unchanged texts of each.

    `old_ids` (V,) holds the id in `before` of each token of `after`; `tokenized` is what `_count` wrote of
    the first `counted` sources. Raises RuntimeError where a text of kept tokens is tokenized otherwise than
    before: a bug in the trimming. Only a word that was unknown, because its longest beginning led nowhere,
    may become known where that beginning goes.
    """
    new_ids = np.full(max(before.get_vocab().values()) + 1, -1, np.int32)
    new_ids[old_ids] = np.arange(len(old_ids))
    reports, examples = [], list[str]()
    for number, (name, read) in enumerate(sources):
        texts, unchanged = 0, 0
        for chunk in chunks(read()):
            texts += len(chunk)
            if number < counted:
                old, starts = np.load(tokenized), np.load(tokenized)
            else:
                old, starts = _tokens(before.backend_tokenizer, chunk)
            parts = np.split(new_ids[old], starts), np.split(*_tokens(after.backend_tokenizer, chunk))
            for text, expected, new in zip(chunk, *parts, strict=True):
                if expected.tobytes() == new.tobytes():
                    examples += [text] if unchanged < EXAMPLES else []
                    unchanged += 1
                elif after.unk_token_id not in expected and (expected >= 0).all():
                    fact = "a text of kept tokens is tokenized otherwise than before"
                    raise RuntimeError(f"{fact}: {text[:200]!r}")
        identical = round(unchanged / texts, 6) if texts else None
        reports.append({"name": name, "texts": texts, "identical": identical})
    return reports, examples


def _tokens(backend: Tokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of all texts, one text behind the other, int32, and where each but the first begins."""
    rows = [encoding.ids for encoding in backend.encode_batch_fast(texts)]
    whole = np.array([token for row in rows for token in row], np.int32)
    return whole, np.cumsum([len(row) for row in rows])[:-1]


def _check_special(
    model: dict[str, Any], ids: dict[str, int], special: set[str], keep_ids: Iterable[int]
) -> None:
    """Raise UserError where the vocabulary lacks the unknown token, a special token or an id to keep."""
    unknown = _unknown_token(model)
    if (unknown is None and model["type"] == "WordPiece") or (unknown is not None and unknown not in ids):
        raise UserError(
            f"tokenizer: its unknown token {unknown!r} is not in its vocabulary; correct tokenizer.json"
        )
    for token in special - ids.keys():
        raise UserError(
            f"tokenizer: its special token {token!r} is not in its vocabulary; correct tokenizer_config.json"
        )
    known = set(ids.values())
    for number in keep_ids:
        if number not in known:
            raise UserError(
                f"tokenizer: the model pads with id {number}, which is not in its vocabulary; correct "
                "pad_token_id in config.json"
            )


def _unknown_token(model: dict[str, Any]) -> str | None:
    if model["type"] == "Unigram":
        return None if model.get("unk_id") is None else str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")


def _count(backend: Tokenizer, sources: list[NamedTexts], tokenized: IO[bytes]) -> np.ndarray:
    """How often each old id occurs, (largest id + 1,). Writes what `_tokens` finds for each chunk."""
    backend.no_padding()
    backend.no_truncation()
    counts = np.zeros(max(backend.get_vocab(with_added_tokens=True).values()) + 1, np.int64)
    read = 0
    for chunk in itertools.chain.from_iterable(chunks(source.read()) for source in sources):
        read += len(chunk)
        found = _tokens(backend, chunk)
        for each in found:
            np.save(tokenized, each)
        counts += np.bincount(found[0], minlength=len(counts))
    if not read:
        raise UserError("corpus: no texts, so the tokens to keep cannot be determined; give some")
    return counts


def _reduced(data: dict[str, Any], old_ids: np.ndarray, ids: dict[str, int]) -> dict[str, Any]:
    """The data of tokenizer.json with the tokens of `old_ids` only, renumbered."""
    new_ids = {old: new for new, old in enumerate(old_ids.tolist())}
    model = dict(data["model"])
    if model["type"] == "Unigram":
        model["vocab"] = [entry for old, entry in enumerate(model["vocab"]) if old in new_ids]
        model["unk_id"] = None if model.get("unk_id") is None else new_ids[model["unk_id"]]
    else:
        kept = {token: new_ids[old] for token, old in model["vocab"].items() if old in new_ids}
        model["vocab"] = dict(sorted(kept.items(), key=lambda item: item[1]))
    added = sorted(
        ({**token, "id": new_ids[ids[token["content"]]]} for token in data["added_tokens"]),
        key=lambda token: token["id"],
    )
    reduced = {**data, "model": model, "added_tokens": added, "padding": None, "truncation": None}
    return {**reduced, "post_processor": _renumbered(data["post_processor"], new_ids)}


def _renumbered(part: Any, new_ids: dict[int, int]) -> Any:
    """A post-processor with new ids: `ids` of a template's tokens, (token, id) of BERT's and RoBERTa's, and
    those inside a sequence."""
    if isinstance(part, list):
        return [_renumbered(each, new_ids) for each in part]
    if not isinstance(part, dict):
        return part
    found = {}
    for key, value in part.items():
        if key == "ids":
            found[key] = [new_ids[old] for old in value]
        elif key in ("sep", "cls") and isinstance(value, list):
            found[key] = [value[0], new_ids[value[1]]]
        else:
            found[key] = _renumbered(value, new_ids)
    return found


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    return {name: str(getattr(tokenizer, name)) for name in SPECIAL if getattr(tokenizer, name, None)}


def _tokenizer(like: PreTrainedTokenizerBase, data: dict[str, Any]) -> PreTrainedTokenizerBase:
    """A transformers tokenizer of this data, with the special tokens and limits of the old one."""
    raw = Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
    kept = ("model_max_length", "padding_side", "truncation_side", "model_input_names")
    options = {name: getattr(like, name) for name in kept}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **options, **_special_tokens(like))


def required(model: Model, used: set[str]) -> set[str]:
    """The used tokens and those the model needs to find them as before."""
    return REQUIRED[model["type"]](model, used)


def _characters(tokens: Iterable[str]) -> set[str]:
    return set().union(*tokens)


def _wordpiece(model: Model, used: set[str]) -> set[str]:
    """WordPiece matches the longest token first: with fewer longer tokens, the same ones match."""
    prefix, known = model["continuing_subword_prefix"], model["vocab"]
    characters = _characters(token.removeprefix(prefix) for token in used)
    return used | {
        form for character in characters for form in (character, prefix + character) if form in known
    }


def _unigram(model: Model, used: set[str]) -> set[str]:
    """The best path stays the best, as long as an unknown character keeps its cost: 10 below the least likely
    token."""
    known = {token for token, _ in model["vocab"]}
    least_likely = min(model["vocab"], key=lambda entry: entry[1])[0]
    return used | {least_likely} | (_characters(used) & known)


REQUIRED: dict[str, Callable[[Model, set[str]], set[str]]] = {
    "WordPiece": _wordpiece,
    "Unigram": _unigram,
}
