"""Objectives: student and teacher vectors -> a loss. From kind to function in one readable table."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.objectives.regression import cosine, mse
from edgedistill.objectives.relational import gram

Loss = Callable[[Tensor, Tensor], Tensor]


def build(spec: recipe.Objective) -> Loss:
    """The loss a recipe names: (student (B, d), teacher (B, e)) -> ()."""
    if isinstance(spec, recipe.Sum):
        parts = [(term.weight, build(term.objective)) for term in spec.terms]
        return lambda student, teacher: torch.stack([weight * loss(student, teacher) for weight, loss in parts]).sum()
    if isinstance(spec, recipe.Mse):
        return lambda student, teacher: mse(student, teacher, unit=spec.unit)
    return {"cosine": cosine, "gram": gram}[spec.kind]


def same_width(spec: recipe.Objective) -> bool:
    """Whether the objective compares coordinates, so that student and teacher must have the same number of them."""
    if isinstance(spec, recipe.Sum):
        return any(same_width(term.objective) for term in spec.terms)
    return not isinstance(spec, recipe.Gram)


def fits(spec: recipe.Objective, student: int, teacher: int, place: str) -> None:
    """Raise UserError where the objective cannot compare vectors of these widths."""
    if student != teacher and same_width(spec):
        raise UserError(
            f"{place}: {spec.kind} compares coordinates, the student has {student} and the teacher {teacher}; "
            "give the student `head: linear`, or use gram"
        )
