"""What the stages of a parallel corpus read: the token ids of either side, and the vectors that both sides are to match."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel import Pairs
from edgedistill.data.token_cache import Tokens, tokenize
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.teacher import assistant, precomputed
from edgedistill.teacher.embedding_cache import embed_corpus
from edgedistill.teacher.encoder import Teacher
from edgedistill.teacher.targets import Rows
from edgedistill.training.inputs.text_feed import Feed, Ids, View


class SideTokens:
    """Token ids of one side of pairs, by the pair's row."""

    def __init__(self, tokens: Tokens, rows: np.ndarray) -> None:
        self.tokens, self.rows = tokens, rows

    def lengths(self, pairs: np.ndarray) -> np.ndarray:
        """Tokens in that side of each pair, (n,)."""
        return self.tokens.lengths(self.rows[pairs])

    def batch(self, pairs: np.ndarray, max_tokens: int) -> Ids:
        return self.tokens.batch(self.rows[pairs], max_tokens)


class PairFeed(Feed):
    """Two views, a text and its translation; the vectors of a batch are (n, 2, d)."""

    def __init__(self, sides: list[SideTokens], most: int, vectors: Rows) -> None:
        views: list[View] = [_view(side, most) for side in sides]
        super().__init__(views, list(sides), len(sides[0].rows), vectors)

    def short(self, longest: int) -> np.ndarray:
        """The pairs whose sides both have at most `longest` tokens, (n,) int64."""
        return np.flatnonzero(self.lengths(np.arange(self.texts)) <= longest)


def _view(side: SideTokens, most: int) -> View:
    return lambda pairs, passes: side.batch(pairs, most)


class Matched:
    """What either side of each pair is to match, (n, 2, d) float32: its own vector, or both the first side's."""

    def __init__(self, index: np.ndarray, first: Rows, second: Rows | None) -> None:
        self.index, self.first, self.second = index, first, second
        self.dims = first.dims

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, pairs: np.ndarray) -> np.ndarray:
        rows = self.index[pairs]
        one = self.first[rows[:, 0]]
        return np.stack([one, one if self.second is None else self.second[rows[:, 1]]], 1)


class Models(NamedTuple):
    """Whom a run's pairs may match."""

    teacher: Teacher | precomputed.Given
    assistant: Teacher | None


def tokens(spec: recipe.Recipe, pairs: Pairs, words: PreTrainedTokenizerBase, max_tokens: int, session: Session) -> list[Tokens]:
    """Token ids of the texts of either side."""
    longest = min(max((stage.max_tokens for stage in spec.distilling), default=max_tokens), max_tokens)
    return [tokenize(side, words.backend_tokenizer, longest, words.pad_token_id or 0, session) for side in (pairs.first, pairs.second)]


def feeds(
    spec: recipe.Recipe,
    pairs: Pairs,
    cut: list[Tokens],
    models: Models,
    max_tokens: int,
    session: Session,
    others: list[Feed | None],
) -> list[Feed]:
    """What each stage reads. `max_tokens`: the student's own limit; `others`: of each stage the feed, where it does not read the pairs.

    Teacher and assistant read each side's texts once, whatever the number of pairs and stages; their vectors are cached.
    """
    vectors: dict[tuple[str, str, str], Rows] = {}

    def rows(match: recipe.Match, side: str) -> Rows:
        key = (match.of, match.at, side)
        if key not in vectors:
            read = pairs.first if side == "first" else pairs.second
            vectors[key] = _vectors(match, models, read, f"{side} sides", session)
        return vectors[key]

    found: list[Feed] = []
    for number, stage in enumerate(spec.distilling):
        elsewhere = others[number]
        if elsewhere is not None:
            found.append(elsewhere)
            continue
        index, match = pairs.of(stage.pairs), stage.match or recipe.Match()
        matched = Matched(index, rows(match, "first"), rows(match, "second") if match.language == "own" else None)
        sides = [SideTokens(each, index[:, at]) for at, each in enumerate(cut)]
        found.append(PairFeed(sides, min(stage.max_tokens, max_tokens), matched))
    return found


def matched(feeds: list[Feed]) -> Rows | None:
    """The vectors of the first feed that has some; None where no stage matches any."""
    return next((feed.vectors for feed in feeds if feed.vectors is not None), None)


def _vectors(match: recipe.Match, models: Models, side: Corpus, which: str, session: Session) -> Rows:
    """One side's vectors as the model gives them: not of unit length, as the paper's are not."""
    reader = source(match, models)
    if reader is None:
        assert isinstance(models.teacher, precomputed.Given)
        return precomputed.vectors(models.teacher, side, session)
    layer = "" if match.at == "output" else "'s embedding layer"
    return embed_corpus(reader, side, session, unit=False, name=f"{match.of}{layer}, {which}")


def source(match: recipe.Match, models: Models) -> Teacher | None:
    """Whose vectors a stage matches; None where they are read from a file."""
    if match.of == "teacher":
        return models.teacher if isinstance(models.teacher, Teacher) else None
    assert models.assistant is not None, "the recipe has made sure"
    return models.assistant if match.at == "output" else assistant.EmbeddingLayer(models.assistant)


def passes(spec: recipe.Recipe) -> list[tuple[recipe.Match, str]]:
    """Which vectors of which side the stages need, each once."""
    found: dict[tuple[str, str, str], tuple[recipe.Match, str]] = {}
    for stage in spec.distilling:
        match = stage.match or recipe.Match()
        for side in ("first", "second") if match.language == "own" else ("first",):
            if stage.triples is None:
                found.setdefault((match.of, match.at, side), (match, side))
    return list(found.values())


def check(spec: recipe.Recipe, models: Models, words: PreTrainedTokenizerBase) -> None:
    """Raise UserError where the assistant's layers are to start a student that cuts texts differently, or embedding layers are to be
    matched over other tokens: their means are of other positions."""
    if models.assistant is None:
        return
    theirs = models.assistant.tokenizer
    fact = "cut texts into other pieces" if not words.get_vocab().keys() <= theirs.get_vocab().keys() else ""
    if not fact and theirs("")["input_ids"] and len(words("")["input_ids"]) != len(theirs("")["input_ids"]):
        fact = "put other special tokens around them"
    if not fact:
        return
    way_out = f"student and assistant {fact}; set student.tokenizer: assistant"
    if getattr(spec.student, "weights", None) == "assistant":
        raise UserError(f"student.weights: the assistant's layers read the assistant's own tokens, {way_out}")
    for number, stage in enumerate(spec.distilling):
        if stage.match is not None and stage.match.at == "embeddings":
            raise UserError(f"stages[{number}].match: embedding layers are compared over the same tokens, {way_out}")
