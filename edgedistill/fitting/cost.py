"""What a student may cost, what a candidate costs before it is trained (it is built, exported and timed), and
which shapes keep to the budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgedistill.errors import UserError
from edgedistill.fitting import shapes, texts
from edgedistill.fitting.shapes import PRECISIONS, Shape, Source
from edgedistill.planning.cost import medians_ms, size_and_latency
from edgedistill.precisions import PRECISIONS as ROWS
from edgedistill.quantization.sample_texts import Reader, samples
from edgedistill.training.initial_student.prepared_student import PreparedStudent

SLACK = 0.08  # an estimated size above the budget by more than this is believed
TRIES = 4  # shapes that are measured of each kind and depth, at most
USUAL = "kept 3"  # the vocabulary of the best hand-made recipes


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
        return next(iter(self.fitting(budget)), self.nearest(budget)[1])

    def nearest(self, budget: Budget) -> tuple[float, str]:
        """(by how much it exceeds the budget, in which precision): the least."""
        return min(
            (budget.excess(self.size_bytes[name], self.p50_ms[name]), name) for name in self.size_bytes
        )

    def described(self, precision: str) -> str:
        """int8 4.31 MB, 0.52 ms"""
        return f"{precision} {self.size_bytes[precision] / 1e6:.3g} MB, {self.p50_ms[precision]:.3g} ms"


def measured(student: PreparedStudent, timed: list[str]) -> Cost:
    """The cost of a student in every precision. The texts `timed` are timed."""
    reader = Reader(student.tokenizer, "", student.max_tokens)
    drawn, ids = samples(reader, []), reader.token_ids(timed)
    sizes, rounds = size_and_latency(student.module, PRECISIONS, drawn, ids, threads=1)
    backend: Any = student.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(student.max_tokens)
    size = texts.tokenizer_bytes(student.tokenizer, student.max_tokens)
    ms = min(medians_ms(backend.encode, timed))
    return Cost(
        {name: graph + size for name, graph in sizes.items()},
        {name: round(min(medians) + ms, 4) for name, medians in rounds.items()},
    )


def survey(
    source: Source,
    budget: Budget,
    measure: Callable[[Shape], Cost | str],
    wanted: int = 1,
    seconds: float = math.inf,
) -> list[Shape]:
    """The shapes that keep to the budget, the most promising first: of each kind and depth the largest, as
    they take turns.

    `measure` builds a shape and measures it, or says why it cannot be built; after about so many seconds no
    further one is begun, once `wanted` fit. Raises UserError where none fits.
    """
    started, fits, costs = time.monotonic(), list[Shape](), dict[Shape, Cost]()
    families = dict[tuple[int, int | str], list[Shape]]()
    order = {"finished": 0, "bert": 1, "static": 2}
    for shape in shapes.all_shapes(source):
        if any(shapes.estimated_bytes(shape, source, name) <= _most(budget) for name in PRECISIONS):
            member: tuple[int, int | str] = order[shape.kind], -shape.layers
            if source.is_start(shape):  # each shipped one is a family: all are measured
                member = 0, shape.vocabulary if shape.kind == "finished" else ""
            families.setdefault(member, []).append(shape)
    for (kind, _), family in sorted(families.items()):
        if len(fits) >= wanted and kind > 0 and time.monotonic() - started > seconds:
            break
        if largest := _largest(family, source, budget, measure, costs):
            fits.append(largest)
    if not fits:
        smallest = min(shapes.all_shapes(source), key=lambda each: _least(each, source))
        if not (fits := [each for each in [_largest([smallest], source, budget, measure, costs)] if each]):
            raise UserError(_nothing_fits(budget, costs))
    return sorted(fits, key=lambda shape: _rank(shape, source, costs[shape].best(budget)))


def _least(shape: Shape, source: Source) -> float:
    """The estimated bytes in the smallest precision."""
    return min(shapes.estimated_bytes(shape, source, name) for name in PRECISIONS)


def _most(budget: Budget) -> float:
    return 1e6 * budget.max_mb * (1 + SLACK)


def _rank(shape: Shape, source: Source, precision: str) -> tuple[bool, bool, float]:
    """Starts come first, then shapes in 8 bits, then those with the most products."""
    return not source.is_start(shape), ROWS[precision].bits < 8, -shapes.products(shape, source)


def _largest(
    family: list[Shape],
    source: Source,
    budget: Budget,
    measure: Callable[[Shape], Cost | str],
    costs: dict[Shape, Cost],
) -> Shape | None:
    """The largest shape of a family that keeps to the budget, in 8 bits if any does. What is too large by a
    share shows how much smaller the next one must be."""

    def size(shape: Shape) -> tuple[bool, float, float]:
        fits_in_8 = shapes.estimated_bytes(shape, source, "int8") <= _most(budget)
        if source.is_start(shape):  # as many tokens as can be: no training makes up for those that lack
            tokens = 0 if shape.kind == "finished" else source.vocabularies[shape.vocabulary].size
            return fits_in_8, float(tokens), float(shape.table)
        usual = shape.vocabulary == USUAL
        return fits_in_8, shapes.products(shape, source) * (1 + usual), float(shape.table)

    left = sorted(family, key=size, reverse=True)
    for _ in range(TRIES):
        if not left:
            return None
        shape, *left = left
        cost = measure(shape)
        if isinstance(cost, str):
            continue
        costs[shape] = cost
        excess, precision = cost.nearest(budget)
        if excess <= 0:
            return shape
        estimate = shapes.products if cost.p50_ms[precision] > budget.max_p50_ms else _least
        most = estimate(shape, source) / (1 + excess)
        left = [other for other in left if estimate(other, source) <= most]
    return None


def _nothing_fits(budget: Budget, costs: dict[Shape, Cost]) -> str:
    if not costs:
        fact = f"nothing that this teacher allows can be built within {budget}"
        return f"no candidate: {fact}; give a larger budget or another teacher"
    shape, cost = min(costs.items(), key=lambda item: item[1].nearest(budget))
    _, precision = cost.nearest(budget)
    size, p50 = cost.size_bytes[precision] / 1e6, cost.p50_ms[precision]
    need = [f"--max-mb {1.05 * size:.2g}"] if size > budget.max_mb else []
    need += [f"--max-p50-ms {1.05 * p50:.2g}"] if p50 > budget.max_p50_ms else []
    return (
        f"budget: nothing fits {budget} ({len(costs)} candidates measured); the nearest is "
        f"{shape.name}: {cost.described(precision)}, graph and tokenizer together; give {' '.join(need)}"
    )
