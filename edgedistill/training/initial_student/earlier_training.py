"""What a finished student was trained on before it goes on learning: for run.json and the model card."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from edgedistill import recipe, run
from edgedistill.errors import UserError
from edgedistill.runtime.trust import GET_AGAIN


class EarlierTeacher(BaseModel):
    """A teacher as a run has recorded it. use: what else it was there for, such as the initial weights."""

    name: str
    revision: str | None = None
    licence: str | None = None
    use: str | None = None


class EarlierSource(BaseModel):
    """A file of a corpus, and how many texts, or pairs of texts, it gave."""

    name: str
    texts: int = Field(validation_alias=AliasChoices("texts", "pairs"))
    licence: str | None = None


class EarlierTriples(BaseModel):
    """A stage's triples; their number is not recorded."""

    name: str
    licence: str | None = None


class EarlierTraining(BaseModel):
    """One training: the name of its recipe, its teachers, its text files, and its stages' triples."""

    recipe: str
    teachers: list[EarlierTeacher]
    sources: list[EarlierSource]
    triples: list[EarlierTriples]


class _Texts(BaseModel):
    sources: list[EarlierSource] = []


class _Recorded(BaseModel):
    """What is read of a run.json; that of a bundle may come from a stranger."""

    corpus: _Texts | None = None
    teachers: list[EarlierTeacher] | None = None
    earlier: list[EarlierTraining] = Field([], max_length=100)


def record(source: run.Run) -> list[dict[str, Any]]:
    """The trainings of a finished student, see `EarlierTraining`, the first one first: its run may have
    continued another.

    Raises UserError for a record that no training writes.
    """
    try:
        read = _Recorded.model_validate(source.info)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(
            f"{source.folder}: its record of what it was trained on cannot be read ({place!a}); {GET_AGAIN}"
        ) from None
    spec, licences = source.recipe, getattr(source.recipe.corpus, "licences", {})
    teacher = EarlierTeacher(
        name=str(spec.teacher.embeddings or spec.teacher.model),
        revision=spec.teacher.revision,
        licence=spec.teacher.licence,
    )
    files = [
        each.model_copy(update={"licence": licences.get(each.name)})
        for each in (read.corpus or _Texts()).sources
    ]
    triples = [
        EarlierTriples(**each)
        for each in recipe.triples_sources([stage.model_dump() for stage in spec.stages])
    ]
    own = EarlierTraining(
        recipe=spec.name, teachers=read.teachers or [teacher], sources=files, triples=triples
    )
    return [each.model_dump() for each in [*read.earlier, own]]
