"""What a tokenizer's normalizer and pre-tokenizer do to every single character, found by asking them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer

SURROGATES = range(0xD800, 0xE000)  # no text contains one
BLOCK = 256  # characters


def changed_characters(tokenizer: Tokenizer) -> dict[str, str]:
    """What becomes of every character of Unicode that is not simply a part of words.

    Nothing is left of it; or a space, where it separates words; or it stands between two spaces, where it is
    a word of its own; or it becomes others, such as `a` for `Á` or ` = ` for `≠`, where a space stands for
    the end of a word. Each character is treated without its neighbours; whether the tokenizer does so is for
    others to check.
    """
    changed: dict[str, str] = {}
    for start in range(0, 0x110000, BLOCK):
        if start not in SURROGATES:
            results = _results(tokenizer, "".join(map(chr, range(start, start + BLOCK))))
            changed |= {
                character: result
                for character, result in results.items()
                if result != character or result.isspace()
            }
    return changed


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
