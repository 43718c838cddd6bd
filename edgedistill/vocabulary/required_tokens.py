"""Which tokens a WordPiece or Unigram model needs besides those in use, to tokenize texts of these
tokens as before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

BYTES = {
    f"<0x{byte:02X}>" for byte in range(256)
}  # byte fallback writes a character without a token as these

Model = dict[str, Any]  # the `model` section of tokenizer.json


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


def byte_tokens(model: Model) -> set[str]:
    """The tokens that stand for single bytes, of a model with byte fallback."""
    return BYTES & {token for token, _ in model["vocab"]} if model.get("byte_fallback") else set()
