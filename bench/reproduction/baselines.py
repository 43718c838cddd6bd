"""What the papers compare their methods with, and no shipped recipe uses: objectives, reductions of the
teacher's embeddings, a view. `recipe.add(*SECTIONS)` makes them known to recipes."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
import scipy.linalg
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, normalize

from edgedistill import recipe
from edgedistill.objectives import Targets, composition
from edgedistill.objectives.composition import LossTargets, of_both
from edgedistill.objectives.contrastive import Queue
from edgedistill.objectives.ranking import cosines
from edgedistill.objectives.regression import mse
from edgedistill.students.sentence_transformer import Affine
from edgedistill.teacher import targets
from edgedistill.teacher.targets import fix_signs

DAMPING = 1e-3  # of a covariance's mean variance, added to its diagonal in CCA


class DualL2(recipe.Loss):
    """Mean squared error of unit embeddings: teacher against the text, and teacher against its second view
    (ConGen, §4.2)."""

    kind: Literal["dual_l2"]

    @property
    def second_view(self) -> bool:
        return True


def dual_l2(one: Tensor, other: Tensor, teacher: Tensor) -> Tensor:
    """Match the teacher's embedding from a text and from another view of it: ‖t̂ − ŝ₁‖² + ‖t̂ − ŝ₂‖², mean
    over batch and dims.

    one, other, teacher (B, d): scaled to unit length here. Returns ().
    ConGen §4.2, after Reimers and Gurevych 2020.
    Relation: with equal views, twice `mse(unit_length=True)`.
    """
    return mse(one, teacher, unit_length=True) + mse(other, teacher, unit_length=True)


class Skd(DualL2):
    """`dual_l2` plus the two views against each other: self-knowledge distillation (ConGen, §4.2)."""

    kind: Literal["skd"]  # type: ignore[assignment]


def skd(one: Tensor, other: Tensor, teacher: Tensor) -> Tensor:
    """`dual_l2` + ‖ŝ₁ − ŝ₂‖², mean over batch and dims: the two views also match each other.

    one, other, teacher (B, d): scaled to unit length here. Returns ().
    ConGen §4.2, after Limkonchotiwat et al. 2022.
    """
    return dual_l2(one, other, teacher) + mse(one, other, unit_length=True)


class Seed(recipe.Loss):
    """Match the teacher's similarity distribution over its own embedding and a queue (SEED, Fang et al.
    2021)."""

    negatives = "queue"
    kind: Literal["seed"]
    queue: int = Field(16_384, ge=1, description="Earlier teacher embeddings; starts with random directions.")
    temperature: float = Field(0.05, gt=0, description="The student's temperature.")
    teacher_temperature: float = Field(0.05, gt=0, description="The teacher's temperature.")


def seed(student: Tensor, teacher: Tensor, queue: Tensor, tau_student: float, tau_teacher: float) -> Tensor:
    """Match the teacher's similarities to its own embedding and a queue: −mean_i Σ_k P_T[i, k] log P_S[i, k].

    Columns of row i: [t_i; queue], K + 1 of them. student, teacher (B, d): scaled to unit rows here; queue
    (K, d): unit rows. Returns (). Fang et al. 2021 (SEED), as ConGen's §4 uses it.
    Relation: `congen` with one view uses the whole batch as columns, instead of t_i alone.
    """
    student, teacher = normalize(student, dim=-1), normalize(teacher, dim=-1)

    def logits(rows: Tensor) -> Tensor:
        own = (rows * teacher).sum(-1, keepdim=True)
        return torch.cat([own, (rows.to(queue.dtype) @ queue.T).to(rows.dtype)], 1)

    return cross_entropy(logits(student / tau_student), logits(teacher / tau_teacher).softmax(-1))


class SeedLoss(nn.Module):
    """`seed` with its queue, which is randomly initialized; a batch is pushed after it is scored."""

    def __init__(self, dims: int, queue: int, tau_student: float, tau_teacher: float) -> None:
        super().__init__()
        self.queue = Queue(queue, dims)
        self.queue.push(torch.randn(queue, dims))
        self.tau_student, self.tau_teacher = tau_student, tau_teacher

    def forward(self, views: list[Tensor], compared: Targets) -> Tensor:
        teacher, queue = compared.embeddings[0], self.queue.vectors
        return seed(views[0], teacher, queue, self.tau_student, self.tau_teacher)


class MclBool(recipe.Mcl):
    """`mcl` with labels instead of the teacher's cosines: 1 for a text and its translation, 0 otherwise
    (ablation of §4.5)."""

    kind: Literal["mcl_bool"]  # type: ignore[assignment]


def mcl_bool(source: Tensor, target: Tensor, teacher: Tensor) -> Tensor:
    """`mcl` with 1 and 0 in place of the teacher's cosines: mean over i, j of (δ(t_i, t_j) − cos(a_i, b_j))².

    source, target (B, d), teacher (B, e) of the source texts; δ is 1 where two rows are equal, also for a
    text that occurs twice in the batch. Returns (). Ding et al. 2022, Eq. 8 (Bool).
    """
    _, group = torch.unique(teacher, dim=0, return_inverse=True)
    same = (group[:, None] == group[None]).to(source.dtype)
    return (same - cosines(source, target)).square().mean()


class MclCe(recipe.Mcl):
    """`mcl` as a cross-entropy over the batch, weighted by the teacher's cosines (ablation of §4.5). These
    are not probabilities, so the teacher's own embeddings are not its optimum."""

    kind: Literal["mcl_ce"]  # type: ignore[assignment]
    temperature: float = Field(0.05, gt=0, description="Divides the cosines.")
    reduction: Literal["mean", "sum", "pairs"] = Field(
        "mean",
        description="Over the texts of a batch: their mean; their sum, as the paper's Eq. 9 prints it; or "
        "the mean over all pairs of texts, the scale of mcl.",
    )


def mcl_ce(source: Tensor, target: Tensor, teacher: Tensor, scale: float, reduction: str = "mean") -> Tensor:
    """−mean over i of Σ_j cos(t_i, t_j) log softmax_j(κ cos(a_i, b_j)), κ = 1/τ.

    source, target (B, d), teacher (B, e): scaled to unit rows here. Returns (). The weights are the teacher's
    cosines as they are: they do not sum to 1 and may be negative, so it is not least where both sides are the
    teacher's embeddings. reduction: `sum` over i is Ding et al. 2022, Eq. 9 (CE), as printed; `pairs` divides
    that by B², as their Eq. 5 and 8 do.
    Relation: with the identity matrix as weights it is InfoNCE.
    """
    total = -(cosines(teacher, teacher) * log_softmax(scale * cosines(source, target), dim=-1)).sum()
    return total / {"mean": len(source), "sum": 1, "pairs": len(source) ** 2}[reduction]


class Dropout(recipe.AnyView):
    """The same text under another dropout mask (unsupervised SimCSE); needs `student.dropout`."""

    kind: Literal["dropout"]
    edits = False


class Gaussian(recipe.Reduction):
    """A random projection with entries from N(0, 1/dims); nothing is fitted."""

    kind: Literal["gaussian"]
    fitted = False
    seed: int = Field(0, ge=0, description="Seed of the projection.")


def gaussian(teacher_dims: int, dims: int, seed: int) -> Affine:
    """A random projection (teacher_dims, dims) drawn from N(0, 1/dims), which preserves squared lengths in
    expectation.

    Johnson and Lindenstrauss 1984, Extensions of Lipschitz mappings into a Hilbert space.
    """
    drawn = np.random.default_rng(seed).standard_normal((teacher_dims, dims))
    return Affine(drawn / dims**0.5, np.zeros(dims))


class Cca(recipe.Reduction):
    """The teacher's canonical directions: those most correlated with the initial student's embeddings."""

    kind: Literal["cca"]
    shrinks = True
    fits_student = True


def cca(embeddings: np.ndarray, student: np.ndarray, dims: int, damping: float = DAMPING) -> Affine:
    """Canonical correlation analysis: the teacher's canonical directions, each of variance 1, largest
    correlation first.

    W = C_t^(−½) U, where U Σ Vᵀ is the SVD of C_t^(−½) C_ts C_s^(−½) and each covariance has `damping`
    times its mean variance added to its diagonal. embeddings (n, e), student (n, d), dims ≤ d, e. Returns
    the map (e, dims). In closed form, because scikit-learn's iterative algorithm takes minutes for 128
    directions.
    """
    mean = embeddings.mean(0)
    left, right = embeddings - mean, student - student.mean(0)
    white_left, white_right = _whitening(left, damping), _whitening(right, damping)
    between = white_left @ (left.T @ right / len(left)) @ white_right
    directions, _, _ = scipy.linalg.svd(between, full_matrices=False)
    weight = fix_signs(white_left @ directions[:, :dims])
    return Affine(weight, -mean @ weight)


def _whitening(centred: np.ndarray, damping: float) -> np.ndarray:
    """C^(−½) (e, e) of centred embeddings (n, e), with `damping` mean variances on the diagonal of C."""
    covariance = centred.T @ centred / len(centred)
    values, directions = scipy.linalg.eigh(
        covariance + damping * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    )
    return (directions * values.clip(min=1e-300) ** -0.5) @ directions.T


def _seed(spec: Seed, built_for: LossTargets) -> nn.Module:
    return SeedLoss(built_for.dims, spec.queue, spec.temperature, spec.teacher_temperature)


def _mcl_ce(spec: MclCe, built_for: LossTargets) -> nn.Module:
    return of_both(partial(mcl_ce, scale=1 / spec.temperature, reduction=spec.reduction))


composition.KINDS.update(
    dual_l2=lambda spec, built_for: of_both(dual_l2),
    skd=lambda spec, built_for: of_both(skd),
    seed=_seed,
    mcl_bool=lambda spec, built_for: of_both(mcl_bool),
    mcl_ce=_mcl_ce,
)
targets.REDUCTIONS.update(
    gaussian=lambda spec, rows, student: gaussian(rows.shape[1], student.shape[1], spec.seed),
    cca=lambda spec, rows, student: cca(rows, student, student.shape[1]),
)
SECTIONS = (DualL2, Skd, Seed, MclBool, MclCe, Dropout, Gaussian, Cca)
