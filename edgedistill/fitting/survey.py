"""Which candidates keep to the budget: from the largest shapes downwards, measured one by one until there are
enough."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import nnls

from edgedistill.errors import UserError
from edgedistill.fitting.candidates import (
    KINDS,
    PRECISIONS,
    Choice,
    StartingPoint,
    Vocabulary,
    choices,
    estimated_bytes,
    products,
)
from edgedistill.fitting.cost import Budget, Cost
from edgedistill.precisions import PRECISIONS as ROWS

SIZE_SLACK, LATENCY_SLACK = 0.08, 0.25  # an estimate above the budget by more than this is believed
HOPELESS = 30  # shapes that cannot be built, before the first that can
LEAST_FITTED = 3  # measured latencies from which others are estimated
USUAL = "kept 3"  # the vocabulary of the best hand-made recipes
NEAREST = 4  # of the smallest shapes are measured where none is estimated to fit


@dataclass
class Survey:
    """What has been found out about the shapes.

    `measure` builds a shape and measures it, or raises UserError; `each` is called with every shape after
    that. `costs` are of those measured; `impossible` says why others could not be built.
    """

    start: StartingPoint
    vocabularies: dict[str, Vocabulary]
    budget: Budget
    measure: Callable[[Choice], Cost]
    each: Callable[[Choice], None] = lambda choice: None
    costs: dict[Choice, Cost] = field(default_factory=dict)
    impossible: dict[Choice, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.choices = choices(self.start, self.vocabularies)
        if not self.choices:
            fact = "nothing that this teacher allows can be built"
            raise UserError(f"no candidate: {fact}; give another teacher")
        self._row = {choice: row for row, choice in enumerate(self.choices)}
        self._bytes = np.array(
            [
                [estimated_bytes(each, self.start, self.vocabularies, name) for name in PRECISIONS]
                for each in self.choices
            ]
        )
        self._sizes = np.array([self._all_sizes(each) for each in self.choices])
        self._work = np.array([self._parts(each) for each in self.choices])
        kinds = [(each.kind, each.activation) for each in self.choices]
        self._kind = np.array([kinds.index(each) for each in kinds])

    def _all_sizes(self, choice: Choice) -> list[float]:
        """What makes a shape larger: more of each. What its latency depends on comes first."""
        vocabulary = self.vocabularies[choice.vocabulary].size if choice.kind != "finished" else 0
        dims = choice.dims or self.start.dims
        return [choice.layers, choice.width, choice.neurons, choice.table, dims, vocabulary]

    def _parts(self, choice: Choice) -> list[float]:
        """What the latency of a transformer is the sum of: a part for each text, for each layer, for each
        product; zeros for other kinds."""
        if choice.kind not in ("bert", "recurrent"):
            return [0.0, 0.0, 0.0]
        depth = self.start.depth if choice.kind == "recurrent" else choice.layers
        return [1.0, depth, products(choice, self.start)]

    @property
    def fitting(self) -> list[Choice]:
        """The measured shapes that keep to the budget, in the order in which they were found."""
        return [choice for choice, cost in self.costs.items() if cost.fitting(self.budget)]

    def likely(self) -> list[Choice]:
        """The shapes still to be measured that probably fit, and than which no other that fits, or probably
        does, is larger.

        Shapes that fit in 4 bits only stand apart: a smaller one in 8 bits may be the better one.
        """
        bits = self._expected_bits()
        rows = np.flatnonzero(bits)
        found = []
        for row in rows.tolist():
            choice = self.choices[row]
            if choice in self.costs or choice in self.impossible:
                continue
            others = rows[(self._kind[rows] == self._kind[row]) & (bits[rows] == bits[row]) & (rows != row)]
            if choice.kind == "finished" or not (self._sizes[others] >= self._sizes[row]).all(1).any():
                found.append(choice)
        return found

    def _expected_bits(self) -> np.ndarray:
        """(n,) int: the bits of the weights in which a shape fits, or probably does; 0 where it does not."""
        size, p50 = 1e6 * self.budget.max_mb * (1 + SIZE_SLACK), self.budget.max_p50_ms * (1 + LATENCY_SLACK)
        probable = (self._bytes <= size) & (self._latencies() <= p50)
        found = (probable * np.array([ROWS[name].bits for name in PRECISIONS])).max(1)
        found[[self._row[choice] for choice in self.impossible]] = 0
        for choice, cost in self.costs.items():
            fits = cost.fitting(self.budget)
            found[self._row[choice]] = max((ROWS[name].bits for name in fits), default=0)
        return found

    def _latencies(self) -> np.ndarray:
        """(n, precisions): the least p50 to expect, from those measured; 0 where nothing is known, infinite
        where less is too slow."""
        found = np.zeros(self._bytes.shape)
        rows = np.array([self._row[choice] for choice in self.costs], int)
        for at, name in enumerate(PRECISIONS):
            p50 = np.array([cost.p50_ms[name] for cost in self.costs.values()])
            for row in rows[p50 > self.budget.max_p50_ms]:
                at_least = (self._sizes[:, :3] >= self._sizes[row, :3]).all(1)
                found[(self._kind == self._kind[row]) & at_least, at] = np.inf
            transformers = self._work[rows].any(1)
            if transformers.sum() >= LEAST_FITTED:
                factors, _ = nnls(self._work[rows[transformers]], p50[transformers])
                found[:, at] = np.maximum(found[:, at], self._work @ factors)
        return found

    def run(self, wanted: int, seconds: float) -> None:
        """Measure until `wanted` shapes fit, none is likely to, or the seconds are over.

        Kinds and depths take turns, so that the race begins with different students. Raises UserError where
        nothing fits.
        """
        started = time.perf_counter()
        while len(self.fitting) < wanted and (likely := self.likely()):
            if self.fitting and time.perf_counter() - started > seconds:
                break
            if not self.costs and len(self.impossible) >= HOPELESS:
                break
            self.add(self._next(likely))
        if not self.fitting:
            smallest = [self.choices[row] for row in np.argsort(self._bytes.min(1), kind="stable")[:NEAREST]]
            for choice in smallest:
                if choice not in self.costs and len(self.impossible) < HOPELESS:
                    self.add(choice)
        if not self.fitting:
            raise UserError(self._nothing_fits())

    def _next(self, likely: Collection[Choice]) -> Choice:
        """Of the kinds and depths measured least, the shape with the most products, then the largest table.

        Those with the usual vocabulary come first: tokens that the texts hardly use cost as much as layers
        do.
        """
        fits = Counter((choice.kind, choice.layers) for choice in self.fitting)
        tried = Counter((choice.kind, choice.layers) for choice in [*self.costs, *self.impossible])

        def order(choice: Choice) -> tuple[Any, ...]:
            family = (choice.kind, choice.layers)
            odd = bool(choice.activation) + (choice.dims != 0), choice.vocabulary != USUAL
            large = -products(choice, self.start), -self._bytes[self._row[choice]].max()
            return fits[family], tried[family], KINDS.index(choice.kind), *odd, *large, choice.name

        return min(likely, key=order)

    def add(self, choice: Choice) -> None:
        """Measure a shape."""
        try:
            self.costs[choice] = self.measure(choice)
        except UserError as error:
            self.impossible[choice] = error.problems[0]
        self.each(choice)

    def _nothing_fits(self) -> str:
        if not self.costs:
            reason = next(iter(self.impossible.values()))
            return f"no candidate: none can be built for this teacher: {reason}; give another teacher"
        choice, cost = min(self.costs.items(), key=lambda item: item[1].nearest(self.budget))
        _, precision = cost.nearest(self.budget)
        size, p50 = cost.size_bytes[precision] / 1e6, cost.p50_ms[precision]
        need = [f"--max-mb {_up(size)}"] if size > self.budget.max_mb else []
        need += [f"--max-p50-ms {_up(p50)}"] if p50 > self.budget.max_p50_ms else []
        return (
            f"budget: nothing fits {self.budget} ({len(self.costs)} candidates measured); the nearest is "
            f"{choice.name}: {cost.described(precision)}, graph and tokenizer together; give {' '.join(need)}"
        )


def _up(value: float) -> str:
    """Rounded up to two digits."""
    digits = 1 - int(np.floor(np.log10(value)))
    return f"{np.ceil(value * 10**digits) / 10**digits:g}"
