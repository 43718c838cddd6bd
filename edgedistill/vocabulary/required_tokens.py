"""Which tokens a WordPiece, Unigram or BPE model needs besides those in use, to tokenize texts of these
tokens as before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tokenizers import pre_tokenizers

BYTES = {
    f"<0x{byte:02X}>" for byte in range(256)
}  # byte fallback writes a character without a token as these

Model = dict[str, Any]  # the `model` section of tokenizer.json


def required(model: Model, used: set[str], failed: set[str]) -> set[str]:
    """The used tokens and those the model needs to find them as before. `failed` are words that became
    the unknown token."""
    return REQUIRED[model["type"]](model, used | _failed_paths(model, failed))


def _characters(tokens: Iterable[str]) -> set[str]:
    return set().union(*tokens)


def _wordpiece(model: Model, used: set[str]) -> set[str]:
    """WordPiece matches the longest token first: with fewer longer tokens, the same ones match. (Unknown
    words: `_failed_paths`.)"""
    prefix, known = model["continuing_subword_prefix"], model["vocab"]
    characters = _characters(token.removeprefix(prefix) for token in used)
    return used | {
        form for character in characters for form in (character, prefix + character) if form in known
    }


def _failed_paths(model: Model, words: set[str]) -> set[str]:
    """The tokens that WordPiece matches in a word before it fails: without them shorter ones might match, and
    the word be known.

    [ab, a, ##bc] fail on `abc` (`ab`, then no `##c`); without `ab` it would become `a ##bc`.
    """
    if model["type"] != "WordPiece":
        return set()
    prefix, known, found = model["continuing_subword_prefix"], model["vocab"], set()
    for word in words:
        start = 0
        while start < len(word) <= model["max_input_chars_per_word"]:
            marker = prefix if start else ""
            end = next(
                (end for end in range(len(word), start, -1) if marker + word[start:end] in known), start
            )
            if end == start:
                break
            found.add(marker + word[start:end])
            start = end
    return found


def _unigram(model: Model, used: set[str]) -> set[str]:
    """The best path stays the best, as long as an unknown character keeps its cost: 10 below the least likely
    token."""
    known = {token for token, _ in model["vocab"]}
    least_likely = min(model["vocab"], key=lambda entry: entry[1])[0]
    return used | {least_likely} | (_characters(used) & known)


def _bpe(model: Model, used: set[str]) -> set[str]:
    """Every token that merges produce on the way to a used one. Merges inside a token are the same in any
    word."""
    rank = {pair: number for number, pair in enumerate(merges(model))}
    intermediate: set[str] = set()
    for token in used:
        intermediate.update(_merge_path(token, model, rank))
    prefix, suffix = _affixes(model)
    characters = _characters(token.removeprefix(prefix).removesuffix(suffix) for token in used)
    forms = {form for c in characters for form in (c, prefix + c, c + suffix, prefix + c + suffix)}
    return used | {token for token in intermediate | forms if token in model["vocab"]}


def _affixes(model: Model) -> tuple[str, str]:
    """The prefix of tokens inside a word and the suffix of tokens at its end, where a BPE model has them."""
    return model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""


def merges(model: Model) -> list[tuple[str, str]]:
    """A BPE model's merges in the order they were learned; older files write a pair as one string."""
    return [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]  # type: ignore[misc]


def merged(model: Model, pair: tuple[str, str]) -> str:
    """The token that a merge gives."""
    return pair[0] + pair[1].removeprefix(model.get("continuing_subword_prefix") or "")


def _merge_path(token: str, model: Model, rank: dict[tuple[str, str], int]) -> Iterator[str]:
    """The symbols that a token starts from, and every result of a merge until it is whole."""
    prefix, suffix = _affixes(model)
    inner = token.removeprefix(prefix).removesuffix(suffix)
    first = prefix if prefix and token.startswith(prefix) else ""
    last = suffix if suffix and token.endswith(suffix) else ""
    end = len(inner) - 1
    symbols = [
        (prefix if at else first) + character + (last if at == end else "")
        for at, character in enumerate(inner)
    ]
    yield from symbols
    while len(symbols) > 1:
        best = min(
            range(len(symbols) - 1), key=lambda at: rank.get((symbols[at], symbols[at + 1]), len(rank))
        )
        pair = (symbols[best], symbols[best + 1])
        if pair not in rank:
            return
        symbols[best : best + 2] = [merged(model, pair)]
        yield symbols[best]


REQUIRED: dict[str, Callable[[Model, set[str]], set[str]]] = {
    "WordPiece": _wordpiece,
    "Unigram": _unigram,
    "BPE": _bpe,
}


def byte_tokens(tokenizer: dict[str, Any]) -> set[str]:
    """The tokens that stand for single bytes, of byte-level models and of byte fallback. `tokenizer` is
    the data of tokenizer.json."""
    model, found = tokenizer["model"], set()
    known = {token for token, _ in model["vocab"]} if model["type"] == "Unigram" else set(model["vocab"])
    if model.get("byte_fallback"):
        found |= BYTES
    if '"ByteLevel"' in json.dumps([tokenizer["normalizer"], tokenizer["pre_tokenizer"]]):
        suffix = model.get("end_of_word_suffix") or ""
        found |= {form for byte in pre_tokenizers.ByteLevel.alphabet() for form in (byte, byte + suffix)}
    return found & known
