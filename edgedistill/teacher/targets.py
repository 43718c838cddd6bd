"""The targets: what the student is to match, made from the teacher's embeddings.

They are an affine map x W + b of these: a dimension reduction (PCA, ridge regression), then an alignment with
the initial student that changes no cosine (a rotation or a signed permutation). The map is fitted once in
float64 on a sample of the corpus and stored with the run, so that a resumed run, and any other machine, uses
the same bytes; the signs of eigenvectors and singular vectors are fixed, so that all machines agree. After
Malashenko, Text-level distillation: how to build small but powerful sentence encoders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy.linalg
from numpy import ndarray
from scipy.optimize import linear_sum_assignment

from edgedistill.errors import UserError
from edgedistill.recipe import Pca, Ridge, Targets, Unreduced
from edgedistill.runtime.similarity import not_finite, unit_rows
from edgedistill.session import Log, silent
from edgedistill.students.sentence_transformer import Affine

RIDGE = 1.0  # λ of the reduction by ridge regression
LEAST_SPAN = 1e-6  # by which embeddings differ, as a share of their largest value; what is below is rounding


class EmbeddingRows(Protocol):
    """Embeddings of a corpus: rows (n,) -> (n, dims) float32."""

    @property
    def dims(self) -> int: ...

    def __getitem__(self, rows: ndarray) -> ndarray: ...


@dataclass(frozen=True)
class SideBySide:
    """The embeddings of several teachers of the same texts, one behind the other."""

    parts: tuple[EmbeddingRows, ...]

    @property
    def dims(self) -> int:
        return sum(part.dims for part in self.parts)

    def __getitem__(self, rows: ndarray) -> ndarray:
        return np.concatenate([part[rows] for part in self.parts], 1)


@dataclass(frozen=True)
class FittingData:
    """What the map of targets is fitted on: the teacher's embeddings, of whose texts the first `rows` are for
    training; for rows (n,) the initial student's unit embeddings (n, d), asked for only where the map is
    fitted to them."""

    embeddings: EmbeddingRows
    rows: int
    student: Callable[[ndarray], ndarray]
    seed: int


@dataclass(frozen=True)
class StudentTargets:
    """What the student is to match, rows (n,) -> (n, dims) float32, computed from the teacher's embeddings
    when it is read."""

    affine: Affine
    embeddings: EmbeddingRows
    normalize: bool

    @property
    def dims(self) -> int:
        return len(self.affine.bias)

    def __getitem__(self, rows: ndarray) -> ndarray:
        projected = self.affine(self.embeddings[rows])
        return unit_rows(projected) if self.normalize else projected


def read(spec: Targets, embeddings: EmbeddingRows, folder: Path) -> StudentTargets:
    """What the map in a folder makes of embeddings."""
    return StudentTargets(Affine.read(folder), embeddings, spec.normalize)


def load_or_fit(spec: Targets, data: FittingData, folder: Path, log: Log = silent) -> StudentTargets:
    """The targets of a recipe. Reads the map from `folder` where a run has fitted it before, otherwise fits
    it and writes it there.

    Raises UserError: dimensions that do not match, or a sample that is too small.
    """
    if not folder.exists():
        _fit_on_sample(spec, data).write(folder)
        log(f"targets: {spec.reduce.kind} to {spec.dims} dimensions")
    return read(spec, data.embeddings, folder)


def _fit_on_sample(spec: Targets, data: FittingData) -> Affine:
    random = np.random.default_rng([data.seed, 0])
    rows = np.sort(random.choice(data.rows, min(spec.sample, data.rows), replace=False))
    # where nothing is fitted to the student, only the number of its dimensions is read
    student = data.student(rows) if spec.fits_student else np.empty((len(rows), spec.dims))
    if student.shape[1] != spec.dims:
        raise UserError(
            f"targets.dims: {spec.dims} dimensions are fitted to the student's embeddings, which have "
            f"{student.shape[1]}; make them equal"
        )
    embeddings = data.embeddings[rows].astype(np.float64)
    mean, scale = np.zeros(embeddings.shape[1]), np.ones(embeddings.shape[1])
    # Those of the teachers beside the recipe's may be all alike: without their mean, they are of unit length
    # on average. The recipe's own are as they are.
    parts = data.embeddings.parts if isinstance(data.embeddings, SideBySide) else ()
    for start, end in pairwise(np.cumsum([part.dims for part in parts])):
        mean[start:end] = embeddings[:, start:end].mean(0)
        centred = embeddings[:, start:end] - mean[start:end]
        scale[start:end] = 1 / max(1e-12, np.linalg.norm(centred, axis=1).mean())
    affine = fit(spec, (embeddings - mean) * scale, student.astype(np.float64))
    return Affine(scale[:, None] * affine.weight, affine.bias - (mean * scale) @ affine.weight)


def pca(embeddings: ndarray, dims: int, centre: bool = True, variance_exponent: float = 0.0) -> Affine:
    """Principal component analysis: the `dims` orthonormal directions of largest variance.

    embeddings (n, e). Returns the map (e, dims), largest variance first. Without `centre` the second moments
    replace the variances, and the map has no bias, as in a bias-free dense layer of sentence-transformers.
    With dims = e it is a rotation. Each direction is scaled by its variance, in units of the mean variance of
    the kept ones, to the power `variance_exponent`; −½ whitens.
    """
    mean = embeddings.mean(0) if centre else np.zeros(embeddings.shape[1])
    centred = embeddings - mean
    values, directions = scipy.linalg.eigh(centred.T @ centred)
    values = values[::-1].clip(min=0)
    kept = values[:dims] / max(values[:dims].mean(), 1e-300)
    weight = fix_signs(directions[:, ::-1][:, :dims]) * kept.clip(min=1e-9) ** variance_exponent
    return Affine(weight, -mean @ weight)


def ridge(embeddings: ndarray, student: ndarray, regularization: float) -> Affine:
    """Ridge regression onto the student's embeddings: min ‖T W + b − S‖² + λ‖W‖², with b not penalised.

    embeddings T (n, e), student S (n, d). Returns the map (e, d).
    """
    mean = embeddings.mean(0)
    student_mean = student.mean(0)
    centred = embeddings - mean
    gram = centred.T @ centred + regularization * np.eye(len(mean))
    weight = scipy.linalg.solve(gram, centred.T @ (student - student_mean), assume_a="pos")
    return Affine(weight, student_mean - mean @ weight)


def fix_signs(directions: ndarray) -> ndarray:
    """Flip each column (e, k) so that its largest entry is positive: solvers on different machines differ
    only in these signs."""
    largest = np.abs(directions).argmax(0)
    return directions * np.where(directions[largest, np.arange(directions.shape[1])] < 0, -1.0, 1.0)


def procrustes(targets: ndarray, student: ndarray) -> ndarray:
    """The orthogonal Q (d, d) that rotates (or reflects) the targets closest to the student: min ‖T Q − S‖,
    QᵀQ = 1; both (n, d).

    Schönemann 1966, A generalized solution of the orthogonal Procrustes problem.
    """
    rotation, _ = scipy.linalg.orthogonal_procrustes(targets, student)
    return np.asarray(rotation)


def signed_permutation(targets: ndarray, student: ndarray) -> ndarray:
    """The signed permutation Q (d, d) of the targets' dimensions that correlates most with the student's
    dimensions; both (n, d).

    This is the "reordering" of Malashenko's paper, read as the permutations among the rotations. The
    assignment is exact (Hungarian method).
    """
    left = targets - targets.mean(0)
    right = student - student.mean(0)
    scale = np.linalg.norm(left, axis=0)[:, None] * np.linalg.norm(right, axis=0)[None]
    correlations = left.T @ right / scale.clip(min=1e-300)
    target_dims, student_dims = linear_sum_assignment(np.abs(correlations), maximize=True)
    permutation = np.zeros_like(correlations)
    permutation[target_dims, student_dims] = np.where(correlations[target_dims, student_dims] < 0, -1.0, 1.0)
    return permutation


def _pca(reduction: Pca, embeddings: ndarray, student: ndarray) -> Affine:
    rank = reduction.rank
    exponent = reduction.variance_exponent
    if rank is None:
        return pca(embeddings, student.shape[1], reduction.centre, exponent)
    narrow = pca(embeddings, rank, reduction.centre, exponent / 2)  # a reconstruction applies it twice
    return Affine(narrow.weight @ narrow.weight.T, narrow.bias @ narrow.weight.T)


def _unreduced(reduction: Unreduced, embeddings: ndarray, student: ndarray) -> Affine:
    dims = embeddings.shape[1]
    return Affine(np.eye(dims), np.zeros(dims))


def _ridge(reduction: Ridge, embeddings: ndarray, student: ndarray) -> Affine:
    return ridge(embeddings, student, RIDGE)


# A section of `reduce`, embeddings (n, e), the student's (n, d) -> the map (e, d). Where nothing is fitted to
# the student, only the number of its dimensions is right.
REDUCTIONS: dict[str, Callable[[Any, ndarray, ndarray], Affine]] = {
    "none": _unreduced,
    "pca": _pca,
    "ridge": _ridge,
}
ALIGNMENTS = {"procrustes": procrustes, "signed_permutation": signed_permutation}


def fit(spec: Targets, embeddings: ndarray, student: ndarray) -> Affine:
    """Fit the map (e, d): its dimension reduction, then its alignment; embeddings (n, e), student (n, d) are
    float64.

    Raises UserError for embeddings that no map can be fitted on: what they differ by would be noise,
    scaled up.
    """
    span = np.ptp(embeddings, axis=0).max()
    if not span > LEAST_SPAN * np.abs(embeddings).max():  # NaN and infinity − infinity are above nothing
        fact = "all the same" if not_finite(embeddings) is None else "not finite"
        raise UserError(
            f"targets: the teacher's embeddings of {len(embeddings):,} texts are {fact}; choose another "
            "teacher, pooling or dtype"
        )
    affine = REDUCTIONS[spec.reduce.kind](spec.reduce, embeddings, student)
    if spec.align == "none":
        return affine
    rotation = ALIGNMENTS[spec.align](unit_rows(affine(embeddings)), unit_rows(student))
    return Affine(affine.weight @ rotation, affine.bias @ rotation)


def check(spec: Targets, teacher_dims: int, training_texts: int) -> None:
    """Raise UserError where the map cannot have its `dims`, or cannot be fitted on so many training texts.
    Nothing is embedded."""
    dims = spec.dims
    reduction = spec.reduce
    texts = min(spec.sample, training_texts)
    rank = getattr(reduction, "rank", None)
    problems = []
    if reduction.keeps_dims and dims != teacher_dims:
        problems.append(
            f"targets.dims: {dims}, and without `reduce` the teacher's embeddings keep {teacher_dims} "
            "dimensions; set `reduce`"
        )
    if rank and (dims != teacher_dims or rank > teacher_dims):
        problems.append(
            f"targets.reduce: rank {rank} reconstructs the teacher's {teacher_dims} dimensions, not {dims}; "
            f"set dims: {teacher_dims} and a rank of {teacher_dims} or less"
        )
    elif reduction.shrinks and dims > teacher_dims:
        problems.append(
            f"targets.dims: {reduction.kind} cannot make {dims} dimensions of the teacher's {teacher_dims}; "
            "lower it"
        )
    if texts <= dims and reduction.fitted:
        problems.append(
            f"targets.dims: {dims} dimensions cannot be fitted on {texts:,} texts; add texts, raise "
            "targets.sample, or lower it"
        )
    if problems:
        raise UserError(*problems)
