"""What a step reads: the views of its texts as token ids, and the teacher's vectors of the texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.token_cache import Tokens, Words, by_word, tokenize, words_stand_alone
from edgedistill.data.triples import Triples
from edgedistill.session import Session
from edgedistill.teacher import encoder
from edgedistill.teacher.targets import Rows
from edgedistill.training.inputs import view_makers
from edgedistill.training.inputs.batches import Lengths

Ids = tuple[np.ndarray, np.ndarray]  # (ids, mask), each (n, T) int64, right-padded
View = Callable[[np.ndarray, np.ndarray], Ids]  # (rows, which pass over the texts each belongs to) -> ids


class Feed:
    """The views of `texts` texts, and the teacher's vectors of them where there are any: a pure function of (row, pass)."""

    def __init__(self, views: list[View], tokens: Sequence[Lengths], texts: int, vectors: Rows | None) -> None:
        self.views, self.tokens, self.texts, self.vectors = views, tokens, texts, vectors

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens in the longest view of each row that is known beforehand, (n,)."""
        return np.max([tokens.lengths(rows) for tokens in self.tokens], axis=0)

    def short(self, longest: int) -> np.ndarray:
        """The rows to train on whose text has at most `longest` tokens, (n,) int64; other views may have more."""
        first = self.tokens[0]
        assert isinstance(first, Tokens)
        return first.short(longest, self.texts)

    def batch(self, rows: np.ndarray, passes: np.ndarray) -> tuple[list[Ids], np.ndarray | None]:
        """(ids and mask of every view, the teacher's vectors (n, d) float32)."""
        return [view(rows, passes) for view in self.views], None if self.vectors is None else self.vectors[rows]


def of_texts(
    stage: recipe.Stage,
    place: str,
    seed: int,
    texts: Corpus,
    tokens: Tokens,
    words: PreTrainedTokenizerBase,
    vectors: Rows | None,
    max_tokens: int,
    session: Session,
) -> Feed:
    """The corpus' texts, with the stage's second view where it has one; `max_tokens`: the student's own limit."""
    most = min(stage.max_tokens, max_tokens)
    views = [_plain(tokens, most)]
    known, spec, pad = [tokens], stage.view, words.pad_token_id or 0
    if isinstance(spec, recipe.Identity | recipe.Dropout):
        views.append(views[0])
    elif isinstance(spec, recipe.WordDeletion | recipe.Crop | recipe.DeleteOne):
        raw = words.backend_tokenizer
        if words_stand_alone(raw):
            views.append(_edited_ids(spec, seed, by_word(texts, raw, pad, session), most))
        else:
            views.append(_remade_ids(lambda rows, passes, old: view_makers.edited(spec, seed, rows, passes, old), texts, words, most))
    elif isinstance(spec, recipe.Synonym):
        views.append(_remade_ids(view_makers.Synonyms(spec, seed, place), texts, words, most))
    elif spec is not None:
        other = view_makers.remade(spec, seed, texts, session, place)
        known.append(tokenize(other, words.backend_tokenizer, most, pad, session))
        views.append(_plain(known[-1], most))
    return Feed(views, known, texts.trained, vectors)


def of_triples(found: Triples, words: PreTrainedTokenizerBase, most: int, session: Session) -> Feed:
    """Three views: a text, one that means the same, one that does not; no teacher."""
    tokens = [tokenize(column, words.backend_tokenizer, most, words.pad_token_id or 0, session) for column in found.columns]
    return Feed([_plain(each, most) for each in tokens], tokens, len(found), None)


def _plain(tokens: Tokens, most: int) -> View:
    return lambda rows, passes: tokens.batch(rows, most)


def _edited_ids(spec: view_makers.Edit, seed: int, words: Words, most: int) -> View:
    """Words taken out of token ids; the same ids as editing the texts and tokenizing them."""
    return lambda rows, passes: words.batch(rows, view_makers.kept(spec, seed, rows, passes, words.counts(rows)), most)


def _remade_ids(
    remake: Callable[[np.ndarray, np.ndarray, list[str]], list[str]], texts: Corpus, words: PreTrainedTokenizerBase, most: int
) -> View:
    """Texts edited and tokenized, a batch at a time."""
    raw = Tokenizer.from_str(words.backend_tokenizer.to_str())  # its own: elsewhere the length limit changes between steps
    raw.no_padding()
    raw.enable_truncation(most)
    pad = words.pad_token_id or 0

    def view(rows: np.ndarray, passes: np.ndarray) -> Ids:
        made = raw.encode_batch_fast(remake(rows, passes, texts.texts(rows)))
        return encoder.pad([np.array(encoding.ids) for encoding in made], pad)

    return view
