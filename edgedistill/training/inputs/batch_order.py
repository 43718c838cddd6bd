"""Which rows each training step uses: a pure function of (seed, step), so that a resumed run needs the step
alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy import ndarray

from edgedistill import recipe


class Lengths(Protocol):
    """Anything that knows how many tokens its rows have."""

    def lengths(self, rows: ndarray) -> ndarray: ...


# rows (batch,), and which pass over the texts each belongs to, counted from 0
RowsAndPasses = tuple[ndarray, ndarray]


@lru_cache(maxsize=2)  # one pass ends in the window in which the next begins
def order_of_pass(rows: int, seed: int, number: int) -> ndarray:
    """The order in which a pass reads so many rows: a random permutation (rows,)."""
    return np.random.default_rng([seed, number, 1]).permutation(rows)


@dataclass
class BatchOrder:
    """The batches of a stage, in order; one pass over the rows follows the other without a gap.

    `tokens` knows the lengths of all rows; `rows` (n,) are those to draw from.
    """

    stage: recipe.Stage
    tokens: Lengths
    rows: ndarray
    seed: int
    _window: tuple[int, list[RowsAndPasses]] = field(default=(-1, []), init=False, repr=False)

    def at(self, step: int) -> RowsAndPasses:
        """The batch of a step."""
        number, within = divmod(step, self.stage.sorting_window)
        if self._window[0] != number:
            self._window = (number, self.window(number))
        return self._window[1][within]

    def window(self, number: int) -> list[RowsAndPasses]:
        """The batches of one window: sorting_window × batch shuffled texts, sorted by length, cut into
        batches, the batches shuffled.

        Texts of like length share a batch, which saves padding. Returns `sorting_window` pairs of rows and
        passes.
        """
        batch = self.stage.batch
        bucket = self.stage.sorting_window
        texts = len(self.rows)
        positions = np.arange(number * bucket * batch, (number + 1) * bucket * batch)
        passes = positions // texts
        parts = [
            order_of_pass(texts, self.seed, int(part))[positions[passes == part] % texts]
            for part in np.unique(passes)
        ]
        rows = self.rows[np.concatenate(parts)]
        if bucket == 1:
            return [(rows, passes)]
        lengths = np.minimum(self.tokens.lengths(rows), self.stage.max_tokens)
        sort = np.argsort(lengths, kind="stable")
        order = np.random.default_rng([self.seed, number]).permutation(bucket)
        batches = sort.reshape(bucket, batch)[order]
        return [(rows[part], passes[part]) for part in batches]
