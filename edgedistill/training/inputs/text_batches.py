"""The batches of a stage over texts: views of the texts as token ids, and the target embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgedistill import objectives, recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.token_cache import TokenCache
from edgedistill.errors import UserError
from edgedistill.runtime import batching
from edgedistill.training.initial_student.prepared_student import StudentTokenizer
from edgedistill.training.inputs.batch_order import Lengths
from edgedistill.training.stages import NumberedStage

Ids = tuple[np.ndarray, np.ndarray]  # (ids, mask), each (n, T) int64, right-padded
View = Callable[[np.ndarray, np.ndarray], Ids]  # (rows, the pass over the texts that each belongs to) -> ids
WordEdit = recipe.WordDeletion | recipe.Crop | recipe.DeleteOne


@dataclass(frozen=True)
class Batches:
    """The views of `texts` texts, and their target embeddings if the stage has any: a pure function of (row,
    pass). `tokens` knows the lengths of the texts."""

    views: list[View]
    tokens: Lengths
    texts: int
    targets: Any = None  # EmbeddingRows, those of pairs, or TupleTargets

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens in each row, (n,)."""
        return self.tokens.lengths(rows)

    def trained_and_queued(self, stage: NumberedStage[recipe.Stage]) -> tuple[np.ndarray, np.ndarray]:
        """(the rows that a stage trains on, in order; the rows that fill its queue at the start, which are
        none of those). Raises UserError where none are left to train on."""
        rows, longest = np.arange(self.texts), stage.spec.skip_longer_than
        if longest is not None:
            rows = rows[self.tokens.lengths(rows) <= longest]
        queued = np.zeros(len(rows), bool)
        if count := queue_rows(stage, len(rows)):
            drawn = np.random.default_rng(stage.seed).choice(len(rows), count, replace=False, shuffle=False)
            queued[drawn] = True
        return rows[~queued], rows[queued]

    def batch(self, rows: np.ndarray, passes: np.ndarray) -> tuple[list[Ids], Any]:
        """(ids and mask of every view, the target embeddings (n, d) float32)."""
        targets = None if self.targets is None else self.targets[rows]
        return [view(rows, passes) for view in self.views], targets


def of_texts(
    stage: NumberedStage[recipe.Stage],
    texts: Corpus,
    tokens: TokenCache,
    tokenizer: StudentTokenizer,
) -> Batches:
    """The texts of a corpus and their tokens, with a second view of each text where the stage has one;
    without targets. `tokenizer` has the student's own limit."""
    spec, limited = stage.spec.view, tokenizer.limited(stage.spec.max_tokens)
    views: list[View] = [lambda rows, passes: tokens.batch(rows, limited.max_tokens)]
    if isinstance(spec, recipe.Identity | recipe.Dropout):
        views.append(views[0])
    elif spec is not None:
        views.append(_of_changed_texts(spec, stage.seed, texts, limited))
    return Batches(views, tokens, texts.training_count)


def queue_rows(stage: NumberedStage[recipe.Stage], texts: int) -> int:
    """How many of a stage's texts fill its queue at the start and are not trained on. Raises UserError where
    that leaves none."""
    wanted = objectives.queue_prefill(stage.spec.objective)
    if texts == 0:
        fact = f"no text of the corpus has {stage.spec.skip_longer_than} tokens or fewer"
        raise UserError(f"{stage.place}.skip_longer_than: {fact}; raise it")
    if wanted >= texts:
        fact = f"a queue of {wanted:,} texts leaves none of {texts:,} to train on"
        raise UserError(f"{stage.place}.objective: {fact}; lower it")
    return wanted


class ColumnTokens:
    """Token ids of the texts of pairs or tuples, by the row of the pair or tuple."""

    def __init__(self, columns: Sequence[TokenCache], index: np.ndarray) -> None:
        """`index` (n, columns or more) holds the texts of each row; those of a tuple behind its positive are
        not read here."""
        self.columns, self.index = columns, index

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens in the longest text of each row, (n,)."""
        return np.max([each.lengths(self.index[rows, at]) for at, each in enumerate(self.columns)], axis=0)

    def view(self, at: int, max_tokens: int) -> View:
        """The texts of one column."""
        return lambda rows, passes: self.columns[at].batch(self.index[rows, at], max_tokens)


def _of_changed_texts(spec: WordEdit, seed: int, texts: Corpus, tokenizer: StudentTokenizer) -> View:
    """Views that are made, and tokenized, a batch at a time."""
    encode = tokenizer.encoder()

    def view(rows: np.ndarray, passes: np.ndarray) -> Ids:
        changed = _without_words(spec, seed, texts.texts(rows), rows, passes)
        return batching.pad(encode(changed), tokenizer.pad_id)

    return view


def _without_words(
    spec: WordEdit, seed: int, texts: list[str], rows: np.ndarray, passes: np.ndarray
) -> list[str]:
    """Texts without some of their words; the row of a text in the corpus and the pass over it decide which
    remain."""
    numbered = zip(texts, rows.tolist(), passes.tolist(), strict=True)
    return [
        " ".join(_remaining(spec, text.split(), np.random.default_rng([seed, row, number])))
        for text, row, number in numbered
    ]


def _remaining(spec: WordEdit, words: list[str], draw: np.random.Generator) -> list[str]:
    """The words that remain of a text, at least one: word deletion, cropping, or deletion of one word.

    A fraction that is no whole number of words is rounded up or down at random, so that it holds on average.
    SimCSE, Table 1 (Gao et al. 2021); ConGen, Table 6.
    """
    dropped = 1
    if not isinstance(spec, recipe.DeleteOne):
        fraction = spec.drop_fraction if isinstance(spec, recipe.Crop) else spec.fraction
        dropped = int(fraction * len(words) + draw.random())
    left = max(1, len(words) - dropped)
    if isinstance(spec, recipe.Crop):
        start = int(draw.integers(len(words) - left, endpoint=True))
        return words[start : start + left]
    return [words[at] for at in sorted(draw.permutation(len(words))[:left])]
