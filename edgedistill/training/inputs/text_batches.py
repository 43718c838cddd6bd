"""The batches of a stage over texts: views of the texts as token ids, and the target embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from edgedistill import objectives, recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.token_cache import TokenCache
from edgedistill.errors import UserError
from edgedistill.runtime import batching
from edgedistill.session import Session
from edgedistill.training.initial_student.prepared_student import StudentTokenizer
from edgedistill.training.inputs.batch_order import Lengths
from edgedistill.training.stages import NumberedStage

Ids = tuple[np.ndarray, np.ndarray]  # (ids, mask), each (n, T) int64, right-padded
View = Callable[[np.ndarray, np.ndarray], Ids]  # (rows, the pass over the texts that each belongs to) -> ids
Change = Callable[[list[str], np.ndarray, np.ndarray], list[str]]  # (texts, rows, passes) -> their views
WordEdit = recipe.WordDeletion | recipe.Crop | recipe.DeleteOne


@dataclass(frozen=True)
class Batches:
    """The views of `texts` texts, and their target embeddings if the stage has any: a pure function of (row,
    pass).

    `tokens` knows the lengths of the views whose tokens are known beforehand, the text itself first.
    """

    views: list[View]
    tokens: Sequence[Lengths]
    texts: int
    targets: Any = None  # EmbeddingRows, those of pairs, or TupleTargets

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens in the longest view of each row whose tokens are known beforehand, (n,)."""
        return np.max([tokens.lengths(rows) for tokens in self.tokens], axis=0)

    def trained_and_queued(self, stage: NumberedStage[recipe.Stage]) -> tuple[np.ndarray, np.ndarray]:
        """(the rows that a stage trains on, in order; the rows that fill its queue at the start, which are
        none of those). Raises UserError where none are left to train on."""
        rows, longest = np.arange(self.texts), stage.spec.skip_longer_than
        if longest is not None:
            rows = rows[self.tokens[0].lengths(rows) <= longest]
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
    session: Session,
) -> Batches:
    """The texts of a corpus and their tokens, with a second view of each text where the stage has one;
    without targets. `tokenizer` has the student's own limit."""
    from edgedistill.views import model_views  # a room beside the line

    spec, place, limited = stage.spec.view, f"{stage.place}.view", tokenizer.limited(stage.spec.max_tokens)
    views, known = [_of_tokens(tokens, limited.max_tokens)], [tokens]
    if isinstance(spec, recipe.Identity | recipe.Dropout):
        views.append(views[0])
    elif isinstance(spec, WordEdit):
        views.append(_of_changed_texts(partial(_without_words, spec, stage.seed), texts, limited))
    elif spec is not None:
        made = model_views.build(spec, texts, session, place)
        known.append(limited.tokenize(made, session))
        views.append(_of_tokens(known[-1], limited.max_tokens))
    return Batches(views, known, texts.training_count)


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


def check_view(stage: NumberedStage[recipe.Stage]) -> None:
    """Raise UserError where a model that a stage's view is made with is missing. None is opened."""
    from edgedistill.views import model_views

    spec, place = stage.spec.view, f"{stage.place}.view"
    if isinstance(spec, recipe.BackTranslation):
        model_views.model_folders(spec, place)


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


def _of_tokens(tokens: TokenCache, max_tokens: int) -> View:
    return lambda rows, passes: tokens.batch(rows, max_tokens)


def _of_changed_texts(change: Change, texts: Corpus, tokenizer: StudentTokenizer) -> View:
    """Views that are made, and tokenized, a batch at a time."""
    # A copy, because others change the shared one's length limit between steps.
    own = Tokenizer.from_str(tokenizer.backend.to_str())
    own.no_padding()
    own.enable_truncation(tokenizer.max_tokens)

    def view(rows: np.ndarray, passes: np.ndarray) -> Ids:
        encodings = own.encode_batch_fast(change(texts.texts(rows), rows, passes))
        return batching.pad([np.array(encoding.ids) for encoding in encodings], tokenizer.pad_id)

    return view


def _without_words(
    spec: WordEdit, seed: int, texts: list[str], rows: np.ndarray, passes: np.ndarray
) -> list[str]:
    """Texts without some of their words; the row of a text in the corpus and the pass over it decide which
    remain."""
    draws = zip(texts, draws_of(seed, rows, passes), strict=True)
    return [" ".join(_remaining(spec, text.split(), draw)) for text, draw in draws]


def draws_of(seed: int, rows: np.ndarray, passes: np.ndarray) -> Iterator[np.random.Generator]:
    """Random draws for each text, by its row in the corpus and the pass over it: whatever other texts are
    beside it."""
    return (np.random.default_rng([seed, *each]) for each in zip(rows.tolist(), passes.tolist(), strict=True))


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
