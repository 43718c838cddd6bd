"""The batches of a stage over texts or triples: views of the texts as token ids, and the target
embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from edgedistill import recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.data.token_cache import TokenCache
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
        return np.flatnonzero(self.tokens[0].lengths(np.arange(self.texts)) <= max_tokens)

    def batch(self, rows: np.ndarray, passes: np.ndarray) -> tuple[list[Ids], np.ndarray | None]:
        """(ids and mask of every view, the target embeddings (n, d) float32)."""
        return [view(rows, passes) for view in self.views], None if self.targets is None else self.targets[
            rows
        ]


class SideTokens:
    """Token ids of one column of pairs or triples, by the row of the pair or triple."""

    def __init__(self, tokens: TokenCache, rows: np.ndarray) -> None:
        """rows (n,): the text of each pair or triple."""
        self.tokens, self.rows = tokens, rows

    def lengths(self, pairs: np.ndarray) -> np.ndarray:
        """Tokens in this column of each row, (n,)."""
        return self.tokens.lengths(self.rows[pairs])

    def batch(self, pairs: np.ndarray, max_tokens: int) -> Ids:
        """(ids, mask) of this column of each row."""
        return self.tokens.batch(self.rows[pairs], max_tokens)


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
        views.append(_of_changed_texts(partial(word_edits.edited, spec, stage.seed), texts, limited))
    elif isinstance(spec, recipe.Synonym):
        views.append(_of_changed_texts(_made_views().Synonyms(spec, stage.seed, place), texts, limited))
    elif spec is not None:
        known.append(limited.tokenize(_made_views().build(spec, stage.seed, texts, session, place), session))
        views.append(_of_tokens(known[-1], limited.max_tokens))
    return Batches(views, known, texts.training_count, targets)


def check_view(stage: NumberedStage[recipe.Stage], texts: Corpus, session: Session) -> None:
    """Raise UserError where what a stage's view is made with is missing: its file, its model, its data."""
    if isinstance(stage.spec.view, recipe.Synonym | recipe.ViewFile | recipe.Mlm | recipe.BackTranslation):
        _made_views().check(stage.spec.view, stage.seed, texts, session, f"{stage.place}.view")


def _made_views() -> Any:
    """The room of views that a model, a file or WordNet gives: beside the line, and entered here only."""
    from edgedistill import views

    return views


def of_triples(triples: ParallelCorpus, tokenizer: StudentTokenizer, session: Session) -> Batches:
    """Three views, without targets: a text, one of the same meaning, one of another."""
    tokens = [
        SideTokens(tokenizer.tokenize(column, session), triples.index[:, at])
        for at, column in enumerate(triples.columns)
    ]
    return Batches([_of_tokens(each, tokenizer.max_tokens) for each in tokens], tokens, len(triples), None)


def _of_tokens(tokens: TokenCache | SideTokens, max_tokens: int) -> View:
    return lambda rows, passes: tokens.batch(rows, max_tokens)


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
