"""The shapes that a student can have, as data: those that ship, the teacher's own layers at fewer layers and
widths, static ones; and the recipe's section and stage that make and train each.

A shape's size is estimated in a moment, so that only those near the budget are built and measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from edgedistill import bundle_run, files, recipe, run
from edgedistill.data.corpus import Corpus
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.fitting import texts
from edgedistill.fitting.texts import MAX_TOKENS
from edgedistill.precisions import PRECISIONS as ROWS
from edgedistill.resolve import PACKAGED
from edgedistill.session import Session
from edgedistill.students import bert_layers
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student import student_tokenizer, weight_source
from edgedistill.training.load_models import Models, open_weights
from edgedistill.vocabulary.trim_tokenizer import is_trimmable

# What is tried. Shares are of the encoder whose layers the student takes, or of the teacher's dimensions
# where it takes none.
LAYERS = (1, 2, 3, 4, 6, 8, 12)
WIDTH_SHARES = (1.0, 2 / 3, 1 / 2, 1 / 3)
NEURONS = (4.0, 2.5, 1.5)  # feed-forward size, in widths
TABLE_SHARES = (1 / 2, 1 / 3, 1 / 4, 1 / 6, 1 / 8)  # PQ bytes of a token, in widths
STATIC_SHARES = (2 / 3, 1 / 2, 1 / 3, 1 / 4, 3 / 16, 1 / 8, 1 / 12)  # width of a static student's table
LEAST_SHARE = 0.5  # of a shipped student's bytes, that the smallest precision has
ALL, KEPT = "all", (3, 12)  # vocabularies: of all tokens; a token is kept where the texts use it so often
# Vocabularies of whole encoders: the most frequent tokens, as many as fit, since short training teaches none.
FEWEST_TOKENS, FEWER = 4_000, 0.96
# The first of them that keeps to the budget is trained for; qdq has the embeddings of int8.
PRECISIONS = sorted(
    (name for name, row in ROWS.items() if row.bits <= 8 and name != "qdq"),
    key=lambda name: ROWS[name].rank.int8_cpu,
)
# How each kind learns best, by what has been measured here (bench/LOG.md).
TRAINING: dict[str, dict[str, Any]] = {
    "bert": {"batch": 128, "optimizer": "muon", "learning_rate": 2e-3},
    "static": {"batch": 128, "learning_rate": 1e-3},
}
# All layers at full width: nearly the teacher before the first step.
WHOLE = {"learning_rate": 3e-4, "optimizer": "adamw"}
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
    heads: int
    neurons: int
    positions: int
    max_tokens: int
    pooling: str = "mean"


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer that candidates share: its keys in a student's section, its number of tokens, and about the
    bytes of its tokenizer.json."""

    section: Mapping[str, Any]
    size: int
    size_bytes: int


@dataclass(frozen=True)
class Source:
    """What a teacher and the texts make possible: layers to start from, vocabularies, and shipped students
    that know the texts' words. `dims` are the teacher's. Starts keep a space of their own with `own_space`.
    """

    dims: int
    max_tokens: int
    layers: Layers | None
    finished: dict[str, run.Run] = field(default_factory=dict)
    vocabularies: dict[str, Vocabulary] = field(default_factory=dict)
    own_space: bool = True

    def is_whole(self, shape: Shape) -> bool:
        """Whether a shape has all layers at their full width: those who know something before they learn."""
        start = self.layers
        whole = start is not None and (shape.layers, shape.width) == (start.depth, start.width)
        return shape.kind == "bert" and whole

    def is_start(self, shape: Shape) -> bool:
        """Whether a shape is worth measuring untrained: a shipped student, or a whole encoder."""
        of_teacher = self.layers is not None and self.layers.weights == "teacher"
        return shape.kind == "finished" or (self.is_whole(shape) and (of_teacher or self.own_space))

    def tokens(self, shape: Shape) -> int:
        """The size of a shape's vocabulary; of a shipped student 0."""
        return 0 if shape.kind == "finished" else self.vocabulary(shape).size

    def vocabulary(self, shape: Shape) -> Vocabulary:
        """The vocabulary of a shape that is no shipped student."""
        return self.vocabularies.get(shape.vocabulary) or self.frequent[shape.vocabulary]

    @cached_property
    def frequent(self) -> dict[str, Vocabulary]:
        """The vocabularies of whole encoders: all tokens and, of a tokenizer that can be trimmed, ever fewer
        of the most frequent ones."""
        whole = self.vocabularies[ALL]
        found, count = {ALL: whole}, whole.size
        while len(self.vocabularies) > 1 and (count := round(FEWER * count)) >= FEWEST_TOKENS:
            section = {"trim": {"min_count": 0, "tokens": count}}
            found[f"most {count}"] = Vocabulary(section, count, whole.size_bytes * count // whole.size)
        return found

    def family(self, shape: Shape) -> tuple[int, str | int]:
        """The shapes of which the largest is looked for: whole encoders, each shipped student by itself, a
        depth of a kind."""
        if self.is_start(shape):
            return 0, shape.vocabulary if shape.kind == "finished" else ""
        return 1 + (shape.kind == "static"), -shape.layers

    def own_dims(self, shape: Shape) -> int | None:
        """The dimensions of the space that a start may keep; None where it has the teacher's or is no
        start."""
        if not self.own_space or not self.is_start(shape):
            return None
        if shape.kind == "finished":
            return self.finished[shape.vocabulary].dims
        return shape.width if self.layers is not None and self.layers.weights != "teacher" else None

    @property
    def tokenizer(self) -> str:
        """Whose tokenizer students have, as in a recipe."""
        return self.layers.weights if self.layers is not None else "teacher"


@dataclass(frozen=True)
class Shape:
    """A candidate's shape.

    `neurons` is the feed-forward size. `table` counts the bytes of a token's embedding, PQ bytes where they
    are fewer than the width. `vocabulary` is the name of a Vocabulary; of a finished student, its name.
    """

    kind: str
    layers: int = 0
    width: int = 0
    neurons: int = 0
    table: int = 0
    vocabulary: str = ALL

    @property
    def untrained(self) -> str:
        """The name of what it is before its first step."""
        return self.vocabulary if self.kind == "finished" else f"{self.name}-untrained"

    @property
    def name(self) -> str:
        """bert-4x256x640-t64-kept3"""
        if self.kind == "finished":
            return f"from-{self.vocabulary}"
        parts = [self.kind, "x".join(str(each) for each in (self.layers, self.width, self.neurons) if each)]
        parts.append(f"t{self.table}" if self.table < self.width else "")
        parts.append("" if self.vocabulary == ALL else self.vocabulary.replace(" ", ""))
        return "-".join(filter(None, parts))


def all_shapes(source: Source) -> list[Shape]:
    """Every shape, without duplicates, in a fixed order."""
    shapes = list(_berts(source.layers, source)) if source.layers is not None else []
    for share, name in product(STATIC_SHARES, source.vocabularies):
        width = max(2, round(source.dims * share))
        shapes.append(Shape("static", 0, width, 0, width, name))
    shapes += [Shape("finished", vocabulary=name) for name in source.finished]
    return list(dict.fromkeys(shapes))


def _berts(start: Layers, source: Source) -> Iterator[Shape]:
    unit = start.width // start.heads
    layers = sorted({count for count in (*LAYERS, start.depth) if count <= start.depth})
    widths = sorted({max(unit, round(start.width * share / unit) * unit) for share in WIDTH_SHARES})
    for count, width, ratio, share in product(layers, widths, NEURONS, TABLE_SHARES):
        table = math.floor(width * share)
        whole = width == start.width
        # neurons are chosen only where layers are projected
        if width % table or (whole and ratio != NEURONS[0]):
            continue
        neurons = start.neurons if whole else min(start.neurons, round(width * ratio))
        shape = Shape("bert", count, width, neurons, table)
        for vocabulary in source.frequent if source.is_whole(shape) else source.vocabularies:
            yield replace(shape, vocabulary=vocabulary)


def estimated_bytes(shape: Shape, source: Source, precision: str) -> float:
    """About the bytes of the graph in a precision and of its tokenizer, to a tenth; of a shipped student,
    about the fewest."""
    if shape.kind == "finished":
        return LEAST_SHARE * _shipped_bytes(shape.vocabulary)
    weight = ROWS[precision].bytes_per_weight
    vocabulary = source.vocabulary(shape)
    head = shape.width * source.dims
    table = vocabulary.size * (shape.width * weight + 4)
    if shape.table < shape.width:  # product-quantized: codes are bytes in every precision
        table = vocabulary.size * shape.table + 256 * shape.width
        head += MAX_TOKENS * shape.width
    return table + weight * (_layer_weights(shape) + head) + vocabulary.size_bytes


@cache
def _shipped_bytes(name: str) -> int:
    """The smallest graph of a shipped bundle, and its tokenizer.json."""
    manifest = files.shipped("bundle")[name]
    graphs = (each["file"] for each in files.read_json(manifest)["precisions"].values())
    return min(
        sum((manifest.parent / each).stat().st_size for each in (graph, "tokenizer.json")) for graph in graphs
    )


def products(shape: Shape, source: Source) -> float:
    """Multiplications of a token in the layers: what latency grows with, in millions."""
    return (_layer_weights(shape) + shape.width * source.dims / 16) / 1e6


def _layer_weights(shape: Shape) -> float:
    return shape.layers * (4 * shape.width**2 + 2 * shape.width * shape.neurons)


# ---- in a recipe


def section(shape: Shape, source: Source) -> dict[str, Any]:
    """The recipe's section `student` that makes a shape."""
    if shape.kind == "finished":
        return {"weights": shape.vocabulary}
    student: dict[str, Any] = {"kind": shape.kind}
    if shape.kind == "static":
        student |= {"width": shape.width, "embeddings": {"from": "teacher", "of": "outputs"}}
    else:
        start = source.layers
        assert start is not None, "only layers make this kind"
        student |= {"weights": start.weights, "max_positions": start.positions}
        student["layers"] = spread(start.depth, shape.layers)
        student["pooling"] = start.pooling
        if shape.width < start.width:
            student |= {"width": shape.width, "intermediate": shape.neurons}
            student["pooling"] = start.pooling.removesuffix("_pooler")  # which belongs to the full width
    if shape.table < shape.width:
        student["pq_bytes"] = shape.table
        student["embeddings"] = {"from": "teacher", "weighting": "frequency", "count_exponent": 0.5}
    if source.tokenizer != "teacher":
        student["tokenizer"] = source.tokenizer
    vocabulary = source.vocabulary(shape).section
    return student | {**vocabulary, "head": "linear", "max_tokens": source.max_tokens}


def spread(depth: int, count: int) -> list[int]:
    """`count` of an encoder's layers: the first and the last, and between them as evenly as can be, rather
    later than earlier."""
    return [depth - 1] if count == 1 else [math.ceil(at * (depth - 1) / (count - 1)) for at in range(count)]


def stage(shape: Shape, source: Source, count: int) -> dict[str, Any]:
    """The recipe's stage of a shape, without its length. There are `count` texts to train on."""
    shared = {"name": "distil", "objective": {"kind": "cosine"}, "max_tokens": source.max_tokens}
    if shape.kind == "finished":
        settings = finished_stage(source.finished[shape.vocabulary].kind)
    else:
        settings = TRAINING[shape.kind] | (WHOLE if source.is_whole(shape) else {})
    while settings["batch"] > SMALLEST_BATCH and count < STEPS_OF_AN_EPOCH * settings["batch"]:
        settings["batch"] //= 2
    return {**shared, **settings}


def finished_stage(kind: str) -> dict[str, Any]:
    """How a finished student of a kind goes on learning."""
    settings: dict[str, Any] = {"batch": 64, "initial_share": INITIAL_SHARE, "rehearsal": REHEARSAL}
    if kind == "static":  # it has no layers
        return {**settings, "learning_rate": 1e-3}
    return {**settings, "learning_rate": 2e-3, "optimizer": "muon"}


def targets(own: int, dims: int) -> dict[str, Any]:
    """The recipe's `targets` of a student that keeps its own space, of `own` dimensions: the embeddings of
    another teacher, of `dims`, rotated to where the student has them. Cosines among texts stay as they
    are."""
    if dims < own:
        return {"dims": own, "reduce": {"kind": "ridge"}}
    reduce = {"kind": "pca", "centre": False} if dims > own else {"kind": "none"}
    return {"dims": own, "reduce": reduce, "align": "procrustes"}


def in_own_space(described: dict[str, Any], own: int, dims: int) -> dict[str, Any]:
    """A start's recipe for another teacher, of `dims` dimensions, that leaves it its space of `own`
    dimensions."""
    first, *behind = described["stages"]
    stages = [{"rehearsal": REHEARSAL, **first, "initial_share": FOREIGN_SHARE}, *behind]
    if first.get("optimizer") == WHOLE["optimizer"]:
        stages[0]["learning_rate"] = FOREIGN_RATE
    student = {key: value for key, value in described["student"].items() if key != "head"}
    return {**described, "student": student, "targets": targets(own, dims), "stages": stages}


# ---- found


def find(
    teacher: TeacherEncoder, corpus: Corpus, folder: Path, session: Session, most_bytes: float = math.inf
) -> Source:
    """What this teacher allows: its own layers or, where all of them are more than `most_bytes`, those of a
    packaged encoder that are fewer and whose tokenizer knows the texts' words. The tokenizers are written to
    `folder`, for `tokenizer_folder`, and read from there the next time."""
    sample = texts.sample(corpus)
    source = _source_of_layers(teacher, sample, session, most_bytes)
    vocabularies = _vocabularies(source, teacher, corpus, folder)
    return Source(source.dims, source.max_tokens, source.layers, finished_students(sample), vocabularies)


def _source_of_layers(
    teacher: TeacherEncoder, sample: list[str], session: Session, most_bytes: float
) -> Source:
    sources = list[Source]()
    for weights in ("teacher", *(f"packaged:{name}" for name in PACKAGED)):
        try:
            layers, tokenizer = _open_layers(weights, teacher)
        except UserError as error:
            session.log(f"students cannot start from {weights}: {error}")
            continue
        if weights == "teacher" or texts.whole_words(tokenizer, sample) >= texts.OTHER:
            sources.append(Source(teacher.dims, layers.max_tokens, layers))
            whole = Shape("bert", layers.depth, layers.width, layers.neurons)
            if _layer_weights(whole) <= most_bytes:  # in int8: it knows something before it learns
                return sources[-1]
    return next(iter(sources), Source(teacher.dims, min(MAX_TOKENS, teacher.max_tokens), None))


def _open_layers(weights: str, teacher: TeacherEncoder) -> tuple[Layers, PreTrainedTokenizerBase]:
    """An encoder to start from, and its tokenizer. Raises UserError where there is none."""
    spec = _spec(teacher, {"kind": "bert", "weights": weights, "tokenizer": weights})
    assert isinstance(spec.student, recipe.Bert)
    models = Models(teacher, weights=open_weights(spec.student))
    tokenizer = student_tokenizer.build(spec, models, None, Session())
    found = weight_source.find(spec.student, models, tokenizer)
    assert found is not None
    config = found.model.config
    if not hasattr(config, "num_attention_heads") or type(found.model).__name__ != "BertModel":
        raise UserError(f"{weights}: its layers cannot be projected to a smaller width; choose another")
    first = bert_layers.first_position(found.layers.pad)
    positions = min(MAX_TOKENS + first, config.max_position_embeddings)
    most = min(teacher.max_tokens, positions - first)
    sizes = config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size
    layers = Layers(weights, *sizes, positions, most)
    if weights == "teacher" and len(poolings := teacher.module.poolings) == 1:
        layers = replace(layers, pooling=poolings[0])
    return layers, tokenizer


def finished_students(sample: list[str]) -> dict[str, run.Run]:
    """The shipped students that know the texts' words, by name."""
    opened = {name: bundle_run.open_finished(name, "fit") for name in sorted(files.shipped("bundle"))}
    return {
        name: student
        for name, student in opened.items()
        if texts.whole_words(student.tokenizer(), sample) >= texts.OTHER
    }


def _vocabularies(
    source: Source, teacher: TeacherEncoder, corpus: Corpus, folder: Path
) -> dict[str, Vocabulary]:
    """The vocabularies that candidates choose from, by name: all of the start's tokens, those that the texts
    use. Of those of one size only the first is kept."""
    found: dict[str, Vocabulary] = {}
    sections: dict[str, dict[str, Any]] = {ALL: {}}
    sections |= {f"kept {count}": {"trim": {"min_count": count}} for count in KEPT}
    for name, section in sections.items():
        spec = _spec(teacher, {"kind": "static", "width": 2, "tokenizer": source.tokenizer, **section})
        kept = tokenizer_folder(folder, name)
        tokenizer = student_tokenizer.build(spec, Models(teacher), Rows.of_texts(corpus), Session(), kept)
        if len(tokenizer) not in {each.size for each in found.values()}:
            size = texts.tokenizer_bytes(tokenizer, source.max_tokens)
            found[name] = Vocabulary(section, len(tokenizer), size)
        if not is_trimmable(tokenizer):
            break
    return found


def tokenizer_folder(folder: Path, vocabulary: str) -> Path:
    """Where the tokenizer of a vocabulary lies, as in an unfinished run's folder."""
    return folder / vocabulary.replace(" ", "-")


def _spec(teacher: TeacherEncoder, student: dict[str, Any]) -> recipe.Recipe:
    """A recipe that only names a student: nothing reads its corpus."""
    named = teacher.spec.model_dump(exclude_defaults=True)
    rows = {"files": [recipe.DOCUMENTATION]}
    return recipe.parse({"name": "fit", "teacher": named, "student": student, "rows": rows}, "fit")
