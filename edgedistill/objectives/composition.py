"""A recipe's objective becomes a module: `KINDS` holds every objective by its kind.

Every module is called with (views, targets): the student's embeddings (B, d) of each view of the texts, and
the `Targets` that they are compared with. On pairs of translations the views are the source and the target
side, with targets (B, e) of either; on tuples the queries (B, d) and the distinct documents of the batch
(M, d). Queues and a learned temperature are part of a module's state; `update_queues` pushes the batch's
teacher embeddings after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from edgedistill.errors import UserError
from edgedistill.objectives.classification import CrossEntropyLoss
from edgedistill.objectives.contrastive import CkdLoss, Queue, info_nce
from edgedistill.objectives.ranking import listwise, margin_mse
from edgedistill.objectives.regression import cosine, mse, softcos
from edgedistill.objectives.relational import CongenLoss, mcl
from edgedistill.objectives.targets import Targets
from edgedistill.recipe import EachSide, InfoNce, Listwise, Loss, Matryoshka, Mse, Sum


class Stateless(nn.Module):
    """A loss without a state, of the views and what they are compared with."""

    def __init__(self, loss: Callable[[list[Tensor], Targets], Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, views: list[Tensor], targets: Targets) -> Tensor:
        return self.loss(views, targets)


def of_one_view(loss: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """A loss between embeddings and the teacher's."""
    return Stateless(lambda views, targets: loss(views[0], targets.embeddings[0]))


def of_both(loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> nn.Module:
    """A loss between two views of a batch, or its two columns, guided by the teacher's embeddings of the
    first."""
    return Stateless(lambda views, targets: loss(views[0], views[1], targets.embeddings[0]))


def of_documents(loss: Callable[[Tensor, Tensor, Targets], Tensor]) -> nn.Module:
    """A loss between the queries of a batch and its documents."""
    return Stateless(lambda views, targets: loss(views[0], views[1], targets))


class WeightedSum(nn.Module):
    """A weighted sum of objectives."""

    def __init__(self, weights: list[float], parts: list[nn.Module]) -> None:
        super().__init__()
        self.weights = weights
        self.parts = nn.ModuleList(parts)

    def forward(self, views: list[Tensor], targets: Targets) -> Tensor:
        losses = zip(self.weights, self.parts, strict=True)
        return torch.stack([weight * part(views, targets) for weight, part in losses]).sum()


class Part(nn.Module):
    """An objective over a part of the views of a batch, and of what they are compared with."""

    def __init__(
        self,
        part: nn.Module,
        view: Callable[[list[Tensor]], list[Tensor]],
        read: Callable[[Targets], Targets],
    ) -> None:
        super().__init__()
        self.part = part
        self.view = view
        self.read = read

    def forward(self, views: list[Tensor], targets: Targets) -> Tensor:
        return self.part(self.view(views), self.read(targets))


def truncated(part: nn.Module, dims: int, both: bool) -> Part:
    """An objective over the first dimensions of the student's embeddings, with `both` the teacher's too."""

    def cut(rows: Iterable[Tensor]) -> list[Tensor]:
        return [row[..., :dims] for row in rows]

    def read(targets: Targets) -> Targets:
        return targets._replace(embeddings=tuple(cut(targets.embeddings))) if both else targets

    return Part(part, cut, read)


def of_side(part: nn.Module, side: int) -> Part:
    """An objective over one side of every pair or tuple: 0 the source texts or queries, 1 their translations
    or the documents."""
    return Part(
        part,
        lambda views: [views[side]],
        lambda targets: Targets(targets.embeddings[side : side + 1]),
    )


class LossTargets(NamedTuple):
    """What an objective is built for: teacher embeddings of `dims` dimensions, of unit length or not.

    `cut`: only the first `cut` dimensions of the student are compared; None: all.
    """

    dims: int
    unit_length: bool = False
    cut: int | None = None


def _mse(spec: Mse, targets: LossTargets) -> nn.Module:
    scale = targets.dims**0.5 if targets.unit_length and not spec.normalize else 1.0
    return of_one_view(partial(mse, unit_length=spec.normalize, scale=scale))


def _info_nce(spec: InfoNce, targets: LossTargets) -> nn.Module:
    scale = 1 / spec.temperature

    def loss(queries: Tensor, documents: Tensor, known: Targets) -> Tensor:
        return info_nce(queries, documents, known.positives, scale, known.answers)

    return of_documents(loss)


def _listwise(spec: Listwise, targets: LossTargets) -> nn.Module:
    scale = 1 / spec.temperature
    teacher_scale = 1 / spec.teacher_temperature
    return of_documents(partial(listwise, scale=scale, teacher_scale=teacher_scale, own=spec.positive))


def _sum(spec: Sum, targets: LossTargets) -> nn.Module:
    weights = [term.weight for term in spec.terms]
    return WeightedSum(weights, [_build(term.objective, targets) for term in spec.terms])


def _matryoshka(spec: Matryoshka, targets: LossTargets) -> nn.Module:
    parts = [_build(spec.objective, targets._replace(cut=dims)) for dims in spec.dims]
    return WeightedSum(spec.weights or [1.0] * len(parts), parts)


def _each_side(spec: EachSide, targets: LossTargets) -> nn.Module:
    return WeightedSum([1.0, 1.0], [of_side(_build(spec.objective, targets), side) for side in (0, 1)])


# A new loss: its function in one of the files here, and one line in this table.
KINDS: dict[str, Callable[[Any, LossTargets], nn.Module]] = {
    "mse": _mse,
    "cosine": lambda spec, targets: of_one_view(cosine),
    "softcos": lambda spec, targets: of_one_view(softcos),
    "ckd": lambda spec, targets: CkdLoss(targets.dims, spec.queue, spec.temperature, spec.learn_temperature),
    "congen": lambda spec, targets: CongenLoss(
        targets.dims, spec.queue, spec.temperature, spec.teacher_temperature, spec.alpha
    ),
    "info_nce": _info_nce,
    "listwise": _listwise,
    "margin_mse": lambda spec, targets: of_documents(partial(margin_mse, scale=spec.scale)),
    "mcl": lambda spec, targets: of_both(mcl),
    "cross_entropy": lambda spec, targets: CrossEntropyLoss(
        targets.dims, spec.labels, spec.pair, spec.hidden, spec.dropout, spec.alpha
    ),
    "sum": _sum,
    "matryoshka": _matryoshka,
    "each_side": _each_side,
}


def build(spec: Loss, dims: int, unit_length: bool = False) -> nn.Module:
    """Build the objective that a recipe names, for targets of `dims` dimensions, of length 1 or not; random
    parts are drawn from torch's generator."""
    return _build(spec, LossTargets(dims, unit_length))


def _build(spec: Loss, targets: LossTargets) -> nn.Module:
    make = KINDS[spec.kind]
    cut = targets.cut
    if cut is None or spec.parts:
        return make(spec, targets)
    # relations among texts follow the whole teacher, wherever the student is cut
    dims = cut if spec.coordinates else targets.dims
    return truncated(make(spec, targets._replace(dims=dims)), cut, both=spec.coordinates)


def learned_temperature(objective: nn.Module) -> dict[str, float]:
    """{temperature} that a `ckd` objective has learned so far, for the report of a stage; empty where nothing
    is learned."""
    for part in objective.modules():
        if isinstance(part, CkdLoss) and part.log_scale.requires_grad:
            return {"temperature": round((-part.log_scale.detach()).exp().item(), 5)}
    return {}


def queues_to_bfloat16(objective: nn.Module) -> None:
    """Store every queue in bfloat16, in place; products with it are then computed in bfloat16 too."""
    for part in objective.modules():
        if isinstance(part, Queue):
            part.ring = part.ring.to(torch.bfloat16)


def fill_queues(objective: nn.Module, targets: Targets) -> None:
    """Push teacher embeddings into every queue that is full from the start (ConGen's)."""
    for part, compared in _with_targets(objective, targets):
        if isinstance(part, CongenLoss):
            part.queue.push(compared.embeddings[0])


def update_queues(objective: nn.Module, targets: Targets) -> None:
    """After a step, push the batch's teacher embeddings into every queue."""
    for part, compared in _with_targets(objective, targets):
        if isinstance(part, Queue):
            part.push(compared.embeddings[0])


def _with_targets(objective: nn.Module, targets: Targets) -> Iterator[tuple[nn.Module, Targets]]:
    """Every part of an objective, with what it compares with: truncated, or of one side."""
    if isinstance(objective, Part):
        targets = objective.read(targets)
    yield objective, targets
    for part in objective.children():
        yield from _with_targets(part, targets)


def of_unit_length(vectors: np.ndarray) -> bool:
    """Whether all rows (…, d) have length 1, up to rounding to half precision."""
    return bool(np.allclose(np.linalg.norm(vectors.astype(np.float32), axis=-1), 1.0, atol=2e-3))


def check_dimensions(spec: Loss, student: int, teacher: int, place: str) -> None:
    """Raise UserError where the objective cannot compare embeddings of these dimensions; `place`: the
    objective's field in the recipe."""
    if (dims := spec.cuts) and dims[-1] != student:
        raise UserError(
            f"{place}.dims: end at {dims[-1]}, the student has {student} dimensions; end there, or set its "
            "width to that"
        )
    if student != teacher and any(leaf.coordinates for leaf in spec.leaves):
        raise UserError(
            f"{place}: {spec.kind} compares coordinates, the student has {student} and the teacher "
            f"{teacher}; give the student `head: linear`, or match models of the same dimensions"
        )
