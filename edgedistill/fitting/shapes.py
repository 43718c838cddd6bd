"""The shapes that a student can have, as data: those that ship, an encoder's own layers, all of them or
fewer, and static tables; and the recipe's section and stage that make and train each.

A shape's size is estimated in a moment, so that only those near the budget are built and measured.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Any

from edgedistill import bundle_run, files, recipe, run
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.export import library_files
from edgedistill.fitting import texts
from edgedistill.fitting.texts import MAX_TOKENS
from edgedistill.precisions import PRECISIONS as ROWS
from edgedistill.resolve import PACKAGED
from edgedistill.session import Session
from edgedistill.students import bert_layers
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student import weight_source
from edgedistill.training.load_models import Models
from edgedistill.vocabulary.trim_tokenizer import is_trimmable

# What is tried.
PRECISIONS = ("int8", "w4")  # the first that keeps to the budget
DEPTHS = (12, 10, 8, 6, 4, 3, 2, 1)
TABLE_PARTS = (2, 3, 4, 6, 8)  # of the width, for the PQ bytes of a token
STATIC_SHARES = (2 / 3, 1 / 2, 1 / 3, 1 / 4, 3 / 16, 1 / 8, 1 / 12)  # of the teacher's dimensions
USES = 3  # of a token by the texts, for a student to have it
# Vocabularies: the most frequent tokens, as many as fit. Whole encoders keep those too that the texts do not
# use, since short training teaches none; others at least FEWEST of those that the texts use.
FEWEST_TOKENS, FEWEST, FEWER = 4_000, 0.5, 0.96
# How each kind learns best, by what has been measured here (bench/LOG.md).
TRAINING: dict[str, dict[str, Any]] = {
    "bert": {"batch": 128, "optimizer": "muon", "learning_rate": 2e-3},
    "static": {"batch": 128, "learning_rate": 1e-3},
    # all layers of an encoder, or most: nearly the teacher before the first step
    "whole": {"batch": 128, "optimizer": "adamw", "learning_rate": 3e-4},
}
MOST_LAYERS = 0.75  # of an encoder's, that learn like all of them
FOREIGN_RATE = 1e-4  # of an encoder's whole layers that another teacher teaches in their own space
SMALLEST_BATCH, STEPS_OF_AN_EPOCH = 8, 16  # of few texts: smaller batches, so that an epoch has some steps
# A finished student: the weight of what it is to embed as before, and its initial weights' share of the
# result, so that little is forgotten (bench/LOG.md).
REHEARSAL, INITIAL_SHARE = 0.5, 0.3
FOREIGN_SHARE = 0.65  # the initial weights' share where another teacher than its own has taught it


@dataclass(frozen=True)
class Layers:
    """The encoder that students take layers and token embeddings from; `weights` is as in a recipe.

    Students keep so many `positions` of the position table, for `max_tokens`, and its `pooling`.
    """

    weights: str
    depth: int
    width: int
    neurons: int
    positions: int
    max_tokens: int
    pooling: str

    @property
    def layer_weights(self) -> int:
        """The weights of one layer, but for norms and biases."""
        return 4 * self.width**2 + 2 * self.width * self.neurons

    @property
    def least_mb(self) -> float:
        """The size of all layers in the smallest precision."""
        return self.depth * self.layer_weights * ROWS[PRECISIONS[-1]].bytes_per_weight / 1e6


@dataclass(frozen=True)
class Source:
    """What a teacher and the texts make possible: layers to start from, and shipped students that know the
    texts' words. `dims` are the teacher's.

    The tokenizer of the layers, or of the teacher, has `tokens` of `token_bytes` each in its tokenizer.json;
    the texts use `used` of them USES times. Starts keep a space of their own with `own_space`.
    """

    dims: int
    max_tokens: int
    layers: Layers | None
    tokens: int
    token_bytes: float
    used: int
    trimmable: bool = True
    finished: Mapping[str, run.Run] = field(default_factory=dict)
    own_space: bool = True

    @property
    def weights(self) -> str:
        """Whose tokenizer students have, as in a recipe."""
        return self.layers.weights if self.layers is not None else "teacher"

    def is_whole(self, shape: Shape) -> bool:
        """Whether a shape has all layers of an encoder."""
        return self.layers is not None and shape.layers == self.layers.depth

    def is_start(self, shape: Shape) -> bool:
        """Whether a shape knows something before its first step: a shipped student, or a whole encoder."""
        return bool(shape.student) or (self.is_whole(shape) and (self.own_space or self.weights == "teacher"))

    def own_dims(self, shape: Shape) -> int | None:
        """The dimensions of the space that a start may keep; None where it has the teacher's or is no
        start."""
        if not self.own_space or not self.is_start(shape):
            return None
        if shape.student:
            return self.finished[shape.student].dims
        return self.layers.width if self.layers is not None and self.weights != "teacher" else None


@dataclass(frozen=True)
class Shape:
    """A candidate's shape: a finished `student`, or one with so many `layers`, if any, and `tokens`.

    `table` counts the bytes of a token's embedding: PQ codes, or the width of a static student.
    """

    precision: str
    student: str = ""
    layers: int = 0
    table: int = 0
    tokens: int = 0

    @property
    def kind(self) -> str:
        return "bert" if self.layers else "static"

    @property
    def name(self) -> str:
        """bert-4-t64-12000"""
        if self.student:
            return f"from-{self.student}"
        return f"{self.kind}-{f'{self.layers}-' if self.layers else ''}t{self.table}-{self.tokens}"

    @property
    def untrained(self) -> str:
        """The name of what it is before its first step."""
        return self.student or f"{self.name}-untrained"


def families(source: Source) -> list[list[Shape]]:
    """The shapes, the most promising first, in families of which one shape is enough: each shipped student,
    each number of layers, static ones. In a family the largest are first, in 8 bits before 4."""
    shipped = [[Shape(precision, name) for precision in PRECISIONS] for name in source.finished]
    widths = dict.fromkeys(max(2, round(source.dims * share)) for share in STATIC_SHARES)
    static = [
        Shape(precision, table=width, tokens=source.used) for precision, width in product(PRECISIONS, widths)
    ]
    depth = source.layers.depth if source.layers is not None else 0
    depths = [depth, *(count for count in DEPTHS if count < depth)] if depth else []
    return [*shipped, *(_of_layers(source, count) for count in depths), static]


def _of_layers(source: Source, count: int) -> list[Shape]:
    """The shapes with so many of the encoder's layers. A whole encoder has as many tokens as can be: no
    training makes up for those that lack."""
    assert source.layers is not None, "only an encoder has layers"
    width = source.layers.width
    tables = [width // part for part in TABLE_PARTS if width % part == 0]
    tokens, fewest = [source.used], FEWEST * source.used
    if source.is_start(Shape("", layers=count)):
        tokens, fewest = [source.tokens], FEWEST_TOKENS
    while source.trimmable and (fewer := round(FEWER * tokens[-1])) >= fewest:
        tokens.append(fewer)
    return [
        Shape(precision, layers=count, table=table, tokens=size)
        for size, precision, table in product(tokens, PRECISIONS, tables)
    ]


def estimated_mb(shape: Shape, source: Source) -> float:
    """About the size of the graph and of its tokenizer, to a tenth."""
    weight = ROWS[shape.precision].bytes_per_weight
    tables: float
    if shape.student:
        counts = source.finished[shape.student].parameters
        tables, weights = counts["embedding"], counts["total"] - counts["embedding"]
    elif source.layers is None or not shape.layers:
        weights = shape.table * (shape.tokens + source.dims)
        tables = shape.tokens * (4 + source.token_bytes)
    else:  # the table has PQ codes, bytes in every precision
        width = source.layers.width
        weights = shape.layers * source.layers.layer_weights + width * source.dims
        tables = shape.tokens * (shape.table + source.token_bytes) + width * (256 + MAX_TOKENS)
    return (weight * weights + tables) / 1e6


# ---- in a recipe


def section(shape: Shape, source: Source) -> dict[str, Any]:
    """The recipe's section `student` that makes a shape."""
    if shape.student:
        return {"weights": shape.student}
    student: dict[str, Any] = {"kind": shape.kind, "head": "linear", "max_tokens": source.max_tokens}
    if source.layers is None or not shape.layers:
        student |= {"width": shape.table, "embeddings": {"from": "teacher", "of": "outputs"}}
    else:
        student |= {
            "weights": source.weights,
            "max_positions": source.layers.positions,
            "layers": spread(source.layers.depth, shape.layers),
            "pooling": source.layers.pooling,
            "pq_bytes": shape.table,
            "embeddings": {"from": "teacher", "weighting": "frequency", "count_exponent": 0.5},
        }
    if source.weights != "teacher":
        student["tokenizer"] = source.weights
    if shape.tokens < source.tokens:
        student["trim"] = {"min_count": 0, "tokens": shape.tokens}
    return student


def spread(depth: int, count: int) -> list[int]:
    """`count` of an encoder's layers: the first and the last, and between them as evenly as can be, rather
    later than earlier."""
    return [depth - 1] if count == 1 else [math.ceil(at * (depth - 1) / (count - 1)) for at in range(count)]


def stage(shape: Shape, source: Source, count: int) -> dict[str, Any]:
    """The recipe's stage of a shape, without its length. There are `count` texts to train on."""
    if shape.student:
        settings = finished_stage(source.finished[shape.student].kind)
    else:
        most = source.layers is not None and shape.layers >= MOST_LAYERS * source.layers.depth
        settings = dict(TRAINING["whole" if most else shape.kind])
    while settings["batch"] > SMALLEST_BATCH and count < STEPS_OF_AN_EPOCH * settings["batch"]:
        settings["batch"] //= 2
    objective = {"kind": "cosine"}
    return {"name": "distil", "objective": objective, "max_tokens": source.max_tokens, **settings}


def finished_stage(kind: str) -> dict[str, Any]:
    """How a finished student of a kind goes on learning."""
    settings = TRAINING["static" if kind == "static" else "bert"]  # what has layers learns like a BERT
    return {**settings, "batch": 64, "initial_share": INITIAL_SHARE, "rehearsal": REHEARSAL}


def targets(width: int, dims: float) -> dict[str, Any]:
    """The recipe's `targets` of a student that keeps its own space, of `width` dimensions: the embeddings of
    another teacher, of `dims`, rotated to where the student has them. Several teachers have more than its
    own: infinite ones. Cosines among texts stay as they are."""
    if dims < width:
        return {"dims": width, "reduce": {"kind": "ridge"}}
    reduce = {"kind": "pca", "centre": False} if dims > width else {"kind": "none"}
    return {"dims": width, "reduce": reduce, "align": "procrustes"}


def in_own_space(described: dict[str, Any], width: int, dims: int) -> dict[str, Any]:
    """A start's recipe for another teacher, of `dims` dimensions, that leaves it its space of `width`
    dimensions."""
    first, *behind = described["stages"]
    stages = [{"rehearsal": REHEARSAL, **first, "initial_share": FOREIGN_SHARE}, *behind]
    if first.get("optimizer") == "adamw":
        stages[0]["learning_rate"] = FOREIGN_RATE
    student = {key: value for key, value in described["student"].items() if key != "head"}
    return {**described, "student": student, "targets": targets(width, dims), "stages": stages}


# ---- found


def find(teacher: TeacherEncoder, corpus: Corpus, max_mb: float, own_space: bool, session: Session) -> Source:
    """What this teacher allows: all of its own layers or, where they are more than `max_mb`, those of a
    packaged encoder whose tokenizer knows the texts' words; of the smallest one where none are less."""
    sample = texts.sample(corpus)
    offers = list[tuple[Layers, Any]]()
    for weights in ("teacher", *(f"packaged:{name}" for name in PACKAGED)):
        try:
            encoder = teacher if weights == "teacher" else TeacherEncoder(recipe.Teacher(model=weights))
            layers = _layers(encoder, weights, teacher.max_tokens)
        except UserError as error:
            session.log(f"students cannot start from {weights}: {error}")
            continue
        if weights == "teacher" or texts.whole_words(encoder.tokenizer, sample) >= texts.OTHER:
            offers.append((layers, encoder.tokenizer))
    small = [offer for offer in offers if offer[0].least_mb <= max_mb]
    small += sorted(offers, key=lambda offer: offer[0].least_mb)
    chosen, tokenizer = small[0] if small else (None, teacher.tokenizer)
    most = chosen.max_tokens if chosen is not None else min(MAX_TOKENS, teacher.max_tokens)
    tokens, trimmable = len(tokenizer), is_trimmable(tokenizer)
    return Source(
        teacher.dims,
        most,
        chosen,
        tokens,
        tokenizer_bytes(tokenizer, most) / tokens,
        _used(tokenizer, corpus) if trimmable else tokens,
        trimmable,
        finished_students(sample),
        own_space,
    )


def _layers(encoder: TeacherEncoder, weights: str, most: int) -> Layers:
    """The layers of an encoder, for texts of at most so many tokens. Raises UserError where students cannot
    take them."""
    start = recipe.Bert(kind="bert", weights="teacher")
    source = weight_source.find(start, Models(encoder), encoder.tokenizer)
    assert source is not None, "these weights are not random"
    config = source.model.config
    first = bert_layers.first_position(source.layers.pad)
    positions = min(MAX_TOKENS + first, config.max_position_embeddings)
    return Layers(
        weights,
        config.num_hidden_layers,
        config.hidden_size,
        config.intermediate_size,
        positions,
        min(most, positions - first),
        encoder.module.poolings[0],
    )


def tokenizer_bytes(tokenizer: Any, max_tokens: int) -> int:
    """Bytes of the tokenizer.json that a bundle would have."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        content = library_files.tokenizer_json(Path(folder), max_tokens)
    return len(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()) + 1


def _used(tokenizer: Any, corpus: Corpus) -> int:
    """How many tokens the texts use USES times."""
    counts = Counter[int]()
    for chunk in corpus.chunks(texts.SAMPLE):
        counts.update(chain.from_iterable(texts.token_ids(tokenizer, chunk)))
    return sum(count >= USES for count in counts.values())


def finished_students(sample: list[str]) -> dict[str, run.Run]:
    """The shipped students that know the texts' words, by name."""
    opened = {name: bundle_run.open_finished(name, "fit") for name in sorted(files.shipped("bundle"))}
    return {
        name: student
        for name, student in opened.items()
        if texts.whole_words(student.tokenizer(), sample) >= texts.OTHER
    }
