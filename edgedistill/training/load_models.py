"""The models that a recipe names, opened once: teachers, the assistant, the model whose layers the student
starts from, the finished student that goes on learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, cast

import torch

from edgedistill import resolve, run
from edgedistill.errors import Problems, UserError
from edgedistill.recipe import Recipe, Student, Teacher, Transformer
from edgedistill.session import Session
from edgedistill.teacher import assistant as assistants
from edgedistill.teacher import precomputed_embeddings
from edgedistill.teacher.embedder import AnyTeacher, open_teacher
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student import finished_student


class NamedWeights(NamedTuple):
    """The model that `student.weights` names: a run, opened as a teacher is, or the folder of another
    model."""

    spec: Teacher
    opened: TeacherEncoder | Path


@dataclass(frozen=True)
class Models:
    """The models whose embeddings a run may match and whose weights its student may start from.

    `weights` is what `student.weights` names, and `finished` is the run or bundle of the finished student
    that the recipe goes on with. `scorers` are the other teachers, of scores or beside it in
    `targets`, by their places.
    """

    teacher: AnyTeacher
    assistant: TeacherEncoder | None = None
    weights: NamedWeights | None = None
    finished: run.Run | None = None
    scorers: Mapping[str, TeacherEncoder] = field(default_factory=dict)

    @property
    def taught(self) -> TeacherEncoder:
        """The assistant, asked for where the recipe has one."""
        return cast(TeacherEncoder, self.assistant)


def open_models(spec: Recipe, session: Session) -> Models:
    """The models that a recipe names. Raises one UserError with every model or file that is not found or does
    not fit."""
    problems = Problems()
    scorers = {}
    with problems.collect():
        teacher = _open_teacher(spec, session)
    with problems.collect():
        named = spec.assistant
        assistant = None if named is None else assistants.open_assistant(named, session=session)
    with problems.collect():
        weights = open_weights(spec.student)
    with problems.collect():
        finished = finished_student.find(spec.finished) if spec.finished else None
    for place, scorer in _scorers(spec).items():
        with problems.collect():
            scorers[place] = assistants.open_assistant(scorer, place, session)
    problems.raise_any()
    return Models(teacher, assistant, weights, finished, scorers)


def _scorers(spec: Recipe) -> dict[str, Teacher]:
    """The teachers beside the recipe's own, by their places."""
    stages = map(spec.scorers, range(len(spec.distilling)))
    return {place: teacher for named in (spec.beside, *stages) for place, teacher in named.items()}


def _open_teacher(spec: Recipe, session: Session) -> AnyTeacher:
    """The teacher; as a torch module where it is the student itself."""
    if spec.student.trained:
        return open_teacher(spec.teacher, session)
    return TeacherEncoder(spec.teacher, "teacher", session.device, session.remote_code)


def open_weights(student: Student) -> NamedWeights | None:
    """The model whose layers the student starts from, where the recipe names it by itself."""
    keywords = ("random", "teacher", "assistant")
    if not isinstance(student, Transformer) or student.weights in keywords:
        return None
    named = Teacher(model=student.weights, revision=student.revision)
    source = resolve.resolve(student.weights)
    if isinstance(source, resolve.RunFolder):
        return NamedWeights(named, assistants.open_assistant(Teacher(model=student.weights)))
    return NamedWeights(named, resolve.model_files(source, student.revision, "student.weights"))


def named_teachers(spec: Recipe) -> Iterator[tuple[str, Teacher]]:
    """(the recipe's key, the model) of a recipe's teacher, its assistant, and teachers of scores."""
    yield "teacher", spec.teacher
    if spec.assistant is not None:
        yield "assistant", spec.assistant
    yield from _scorers(spec).items()


def with_weights(teacher: AnyTeacher, place: str) -> TeacherEncoder:
    """The teacher model, which the recipe key `place` needs. Raises UserError where the teacher is a file of
    precomputed embeddings."""
    if isinstance(teacher, precomputed_embeddings.PrecomputedEmbeddings):
        raise UserError(
            f"{place}: the teacher is a file of embeddings ({teacher.path.name}) and has no "
            "model; choose another source"
        )
    return teacher


def quickest(spec: Teacher, session: Session) -> Teacher:
    """The teacher with the dtype in which it embeds texts quickest here: int8 on a CPU, where it has a graph
    that loses little.

    As it is where its dtype was chosen, it is a file of embeddings, or a GPU is used.
    """
    cuda = session.device == "cuda" or (session.device == "auto" and torch.cuda.is_available())
    if spec.dtype != "auto" or spec.embeddings is not None or cuda:
        return spec
    quick = spec.model_copy(update={"dtype": "int8"})
    try:
        on_cpu = replace(session, device="cpu")
        with_weights(open_teacher(quick, on_cpu), "teacher").prepare(on_cpu)
    except UserError as error:
        session.log(f"the teacher does not run in int8: {error}")
        return spec
    return quick
