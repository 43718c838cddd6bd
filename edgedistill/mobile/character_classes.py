"""What a tokenizer's normalizer and pre-tokenizer do to every single character, found by asking them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tokenizers import Tokenizer

SURROGATES = range(0xD800, 0xE000)  # no text contains one
BLOCK = 256  # characters


@dataclass(frozen=True)
class CharacterClasses:
    """Every character of Unicode by what becomes of it before a text is split into words; all others stay as
    they are.

    removed: nothing is left. spaces: it separates words. isolated: it is a word of its own. replaced: what
        else it becomes, such as
    `a` for `Á` or ` = ` for `≠`, where a space stands for the end of a word.
    """

    removed: frozenset[str]
    spaces: frozenset[str]
    isolated: frozenset[str]
    replaced: dict[str, str]

    def without(self, characters: Iterable[str]) -> CharacterClasses:
        """The classes where some characters, none of them replaced, stay as they are."""
        return replace(self, removed=self.removed - set(characters))


def character_classes(tokenizer: Tokenizer) -> CharacterClasses:
    """The classes of a tokenizer, as if it treated each character without its neighbours; whether it does is
    for others to check."""
    removed, spaces, isolated, replaced = set[str](), set[str](), set[str](), dict[str, str]()
    for start in range(0, 0x110000, BLOCK):
        if start in SURROGATES:
            continue
        block = "".join(map(chr, range(start, start + BLOCK)))
        for character, result in _results(tokenizer, block).items():
            if not result:
                removed.add(character)
            elif result.isspace():
                spaces.add(character)
            elif result == f" {character} ":
                isolated.add(character)
            elif result != character:
                replaced[character] = result
    return CharacterClasses(frozenset(removed), frozenset(spaces), frozenset(isolated), replaced)


def without_unknown(classes: CharacterClasses, alphabet: Iterable[str]) -> CharacterClasses:
    """The classes without the replacements that make no difference to WordPiece.

    A word with a character that no token contains becomes the unknown token as a whole, whichever character
    that is. `alphabet`: the characters of all tokens.
    """
    known = set(alphabet)
    replaced = {
        character: text
        for character, text in classes.replaced.items()
        if character in known or " " in text or set(text) <= known
    }
    return replace(classes, replaced=replaced)


def regex_class(characters: Iterable[str]) -> str:
    """A character class of RE2 in ASCII: `[\\x{41}-\\x{5a}]`."""
    return (
        "["
        + "".join(f"\\x{{{a:x}}}" + (f"-\\x{{{b:x}}}" if b > a else "") for a, b in _ranges(characters))
        + "]"
    )


def _ranges(characters: Iterable[str]) -> Iterator[tuple[int, int]]:
    codes = sorted(map(ord, characters))
    start = 0
    for at, code in enumerate(codes):
        if at + 1 == len(codes) or codes[at + 1] != code + 1:
            yield codes[start], code
            start = at + 1


def _results(tokenizer: Tokenizer, block: str) -> dict[str, str]:
    """What becomes of each character of a block; {} where all stay. Most blocks stay or go as a whole, and
    are asked for once."""
    normalize = tokenizer.normalizer.normalize_str if tokenizer.normalizer is not None else str
    whole = normalize(block)
    if not whole:
        return dict.fromkeys(block, "")
    if whole == block and _words(tokenizer, block) == [(0, len(block))]:
        return {}
    normalized = {character: normalize(character) for character in block}
    parts = _parts(tokenizer, sorted(set().union(*normalized.values())))
    return {character: "".join([parts[each] for each in text]) for character, text in normalized.items()}


def _parts(tokenizer: Tokenizer, characters: list[str]) -> dict[str, str]:
    """Each character as the pre-tokenizer leaves it between two letters: `c` within a word, ` c ` by itself,
    ` ` as a separator."""
    words = _words(tokenizer, "a" + "".join([f"{each}a" for each in characters]))
    word = {place: (start, end) for start, end in words for place in range(start, end)}
    found = {}
    for at, character in enumerate(characters):
        place = 2 * at + 1
        found[character] = character if place in word else " "
        if word.get(place) == (place, place + 1):
            found[character] = f" {character} "
    return found


def _words(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """Start and end of each word of a normalized text."""
    if tokenizer.pre_tokenizer is None:
        return [(0, len(text))]
    return [place for _, place in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
