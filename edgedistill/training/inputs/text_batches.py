"""The batches of a stage over texts or triples: views of the texts as token ids, and the target
embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from edgedistill import recipe
from edgedistill.data import view_file
from edgedistill.data.corpus import Corpus
from edgedistill.data.token_cache import (
    TokenCache,
    WordTokenCache,
    tokenize_by_word,
    tokenizes_words_independently,
)
from edgedistill.data.triples import Triples
from edgedistill.runtime import batching
from edgedistill.session import Session
from edgedistill.teacher.targets import EmbeddingRows
from edgedistill.training.initial_student.prepared_student import StudentTokenizer
from edgedistill.training.inputs import word_edits
from edgedistill.training.inputs.batch_order import Lengths
from edgedistill.training.stages import NumberedStage

Ids = tuple[np.ndarray, np.ndarray]  # (ids, mask), each (n, T) int64, right-padded
View = Callable[[np.ndarray, np.ndarray], Ids]  # (rows, the pass over the texts that each belongs to) -> ids


class Batches:
    """The views of `texts` texts, and their target embeddings if the stage has any: a pure function of (row,
    pass)."""

    def __init__(
        self, views: list[View], tokens: Sequence[Lengths], texts: int, targets: EmbeddingRows | None
    ) -> None:
        """tokens: of the views whose tokens are known beforehand, the text itself first."""
        self.views, self.tokens, self.texts, self.targets = views, tokens, texts, targets

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens in the longest view of each row whose tokens are known beforehand, (n,)."""
        return np.max([tokens.lengths(rows) for tokens in self.tokens], axis=0)

    def short(self, max_tokens: int) -> np.ndarray:
        """The training rows whose text has at most `max_tokens` tokens, (n,) int64; their other views may
        have more."""
        first = self.tokens[0]
        assert isinstance(first, TokenCache)
        return first.rows_up_to(max_tokens, self.texts)

    def batch(self, rows: np.ndarray, passes: np.ndarray) -> tuple[list[Ids], np.ndarray | None]:
        """(ids and mask of every view, the target embeddings (n, d) float32)."""
        return [view(rows, passes) for view in self.views], None if self.targets is None else self.targets[
            rows
        ]


class TokenizedCorpus(NamedTuple):
    """A corpus and the token ids of its texts."""

    texts: Corpus
    tokens: TokenCache


def of_texts(
    stage: NumberedStage[recipe.Stage],
    corpus: TokenizedCorpus,
    tokenizer: StudentTokenizer,
    targets: EmbeddingRows | None,
    session: Session,
) -> Batches:
    """The texts of a corpus, with a second view of each where the stage has one. tokenizer: with the
    student's own limit."""
    texts, tokens = corpus
    spec, place, limited = stage.spec.view, f"{stage.place}.view", tokenizer.limited(stage.spec.max_tokens)
    views, known = [_of_tokens(tokens, limited.max_tokens)], [tokens]
    if isinstance(spec, recipe.Identity | recipe.Dropout):
        views.append(views[0])
    elif isinstance(spec, recipe.WordDeletion | recipe.Crop | recipe.DeleteOne):
        views.append(_edited(spec, stage.seed, texts, limited, session))
    elif spec is not None:
        known.append(limited.tokenize(view_file.build(spec, texts, session, place), session))
        views.append(_of_tokens(known[-1], limited.max_tokens))
    return Batches(views, known, texts.training_count, targets)


def check_view(stage: NumberedStage[recipe.Stage], texts: Corpus, session: Session) -> None:
    """Raise UserError where the file of a stage's views is missing, or lacks texts."""
    if isinstance(stage.spec.view, recipe.ViewFile):
        view_file.build(stage.spec.view, texts, session, f"{stage.place}.view")


def of_triples(triples: Triples, tokenizer: StudentTokenizer, session: Session) -> Batches:
    """Three views, without targets: a text, one of the same meaning, one of another."""
    tokens = [tokenizer.tokenize(column, session) for column in triples.columns]
    return Batches([_of_tokens(each, tokenizer.max_tokens) for each in tokens], tokens, len(triples), None)


def _of_tokens(tokens: TokenCache, max_tokens: int) -> View:
    return lambda rows, passes: tokens.batch(rows, max_tokens)


def _edited(
    spec: word_edits.Edit, seed: int, texts: Corpus, tokenizer: StudentTokenizer, session: Session
) -> View:
    """Texts without some of their words, on token ids where the tokenizer allows that, otherwise on the
    texts."""
    if tokenizes_words_independently(tokenizer.backend):
        return _edited_ids(
            spec,
            seed,
            tokenize_by_word(texts, tokenizer.backend, tokenizer.pad_id, session),
            tokenizer.max_tokens,
        )
    return _of_changed_texts(
        lambda rows, passes, old: word_edits.edited(spec, seed, rows, passes, old), texts, tokenizer
    )


def _edited_ids(spec: word_edits.Edit, seed: int, words: WordTokenCache, max_tokens: int) -> View:
    """Words left out of the token ids; gives the same ids as editing the texts and tokenizing them."""
    return lambda rows, passes: words.batch(
        rows, word_edits.remaining_words(spec, seed, rows, passes, words.counts(rows)), max_tokens
    )


def _of_changed_texts(
    change: Callable[[np.ndarray, np.ndarray, list[str]], list[str]],
    texts: Corpus,
    tokenizer: StudentTokenizer,
) -> View:
    """Texts changed and tokenized, a batch at a time."""
    own = Tokenizer.from_str(
        tokenizer.backend.to_str()
    )  # a copy: others change the shared one's length limit between steps
    own.no_padding()
    own.enable_truncation(tokenizer.max_tokens)

    def view(rows: np.ndarray, passes: np.ndarray) -> Ids:
        encodings = own.encode_batch_fast(change(rows, passes, texts.texts(rows)))
        return batching.pad([np.array(encoding.ids) for encoding in encodings], tokenizer.pad_id)

    return view
