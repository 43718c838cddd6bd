"""What a student may cost, what a candidate costs before it is trained (it is built, exported and timed), and
which keep to the budget: from the largest shapes downwards, measured until there are enough."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from edgedistill.errors import UserError
from edgedistill.export import library_files
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
from edgedistill.planning.cost import medians_ms, size_and_latency
from edgedistill.precisions import PRECISIONS as ROWS
from edgedistill.quantization.sample_texts import Reader, samples
from edgedistill.training.initial_student.prepared_student import PreparedStudent

SIZE_SLACK, LATENCY_SLACK = 0.08, 0.25  # an estimate above the budget by more than this is believed
HOPELESS = 30  # shapes that cannot be built, before the first that can
USUAL = "kept 3"  # the vocabulary of the best hand-made recipes
NEAREST = 4  # of the smallest shapes are measured where none is estimated to fit


@dataclass(frozen=True)
class Budget:
    """What the student may cost: graph and tokenizer.json together in 10⁶ bytes, and the p50 of one text on
    one thread."""

    max_mb: float
    max_p50_ms: float

    def excess(self, size_bytes: float, p50_ms: float) -> float:
        """By how much a cost exceeds the budget, as a share: 0.2 is a fifth too much of one of the two; at
        most 0 where it fits."""
        return max(size_bytes / 1e6 / self.max_mb, p50_ms / self.max_p50_ms) - 1

    def __str__(self) -> str:
        return f"{self.max_mb:g} MB and {self.max_p50_ms:g} ms"


@dataclass(frozen=True)
class Cost:
    """What a candidate costs in each precision.

    `size_bytes` counts the graph and tokenizer.json together, exactly (in int8 to some ten bytes, as
    constants are named by their values). `p50_ms` is of one text, tokenization included.
    """

    size_bytes: dict[str, int]
    p50_ms: dict[str, float]

    def fitting(self, budget: Budget) -> list[str]:
        """The precisions that keep to the budget, the preferred one first."""
        return [name for name in PRECISIONS if budget.excess(self.size_bytes[name], self.p50_ms[name]) <= 0]

    def best(self, budget: Budget) -> str:
        """The preferred precision that keeps to the budget; the nearest one where none does."""
        fits = self.fitting(budget)
        return fits[0] if fits else self.nearest(budget)[1]

    def nearest(self, budget: Budget) -> tuple[float, str]:
        """(by how much it exceeds the budget, in which precision): the least."""
        return min(
            (budget.excess(self.size_bytes[name], self.p50_ms[name]), name) for name in self.size_bytes
        )

    def described(self, precision: str) -> str:
        """int8 4.31 MB, 0.52 ms"""
        return f"{precision} {self.size_bytes[precision] / 1e6:.3g} MB, {self.p50_ms[precision]:.3g} ms"


def measured(student: PreparedStudent, texts: list[str]) -> Cost:
    """The cost of a student in every precision. The `texts` are timed."""
    reader = Reader(student.tokenizer, "", student.max_tokens)
    drawn, ids = samples(reader, []), reader.token_ids(texts)
    sizes, rounds = size_and_latency(student.module, PRECISIONS, drawn, ids, threads=1)
    backend: Any = student.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(student.max_tokens)
    size, ms = tokenizer_bytes(student.tokenizer, student.max_tokens), min(medians_ms(backend.encode, texts))
    return Cost(
        {name: each + size for name, each in sizes.items()},
        {name: round(min(each) + ms, 4) for name, each in rounds.items()},
    )


def tokenizer_bytes(tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> int:
    """Bytes of the tokenizer.json that a bundle would have."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        found = library_files.tokenizer_json(Path(folder), max_tokens)
    return len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()) + 1


# ---- which candidates keep to the budget


@dataclass
class Survey:
    """What has been found out about the shapes.

    `measure` builds a shape and measures it, or raises UserError; `found` has the cost of each, or why it
    could not be built, and `each` is called when there is one more.
    """

    start: StartingPoint
    vocabularies: dict[str, Vocabulary]
    budget: Budget
    measure: Callable[[Choice], Cost]
    found: list[tuple[Choice, Cost | str]] = field(default_factory=list)
    each: Callable[[], None] = lambda: None

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
        transformers = np.array([each.kind == "bert" for each in self.choices])
        self._work = transformers * [products(each, self.start) for each in self.choices]
        self._kind = np.array([KINDS.index(each.kind) for each in self.choices])

    def _all_sizes(self, choice: Choice) -> list[float]:
        """What makes a shape larger: more of each. What its latency depends on comes first."""
        vocabulary = self.vocabularies[choice.vocabulary].size if choice.kind != "finished" else 0
        return [choice.layers, choice.width, choice.neurons, choice.table, vocabulary]

    @property
    def costs(self) -> dict[Choice, Cost]:
        """Of the shapes that were measured."""
        return {choice: cost for choice, cost in self.found if isinstance(cost, Cost)}

    @property
    def impossible(self) -> dict[Choice, str]:
        """Why the others could not be built."""
        return {choice: reason for choice, reason in self.found if isinstance(reason, str)}

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
        found, known = [], {choice for choice, _ in self.found}
        for row in rows.tolist():
            choice = self.choices[row]
            if choice in known:
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
        for choice, cost in self.found:
            fits = cost.fitting(self.budget) if isinstance(cost, Cost) else []
            found[self._row[choice]] = max((ROWS[name].bits for name in fits), default=0)
        return found

    def _latencies(self) -> np.ndarray:
        """(n, precisions): the least p50 to expect, from those measured; 0 where nothing is known, infinite
        where less is too slow."""
        found, costs = np.zeros(self._bytes.shape), self.costs
        rows = np.array([self._row[choice] for choice in costs], int)
        for at, name in enumerate(PRECISIONS):
            p50 = np.array([cost.p50_ms[name] for cost in costs.values()])
            for row in rows[p50 > self.budget.max_p50_ms]:
                at_least = (self._sizes[:, :3] >= self._sizes[row, :3]).all(1)
                found[(self._kind == self._kind[row]) & at_least, at] = np.inf
            timed = self._work[rows] > 0  # of a transformer, a product takes at least as long as anywhere
            if timed.any():
                least = (p50[timed] / self._work[rows[timed]]).min()
                found[:, at] = np.maximum(found[:, at], self._work * least)
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
        tried = Counter((choice.kind, choice.layers) for choice, _ in self.found)

        def order(choice: Choice) -> tuple[Any, ...]:
            family = (choice.kind, choice.layers)
            odd = choice.vocabulary != USUAL
            large = -products(choice, self.start), -self._bytes[self._row[choice]].max()
            return fits[family], tried[family], KINDS.index(choice.kind), odd, *large, choice.name

        return min(likely, key=order)

    def add(self, choice: Choice) -> None:
        """Measure a shape, or find why it cannot be built."""
        try:
            self.found.append((choice, self.measure(choice)))
        except UserError as error:
            self.found.append((choice, error.problems[0]))
        self.each()

    def _nothing_fits(self) -> str:
        if not self.costs:
            reason = next(iter(self.impossible.values()))
            return f"no candidate: none can be built for this teacher: {reason}; give another teacher"
        choice, cost = min(self.costs.items(), key=lambda item: item[1].nearest(self.budget))
        _, precision = cost.nearest(self.budget)
        size, p50 = cost.size_bytes[precision] / 1e6, cost.p50_ms[precision]
        need = [f"--max-mb {1.05 * size:.2g}"] if size > self.budget.max_mb else []
        need += [f"--max-p50-ms {1.05 * p50:.2g}"] if p50 > self.budget.max_p50_ms else []
        return (
            f"budget: nothing fits {self.budget} ({len(self.costs)} candidates measured); the nearest is "
            f"{choice.name}: {cost.described(precision)}, graph and tokenizer together; give {' '.join(need)}"
        )
