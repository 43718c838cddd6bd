"""The candidates: every shape that a student of this teacher can have, as data, and the recipe that trains
each.

A shape is estimated in a moment (`estimated_bytes`, `products`), so that only those near the budget are built
and measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from edgedistill.precisions import PRECISIONS as ROWS

# What is tried. Shares are of the encoder whose layers the student takes, or of the teacher's dimensions
# where it takes none.
LAYERS = (1, 2, 3, 4, 6, 8, 12)
WIDTH_SHARES = (1.0, 2 / 3, 1 / 2, 1 / 3)
NEURONS = (4.0, 2.5, 1.5)  # feed-forward size, in widths
TABLE_SHARES = (1 / 2, 1 / 3, 1 / 4, 1 / 6, 1 / 8)  # PQ bytes of a token, in widths
STATIC_SHARES = (2 / 3, 1 / 2, 1 / 3, 1 / 4, 3 / 16, 1 / 8, 1 / 12)  # width of a static student's table
LEAST_SHARE = 0.5  # of a finished student's bytes, that the smallest precision has
# The first of them that keeps to the budget is raced.
PRECISIONS = tuple(
    sorted((name for name, row in ROWS.items() if row.bits <= 8), key=lambda name: ROWS[name].rank.int8_cpu)
)
KINDS = ("finished", "bert", "static")  # in the order in which they are tried

# How each kind learns best, by what has been measured here (bench/LOG.md).
TRAINING: dict[str, dict[str, Any]] = {
    "bert": {"batch": 128, "optimizer": "muon", "learning_rate": 2e-3},
    "finished": {"batch": 128, "optimizer": "muon", "learning_rate": 1e-3},
    "static": {"batch": 128, "learning_rate": 1e-3},
}
# All layers at full width: nearly the teacher before the first step.
WHOLE = {"learning_rate": 3e-4, "optimizer": "adamw"}
MAX_TOKENS = 128
SMALLEST_BATCH, STEPS_OF_AN_EPOCH = 8, 16  # of few texts: smaller batches, so that an epoch has some steps


@dataclass(frozen=True)
class FinishedStudent:
    """A shipped bundle that candidates go on from, and the bytes of its graph and tokenizer.json."""

    name: str
    kind: str
    size_bytes: int


@dataclass(frozen=True)
class StartingPoint:
    """The encoder that students take layers and token embeddings from, and what it offers.

    `weights` and `tokenizer` are as in a recipe; weights are "" where no known encoder is at hand, and layers
    begin at random. Students keep so many `positions` of the position table, for `max_tokens`. `wordpiece`
    says whether a vocabulary can be learned like its tokenizer's. `finished` are shipped students that know
    the texts' words.
    """

    weights: str
    tokenizer: str
    depth: int
    width: int
    heads: int
    neurons: int
    positions: int
    max_tokens: int
    dims: int
    wordpiece: bool
    finished: tuple[FinishedStudent, ...] = ()

    def student_of(self, choice: Choice) -> FinishedStudent:
        """The shipped student that a candidate of kind `finished` goes on from."""
        return next(each for each in self.finished if each.name == choice.vocabulary)


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer that candidates share: its keys in a student's section, its number of tokens, and the bytes
    of its tokenizer.json."""

    section: Mapping[str, Any]
    size: int
    size_bytes: int


@dataclass(frozen=True)
class Choice:
    """A candidate's shape.

    `neurons` is the feed-forward size. `table` counts the bytes of a token's embedding, PQ bytes where they
    are fewer than the width. `vocabulary` is the name of a Vocabulary.
    """

    kind: str
    layers: int = 0
    width: int = 0
    neurons: int = 0
    table: int = 0
    vocabulary: str = "all"

    @property
    def name(self) -> str:
        """bert-4x256x640-t64-kept3"""
        if self.kind == "finished":
            return f"from-{self.vocabulary}"
        parts = [self.kind, "x".join(str(each) for each in (self.layers, self.width, self.neurons) if each)]
        parts.append(f"t{self.table}" if self.table < self.width else "")
        parts.append("" if self.vocabulary == "all" else self.vocabulary.replace(" ", ""))
        return "-".join(filter(None, parts))


def choices(start: StartingPoint, vocabularies: Mapping[str, Vocabulary]) -> list[Choice]:
    """Every shape, without duplicates, in a fixed order."""
    taken = [name for name in vocabularies if not name.startswith("learned")]
    found = list(_berts(start, taken))
    for share, name in product(STATIC_SHARES, vocabularies):
        width = max(2, round(start.dims * share))
        found.append(Choice("static", 0, width, 0, width, name))
    found += [Choice("finished", vocabulary=each.name) for each in start.finished]
    return list(dict.fromkeys(found))


def _berts(start: StartingPoint, vocabularies: list[str]) -> Iterator[Choice]:
    unit = start.width // start.heads
    layers = sorted({count for count in (*LAYERS, start.depth) if count <= start.depth})
    widths = sorted({max(unit, round(start.width * share / unit) * unit) for share in WIDTH_SHARES})
    for count, width, ratio, share, vocabulary in product(
        layers, widths, NEURONS, TABLE_SHARES, vocabularies
    ):
        table = math.floor(width * share)
        whole = width == start.width and start.weights
        # neurons are chosen only where layers are projected
        if width % table or (whole and ratio != NEURONS[0]):
            continue
        neurons = start.neurons if whole else min(start.neurons, round(width * ratio))
        yield Choice("bert", count, width, neurons, table, vocabulary)


def estimated_bytes(
    choice: Choice, start: StartingPoint, vocabularies: Mapping[str, Vocabulary], precision: str
) -> float:
    """About the bytes of the graph in a precision and of its tokenizer, to a tenth; of a finished student,
    about the fewest."""
    if choice.kind == "finished":
        return LEAST_SHARE * start.student_of(choice).size_bytes
    weight = ROWS[precision].bytes_per_weight
    vocabulary = vocabularies[choice.vocabulary]
    head = choice.width * start.dims
    table = vocabulary.size * (choice.width * weight + 4)
    if choice.table < choice.width:  # product-quantized: codes are bytes in every precision
        table = vocabulary.size * choice.table + 256 * choice.width
        head += MAX_TOKENS * choice.width
    return table + weight * (_layer_weights(choice) + head) + vocabulary.size_bytes


def products(choice: Choice, start: StartingPoint) -> float:
    """Multiplications of a token in the layers: what latency grows with, in millions."""
    return (_layer_weights(choice) + choice.width * start.dims / 16) / 1e6


def _layer_weights(choice: Choice) -> float:
    return choice.layers * (4 * choice.width**2 + 2 * choice.width * choice.neurons)


def section(choice: Choice, start: StartingPoint, vocabularies: Mapping[str, Vocabulary]) -> dict[str, Any]:
    """The recipe's section that makes a candidate."""
    if choice.kind == "finished":
        return {"kind": "finished", "weights": choice.vocabulary}
    student: dict[str, Any] = {"kind": choice.kind}
    if choice.kind == "static":
        student |= {"width": choice.width, "embeddings": {"from": "teacher", "of": "outputs"}}
    else:
        student |= {"weights": start.weights or "random", "max_positions": start.positions}
        student["layers"] = spread(start.depth, choice.layers) if start.weights else choice.layers
        if choice.width < start.width or not start.weights:
            student |= {"width": choice.width, "intermediate": choice.neurons}
    if choice.table < choice.width:
        student["pq_bytes"] = choice.table
        student["embeddings"] = {"from": "teacher", "weighting": "frequency", "count_exponent": 0.5}
    if start.tokenizer != "teacher":
        student["tokenizer"] = start.tokenizer
    section = vocabularies[choice.vocabulary].section
    return student | {**section, "head": "linear", "max_tokens": start.max_tokens}


def spread(depth: int, count: int) -> list[int]:
    """`count` of an encoder's layers: the first and the last, and between them as evenly as can be, rather
    later than earlier."""
    return [depth - 1] if count == 1 else [math.ceil(at * (depth - 1) / (count - 1)) for at in range(count)]


def stage(choice: Choice, start: StartingPoint, texts: int) -> dict[str, Any]:
    """The recipe's stage of a candidate, without its steps. There are so many `texts` to train on."""
    kind = choice.kind
    if kind == "finished" and start.student_of(choice).kind == "static":
        kind = "static"  # it has no layers
    settings = dict(TRAINING[kind])
    if kind == "bert" and start.weights and (choice.layers, choice.width) == (start.depth, start.width):
        settings |= WHOLE
    while settings["batch"] > SMALLEST_BATCH and texts < STEPS_OF_AN_EPOCH * settings["batch"]:
        settings["batch"] //= 2
    return {"name": "distil", "objective": {"kind": "cosine"}, **settings, "max_tokens": start.max_tokens}
