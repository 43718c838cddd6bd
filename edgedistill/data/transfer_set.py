"""A rule-augmented transfer set: new texts made from a task's own, for its teacher to label (Tang et al.
2019; the TS of SRA)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgedistill import recipe
from edgedistill.data.labelled_tasks import Item
from edgedistill.errors import UserError, require

ROUNDS = {1: 20, 2: 10}  # passes over texts, over pairs: d-bert's n_iter
LONGEST_NGRAM = 5
Tagger = Callable[[list[str]], list[str | None]]  # the words of a text -> their parts of speech, or None


class TaggedWords:
    """The words of the training texts; `by_tag`: those of each part of speech, as often as they occur."""

    def __init__(self, items: list[Item], tag: Tagger) -> None:
        self.rows = [[text.split() for text in item] for item in items]
        self.tags = [[tag(words) for words in row] for row in self.rows]
        self.by_tag: dict[str, list[str]] = {}
        for row, tags in zip(self.rows, self.tags, strict=True):
            for words, named in zip(row, tags, strict=True):
                for word, name in zip(words, named, strict=True):
                    if name is not None:
                        self.by_tag.setdefault(name, []).append(word)


def most_rows(spec: recipe.Augment, items: list[Item]) -> int:
    """The most rows that a task's own and its transfer set can be together."""
    return max(len(items), min(spec.limit, len(items) * (1 + ROUNDS[len(items[0])])))


def transfer_set(spec: recipe.Augment, items: list[Item], mask: str, seed: int, tag: Tagger) -> list[Item]:
    """New texts or pairs made from `items`: no duplicates, none of `items`, at most `limit` with those. Rows
    are edited round by round.

    A pure function of its arguments. A third of the edits of pairs change the first text, a third the second,
    a third both. A text of which no word remains is dropped, and so is a pair with such a text.
    """
    words, seen = TaggedWords(items, tag), set(items)
    out: list[Item] = []
    for number in range(ROUNDS[len(items[0])]):
        for row, texts in enumerate(words.rows):
            if len(items) + len(out) >= spec.limit:
                return out
            draw = np.random.default_rng([seed, number, row])
            which = range(len(texts)) if len(texts) == 1 else ((0,), (1,), (0, 1))[int(draw.integers(3))]
            edits: list[str | None] = [" ".join(text) for text in texts]
            for at in which:
                edits[at] = edited(spec, texts[at], words.tags[row][at], words.by_tag, mask, draw)
            item = tuple(text for text in edits if text is not None)
            if len(item) == len(texts) and item not in seen:
                seen.add(item)
                out.append(item)
    return out


def edited(
    spec: recipe.Augment,
    words: list[str],
    tags: list[str | None],
    by_tag: dict[str, list[str]],
    mask: str,
    draw: np.random.Generator,
) -> str | None:
    """One text edited: each word masked, replaced or left, then perhaps an n-gram of it; None where no word
    remains."""
    out, left = [], []
    for word, tag, chance in zip(words, tags, draw.random(len(words)).tolist(), strict=True):
        changed = True
        if chance < spec.mask:
            out.append(mask)
        elif chance < spec.mask + spec.pos and tag is not None:
            out.append(by_tag[tag][int(draw.integers(len(by_tag[tag])))])
        else:
            out.append(word)
            changed = False
        left.append(not changed)
    if draw.random() < spec.ngram:
        size = min(len(out), int(draw.integers(1, LONGEST_NGRAM + 1)))
        start = int(draw.integers(len(out) - size + 1))
        out, left = out[start : start + size], left[start : start + size]
    return " ".join(out) if any(left) else None


def tagger(spec: recipe.Augment, place: str) -> Tagger:
    """Return nltk's perceptron tagger (Penn tags), or one that knows no part of speech where `pos` is 0.

    Raises UserError, which names the recipe key `place`, where nltk or its data is missing.
    """
    if spec.pos == 0:
        return lambda words: [None] * len(words)
    nltk = require("nltk", "edgedistill train", "augment")
    try:
        nltk.pos_tag(["word"])
    except (LookupError, OSError):
        way_out = "python -m nltk.downloader averaged_perceptron_tagger_eng, or set pos: 0"
        raise UserError(
            f"{place}: parts of speech come from nltk's tagger, whose data it does not find; {way_out}"
        ) from None
    return lambda words: [tag for _, tag in nltk.pos_tag(words)]
