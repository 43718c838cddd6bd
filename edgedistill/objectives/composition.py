"""Objectives: student and teacher vectors -> a loss. From kind to module in one readable table.

Every one is a module called with (views, teacher): the student's vectors (B, d) of each view of the texts, and the teacher's
(B, e) of the texts; only simcse can do without those, and gets none on triples. Over pairs the views are the two sides, and the
teacher's vectors (B, 2, e): what each side is to match. What it must remember (a queue, a temperature) is in its state; `remember`
tells it the teacher's vectors after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

import torch
from torch import Tensor, nn

from edgedistill import recipe
from edgedistill.objectives.contrastive import Ckd, Simcse
from edgedistill.objectives.pairs import Side, mcl, mcl_bool, mcl_ce
from edgedistill.objectives.queue import Queue
from edgedistill.objectives.regression import cosine, dual_l2, mse, skd, softcos
from edgedistill.objectives.relational import Congen, Seed, gram


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


class Across(nn.Module):
    """A loss across the sides of a batch's pairs, led by what the first sides' teacher vectors say of each other."""

    def __init__(self, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, views: list[Tensor], teacher: Tensor) -> Tensor:
        return self.loss(views[0], views[1], teacher[:, 0])


class Weighted(nn.Module):
    """A weighted sum of objectives."""

    def __init__(self, weights: list[float], parts: list[nn.Module]) -> None:
        super().__init__()
        self.weights, self.parts = weights, nn.ModuleList(parts)

    def forward(self, views: list[Tensor], teacher: Tensor) -> Tensor:
        return torch.stack([weight * part(views, teacher) for weight, part in zip(self.weights, self.parts, strict=True)]).sum()


class Sliced(nn.Module):
    """An objective over some of the student's numbers, and the same of the teacher's, or all of those.

    `scale` is put on both sides: blocks of split teachers come as long as the root of their weight.
    """

    def __init__(self, part: nn.Module, start: int, end: int, teacher: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        self.part, self.start, self.end, self.teacher, self.scale = part, start, end, teacher, scale

    def of_teacher(self, teacher: Tensor) -> Tensor:
        return self.scale * (teacher[..., self.start : self.end] if self.teacher else teacher)

    def forward(self, views: list[Tensor], teacher: Tensor) -> Tensor:
        return self.part([self.scale * view[:, self.start : self.end] for view in views], self.of_teacher(teacher))


def build(spec: recipe.Objective, dims: int, blocks: list[tuple[int, float]] | None = None, unit: bool = False) -> nn.Module:
    """The objective a recipe names, for targets of `dims` numbers, `unit`: of length 1; random parts are drawn from torch's generator.

    `blocks`: (numbers, weight) of split teachers; the loss is then Σ_k w_k L(block k), blocks at unit length.
    """
    if blocks is None:
        return _build(spec, dims, None, unit)
    ends = list(accumulate(size for size, _ in blocks))
    parts: list[nn.Module] = [
        Sliced(_build(spec, size, None, unit), end - size, end, scale=weight**-0.5)
        for end, (size, weight) in zip(ends, blocks, strict=True)
    ]
    return Weighted([weight for _, weight in blocks], parts)


def _build(spec: recipe.Objective, dims: int, cut: int | None, unit: bool) -> nn.Module:
    """`cut`: over the first so many numbers. Relations among texts follow the whole teacher however the student is cut."""
    if isinstance(spec, recipe.Sum):
        return Weighted([term.weight for term in spec.terms], [_build(term.objective, dims, cut, unit) for term in spec.terms])
    if isinstance(spec, recipe.Matryoshka):
        return Weighted(spec.weights or [1.0] * len(spec.dims), [_build(spec.objective, dims, each, unit) for each in spec.dims])
    if isinstance(spec, recipe.EachSide):
        return Weighted([1.0, 1.0], [Side(_build(spec.objective, dims, cut, unit), side) for side in (0, 1)])
    whole = isinstance(spec, recipe.Gram | recipe.Mcl | recipe.MclBool | recipe.MclCe)
    part = _leaf(spec, dims if whole or cut is None else cut, unit)
    return part if cut is None else Sliced(part, 0, cut, teacher=not whole)


def _leaf(spec: recipe.Objective, dims: int, unit: bool) -> nn.Module:
    if isinstance(spec, recipe.Mse):
        scale = spec.scale or (dims**0.5 if unit and not spec.unit else 1.0)
        return Stateless(lambda student, teacher: mse(student, teacher, spec.unit, scale))
    if isinstance(spec, recipe.SoftCos):
        return Stateless(lambda student, teacher: softcos(student, teacher, spec.detach))
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
    if isinstance(spec, recipe.Mcl | recipe.MclBool):
        return Across({"mcl": mcl, "mcl_bool": mcl_bool}[spec.kind])
    if isinstance(spec, recipe.MclCe):
        return Across(lambda one, other, teacher: mcl_ce(one, other, teacher, 1 / spec.temperature))
    return Stateless({"cosine": cosine, "gram": gram}[spec.kind])


def learned(objective: nn.Module) -> dict[str, float]:
    """What an objective has learned itself, for people to read: the temperature that a `ckd` has come to."""
    found = [part.log_scale for part in objective.modules() if isinstance(part, Ckd) and part.log_scale.requires_grad]
    return {"temperature": round((-found[0].detach()).exp().item(), 5)} if found else {}


def halve(objective: nn.Module) -> None:
    """Keep every queue in bf16, and multiply with it there."""
    for part in objective.modules():
        if isinstance(part, Queue):
            part.ring = part.ring.to(torch.bfloat16)


def fill(objective: nn.Module, vectors: Tensor) -> None:
    """Put the teacher's vectors of those texts into every queue that starts full."""
    for part, own in _told(objective, vectors):
        if isinstance(part, Congen):
            part.queue.push(own)


def remember(objective: nn.Module, teacher: Tensor) -> None:
    """After a step: every queue takes in the batch's teacher vectors."""
    for part, own in _told(objective, teacher):
        if isinstance(part, Ckd | Congen | Seed):
            part.queue.push(own)


def _told(objective: nn.Module, teacher: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
    """Every part of an objective, with what it sees of the teacher's vectors."""
    teacher = objective.of_teacher(teacher) if isinstance(objective, Sliced | Side) else teacher
    yield objective, teacher
    for part in objective.children():
        yield from _told(part, teacher)
