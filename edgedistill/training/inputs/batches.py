"""The batches of a stage: token ids of the columns of its rows, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

from edgedistill import recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.rows import Rows
from edgedistill.data.token_cache import TokenCache, TokenPass
from edgedistill.errors import UserError
from edgedistill.objectives import Targets
from edgedistill.runtime import batching
from edgedistill.session import Session
from edgedistill.training.initial_student.prepared_student import StudentTokenizer
from edgedistill.training.inputs.stage_targets import StageTargets
from edgedistill.training.stages import NumberedStage

Ids = tuple[ndarray, ndarray]  # (ids, mask), each (n, T) int64, right-padded
View = Callable[[ndarray, ndarray], Ids]  # (texts, the pass over them that each belongs to) -> ids
NOTHING = StageTargets()  # until they are opened


@dataclass(frozen=True)
class Batches:
    """Rows of a stage by their texts, `index` (n, k), and the tokens of both `sides`: a pure function of
    (row, pass).

    A batch has its texts column by column; with `ranked` the queries, then the distinct documents of all its
    rows; with a `view` the texts, then a second view of each.
    """

    index: ndarray
    sides: Sequence[TokenCache]
    max_tokens: int
    targets: StageTargets = NOTHING
    ranked: bool = False
    view: View | None = None

    @property
    def rows(self) -> int:
        return len(self.index)

    def lengths(self, rows: ndarray) -> ndarray:
        """Tokens in the longest text of each row, (n,); further documents of a query are not read."""
        return np.max([side.lengths(self.index[rows, at]) for at, side in enumerate(self.sides)], axis=0)

    def trained_and_queued(self, stage: NumberedStage) -> tuple[ndarray, ndarray]:
        """(the rows that a stage trains on, in order; the rows that fill its queue at the start, which are
        none of those). Raises UserError where none are left to train on."""
        rows = np.arange(self.rows)
        longest = stage.spec.skip_longer_than
        if longest is not None:
            rows = rows[self.lengths(rows) <= longest]
        queued = np.zeros(len(rows), bool)
        if count := queue_rows(stage, len(rows)):
            drawn = np.random.default_rng(stage.seed).choice(len(rows), count, replace=False, shuffle=False)
            queued[drawn] = True
        return rows[~queued], rows[queued]

    def texts(self, rows: ndarray) -> list[ndarray]:
        """The texts of rows, in their sides: of each column, or the queries and the distinct documents,
        ascending."""
        index = self.index[rows]
        return [index[:, 0], np.unique(index[:, 1:])] if self.ranked else list(index[:, : len(self.sides)].T)

    def compared(self, rows: ndarray) -> Targets:
        """What a batch of these rows is compared with."""
        return self.targets.of(rows, self.texts(rows))

    def columns(self, rows: ndarray) -> list[Ids]:
        """ids and mask of every column."""
        texts = zip(self.sides, self.texts(rows), strict=True)
        return [side.batch(column, self.max_tokens) for side, column in texts]

    def batch(self, rows: ndarray, passes: ndarray) -> tuple[list[Ids], Targets]:
        """(ids and mask of every column or view, what they are compared with)."""
        ids = self.columns(rows)
        if self.view is not None:
            ids.append(self.view(self.index[rows, 0], passes))
        return ids, self.compared(rows)


def token_passes(rows: Rows, tokenizer: StudentTokenizer, session: Session) -> list[TokenPass]:
    """What tokenizes both sides of rows, in their roles."""
    sides = zip(rows.sides, rows.roles, strict=True)
    return [tokenizer.tokens(side, session, role) for side, role in sides]


def of_rows(rows: Rows, tokenizer: StudentTokenizer, session: Session) -> Batches:
    """The batches of all rows, without what they are compared with."""
    sides = [tokens.open() for tokens in token_passes(rows, tokenizer, session)]
    return Batches(rows.index, sides, tokenizer.max_tokens, ranked=rows.ranked)


def of_stage(stage: NumberedStage, rows: Rows, tokenizer: StudentTokenizer, session: Session) -> Batches:
    """The batches of a stage, without what they are compared with. `tokenizer` has the highest limit of all
    stages."""
    whole = of_rows(rows, tokenizer, session)
    limited = tokenizer.limited(stage.spec.max_tokens)
    view = _view(stage, rows.sides[0], whole.sides[0], limited)
    index = rows.training_rows(stage.spec.tables)
    return replace(whole, index=index, max_tokens=limited.max_tokens, view=view)


def queue_rows(stage: NumberedStage, rows: int) -> int:
    """How many of a stage's rows fill its queue at the start and are not trained on. Raises UserError where
    that leaves none."""
    wanted = stage.spec.objective.prefilled
    if rows == 0:
        raise UserError(
            f"{stage.place}.skip_longer_than: no text has {stage.spec.skip_longer_than} tokens or "
            "fewer; raise it"
        )
    if wanted >= rows:
        raise UserError(
            f"{stage.place}.objective: a queue of {wanted:,} texts leaves none of {rows:,} to "
            "train on; lower it"
        )
    return wanted


def _view(
    stage: NumberedStage, texts: Corpus, tokens: TokenCache, tokenizer: StudentTokenizer
) -> View | None:
    """The second view of each text, where the stage has one; changed texts are made, and tokenized, a batch
    at a time."""
    spec = stage.spec.view
    if spec is None:
        return None
    if not spec.edits:
        return lambda rows, passes: tokens.batch(rows, tokenizer.max_tokens)
    encode = tokenizer.encoder()

    def view(rows: ndarray, passes: ndarray) -> Ids:
        changed = _without_words(spec, stage.seed, texts.texts(rows), rows, passes)
        return batching.pad(encode(changed), tokenizer.pad_id)

    return view


def _without_words(
    spec: recipe.View, seed: int, texts: list[str], rows: ndarray, passes: ndarray
) -> list[str]:
    """Texts without some of their words; the row of a text in the corpus and the pass over it decide which
    remain."""
    numbered = zip(texts, rows.tolist(), passes.tolist(), strict=True)
    return [
        " ".join(_remaining(spec, text.split(), np.random.default_rng([seed, row, number])))
        for text, row, number in numbered
    ]


def _remaining(spec: recipe.View, words: list[str], draw: np.random.Generator) -> list[str]:
    """The words that remain of a text, at least one: word deletion or cropping.

    A fraction that is no whole number of words is rounded up or down at random, so that it holds on average.
    SimCSE, Table 1 (Gao et al. 2021); ConGen, Table 6.
    """
    dropped = int(spec.share * len(words) + draw.random())
    left = max(1, len(words) - dropped)
    if spec.span:
        start = int(draw.integers(len(words) - left, endpoint=True))
        return words[start : start + left]
    return [words[at] for at in sorted(draw.permutation(len(words))[:left])]
