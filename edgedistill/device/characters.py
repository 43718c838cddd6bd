"""What a tokenizer does to every character of Unicode, found by asking it."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from tokenizers import Tokenizer, normalizers

SURROGATES = range(0xD800, 0xE000)  # no text contains one
BLOCK = 256  # characters
HANGUL = range(0xAC00, 0xD7A4)
# what becomes of a character, in the order of edgedistill.c
REMOVED, SPACE, ALONE, SYLLABLE = range(4)
SEQUENCE = 21  # above so many bits stands how many letters there are
# how a character joins its neighbours to a grapheme
JOINS = 1
JOINED = 2
CONTROL = 3
Value = TypeVar("Value")
Triples = list[tuple[int, int, int]]
# marks, of which the second has the highest class, 240
GRAVE = "\u0300"
LAST_MARK = "\u0345"


def changed(tokenizer: Tokenizer) -> dict[str, str]:
    """What becomes of every character of Unicode that is not simply a part of words.

    Nothing is left of it; or a space, where it separates words; or it stands between two spaces, where it is
    a word of its own; or it becomes others, such as `a` for `Á` or ` = ` for `≠`, where a space stands for
    the end of a word. Each character is treated without its neighbours; whether the tokenizer does so is for
    others to check.
    """
    return {
        character: result
        for block in _blocks()
        for character, result in _results(tokenizer, "".join(block)).items()
        if result != character or result.isspace()
    }


def _results(tokenizer: Tokenizer, block: str) -> dict[str, str]:
    """What becomes of each character of a block; {} where all stay. Most blocks stay or go as a whole, and
    are asked for once."""
    normalize = tokenizer.normalizer.normalize_str
    whole = normalize(block)
    if not whole:
        return dict.fromkeys(block, "")
    if whole == block and _words(tokenizer, block) == {(0, len(block))}:
        return {}
    normalized = {character: normalize(character) for character in block}
    parts = _parts(tokenizer, sorted(set().union(*normalized.values())))
    return {character: "".join([parts[letter] for letter in text]) for character, text in normalized.items()}


def _parts(tokenizer: Tokenizer, characters: list[str]) -> dict[str, str]:
    """Each character as the pre-tokenizer leaves it between two letters: `c` within a word, ` c ` by itself,
    ` ` as a separator."""
    words = _words(tokenizer, "a" + "".join([f"{character}a" for character in characters]))
    inside = {place for start, end in words for place in range(start, end)}
    parts = {}
    for at, character in enumerate(characters):
        place = 2 * at + 1
        parts[character] = character if place in inside else " "
        if (place, place + 1) in words:
            parts[character] = f" {character} "
    return parts


def _words(tokenizer: Tokenizer, text: str) -> set[tuple[int, int]]:
    """Start and end of each word of a normalized text."""
    return {place for _, place in tokenizer.pre_tokenizer.pre_tokenize_str(text)}


def runs_of_changes(changed: dict[str, str]) -> tuple[Triples, list[int]]:
    """Ranges of characters (first, last, what they become), and the letters that they become."""
    letters: list[int] = []
    places = {}  # where the letters of a result stand
    becomes = []  # (character, what it becomes, as step · character + start)
    for character, result in sorted(changed.items()):
        code = ord(character)
        alone = _becomes(ord(character), result)
        if alone is not None:
            becomes.append((code, (0, alone)))
        elif len(result) == 1 and ord(result) > SYLLABLE:
            becomes.append((code, (1, ord(result) - code)))
        else:
            if result not in places:
                places[result] = len(letters)
                letters += map(ord, result)
            becomes.append((code, (0, len(result) << SEQUENCE | places[result])))
    runs = [(first, last, step * first + start) for first, last, (step, start) in _runs(becomes)]
    return runs, letters


def _becomes(code: int, result: str) -> int | None:
    """What needs no letters of its own."""
    if code in HANGUL and result == unicodedata.normalize("NFD", chr(code)):
        return SYLLABLE
    return {"": REMOVED, " ": SPACE, f" {chr(code)} ": ALONE}.get(result)


def _runs(values: Iterable[tuple[int, Value]]) -> list[tuple[int, int, Value]]:
    """(code, value) in order -> ranges (first, last, value)."""
    runs: list[tuple[int, int, Value]] = []
    for code, value in values:
        first = code
        if runs and runs[-1][1:] == (code - 1, value):
            first = runs.pop()[0]
        runs.append((first, code, value))
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


def graphemes(table: Any) -> Triples:
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

    kinds = []
    for block in _blocks():
        joined = normalize("\n".join(f"½{GRAVE}{character}" for character in block)).count(GRAVE)
        joins = normalize("\n".join(f"{character}½{GRAVE}" for character in block)).count(GRAVE)
        if joined or joins or normalize("".join(block)) != "".join(block):
            kinds += [(ord(character), kind(character)) for character in block]
    return _runs((code, value) for code, value in kinds if value)


def composition() -> tuple[list[list[int]], Triples, Triples]:
    """Canonical decompositions [character, its 1 to 4 parts, 0], compositions (first, second, both), and the
    classes of combining marks."""
    split = normalizers.NFD().normalize_str
    join = normalizers.NFC().normalize_str
    parts = []
    composed = []
    for character in _where(lambda character: split(character) != character, str, split):
        decomposed = split(character)
        if ord(character) in HANGUL:
            continue
        parts.append([ord(character), *map(ord, decomposed), *[0] * (4 - len(decomposed))])
        first = join(decomposed[:-1])
        if len(first) == 1 and join(first + decomposed[-1]) == character:
            composed.append((ord(first), ord(decomposed[-1]), ord(character)))

    def moves(character: str) -> bool:
        return split(f"a{LAST_MARK}{character}") != f"a{LAST_MARK}{split(character)}"

    marks = [*_where(moves, lambda mark: f"a{LAST_MARK}{mark}", split), LAST_MARK]
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
