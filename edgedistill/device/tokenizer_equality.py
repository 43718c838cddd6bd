"""What a bundle's tokenizer does to texts: to every single character, found by asking it; and whether what
stands for it gives the token ids of tokenizer.json, text by text."""

from __future__ import annotations

import json
import lzma
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, takewhile
from pathlib import Path

from tokenizers import Tokenizer

from edgedistill.errors import quote

TEXTS = Path(__file__).with_name("adversarial_texts.json.xz")  # made by bench/adversarial_texts.py
LINES = 10_000
WORD, SPECIAL = "\ufdd0", "\ufdd1"  # in these texts: a token of the vocabulary, a special token
BATCH = 64  # texts of all lengths, so that padding is checked too
SHOWN = 12  # token ids of a list
TOKENS = 2_000  # of the vocabulary, to make texts of
SURROGATES = range(0xD800, 0xE000)  # no text contains one
BLOCK = 256  # characters


@dataclass(frozen=True)
class TextTokenizer:
    """A bundle's tokenizer and what its manifest says about the texts."""

    tokenizer: Tokenizer
    prompt: str
    max_tokens: int
    pad_id: int

    @property
    def template(self) -> tuple[list[int], list[int]]:
        """The ids that the tokenizer puts before and after those of a text."""
        with_, without = (self.tokenizer.encode("a", add_special_tokens=each).ids for each in (True, False))
        start = next(at for at in range(len(with_)) if with_[at : at + len(without)] == without)
        return with_[:start], with_[start + len(without) :]


def adversarial_texts(special: Sequence[str], words: Sequence[str], max_tokens: int) -> list[str]:
    """10,000 distinct texts on which tokenizers differ, always the same for the same arguments.

    Special tokens, also in lower case, cut and doubled, and rows of about `max_tokens` words come first. Then
    come the texts of the file, in which tokens of this vocabulary are hit and just missed. Words also come
    with a capital, and with their accents as characters of their own.
    """
    variants = [each for word in words for each in (word, word.title(), unicodedata.normalize("NFD", word))]
    drawn = {WORD: cycle(variants), SPECIAL: cycle(special or ["[CLS]"])}
    changed = [each for token in special for each in (token, token.lower(), token[:-1], token * 2)]
    lengths = range(max(1, max_tokens - 8), max_tokens + 8)
    near_the_limit = [" ".join(islice(drawn[WORD], length)) for _ in range(16) for length in lengths]
    texts = json.loads(lzma.decompress(TEXTS.read_bytes()))
    texts = [re.sub(f"[{WORD}{SPECIAL}]", lambda found: next(drawn[found[0]]), text) for text in texts]
    return list(dict.fromkeys([*changed, *near_the_limit, *texts]))[:LINES]


def first_difference(
    ids_of: Callable[[list[str]], list[list[int]]], text: TextTokenizer, place: str, lines: int = LINES
) -> tuple[int, str | None]:
    """(number of texts, None) where `ids_of` gives tokenizer.json's ids for every text of the adversarial
    corpus, a batch at a time; otherwise (index of the first text that differs, a sentence with both lists of
    ids, which says `place` of the one by `ids_of`).
    """
    special = [token.content for token in text.tokenizer.get_added_tokens_decoder().values()]
    vocabulary = sorted(text.tokenizer.get_vocab())
    words = vocabulary[:: max(1, len(vocabulary) // TOKENS)]
    corpus = adversarial_texts(special, words, text.max_tokens)[:lines]
    for start in range(0, len(corpus), BATCH):
        texts = corpus[start : start + BATCH]
        encodings = text.tokenizer.encode_batch([text.prompt + each for each in texts])
        for at, (found, encoding) in enumerate(zip(ids_of(texts), encodings, strict=True), start):
            if found != encoding.ids:
                name = f"text {at + 1:,} of {len(corpus):,} ({quote(corpus[at])})"
                return (
                    at,
                    f"{name} has the token ids {_short(found, encoding.ids)} {place}, "
                    f"{_short(encoding.ids, found)} by tokenizer.json",
                )
    return len(corpus), None


def _short(ids: list[int], other: list[int]) -> str:
    """A list of ids from shortly before the first that the other list does not have."""
    pairs = zip(ids, other, strict=False)
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    start = max(0, same - 3)
    shown = " ".join(map(str, ids[start : start + SHOWN]))
    return ("… " if start else "") + shown + (" …" if len(ids) > start + SHOWN else "")


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
