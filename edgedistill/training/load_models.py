"""The teacher and the assistant that a recipe names, opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.teacher import assistant as assistants
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import locate_teacher, precomputed_embeddings

AnyTeacher = teachers.TeacherEncoder | precomputed_embeddings.PrecomputedEmbeddings


class Models(NamedTuple):
    """The models whose embeddings a run may match and whose weights its student may start from."""

    teacher: AnyTeacher
    assistant: teachers.TeacherEncoder | None = None


def open_models(spec: recipe.Recipe, session: Session) -> Models:
    """A recipe's teacher, and its assistant if it names one. Raises UserError: a model or file that is not found."""
    return Models(open_teacher(spec.teacher, session), open_assistant(spec, session))


def open_assistant(spec: recipe.Recipe, session: Session) -> teachers.TeacherEncoder | None:
    """The recipe's assistant, or None where it names none."""
    return None if spec.assistant is None else assistants.open_assistant(spec.assistant, session=session)


def open_teacher(spec: recipe.Teacher, session: Session, place: str = "teacher") -> AnyTeacher:
    """A teacher model (possibly a finished run), or the file of its precomputed embeddings. place: the recipe's section that names it."""
    if spec.embeddings is not None:
        return precomputed_embeddings.PrecomputedEmbeddings(spec, session.data)
    return assistants.open_assistant(spec, place, session)


def with_weights(teacher: AnyTeacher, place: str) -> teachers.TeacherEncoder:
    """The teacher model. Raises UserError where the teacher is a file of precomputed embeddings; `place`: the recipe key that needs it."""
    if isinstance(teacher, precomputed_embeddings.PrecomputedEmbeddings):
        raise UserError(f"{place}: the teacher is a file of embeddings ({teacher.path.name}) and has no model; choose another source")
    return teacher


def quickest(spec: recipe.Teacher, session: Session) -> recipe.Teacher:
    """The teacher with the dtype in which it embeds texts quickest here: int8 on a CPU, where it has a graph that loses little.

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


def find_model(name: str, revision: str | None, place: str) -> Path:
    """The folder of `packaged:NAME`, of a local model or of a hub id. `place`: the recipe key.

    Raises UserError where it is not found, or is a bundle, which holds graphs and no model.
    """
    if name.startswith("packaged:"):
        return locate_teacher.packaged(name.removeprefix("packaged:"), place)
    instead = f"give the run it was exported from; or go on from the bundle as a whole: student: {{weights: {name}}}"
    return locate_teacher.model_folder(name, revision, place, instead)
