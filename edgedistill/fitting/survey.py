"""Which candidates keep to the budget: from the largest shapes downwards, measured one by one until there are enough."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import nnls

from edgedistill.errors import UserError
from edgedistill.fitting.candidates import KIND_ORDER, PRECISIONS, Choice, StartingPoint, Vocabulary, estimated_bytes, products
from edgedistill.fitting.request import Budget
from edgedistill.fitting.student_cost import Cost

SIZE_SLACK, LATENCY_SLACK = 0.08, 0.25  # an estimate above the budget by more than this is believed
HOPELESS = 30  # shapes that cannot be built, before the first that can
NEAREST = 4  # of the smallest shapes are measured where none is estimated to fit
Measure = Callable[[Choice], Cost]


@dataclass
class Survey:
    """What has been found out about the shapes. costs: of those measured; impossible: why others could not be built."""

    choices: list[Choice]
    start: StartingPoint
    vocabularies: dict[str, Vocabulary]
    budget: Budget
    costs: dict[Choice, Cost] = field(default_factory=dict)
    impossible: dict[Choice, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.choices:
            raise UserError("no candidate: nothing that this teacher allows can be built; give another teacher")
        self._bytes = {choice: self._least_bytes(choice) for choice in self.choices}
        self._sizes = np.array([self._row(choice) for choice in self.choices])
        families = {family: number for number, family in enumerate(dict.fromkeys((each.kind, each.activation) for each in self.choices))}
        self._family = np.array([families[each.kind, each.activation] for each in self.choices])

    def _least_bytes(self, choice: Choice) -> float:
        if choice.kind == "finished":
            return 0.0
        return min(estimated_bytes(choice, self.start, self.vocabularies, precision) for precision in PRECISIONS)

    def _row(self, choice: Choice) -> list[float]:
        """What makes a shape larger: more of each."""
        vocabulary = self.vocabularies[choice.vocabulary].size if choice.kind != "finished" else 0
        return [choice.layers, choice.width, choice.neurons, choice.table, choice.dims or self.start.dims, vocabulary]

    @property
    def fitting(self) -> list[Choice]:
        """The measured shapes that keep to the budget, in the order in which they were found."""
        return [choice for choice, cost in self.costs.items() if cost.fitting(self.budget)]

    def likely(self) -> list[Choice]:
        """The shapes still to be measured that probably fit, and than which no other that fits, or probably does, is larger."""
        estimates = self._latencies()
        limit = 1e6 * self.budget.max_mb * (1 + SIZE_SLACK), self.budget.max_p50_ms * (1 + LATENCY_SLACK)
        known, fits = {*self.costs, *self.impossible}, set(self.fitting)
        good = np.array(
            [
                choice in fits or (choice not in known and self._bytes[choice] <= limit[0] and estimates.get(choice, 0.0) <= limit[1])
                for choice in self.choices
            ]
        )
        rows = np.flatnonzero(good)
        largest = [self.choices[row] for row in rows.tolist() if not self._is_smaller(row, rows)]
        return [choice for choice in largest if choice not in known]

    def _is_smaller(self, row: int, rows: np.ndarray) -> bool:
        """Whether one of `rows` of the same kind and activation is at least as large in every respect."""
        same = rows[(self._family[rows] == self._family[row]) & (rows != row)]
        return bool((self._sizes[same] >= self._sizes[row]).all(1).any()) if self.choices[row].kind != "finished" else False

    def larger_fitting(self, choice: Choice) -> Choice | None:
        """A shape that fits and is at least as large in every respect."""
        row = self.choices.index(choice)
        known = [other for other in self.fitting if (other.kind, other.activation) == (choice.kind, choice.activation)]
        places = {other: self.choices.index(other) for other in known if other != choice}
        return next((other for other, at in places.items() if (self._sizes[at] >= self._sizes[row]).all()), None)

    def _latencies(self) -> dict[Choice, float]:
        """Estimated p50 of the transformers, from those measured: a part for each text, for each layer, for each product."""
        known = [(choice, min(cost.p50_ms.values())) for choice, cost in self.costs.items() if cost.p50_ms and choice.layers]
        known = [(choice, p50) for choice, p50 in known if choice.kind in ("bert", "recurrent")]
        if len(known) < 3:
            return {}
        features = np.array([self._features(choice) for choice, _ in known])
        factors, _ = nnls(features, np.array([p50 for _, p50 in known]))
        return {choice: float(self._features(choice) @ factors) for choice in self.choices if choice.kind in ("bert", "recurrent")}

    def _features(self, choice: Choice) -> np.ndarray:
        depth = self.start.depth if choice.kind == "recurrent" else choice.layers
        return np.array([1.0, depth, products(choice, self.start)])

    def run(self, measure: Measure, wanted: int, seconds: float, each: Callable[[Choice], None] = lambda choice: None) -> None:
        """Measure until `wanted` shapes fit, none is likely to, or the seconds are over; each: called with every shape measured.

        Kinds and depths take turns, so that the race begins with different students. Raises UserError where nothing fits.
        """
        started = time.perf_counter()
        while len(self.fitting) < wanted and (choices := self.likely()):
            if self.fitting and time.perf_counter() - started > seconds:
                break
            if not self.costs and len(self.impossible) >= HOPELESS:
                break
            self.measure(self._next(choices), measure, each)
        if not self.fitting:
            smallest = sorted((size, at) for at, size in enumerate(map(self._bytes.__getitem__, self.choices)))
            for _, at in smallest[:NEAREST]:
                if self.choices[at] not in self.costs and len(self.impossible) < HOPELESS:
                    self.measure(self.choices[at], measure, each)
        if not self.fitting:
            raise UserError(self._nothing_fits())

    def _next(self, choices: Iterable[Choice]) -> Choice:
        """Of the kinds and depths measured least, the shape with the most products, then the largest table."""
        fits = Counter((choice.kind, choice.layers) for choice in self.fitting)
        tried = Counter((choice.kind, choice.layers) for choice in [*self.costs, *self.impossible])

        def order(choice: Choice) -> tuple[Any, ...]:
            family = (choice.kind, choice.layers)
            plain = bool(choice.activation) + (choice.dims != 0)
            return (
                fits[family],
                tried[family],
                KIND_ORDER[choice.kind],
                plain,
                -products(choice, self.start),
                -self._bytes[choice],
                choice.name,
            )

        return min(choices, key=order)

    def measure(self, choice: Choice, measure: Measure, each: Callable[[Choice], None]) -> None:
        """Measure a shape; each: called with it."""
        try:
            self.costs[choice] = measure(choice)
        except UserError as error:
            self.impossible[choice] = error.problems[0]
        each(choice)

    def _nothing_fits(self) -> str:
        if not self.costs:
            return f"no candidate: none can be built for this teacher: {next(iter(self.impossible.values()))}; give another teacher"
        choice, cost = min(self.costs.items(), key=lambda item: item[1].nearest(self.budget))
        _, precision = cost.nearest(self.budget)
        size, p50 = cost.size_bytes[precision] / 1e6, cost.p50_ms.get(precision)
        need = [f"--max-mb {_up(size)}"] if size > self.budget.max_mb else []
        need += [f"--max-p50-ms {_up(p50)}"] if p50 is not None and p50 > self.budget.max_p50_ms else []
        tried = f"{len(self.costs)} candidates measured"
        return (
            f"budget: nothing fits {self.budget} ({tried}); the nearest is {choice.name}: {cost.described(precision)}, graph and tokenizer "
            f"together; give {' '.join(need)}"
        )


def _up(value: float) -> str:
    """Rounded up to two digits."""
    digits = 1 - int(np.floor(np.log10(value)))
    return f"{np.ceil(value * 10**digits) / 10**digits:g}"
