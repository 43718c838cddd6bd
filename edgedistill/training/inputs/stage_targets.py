"""What the rows of a stage are compared with: the embeddings of its teachers or its assistant, reduced where
the recipe's `targets` say so, and scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from numpy import ndarray
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.objectives import Targets
from edgedistill.recipe import Match, Recipe, Stage
from edgedistill.session import Session
from edgedistill.teacher import assistant, targets, tuple_scores
from edgedistill.teacher.embedding_cache import Embeds, TeacherPass
from edgedistill.teacher.targets import EmbeddingRows
from edgedistill.teacher.tuple_scores import Embedded, ScoredTuples
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.load_models import Models
from edgedistill.training.stages import NumberedStage


@dataclass(frozen=True)
class StageTargets:
    """What the rows of a stage are compared with; what its objective does not read is left out.

    `embeddings` are those that each column is to match, and the column whose texts they are of. `labels` (n,)
    and the `logits` (n, C) of a classifier are those of all rows.
    """

    embeddings: Sequence[tuple[EmbeddingRows, int]] = ()
    scored: ScoredTuples | None = None
    labels: ndarray | None = None
    logits: ndarray | None = None

    @property
    def dims(self) -> int | None:
        """Those of the embeddings; None where there are none."""
        return self.embeddings[0][0].dims if self.embeddings else None

    def of(self, rows: ndarray, texts: Sequence[ndarray]) -> Targets:
        """What a batch of these rows, with these texts in their sides, is compared with."""
        embeddings = tuple(values[texts[column]] for values, column in self.embeddings)
        if self.scored is not None:
            return Targets(embeddings, *self.scored.ranking(rows, texts[1]))
        labels = None if self.labels is None else self.labels[rows]
        logits = None if self.logits is None else self.logits[rows]
        return Targets(embeddings, labels=labels, logits=logits)


class Side(NamedTuple):
    """A side of rows, and who embeds it: the recipe's teacher, the assistant, or the other teacher at the
    place `scorer`, which reads texts as documents."""

    rows: Rows
    number: int
    match: Match = Match()
    raw: bool = False
    scorer: str | None = None

    @property
    def corpus(self) -> Corpus:
        return self.rows.sides[self.number]

    def model(self, models: Models) -> Embeds:
        """The model that embeds it."""
        if self.match.of == "teacher":
            role = self.rows.roles[self.number]
            if self.scorer is None:
                return models.teacher.in_role(role)
            return models.scorers[self.scorer].in_role("document" if role == "text" else role)
        output = self.match.layer == "output"
        return models.taught if output else assistant.embedding_layer(models.taught)

    def pass_of(self, models: Models, session: Session) -> TeacherPass:
        """The pass over it: at unit length, unless it is `raw` and the model keeps lengths."""
        name = self.rows.roles[self.number]
        if self.rows.translated:
            name = f"{self.match.of}-{('source', 'target')[self.number]}"
        elif name == "text":
            name = "teacher"
        model = self.model(models)
        unit = not (model.keeps_lengths and self.raw)
        return TeacherPass(model, self.corpus, session, unit, name)


def is_raw(spec: Recipe, rows: Rows) -> bool:
    """Whether rows are matched at the lengths that the model gives, not at unit length: with `targets` as
    their map is fitted, otherwise translations, as in the paper of multi-stage distillation."""
    return spec.targets.raw if spec.targets else rows.translated


def by_all(spec: Recipe, *sides: Side) -> list[Side]:
    """The sides, and the same ones as the other teachers of `targets` embed them, at unit length."""
    return [*sides, *(side._replace(scorer=at, raw=False) for at in spec.beside for side in sides)]


def matched(spec: Recipe, stage: Stage, rows: Rows) -> list[Side]:
    """The embeddings that the columns of a stage are to match, in their order: each its own, or of
    translations all those of the source text."""
    if not stage.reads_teacher:
        return []
    match = stage.match or Match()
    source = rows.translated and match.language == "source"
    match = match.model_copy(update={"language": "source"})
    return [Side(rows, 0 if source else side, match, is_raw(spec, rows)) for side in range(len(rows.sides))]


def needs_cosines(stage: Stage, rows: recipe.Rows) -> bool:
    """Whether a stage needs the teacher's cosines of queries and documents: as scores, or to draw negatives
    by them."""
    scored = stage.reads_scores and not rows.score_columns
    return scored or rows.negatives is not None


def embedded(spec: Recipe, texts: Rows, stages: Sequence[Rows]) -> Iterator[Side]:
    """Every side that a recipe's stages, with these rows, and its `targets` need embedded."""
    if spec.targets is not None:
        yield from by_all(spec, Side(texts, 0, raw=is_raw(spec, texts)))
    for number, (stage, rows) in enumerate(zip(spec.distilling, stages, strict=True)):
        new = [
            side
            for side in matched(spec, stage, rows)
            if side.rows is not texts or side.number or spec.targets is None
        ]
        yield from by_all(spec, *new)
        if rows.ranked:
            both = (0, 1) if needs_cosines(stage, spec.rows_of(stage)) else ()
            yield from (Side(rows, side) for side in both)
            yield from (Side(rows, side, scorer=at) for at in spec.scorers(number) for side in (0, 1))


@dataclass
class TargetReader:
    """Opens what the stages of a recipe are compared with; teachers embed what is needed for it and not
    cached.

    The map of the recipe's `targets` is fitted to its own texts, perhaps also to the embeddings of `student`
    before its first step, and is kept in `folder`, the unfinished run's.
    """

    spec: Recipe
    models: Models
    texts: Rows
    student: PreparedStudent
    session: Session
    folder: Path
    _opened: dict[Path, EmbeddingRows] = field(default_factory=dict)

    def _open(self, side: Side) -> EmbeddingRows:
        embedding = side.pass_of(self.models, self.session)
        if embedding.folder not in self._opened:
            self._opened[embedding.folder] = embedding.open()
        return self._opened[embedding.folder]

    @cached_property
    def of_texts(self) -> EmbeddingRows:
        """What the recipe's own texts are to match. Fits the map of `targets`."""
        spec = self.spec
        embeddings = self._open_all(Side(self.texts, 0, raw=is_raw(spec, self.texts)))
        if spec.targets is None:
            return embeddings
        data = targets.FittingData(embeddings, self.texts.training_count, self._of_student, spec.seed)
        return targets.load_or_fit(spec.targets, data, self.folder / "targets", self.session.log)

    def _of_student(self, rows: ndarray) -> ndarray:
        self.student.module.eval()
        return self.student.embed(self.texts.sides[0].texts(rows))

    def _reduced(self, side: Side) -> EmbeddingRows:
        """What the recipe's `targets` make of the embeddings of a side."""
        if self.spec.targets is None:
            return self._open(side)
        if side.rows is self.texts and side.number == 0:
            return self.of_texts
        _ = self.of_texts  # fits the map
        return targets.read(self.spec.targets, self._open_all(side), self.folder / "targets")

    def _open_all(self, side: Side) -> EmbeddingRows:
        """What the recipe's `targets` map: the embeddings of all their teachers."""
        first, *others = map(self._open, by_all(self.spec, side))
        return targets.SideBySide((first, *others)) if others else first

    def _embedded(self, rows: Rows, scorer: str | None) -> Embedded:
        """Both sides of rows, as the recipe's teacher or a teacher of scores embeds them."""
        both = [Side(rows, side, scorer=scorer) for side in (0, 1)]
        models = [side.model(self.models) for side in both]
        identity = {role: model.identity() for role, model in zip(rows.roles, models, strict=True)}
        queries, documents = map(self._open, both)
        return Embedded(queries, documents, identity)

    def of_stage(self, stage: NumberedStage, rows: Rows) -> StageTargets:
        """What the rows of a stage are compared with."""
        spec = stage.spec
        embeddings = [(self._reduced(side), side.number) for side in matched(self.spec, spec, rows)]
        if not rows.ranked:
            return StageTargets(embeddings)
        described = self.spec.rows_of(spec)
        scorers = [None, *self.spec.scorers(stage.number)] if needs_cosines(spec, described) else []
        teachers = [self._embedded(rows, scorer) for scorer in scorers]
        place = self.spec.place_of_rows(stage.number)
        scored = tuple_scores.build(
            described, rows, teachers, spec.reads_scores, self.session, place, self.spec.seed
        )
        return StageTargets(embeddings, scored)


def check_tokenizers(spec: Recipe, models: Models, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError where student and assistant must share their tokens and do not.

    They must where the student starts from the assistant's layers, and where embedding layers are matched:
    these are means over tokens.
    """
    if models.assistant is None:
        return
    other = models.assistant.tokenizer
    if not tokenizer.get_vocab().keys() <= other.get_vocab().keys():
        fact = "cut texts into other tokens"
    elif other("")["input_ids"] and len(tokenizer("")["input_ids"]) != len(other("")["input_ids"]):
        fact = "put other special tokens around them"
    else:
        return
    way_out = f"student and assistant {fact}; set student.tokenizer: assistant"
    if getattr(spec.student, "weights", None) == "assistant":
        raise UserError(f"student.weights: the assistant's layers read the assistant's own tokens, {way_out}")
    for number, stage in enumerate(spec.distilling):
        if stage.only_embeddings:
            raise UserError(
                f"stages[{number}].match: embedding layers are compared over the same tokens, {way_out}"
            )
