"""What is wrong with a recipe that only its corpus, its models and its student show; checked before anything
is embedded or trained."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from edgedistill import objectives
from edgedistill.data.rows import Rows
from edgedistill.errors import Problems, UserError
from edgedistill.evaluation import scoring
from edgedistill.recipe import Match, Recipe
from edgedistill.students import kinds
from edgedistill.teacher import assistant as assistants
from edgedistill.teacher import targets
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.inputs import batches
from edgedistill.training.load_models import Models
from edgedistill.training.stages import NumberedStage, distillation_stages
from edgedistill.training.training_sources import TrainingSources


class StageRows(NamedTuple):
    """A stage that distils and what it trains on: its own rows, or the recipe's; how many rows, without those
    that fill its queue, are for `training`."""

    stage: NumberedStage
    rows: Rows
    training: int


def stage_rows(spec: Recipe, sources: TrainingSources, models: Models) -> list[StageRows]:
    """What each stage that distils will train on.

    Raises one UserError with the problems of all stages: tuples without their columns, a queue that leaves
    no text to train on, views without their file, `targets` that cannot be made of embeddings of their
    teachers' dimensions or be fitted on so many texts.
    """
    problems = Problems()
    rows = []
    texts = sources.texts
    with problems.collect():
        if spec.targets is not None:
            dims = models.teacher.dims + sum(models.scorers[at].dims for at in spec.beside)
            targets.check(spec.targets, dims, texts.training_count)
    for stage in distillation_stages(spec):
        with problems.collect():
            rows.append(_rows_of(stage, sources))
    problems.raise_any()
    return rows


def _rows_of(stage: NumberedStage, sources: TrainingSources) -> StageRows:
    rows = sources.texts if stage.spec.rows is None else sources.of_stage(f"{stage.place}.rows")
    count = len(rows.training_rows(stage.spec.tables))
    if count == 0:
        named = ", ".join(stage.spec.tables or [])
        raise UserError(f"{stage.place}.tables: none are left of {named} to train on; name others")
    return StageRows(stage, rows, count - batches.queue_rows(stage, count))


def check_objectives(spec: Recipe, student: PreparedStudent, models: Models) -> None:
    """Raise UserError where a stage's objective cannot compare the student's embeddings with its targets, or
    cannot truncate them; and where its optimizer is for layers that the student does not have."""
    target_dims = spec.targets.dims if spec.targets else models.teacher.dims
    for stage in distillation_stages(spec):
        place = f"{stage.place}.objective"
        if stage.spec.optimizer == "muon" and student.shape["kind"] == "static":
            raise UserError(
                f"{stage.place}.optimizer: muon optimizes the matrices of layers, and a static student has "
                "none; leave it out"
            )
        match = stage.spec.match or Match()
        dims = models.taught.dims if match.of == "assistant" else target_dims
        width = kinds.dims(student.module)
        if student.drops_head:
            width = getattr(spec.student, "dims", None) or target_dims
        if match.layer == "embeddings":
            bare: Any = student.module
            width = int(bare.model.config.hidden_size)
            dims = assistants.embedding_layer(models.taught).dims
        objectives.check_dimensions(stage.spec.objective, width, dims, place)
        if stage.spec.objective.cuts and student.drops_head:
            raise UserError(
                f"{place}: matryoshka truncates the student's own embeddings, not a head that is "
                "dropped; choose another objective, or keep the head"
            )


def check_languages(spec: Recipe) -> None:
    """Raise UserError where a language of the pairs is in no task (en-de, ar-ar) of the suite of `select`.

    Languages in `select.languages_without_dev` are excepted. A suite whose tasks name none of the languages
    is taken to be English.
    """
    languages = spec.rows.languages_of_tables if spec.rows is not None else []
    if spec.select is None:
        return
    codes = {language: re.split(r"[^a-z]+", language.lower())[0] for language in languages}  # zh-CN is zh
    known = scoring.languages(spec.select.suite) & set(codes.values()) or {"en"}
    unseen = [
        language
        for language in codes
        if codes[language] not in known and language not in spec.select.languages_without_dev
    ]
    if unseen:
        raise UserError(
            f"rows.languages: {', '.join(unseen)}: no task of the suite {spec.select.suite} is in "
            "these languages, so nothing selects for them; choose another suite, or accept that "
            f"with select.languages_without_dev: [{', '.join(unseen)}]"
        )
