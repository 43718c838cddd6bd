"""Texts that are added to a corpus: paragraphs joined from its lines, passages of its long texts, general
sentences.

A student that has seen sentences alone embeds documents badly; queries are short where documents are long;
and what a student knew of general texts it keeps where some are trained on.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import islice

import numpy as np
from numpy import ndarray

from edgedistill import recipe
from edgedistill.data import readers
from edgedistill.data.deduplicate import Spool, key, sample_evenly
from edgedistill.runtime.sentences import sentences

MIN_WORDS = 4  # of a sentence; a shorter one is joined to the next
LONGEST_RUN = 4  # sentences
MOST_WORDS = 64  # of a sentence of the documentation


def joined_lines(
    spec: recipe.Paragraphs, spool: Spool, kept: ndarray, usable: ndarray, seed: int
) -> Iterator[bytes]:
    """Join usable lines until they have as many words as were drawn, about `spec.texts` times.

    A paragraph begins at a kept line, so that limits per source hold for paragraphs too, and continues with
    any usable line of the same source. Where the source ends first, two lines or more still make a paragraph.
    `kept` and `usable` are numbers of lines, ascending.
    """
    random = np.random.default_rng([seed, 1])
    begins = np.isin(usable, sample_evenly(kept, spec.texts)).tolist()
    lines = zip(begins, spool.lines(usable), strict=True)
    for count in spool.counts(usable):
        growing: list[tuple[int, list[bytes]]] = []  # (words to reach, lines so far)
        for begin, line in islice(lines, count):
            if begin:
                growing.append((int(random.integers(*spec.words, endpoint=True)), []))
            unfinished = []
            for wanted, parts in growing:
                parts.append(line)
                if sum(part.count(b" ") + 1 for part in parts) < wanted:
                    unfinished.append((wanted, parts))
                elif len(parts) > 1:
                    yield b" ".join(parts)
            growing = unfinished
        yield from (b" ".join(parts) for _, parts in growing if len(parts) > 1)


class PassageCutter:
    """Cuts texts into passages, of which each is given once, whatever texts it occurs in. One that holds an
    excluded text (`deduplicate.key`) never is."""

    def __init__(self, spec: recipe.Passages, seed: int) -> None:
        self.spec = spec
        self.random = np.random.default_rng([seed, 2])
        self.seen = set[int]()

    def of(self, texts: Iterable[bytes], excluded: Container[int]) -> Iterator[bytes]:
        """The passages of each text: its sentences, and runs of them; no more than the recipe asks for."""
        if self.spec.texts is None:
            yield from self._all(texts, excluded)
            return
        passages = list(self._all(texts, excluded))
        count = min(self.spec.texts, len(passages))
        for number in np.sort(self.random.choice(len(passages), count, replace=False, shuffle=False)):
            yield passages[number]

    def _all(self, texts: Iterable[bytes], excluded: Container[int]) -> Iterator[bytes]:
        for text in texts:
            for run in self._cut(text.decode("utf-8")):
                passage = " ".join(run)
                passage_key = key(passage)
                if passage_key in self.seen or any(key(part) in excluded for part in (passage, *run)):
                    continue
                self.seen.add(passage_key)
                yield passage.encode("utf-8")

    def _cut(self, text: str) -> Iterator[list[str]]:
        """The sentences of a text that has several, then a run of neighbouring ones for every four of
        them."""
        parts = sentences(text, MIN_WORDS)
        if len(parts) > 1:
            yield from ([part] for part in parts)
        for _ in range(-(-len(parts) // 4) if len(parts) > 2 else 0):
            length = int(self.random.integers(2, min(LONGEST_RUN, len(parts) - 1), endpoint=True))
            start = int(self.random.integers(0, len(parts) - length, endpoint=True))
            yield parts[start : start + length]


def measured(texts: Iterable[str]) -> set[int]:
    """The keys of held-out texts and of their sentences, which are asked for: none of them may be trained
    on."""
    return {key(part) for text in texts for part in (text, *sentences(text, MIN_WORDS))}


def documentation() -> Iterator[str]:
    """The sentences of Python's documentation, of 4 to so many words."""
    return (text for text in readers.documentation() if text.count(" ") < MOST_WORDS)


def general_sentences(count: int) -> Iterator[bytes]:
    """So many of these, spread evenly."""
    texts = list(documentation())
    yield from (texts[number].encode() for number in sample_evenly(np.arange(len(texts)), count))
