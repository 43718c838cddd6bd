"""A bundle's tokenizer -> the tables that the core tokenizes by, found by asking the tokenizer itself: so the
core follows the version of Unicode and the settings that it has."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy import ndarray
from tokenizers import Tokenizer, normalizers

from edgedistill.device import characters
from edgedistill.device.characters import Triples
from edgedistill.files import Json

MODELS = ("WordPiece", "Unigram")
MARK = "▁"
LONGEST_WORD = 1000  # characters; what the core has room for


class Tables(NamedTuple):
    """What a file holds of a tokenizer; see ed_read_tokenizer in edgedistill.c."""

    model: str
    unknown: int
    longest_word: int
    composes: bool
    before: list[int]
    after: list[int]
    tokens: list[bytes]  # by id; empty where there is none
    scores: ndarray
    added: list[tuple[bytes, int]]
    prefix: bytes = b""
    runs: Triples = []  # noqa: RUF012
    letters: list[int] = []  # noqa: RUF012
    units: ndarray = np.zeros(0, np.uint32)
    replaced: bytes = b""
    classes: Triples = []  # noqa: RUF012
    marks: Triples = []  # noqa: RUF012
    parts: list[list[int]] = []  # noqa: RUF012
    composed: Triples = []  # noqa: RUF012


# what was found by asking about every character, which takes a second, by the tokenizer's first two steps
CHANGES: dict[tuple[bytes, bytes], tuple[list[tuple[int, int, int]], list[int]]] = {}


def read(tokenizer: Tokenizer, settings: Json, tokens: int) -> Tables | list[str]:
    """The tables of a tokenizer, whose tokenizer.json is `settings`, for so many rows of embeddings; or what
    the core has no place for."""
    if facts := list(_unknown_parts(settings)):
        return facts
    before, after = _around(tokenizer)
    model = settings["model"]
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    names = [b""] * tokens
    for token, at in vocabulary.items():
        names[at] = token.encode()
    added = [(token["content"].encode(), token["id"]) for token in settings["added_tokens"]]
    added.sort(key=lambda token: -len(token[0]))  # the longest is found first
    if model["type"] == "WordPiece":
        asked = tokenizer.normalizer.__getstate__(), tokenizer.pre_tokenizer.__getstate__()
        if asked not in CHANGES:
            CHANGES[asked] = characters.runs_of_changes(characters.changed(tokenizer))
        runs, letters = CHANGES[asked]
        return Tables(
            "WordPiece", vocabulary[model["unk_token"]], model["max_input_chars_per_word"], False, before,
            after, names, np.zeros(0, np.float32), added, model["continuing_subword_prefix"].encode(), runs,
            letters,
        )  # fmt: skip
    scores = np.zeros(tokens)
    scores[: len(model["vocab"])] = [score for _, score in model["vocab"]]
    exact = scores.astype(np.float32)
    steps = _steps(settings["normalizer"])
    table = next(step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled")
    units, replaced = _charsmap(base64.b64decode(table))
    composes = steps[0]["type"] == "NFC"
    parts, composed, marks = characters.composition() if composes else ([], [], [])
    return Tables(
        "Unigram", model["unk_id"], 1, composes, before, after, names,
        exact if np.array_equal(exact, scores) else scores, added, b"", [], [], units, replaced,
        characters.graphemes(normalizers.Precompiled(base64.b64decode(table))), marks, parts, composed,
    )  # fmt: skip


def _around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and after those of a text."""
    with_, without = (tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
    start = next(at for at in range(len(with_)) if with_[at : at + len(without)] == without)
    return with_[:start], with_[start + len(without) :]


def _steps(normalizer: Json | None) -> list[Json]:
    if normalizer is None:
        return []
    return list(normalizer["normalizers"]) if normalizer["type"] == "Sequence" else [normalizer]


def _unknown_parts(settings: Json) -> Iterator[str]:
    """What the core cannot do of a tokenizer.json."""
    model = settings["model"]
    truncation = settings.get("truncation") or {}
    kinds = [step["type"] for step in _steps(settings["normalizer"])]
    splits = settings["pre_tokenizer"] or {"type": "none"}
    if truncation.get("direction", "Right") != "Right":
        yield "truncation on the left"
    for token in settings["added_tokens"]:
        if token["normalized"] or token["single_word"]:
            yield f"the added token {token['content']!a}, which is normalized or a single word"
    if model["type"] == "WordPiece":
        if kinds != ["BertNormalizer"] or splits["type"] != "BertPreTokenizer":
            yield f"WordPiece behind {' and '.join([*kinds, splits['type']])}"
        if not 0 < model["max_input_chars_per_word"] <= LONGEST_WORD:
            yield f"words of {model['max_input_chars_per_word']} characters"
    elif model["type"] == "Unigram":
        if kinds not in (["NFC", "Precompiled"], ["Precompiled"]):
            yield f"Unigram behind {' and '.join(kinds) or 'no normalizer'}"
        if not _splits_words(splits):
            yield f"Unigram behind {splits['type']}, which is not WhitespaceSplit and Metaspace"
        if model.get("byte_fallback") or model.get("unk_id") is None:
            yield "Unigram without an unknown token, or with bytes in its place"
    else:
        yield f"model {model['type']}, which is not WordPiece or Unigram"


def _splits_words(splits: Json) -> bool:
    """Whether words are what stands between white space, each with a mark in front of it."""
    both = splits.get("pretokenizers", [])
    if [step["type"] for step in both] != ["WhitespaceSplit", "Metaspace"]:
        return False
    marks = both[1]
    scheme = marks.get("prepend_scheme", "always")
    return marks["replacement"] == MARK and scheme == "always" and marks.get("split", True) is True


def _charsmap(data: bytes) -> tuple[ndarray, bytes]:
    """SentencePiece's table: a double array, and texts that end with a zero."""
    size = int.from_bytes(data[:4], "little")
    return np.frombuffer(data[4 : 4 + size], "<u4"), data[4 + size :].rstrip(b"\0") + b"\0"
