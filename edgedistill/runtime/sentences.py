"""Sentences, and passages of no more tokens than an encoder reads."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate

from sentencex import segment

# A sentence ends where all of these end one, so that an abbreviation of any of them ends none. Chinese and
# Japanese full stops end one in each.
LANGUAGES = ("en", "de", "es", "fr", "nl")
BEGINNING = re.compile(r"(?<=[.!?]\s)[a-z]")
ALONE = re.compile(r"(?<=\s[.!?])\s+")  # behind a full stop with spaces around, whatever follows

Spans = list[tuple[int, int]]  # where parts of a text begin and end, in characters


def ends(text: str) -> list[int]:
    """Where the sentences of a text end, ascending, behind the white space that follows them."""
    # As if each sentence began with a capital: what is an abbreviation, its list decides.
    text = BEGINNING.sub(lambda letter: letter[0].upper(), text)
    by_language = [set(accumulate(map(len, segment(language, text)))) for language in LANGUAGES]
    alone = {match.end() for match in ALONE.finditer(text)}
    return sorted(set.intersection(*by_language) | alone | {len(text)})


def sentences(text: str, min_words: int = 1) -> list[str]:
    """The sentences of a text; one of fewer words than `min_words` is joined to the one behind it."""
    spans = []
    start = 0
    for end in ends(text):
        if (part := text[start:end].strip()) and words(part) >= min_words:
            spans.append((start, end))
            start = end
    if text[start:].strip():
        spans[-1:] = [(spans[-1][0] if spans else start, len(text))]
    return [text[first:last].strip() for first, last in spans]


def words(text: str) -> int:
    """Words between white space; each character of a text without any counts as half a word."""
    spaced = text.count(" ") + 1
    return spaced if spaced > 1 or text.isascii() else len(text) // 2


def divided(text: str, tokens: Callable[[str], Spans], most: int) -> Iterator[str]:
    """The text, or where it has more than `most` tokens its parts, of at most half as many each, since an
    embedding of fewer words says more of each: cut where a sentence ends, else at a space, else behind a
    token. `tokens` returns the spans of a text's tokens."""
    spans = tokens(text)
    if len(spans) <= most:
        yield text
        return
    most = max(1, most // 2)
    sentence_ends = ends(text)
    start = at = 0
    while at < len(spans):
        last = min(at + most, len(spans))
        part = ""
        while not part:
            end = len(text) if last == len(spans) else _cut(text, sentence_ends, start, spans[last - 1][1])
            part = text[start:end].strip()
            excess = len(tokens(part)) - most  # a word that is cut may have more tokens than before
            if excess > 0 and last - excess > at:
                last = last - excess
                part = ""
        yield part
        start = end
        while at < len(spans) and spans[at][0] < end:
            at += 1


def _cut(text: str, sentence_ends: list[int], start: int, limit: int) -> int:
    """Where a part from `start` on ends, `limit` at the latest."""
    end = sentence_ends[bisect_right(sentence_ends, limit) - 1] if sentence_ends[0] <= limit else start
    if end <= start:
        end = text.rfind(" ", start + 1, limit + 1)
    return end if end > start else max(limit, start + 1)
