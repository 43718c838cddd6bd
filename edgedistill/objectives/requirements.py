"""What an objective asks of a run, read from the recipe alone: a teacher, a queue to fill, dimensions that fit."""

from __future__ import annotations

import numpy as np

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.recipe import leaves


def of_unit_length(vectors: np.ndarray) -> bool:
    """Whether all rows (…, d) have length 1, but for rounding to half precision."""
    return bool(np.allclose(np.linalg.norm(vectors.astype(np.float32), axis=-1), 1.0, atol=2e-3))


def reads_teacher(spec: recipe.Objective) -> bool:
    """Whether any of its terms compares the student with the teacher."""
    return any(not isinstance(leaf, recipe.Simcse) for leaf in leaves(spec))


def memory(spec: recipe.Objective) -> int:
    """How many training texts are taken out of training to fill the queue before the first step (ConGen's reference code)."""
    return max((leaf.queue for leaf in leaves(spec) if isinstance(leaf, recipe.Congen)), default=0)


def cuts(spec: recipe.Objective) -> list[int]:
    """The widths, ascending, that the objective prepares vectors to be cut at; none where it is no Matryoshka."""
    if isinstance(spec, recipe.Matryoshka):
        return spec.dims
    if isinstance(spec, recipe.EachSide):
        return cuts(spec.objective)
    found = [cuts(term.objective) for term in spec.terms] if isinstance(spec, recipe.Sum) else []
    return sorted({width for each in found for width in each})


def fits(spec: recipe.Objective, student: int, teacher: int, place: str) -> None:
    """Raise UserError where the objective cannot compare vectors of these widths."""
    if cuts(spec) and cuts(spec)[-1] != student:
        raise UserError(f"{place}.dims: end at {cuts(spec)[-1]}, the student gives {student} numbers; end there, or set its width to that")
    blind = recipe.Gram | recipe.Simcse | recipe.Mcl | recipe.MclBool | recipe.MclCe  # to the coordinates themselves
    if student != teacher and any(not isinstance(leaf, blind) for leaf in leaves(spec)):
        raise UserError(
            f"{place}: {spec.kind} compares coordinates, the student has {student} and the teacher {teacher}; "
            "give the student `head: linear`, or use gram"
        )
