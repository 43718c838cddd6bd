"""A recipe's objective becomes a module: `KINDS` holds every loss by its kind, `COMPOSITES` the objectives
made of other objectives. The last functions read from the recipe alone what an objective requires of a run.

Every module is called with (views, teacher): the student's embeddings (B, d) of each view of the texts, and
the teacher's embeddings (B, e) of the texts. On translation pairs the views are the source and the target
side, and `teacher` is (B, 2, e), one target for either side. On tuples the views are the queries (B, d) and
the distinct documents of the batch (M, d), and `teacher` is a Ranking. Queues and a learned temperature are
part of a module's state; `update_queues` pushes the batch's teacher embeddings after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.objectives.contrastive import CkdLoss, info_nce
from edgedistill.objectives.pairs import OneSide, mcl, mcl_bool, mcl_ce
from edgedistill.objectives.queue import Queue
from edgedistill.objectives.ranking import Ranking, listwise, margin_mse
from edgedistill.objectives.regression import cosine, dual_l2, mse, skd, softcos
from edgedistill.objectives.relational import CongenLoss, SeedLoss
from edgedistill.recipe import leaves

# compare texts with texts, never one coordinate of the student with the teacher's: the dimensions may differ
COORDINATE_FREE = {"info_nce", "listwise", "margin_mse", "mcl", "mcl_bool", "mcl_ce"}


class Stateless(nn.Module):
    """A loss without a state, of the views and what the teacher gives."""

    def __init__(self, loss: Callable[[list[Tensor], Any], Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, views: list[Tensor], teacher: Tensor | Ranking | None) -> Tensor:
        return self.loss(views, teacher)


def _of_one_view(loss: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    return Stateless(lambda views, teacher: loss(views[0], teacher))


def _of_both(loss: Callable[[Tensor, Tensor, Any], Tensor]) -> nn.Module:
    """A loss between two views of a batch, or its queries and its documents, guided by what the teacher
    gives."""
    return Stateless(lambda views, teacher: loss(views[0], views[1], teacher))


def _of_pairs(loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> nn.Module:
    """A loss between the two sides of a batch, guided by the teacher's embeddings of the source sides."""
    return Stateless(lambda views, teacher: loss(views[0], views[1], teacher[:, 0]))


class WeightedSum(nn.Module):
    """A weighted sum of objectives."""

    def __init__(self, weights: list[float], parts: list[nn.Module]) -> None:
        super().__init__()
        self.weights, self.parts = weights, nn.ModuleList(parts)

    def forward(self, views: list[Tensor], teacher: Tensor | Ranking) -> Tensor:
        return torch.stack(
            [weight * part(views, teacher) for weight, part in zip(self.weights, self.parts, strict=True)]
        ).sum()


class DimensionSlice(nn.Module):
    """An objective over dimensions start to end of the student's embeddings, and of the teacher's unless
    `slice_teacher` is False.

    `scale` multiplies both sides: blocks of split targets arrive with the root of their weight as length.
    """

    def __init__(
        self, part: nn.Module, start: int, end: int, slice_teacher: bool = True, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.part, self.start, self.end = part, start, end
        self.slice_teacher, self.scale = slice_teacher, scale

    def of_teacher(self, teacher: Any) -> Any:
        if isinstance(teacher, Ranking):  # its scores have no dimensions
            rows = (teacher.queries, teacher.documents)
            queries, documents = (None if each is None else self.of_teacher(each) for each in rows)
            return teacher._replace(queries=queries, documents=documents)
        return self.scale * (teacher[..., self.start : self.end] if self.slice_teacher else teacher)

    def forward(self, views: list[Tensor], teacher: Tensor | Ranking) -> Tensor:
        return self.part(
            [self.scale * view[:, self.start : self.end] for view in views], self.of_teacher(teacher)
        )


class LossTargets(NamedTuple):
    """What an objective is built for: teacher embeddings of `dims` dimensions, of unit length or not.

    `cut`: only the first `cut` dimensions of the student are compared; None: all.
    """

    dims: int
    unit_length: bool = False
    cut: int | None = None


def _mse(spec: recipe.Mse, targets: LossTargets) -> nn.Module:
    scale = targets.dims**0.5 if targets.unit_length and not spec.normalize else 1.0
    return _of_one_view(partial(mse, unit_length=spec.normalize, scale=scale))


def _ckd(spec: recipe.Ckd, targets: LossTargets) -> nn.Module:
    return CkdLoss(targets.dims, spec.queue, spec.temperature, spec.learn_temperature)


def _congen(spec: recipe.Congen, targets: LossTargets) -> nn.Module:
    return CongenLoss(targets.dims, spec.queue, spec.temperature, spec.teacher_temperature, spec.alpha)


def _seed(spec: recipe.Seed, targets: LossTargets) -> nn.Module:
    return SeedLoss(targets.dims, spec.queue, spec.temperature, spec.teacher_temperature)


def _mcl_ce(spec: recipe.MclCe, targets: LossTargets) -> nn.Module:
    return _of_pairs(partial(mcl_ce, scale=1 / spec.temperature, reduction=spec.reduction))


def _info_nce(spec: recipe.InfoNce, targets: LossTargets) -> nn.Module:
    scale = 1 / spec.temperature
    return _of_both(
        lambda queries, documents, given: info_nce(queries, documents, given.positives, scale, given.answers)
    )


def _listwise(spec: recipe.Listwise, targets: LossTargets) -> nn.Module:
    scale, teacher_scale = 1 / spec.temperature, 1 / spec.teacher_temperature
    return _of_both(partial(listwise, scale=scale, teacher_scale=teacher_scale, own=spec.positive))


# A new loss: its function in one of the files here, and one line in this table (and in COORDINATE_FREE, if it
# is).
KINDS: dict[str, Callable[[Any, LossTargets], nn.Module]] = {
    "mse": _mse,
    "cosine": lambda spec, targets: _of_one_view(cosine),
    "softcos": lambda spec, targets: _of_one_view(softcos),
    "ckd": _ckd,
    "congen": _congen,
    "seed": _seed,
    "info_nce": _info_nce,
    "listwise": _listwise,
    "margin_mse": lambda spec, targets: _of_both(partial(margin_mse, scale=spec.scale)),
    "dual_l2": lambda spec, targets: _of_both(dual_l2),
    "skd": lambda spec, targets: _of_both(skd),
    "mcl": lambda spec, targets: _of_pairs(mcl),
    "mcl_bool": lambda spec, targets: _of_pairs(mcl_bool),
    "mcl_ce": _mcl_ce,
}


def _sum(spec: recipe.Sum, targets: LossTargets) -> nn.Module:
    return WeightedSum(
        [term.weight for term in spec.terms], [_build(term.objective, targets) for term in spec.terms]
    )


def _matryoshka(spec: recipe.Matryoshka, targets: LossTargets) -> nn.Module:
    return WeightedSum(
        spec.weights or [1.0] * len(spec.dims),
        [_build(spec.objective, targets._replace(cut=dims)) for dims in spec.dims],
    )


def _each_side(spec: recipe.EachSide, targets: LossTargets) -> nn.Module:
    return WeightedSum([1.0, 1.0], [OneSide(_build(spec.objective, targets), side) for side in (0, 1)])


COMPOSITES: dict[str, Callable[[Any, LossTargets], nn.Module]] = {
    "sum": _sum,
    "matryoshka": _matryoshka,
    "each_side": _each_side,
}


def build(
    spec: recipe.Objective,
    dims: int,
    blocks: list[tuple[int, float]] | None = None,
    unit_length: bool = False,
) -> nn.Module:
    """Build the objective that a recipe names, for targets of `dims` dimensions; random parts are drawn from
    torch's generator.

    unit_length: whether the targets have length 1. blocks: (dimensions, weight) of each part of split
        targets; the loss is then
    Σ_k w_k L(block k), with every block at unit length.
    """
    if blocks is None:
        return _build(spec, LossTargets(dims, unit_length))
    ends = list(accumulate(size for size, _ in blocks))
    parts: list[nn.Module] = [
        DimensionSlice(_build(spec, LossTargets(size, unit_length)), end - size, end, scale=weight**-0.5)
        for end, (size, weight) in zip(ends, blocks, strict=True)
    ]
    return WeightedSum([weight for _, weight in blocks], parts)


def _build(spec: recipe.Objective, targets: LossTargets) -> nn.Module:
    if spec.kind in COMPOSITES:
        return COMPOSITES[spec.kind](spec, targets)
    if targets.cut is None:
        return KINDS[spec.kind](spec, targets)
    # relations among texts follow the whole teacher, wherever the student is cut
    if spec.kind in COORDINATE_FREE:
        return DimensionSlice(KINDS[spec.kind](spec, targets), 0, targets.cut, slice_teacher=False)
    return DimensionSlice(KINDS[spec.kind](spec, targets._replace(dims=targets.cut)), 0, targets.cut)


def learned_temperature(objective: nn.Module) -> dict[str, float]:
    """{temperature} that a `ckd` objective has learned so far, for the report of a stage; empty where nothing
    is learned."""
    found = [
        part.log_scale
        for part in objective.modules()
        if isinstance(part, CkdLoss) and part.log_scale.requires_grad
    ]
    return {"temperature": round((-found[0].detach()).exp().item(), 5)} if found else {}


def queues_to_bfloat16(objective: nn.Module) -> None:
    """Store every queue in bfloat16, in place; products with it are then computed in bfloat16 too."""
    for part in objective.modules():
        if isinstance(part, Queue):
            part.ring = part.ring.to(torch.bfloat16)


def fill_queues(objective: nn.Module, teacher: Tensor) -> None:
    """Push teacher embeddings (n, e) into every queue that is full from the start (ConGen's)."""
    for part, seen in _with_targets(objective, teacher):
        if isinstance(part, CongenLoss):
            part.queue.push(seen)


def update_queues(objective: nn.Module, teacher: Tensor | Ranking) -> None:
    """After a step, push the batch's teacher embeddings (B, e) into every queue."""
    for part, seen in _with_targets(objective, teacher):
        if isinstance(part, Queue):
            part.push(seen)


def _with_targets(objective: nn.Module, teacher: Any) -> Iterator[tuple[nn.Module, Any]]:
    """Every part of an objective, with the teacher embeddings that it compares with: sliced, or of one
    side."""
    teacher = objective.of_teacher(teacher) if isinstance(objective, DimensionSlice | OneSide) else teacher
    yield objective, teacher
    for part in objective.children():
        yield from _with_targets(part, teacher)


def of_unit_length(vectors: np.ndarray) -> bool:
    """Whether all rows (…, d) have length 1, up to rounding to half precision."""
    return bool(np.allclose(np.linalg.norm(vectors.astype(np.float32), axis=-1), 1.0, atol=2e-3))


def reads_teacher(spec: recipe.Objective) -> bool:
    """Whether any of its terms compares the student's embeddings with the teacher's."""
    return any(not isinstance(leaf, recipe.Ranking) for leaf in leaves(spec))


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
            f"{teacher}; give the student `head: linear`, or match models of the same dimensions"
        )
