"""What an objective requires of a run, read from the recipe alone: a teacher, texts that fill a queue,
matching dimensions."""

from __future__ import annotations

import numpy as np

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.recipe import leaves

# compare texts with texts, never one coordinate of the student with the teacher's: the dimensions may differ
COORDINATE_FREE = {"gram", "simcse", "info_nce", "listwise", "margin_mse", "mcl", "mcl_bool", "mcl_ce"}


def of_unit_length(vectors: np.ndarray) -> bool:
    """Whether all rows (…, d) have length 1, up to rounding to half precision."""
    return bool(np.allclose(np.linalg.norm(vectors.astype(np.float32), axis=-1), 1.0, atol=2e-3))


def reads_teacher(spec: recipe.Objective) -> bool:
    """Whether any of its terms compares the student's embeddings with the teacher's."""
    return any(not isinstance(leaf, recipe.OwnEmbeddings) for leaf in leaves(spec))


def queue_prefill(spec: recipe.Objective) -> int:
    """How many training texts fill the queue before the first step and are not trained on (ConGen's reference
    code)."""
    return max((leaf.queue for leaf in leaves(spec) if isinstance(leaf, recipe.Congen)), default=0)


def matryoshka_dims(spec: recipe.Objective) -> list[int]:
    """The dimensions, ascending, that embeddings can be truncated to (Matryoshka); empty for other
    objectives."""
    if isinstance(spec, recipe.Matryoshka):
        return spec.dims
    if isinstance(spec, recipe.EachSide):
        return matryoshka_dims(spec.objective)
    found = [matryoshka_dims(term.objective) for term in spec.terms] if isinstance(spec, recipe.Sum) else []
    return sorted({dims for each in found for dims in each})


def check_dimensions(spec: recipe.Objective, student: int, teacher: int, place: str) -> None:
    """Raise UserError where the objective cannot compare embeddings of these dimensions; `place`: the
    objective's field in the recipe."""
    if (dims := matryoshka_dims(spec)) and dims[-1] != student:
        raise UserError(
            f"{place}.dims: end at {dims[-1]}, the student has {student} dimensions; end there, or set its "
            "width to that"
        )
    if student != teacher and any(leaf.kind not in COORDINATE_FREE for leaf in leaves(spec)):
        raise UserError(
            f"{place}: {spec.kind} compares coordinates, the student has {student} and the teacher "
            f"{teacher}; "
            "give the student `head: linear`, match models of the same dimensions, or use gram"
        )
