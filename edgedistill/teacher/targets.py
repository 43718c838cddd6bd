"""The targets: what the student is to match, made from the embeddings of one or several teachers.

Every block of the targets is an affine map x W + b of teacher embeddings: a dimension reduction, then an
alignment with the initial student. The maps are fitted once in float64 on a sample of the corpus and stored
with the run, so that a resumed run, and any other machine, uses the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.runtime.similarity import unit_rows
from edgedistill.session import Log, silent
from edgedistill.students.output import Affine, read_maps, write_maps
from edgedistill.teacher.dimension_reduction import cca, gaussian, pca, procrustes, ridge, signed_permutation

RIDGE = 1.0  # λ of the reduction by ridge regression
LEAST_SPAN = 1e-6  # by which embeddings differ, as a share of their largest value; what is below is rounding

Spec = recipe.Targets


class EmbeddingRows(Protocol):
    """Embeddings of a corpus: rows (n,) -> (n, dims) float32."""

    @property
    def dims(self) -> int: ...

    def __getitem__(self, rows: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class FittingData:
    """What the maps of targets are fitted on.

    `embeddings` gives the embeddings of the corpus by a teacher (None: the recipe's); its first `rows` texts
    are for training. `student` gives for rows (n,) the initial student's unit embeddings (n, d), and is
    called only where a projection is fitted to them.
    """

    embeddings: Callable[[recipe.Teacher | None], EmbeddingRows]
    rows: int
    student: Callable[[np.ndarray], np.ndarray]
    seed: int


class StudentTargets:
    """What the student is to match, rows (n,) -> (n, dims) float32, computed from the teachers' embeddings
    when it is read."""

    def __init__(
        self, blocks: list[recipe.TargetBlock], maps: list[Affine], embeddings: list[EmbeddingRows]
    ) -> None:
        self.blocks, self.maps, self.embeddings = blocks, maps, embeddings
        self.dims = sum(len(each.bias) for each in maps)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        parts = []
        for block, affine, embeddings in zip(self.blocks, self.maps, self.embeddings, strict=True):
            projected = affine(embeddings[rows])
            parts.append(
                np.float32(block.weight**0.5) * (unit_rows(projected) if block.normalize else projected)
            )
        return np.concatenate(parts, 1)


def load_or_fit(spec: Spec, data: FittingData, folder: Path, log: Log = silent) -> StudentTargets:
    """The targets of a recipe. Reads the maps from `folder` where a run has fitted them before, otherwise
    fits them and writes them there.

    Raises UserError: dimensions that do not match, or a sample that is too small.
    """
    blocks = spec.blocks
    if not folder.exists():
        _fit_all(spec, blocks, data, folder, log)
    return StudentTargets(blocks, read_maps(folder), [data.embeddings(block.teacher) for block in blocks])


def _fit_all(spec: Spec, blocks: list[recipe.TargetBlock], data: FittingData, folder: Path, log: Log) -> None:
    """Fit the map of every block and write them to `folder`."""
    rows = np.sort(
        np.random.default_rng([data.seed, 0]).choice(data.rows, min(spec.sample, data.rows), replace=False)
    )
    student = (
        data.student(rows).astype(np.float64) if spec.fits_student else np.empty((len(rows), spec.width))
    )
    if student.shape[1] != spec.width:
        raise UserError(
            f"targets.dims: {spec.width} dimensions are fitted to the student's embeddings, which have "
            f"{student.shape[1]}; make them equal"
        )
    maps: list[Affine] = []
    for block in blocks:
        start = sum(len(each.bias) for each in maps)
        embeddings = data.embeddings(block.teacher)[rows].astype(np.float64)
        own = student[:, start : start + block.projection.dims]
        maps.append(fit(block.projection, embeddings, own, block.place))
    write_maps(folder, maps)
    fitted = (f"{block.projection.reduce.kind} to {block.projection.dims} dimensions" for block in blocks)
    log("targets: " + "; ".join(fitted))


def check(spec: Spec, teacher_dims: Callable[[recipe.Teacher | None], int], rows: int) -> None:
    """Raise UserError where a projection cannot give its `dims`, or cannot be fitted on `rows` training
    texts. Nothing is embedded."""
    problems: list[str] = []
    for block in spec.blocks:
        dims = teacher_dims(block.teacher)
        problems += _problems(block.projection, dims, min(spec.sample, rows), block.place)
    if problems:
        raise UserError(*problems)


def _unreduced(of: recipe.Unreduced, embeddings: np.ndarray, student: np.ndarray, dims: int) -> Affine:
    return Affine(np.eye(embeddings.shape[1]), np.zeros(embeddings.shape[1]))


def _pca(of: recipe.Pca, embeddings: np.ndarray, student: np.ndarray, dims: int) -> Affine:
    # a reconstruction applies it twice
    exponent = of.variance_exponent / 2 if of.rank else of.variance_exponent
    affine = pca(embeddings, of.rank or dims, of.centre, exponent)
    if of.rank:
        affine = Affine(affine.weight @ affine.weight.T, affine.bias @ affine.weight.T)
    return affine


# (section, embeddings (n, e), student (n, d), dims) -> the map (e, dims)
REDUCTIONS: dict[str, Callable[[Any, np.ndarray, np.ndarray, int], Affine]] = {
    "none": _unreduced,
    "pca": _pca,
    "gaussian": lambda of, embeddings, student, dims: gaussian(embeddings.shape[1], dims, of.seed),
    "ridge": lambda of, embeddings, student, dims: ridge(embeddings, student, RIDGE),
    "cca": lambda of, embeddings, student, dims: cca(embeddings, student, dims),
}


def fit(
    spec: recipe.Projected, embeddings: np.ndarray, student: np.ndarray, place: str = "targets"
) -> Affine:
    """Fit the map of one block: its dimension reduction, then its alignment.

    embeddings (n, e) float64. student (n, d) is only read by ridge, CCA and the alignments. The recipe's
    section `place` is named in errors. Returns the map (e, d). Raises UserError: `dims` that the reduction
    cannot give, or fewer texts than dimensions.
    """
    _check_embeddings(embeddings, place)
    affine = REDUCTIONS[spec.reduce.kind](spec.reduce, embeddings, student, spec.dims)
    if spec.align != "none":
        align = {"procrustes": procrustes, "signed_permutation": signed_permutation}[spec.align]
        rotation = align(unit_rows(affine(embeddings)), unit_rows(student))
        affine = Affine(affine.weight @ rotation, affine.bias @ rotation)
    return affine


def _problems(spec: recipe.Projected, teacher_dims: int, texts: int, place: str) -> list[str]:
    """What keeps a projection from being fitted on so many texts, one line per problem."""
    dims, reduce, problems = spec.dims, spec.reduce, list[str]()
    rank = getattr(reduce, "rank", None)
    if reduce.keeps_dims and dims != teacher_dims:
        kept = f"the teacher's embeddings keep {teacher_dims} dimensions; set `reduce`"
        problems.append(f"{place}.dims: {dims}, and without `reduce` {kept}")
    if rank and (dims != teacher_dims or rank > teacher_dims):
        fact = f"rank {rank} reconstructs the teacher's {teacher_dims} dimensions, not {dims}"
        problems.append(
            f"{place}.reduce: {fact}; set dims: {teacher_dims} and a rank of {teacher_dims} or less"
        )
    elif reduce.shrinks and dims > teacher_dims:
        problems.append(
            f"{place}.dims: {reduce.kind} cannot make {dims} dimensions of the teacher's {teacher_dims}; "
            "lower it"
        )
    if texts <= dims and reduce.fitted:
        problems.append(
            f"{place}.dims: {dims} dimensions cannot be fitted on {texts:,} texts; add texts, raise "
            "targets.sample, or lower it"
        )
    return problems


def _check_embeddings(embeddings: np.ndarray, place: str) -> None:
    """Raise UserError for embeddings that no map can be fitted on: what they differ by would be noise, scaled
    up."""
    span = np.ptp(embeddings, axis=0).max()
    if span > LEAST_SPAN * np.abs(embeddings).max():  # NaN and infinity − infinity are above nothing
        return
    fact = "all the same" if np.isfinite(embeddings).all() else "not finite"
    raise UserError(
        f"{place}: the teacher's embeddings of {len(embeddings):,} texts are {fact}; choose another teacher, "
        "pooling or dtype"
    )
