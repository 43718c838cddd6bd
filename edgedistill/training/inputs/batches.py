"""The batches of a stage: token ids of the columns of its rows, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

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

Ids = tuple[np.ndarray, np.ndarray]  # (ids, mask), each (n, T) int64, right-padded
View = Callable[[np.ndarray, np.ndarray], Ids]  # (texts, the pass over them that each belongs to) -> ids
NOTHING = StageTargets()  # until they are opened


@dataclass(frozen=True)
class Batches:
    """Rows of a stage by their texts, `index` (n, k), and the tokens of both `sides`: a pure function of
    (row, pass).

    A batch has its texts column by column; with `ranked` the queries, then the distinct documents of all its
    rows; with a `view` the texts, then a second view of each.
    """

    index: np.ndarray
    sides: Sequence[TokenCache]
    max_tokens: int
    targets: StageTargets = NOTHING
    ranked: bool = False
    view: View | None = None

    @property
    def rows(self) -> int:
        return len(self.index)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens in the longest text of each row, (n,); further documents of a query are not read."""
        return np.max([side.lengths(self.index[rows, at]) for at, side in enumerate(self.sides)], axis=0)

    def trained_and_queued(self, stage: NumberedStage[recipe.Stage]) -> tuple[np.ndarray, np.ndarray]:
        """(the rows that a stage trains on, in order; the rows that fill its queue at the start, which are
        none of those). Raises UserError where none are left to train on."""
        rows, longest = np.arange(self.rows), stage.spec.skip_longer_than
        if longest is not None:
            rows = rows[self.lengths(rows) <= longest]
        queued = np.zeros(len(rows), bool)
        if count := queue_rows(stage, len(rows)):
            drawn = np.random.default_rng(stage.seed).choice(len(rows), count, replace=False, shuffle=False)
            queued[drawn] = True
        return rows[~queued], rows[queued]

    def texts(self, rows: np.ndarray) -> list[np.ndarray]:
        """The texts of rows, in their sides: of each column, or the queries and the distinct documents,
        ascending."""
        index = self.index[rows]
        return [index[:, 0], np.unique(index[:, 1:])] if self.ranked else list(index[:, : len(self.sides)].T)

    def compared(self, rows: np.ndarray) -> Targets:
        """What a batch of these rows is compared with."""
        return self.targets.of(rows, self.texts(rows))

    def batch(self, rows: np.ndarray, passes: np.ndarray) -> tuple[list[Ids], Targets]:
        """(ids and mask of every column or view, what they are compared with)."""
        texts = self.texts(rows)
        ids = [side.batch(each, self.max_tokens) for side, each in zip(self.sides, texts, strict=True)]
        if self.view is not None:
            ids.append(self.view(texts[0], passes))
        return ids, self.targets.of(rows, texts)


def token_passes(rows: Rows, tokenizer: StudentTokenizer, session: Session) -> list[TokenPass]:
    """What tokenizes both sides of rows, in their roles."""
    sides = zip(rows.sides, rows.roles, strict=True)
    return [tokenizer.tokens(side, session, role) for side, role in sides]


def of_stage(
    stage: NumberedStage[recipe.Stage], rows: Rows, tokenizer: StudentTokenizer, session: Session
) -> Batches:
    """The batches of a stage, without what they are compared with. `tokenizer` has the highest limit of all
    stages."""
    limited = tokenizer.limited(stage.spec.max_tokens)
    sides = [tokens.open() for tokens in token_passes(rows, tokenizer, session)]
    view = _view(stage, rows.sides[0], sides[0], limited)
    index, ranked = rows.training_rows(stage.spec.tables), rows.ranked
    return Batches(index, sides, limited.max_tokens, ranked=ranked, view=view)


def queue_rows(stage: NumberedStage[recipe.Stage], rows: int) -> int:
    """How many of a stage's rows fill its queue at the start and are not trained on. Raises UserError where
    that leaves none."""
    wanted = stage.spec.objective.prefilled
    if rows == 0:
        fact = f"no text has {stage.spec.skip_longer_than} tokens or fewer"
        raise UserError(f"{stage.place}.skip_longer_than: {fact}; raise it")
    if wanted >= rows:
        fact = f"a queue of {wanted:,} texts leaves none of {rows:,} to train on"
        raise UserError(f"{stage.place}.objective: {fact}; lower it")
    return wanted


def _view(
    stage: NumberedStage[recipe.Stage], texts: Corpus, tokens: TokenCache, tokenizer: StudentTokenizer
) -> View | None:
    """The second view of each text, where the stage has one; changed texts are made, and tokenized, a batch
    at a time."""
    spec = stage.spec.view
    if spec is None:
        return None
    if not spec.edits:
        return lambda rows, passes: tokens.batch(rows, tokenizer.max_tokens)
    encode = tokenizer.encoder()

    def view(rows: np.ndarray, passes: np.ndarray) -> Ids:
        changed = _without_words(spec, stage.seed, texts.texts(rows), rows, passes)
        return batching.pad(encode(changed), tokenizer.pad_id)

    return view


def _without_words(
    spec: recipe.View, seed: int, texts: list[str], rows: np.ndarray, passes: np.ndarray
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
