"""Objectives: student and teacher vectors -> a loss. From kind to module in one readable table.

Every one is a module called with (views, teacher): the student's vectors (B, d) of each view of the texts, and the teacher's
(B, e) of the texts; only simcse can do without those, and gets none on triples. What it must remember (a queue, a temperature) is
in its state; `remember` tells it the teacher's vectors after each step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.objectives.contrastive import Ckd, Simcse
from edgedistill.objectives.regression import cosine, dual_l2, mse, skd
from edgedistill.objectives.relational import Congen, Seed, gram
from edgedistill.recipe import leaves


class Stateless(nn.Module):
    """A loss of the first view alone, with nothing to remember."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, views: list[Tensor], teacher: Tensor) -> Tensor:
        return self.loss(views[0], teacher)


class TwoViews(nn.Module):
    """A loss of two views, with nothing to remember."""

    def __init__(self, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, views: list[Tensor], teacher: Tensor) -> Tensor:
        return self.loss(views[0], views[1], teacher)


class Weighted(nn.Module):
    """A weighted sum of objectives."""

    def __init__(self, weights: list[float], parts: list[nn.Module]) -> None:
        super().__init__()
        self.weights, self.parts = weights, nn.ModuleList(parts)

    def forward(self, views: list[Tensor], teacher: Tensor) -> Tensor:
        return torch.stack([weight * part(views, teacher) for weight, part in zip(self.weights, self.parts, strict=True)]).sum()


def build(spec: recipe.Objective, dims: int) -> nn.Module:
    """The objective a recipe names, for a teacher of `dims` numbers; random parts are drawn from torch's generator."""
    if isinstance(spec, recipe.Sum):
        return Weighted([term.weight for term in spec.terms], [build(term.objective, dims) for term in spec.terms])
    if isinstance(spec, recipe.Mse):
        return Stateless(lambda student, teacher: mse(student, teacher, unit=spec.unit))
    if isinstance(spec, recipe.Ckd):
        return Ckd(dims, spec.queue, spec.temperature, spec.learned)
    if isinstance(spec, recipe.Congen):
        return Congen(dims, spec.queue, spec.temperature, spec.teacher_temperature, spec.alpha)
    if isinstance(spec, recipe.Seed):
        return Seed(dims, spec.queue, spec.temperature, spec.teacher_temperature)
    if isinstance(spec, recipe.Simcse):
        return Simcse(spec.temperature)
    if isinstance(spec, recipe.DualL2 | recipe.Skd):
        return TwoViews({"dual_l2": dual_l2, "skd": skd}[spec.kind])
    return Stateless({"cosine": cosine, "gram": gram}[spec.kind])


def reads_teacher(spec: recipe.Objective) -> bool:
    """Whether any of its terms compares the student with the teacher."""
    return any(not isinstance(leaf, recipe.Simcse) for leaf in leaves(spec))


def memory(spec: recipe.Objective) -> int:
    """How many training texts are taken out of training to fill the queue before the first step (ConGen's reference code)."""
    return max((leaf.queue for leaf in leaves(spec) if isinstance(leaf, recipe.Congen)), default=0)


def fill(objective: nn.Module, vectors: Tensor) -> None:
    """Put the teacher's vectors of those texts into every queue that starts full."""
    for part in objective.modules():
        if isinstance(part, Congen):
            part.queue.push(vectors)


def remember(objective: nn.Module, teacher: Tensor) -> None:
    """After a step: every queue takes in the batch's teacher vectors."""
    for part in objective.modules():
        if isinstance(part, Ckd | Congen | Seed):
            part.queue.push(teacher)


def fits(spec: recipe.Objective, student: int, teacher: int, place: str) -> None:
    """Raise UserError where the objective cannot compare vectors of these widths."""
    if student != teacher and any(not isinstance(leaf, recipe.Gram | recipe.Simcse) for leaf in leaves(spec)):
        raise UserError(
            f"{place}: {spec.kind} compares coordinates, the student has {student} and the teacher {teacher}; "
            "give the student `head: linear`, or use gram"
        )
