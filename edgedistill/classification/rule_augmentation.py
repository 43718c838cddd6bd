"""A rule-augmented transfer set: new texts made from a task's own, for its teacher to label (Tang et al.
2019; the TS of SRA)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgedistill import recipe
from edgedistill.data import file_patterns, readers
from edgedistill.data.labelled_tasks import Item
from edgedistill.errors import UserError, require
from edgedistill.session import Session

ROUNDS = {1: 20, 2: 10}  # over texts, over pairs: d-bert's n_iter
LONGEST_NGRAM = 5
Tagger = Callable[
    [list[str]], list[str | None]
]  # the words of a text -> their parts of speech, None: unknown


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


def rounds(spec: recipe.Augment, pair: bool) -> int:
    """How many times every row is edited."""
    return spec.rounds or ROUNDS[2 if pair else 1]


def transfer_set(spec: recipe.Augment, items: list[Item], mask: str, seed: int, tag: Tagger) -> list[Item]:
    """New texts or pairs made from `items`: no duplicates, none of `items`, at most `limit` with those. Rows
    are edited round by round.

    A pure function of its arguments. A third of the edits of pairs change the first text, a third the second,
    a third both. A text of which no word remains is dropped, and so is a pair with such a text.
    """
    words, seen = TaggedWords(items, tag), set(items)
    out: list[Item] = []
    for number in range(rounds(spec, len(items[0]) == 2)):
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
    of: dict[str, list[str]],
    mask: str,
    draw: np.random.Generator,
) -> str | None:
    """One text edited: each word masked, replaced or left, then perhaps an n-gram of it; None where no word
    remains."""
    out, left = [], []
    for word, tag, chance in zip(words, tags, draw.random(len(words)).tolist(), strict=True):
        masked = chance < spec.mask
        replaced = not masked and chance < spec.mask + spec.pos and tag is not None
        out.append(
            mask
            if masked
            else of[tag][int(draw.integers(len(of[tag])))]
            if replaced and tag is not None
            else word
        )
        left.append(not masked and not replaced)
    if draw.random() < spec.ngram:
        size = min(len(out), int(draw.integers(1, LONGEST_NGRAM + 1)))
        start = int(draw.integers(len(out) - size + 1))
        out, left = out[start : start + size], left[start : start + size]
    return " ".join(out) if any(left) else None


def tagger(spec: recipe.Augment, session: Session, items: list[Item], place: str) -> Tagger:
    """The part-of-speech tagger: a table of the user's, nltk, or none where `pos` is 0.

    Raises UserError where table or nltk is missing, or where the table has none of the texts' words. `place`:
    the recipe key.
    """
    if spec.pos == 0:
        return lambda words: [None] * len(words)
    if spec.tags is None:
        return _nltk(place)
    [path, *more] = file_patterns.matching_files([spec.tags], session.data, f"{place}.tags")
    if more:
        raise UserError(f"{place}.tags: {spec.tags!r} matches {1 + len(more)} files; name one")
    table = {
        word.lower(): tag
        for word, tag in readers.columns_in(path, ("word", "tag"), f"{place}.tags")
        if word and tag
    }
    names = {readers.normalize(word).lower() for item in items for text in item for word in text.split()}
    known = sum(name in table for name in names)
    if not known:
        raise UserError(
            f"{place}.tags: {path.name} has none of the training texts' {len(names):,} words; give the table "
            "of this language"
        )
    session.log(
        f"{place}: {known:,} of {len(names):,} words have a tag in {path.name}; the others are masked or "
        "left, never replaced"
    )
    return lambda words: [table.get(word.lower()) for word in words]


def _nltk(place: str) -> Tagger:
    """nltk's perceptron tagger (Penn tags). Raises UserError where nltk or its data is missing."""
    nltk = require("nltk", "train", "views")
    try:
        nltk.pos_tag(["word"])
    except (LookupError, OSError):
        way_out = (
            "python -m nltk.downloader averaged_perceptron_tagger_eng, give a table of `tags`, or set pos: 0"
        )
        raise UserError(
            f"{place}: parts of speech come from nltk's tagger, whose data it does not find; {way_out}"
        ) from None
    return lambda words: [tag for _, tag in nltk.pos_tag(words)]
