"""A bundle's tokenizer -> the tables that the core tokenizes by, found by asking the tokenizer itself: so the
core follows the version of Unicode and the settings that it has."""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer, normalizers

from edgedistill.device.tokenizer_equality import BLOCK, SURROGATES, TextTokenizer, changed_characters

MODELS = ("WordPiece", "Unigram")
MARK = "▁"
LONGEST_WORD = 1000  # characters; what the core has room for
HANGUL = range(0xAC00, 0xD7A4)
# what becomes of a character, in the order of edgedistill.c
REMOVED, SPACE, ALONE, SYLLABLE = range(4)
SEQUENCE = 21  # above so many bits stands how many letters there are
JOINS, JOINED, CONTROL = 1, 2, 3  # how a character joins its neighbours to a grapheme
GRAVE, LAST_MARK = "\u0300", "\u0345"  # marks, of which the second has the highest class, 240
NEW = "\u0915"  # a letter that neither changes nor composes


class Tables(NamedTuple):
    """What a file holds of a tokenizer; see ed_read_tokenizer in edgedistill.c."""

    model: str
    unknown: int
    longest_word: int
    composes: bool
    before: list[int]
    after: list[int]
    tokens: list[bytes]  # by id; empty where there is none
    scores: np.ndarray
    added: list[tuple[bytes, int]]
    prefix: bytes = b""
    runs: list[tuple[int, int, int]] = []  # noqa: RUF012
    letters: list[int] = []  # noqa: RUF012
    units: np.ndarray = np.zeros(0, np.uint32)
    replaced: bytes = b""
    classes: list[tuple[int, int, int]] = []  # noqa: RUF012
    marks: list[tuple[int, int, int]] = []  # noqa: RUF012
    parts: list[list[int]] = []  # noqa: RUF012
    composed: list[tuple[int, int, int]] = []  # noqa: RUF012


def read(tokenizer: Tokenizer, settings: dict[str, Any], tokens: int, max_tokens: int) -> Tables | list[str]:
    """The tables of a tokenizer, whose tokenizer.json is `settings`, for so many rows of embeddings; or what
    the core has no place for."""
    if facts := list(_unknown_parts(settings)):
        return facts
    before, after = TextTokenizer(tokenizer, "", max_tokens, 0).template
    model, vocabulary = settings["model"], tokenizer.get_vocab(with_added_tokens=False)
    names = [b""] * tokens
    for token, at in vocabulary.items():
        names[at] = token.encode()
    added = [(token["content"].encode(), token["id"]) for token in settings["added_tokens"]]
    added.sort(key=lambda each: -len(each[0]))  # the longest is found first
    if model["type"] == "WordPiece":
        runs, letters = _runs_of_changes(changed_characters(tokenizer))
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
    parts, composed, marks = _composition() if composes else ([], [], [])
    return Tables(
        "Unigram", model["unk_id"], 1, composes, before, after, names,
        exact if np.array_equal(exact, scores) else scores, added, b"", [], [], units, replaced,
        _graphemes(normalizers.Precompiled(base64.b64decode(table))), marks, parts, composed,
    )  # fmt: skip


def _steps(normalizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if normalizer is None:
        return []
    return list(normalizer["normalizers"]) if normalizer["type"] == "Sequence" else [normalizer]


def _unknown_parts(settings: dict[str, Any]) -> Iterator[str]:
    """What the core cannot do of a tokenizer.json."""
    model, truncation = settings["model"], settings.get("truncation") or {}
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


def _splits_words(splits: dict[str, Any]) -> bool:
    """Whether words are what stands between white space, each with a mark in front of it."""
    both = splits.get("pretokenizers", [])
    if [each["type"] for each in both] != ["WhitespaceSplit", "Metaspace"]:
        return False
    marks = both[1]
    scheme = marks.get("prepend_scheme", "always")
    return marks["replacement"] == MARK and scheme == "always" and marks.get("split", True) is True


def _runs_of_changes(changed: dict[str, str]) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Ranges of characters (first, last, what they become), and the letters that they become."""
    letters: list[int] = []
    places: dict[str, int] = {}
    runs: list[tuple[int, int, int]] = []
    for character in sorted(changed):
        code, result = ord(character), changed[character]
        to, step = _becomes(code, result), 0
        if to is None:
            if len(result) == 1 and ord(result) > SYLLABLE:
                to, step = ord(result), 1
            else:
                if result not in places:
                    places[result] = len(letters)
                    letters += map(ord, result)
                to = len(result) << SEQUENCE | places[result]
        if runs and runs[-1][1] == code - 1:
            first, _, before = runs[-1]
            if to == before + step * (code - first) and (not step or before > SYLLABLE):
                runs[-1] = (first, code, before)
                continue
        runs.append((code, code, to))
    return runs, letters


def _becomes(code: int, result: str) -> int | None:
    """What needs no letters of its own."""
    if code in HANGUL and result == unicodedata.normalize("NFD", chr(code)):
        return SYLLABLE
    return {"": REMOVED, " ": SPACE, f" {chr(code)} ": ALONE}.get(result)


def _runs(values: Iterator[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(code, value) in order -> ranges (first, last, value)."""
    runs: list[tuple[int, int, int]] = []
    for code, value in values:
        if runs and runs[-1][1] == code - 1 and runs[-1][2] == value:
            runs[-1] = (runs[-1][0], code, value)
        else:
            runs.append((code, code, value))
    return runs


def _blocks() -> Iterator[list[str]]:
    """All characters, a block at a time."""
    for start in range(0, 0x110000, BLOCK):
        if start not in SURROGATES:
            yield [chr(code) for code in range(start, start + BLOCK)]


def _where(
    differs: Callable[[str], bool], probe: Callable[[str], str], normalize: Callable[[str], str]
) -> Iterator[str]:
    """The characters that `differs` holds of. A block whose probes all stay as they are is asked for once."""
    for block in _blocks():
        whole = "".join(map(probe, block))
        if normalize(whole) != whole:
            yield from filter(differs, block)


def _charsmap(data: bytes) -> tuple[np.ndarray, bytes]:
    """SentencePiece's table: a double array, and texts that end with a zero."""
    size = int.from_bytes(data[:4], "little")
    return np.frombuffer(data[4 : 4 + size], "<u4"), data[4 + size :].rstrip(b"\0") + b"\0"


def _graphemes(table: Any) -> list[tuple[int, int, int]]:
    """How characters join their neighbours, told by a table that replaces graphemes of less than 6 bytes by
    their first character alone: ½ with a mark loses it, unless what follows makes the grapheme longer."""
    normalize = table.normalize_str

    def kind(character: str) -> int:
        alone = normalize(character).count(GRAVE)
        if normalize(f"½{GRAVE}{character}").count(GRAVE) > alone:
            return JOINED
        if normalize(f"{character}½{GRAVE}").count(GRAVE) > alone:
            return JOINS
        is_changed = normalize(character) != character
        return CONTROL if is_changed and normalize(character + GRAVE).count(GRAVE) > alone else 0

    found = []
    for block in _blocks():
        joined = normalize("\n".join(f"½{GRAVE}{character}" for character in block)).count(GRAVE)
        joins = normalize("\n".join(f"{character}½{GRAVE}" for character in block)).count(GRAVE)
        if joined or joins or normalize("".join(block)) != "".join(block):
            found += [(ord(character), kind(character)) for character in block]
    return _runs((code, value) for code, value in found if value)


def _composition() -> tuple[list[list[int]], list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Canonical decompositions [character, its 1 to 4 parts, 0], compositions (first, second, both), and the
    classes of combining marks."""
    split, join = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    parts, composed = [], []
    for character in _where(lambda each: split(each) != each, str, split):
        found = split(character)
        if ord(character) in HANGUL:
            continue
        parts.append([ord(character), *map(ord, found), *[0] * (4 - len(found))])
        first = join(found[:-1])
        if len(first) == 1 and join(first + found[-1]) == character:
            composed.append((ord(first), ord(found[-1]), ord(character)))

    def moves(character: str) -> bool:
        return split(f"a{LAST_MARK}{character}") != f"a{LAST_MARK}{split(character)}"

    marks = [*_where(moves, lambda each: f"a{LAST_MARK}{each}", split), LAST_MARK]
    known = {unicodedata.combining(mark): mark for mark in marks if unicodedata.combining(mark)}

    def class_of(mark: str) -> int:
        """That of the known marks which it neither passes nor is passed by, for one newer than Python's."""
        for value, other in known.items():
            if (
                split(f"a{mark}{other}") == f"a{mark}{other}"
                and split(f"a{other}{mark}") == f"a{other}{mark}"
            ):
                return value
        return unicodedata.combining(mark)

    classes = ((ord(mark), unicodedata.combining(mark) or class_of(mark)) for mark in sorted(marks))
    return parts, sorted(composed), _runs(classes)
