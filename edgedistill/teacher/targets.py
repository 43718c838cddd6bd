"""The targets: what the student is to match, made from the embeddings of one or several teachers.

Every block of the targets is an affine map x W + b of teacher embeddings: a dimension reduction, then an
alignment with the initial student. The maps are fitted once in float64 on a sample of the corpus and stored
with the run, so that a resumed run, and any other machine, uses the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.runtime.similarity import unit_rows
from edgedistill.session import Log, silent
from edgedistill.students.output import Affine, read_maps, write_maps
from edgedistill.teacher.dimension_reduction import cca, gaussian, pca, procrustes, ridge, signed_permutation

RIDGE = 1.0  # λ of the reduction by ridge regression
LEAST_SPAN = 1e-6  # by which embeddings differ, as a share of their largest value; what is below is rounding

Spec = recipe.SingleTeacher | recipe.Split


class EmbeddingRows(Protocol):
    """Embeddings of a corpus: rows (n,) -> (n, dims) float32."""

    @property
    def dims(self) -> int: ...

    def __getitem__(self, rows: np.ndarray) -> np.ndarray: ...


class TargetBlock(NamedTuple):
    """A block of the targets as the recipe describes it: its teacher, and the projection of the teacher's
    embeddings."""

    teacher: recipe.Teacher | None
    projection: recipe.Projected
    weight: float
    normalize: bool


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
        self, blocks: list[TargetBlock], maps: list[Affine], embeddings: list[EmbeddingRows]
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


def blocks_of(spec: Spec) -> list[TargetBlock]:
    """The blocks of a recipe's targets. Their weights sum to 1."""
    if isinstance(spec, recipe.Split):
        weights = [weight for _, weight in spec.blocks]
        return [
            TargetBlock(part.teacher, part, weight, True)
            for part, weight in zip(spec.parts, weights, strict=True)
        ]
    return [TargetBlock(spec.teacher, spec, 1.0, spec.normalize)]


def load_or_fit(spec: Spec, data: FittingData, folder: Path, log: Log = silent) -> StudentTargets:
    """The targets of a recipe. Reads the maps from `folder` where a run has fitted them before, otherwise
    fits them and writes them there.

    Raises UserError: dimensions that do not match, or a sample that is too small.
    """
    blocks = blocks_of(spec)
    if not folder.exists():
        _fit_all(spec, blocks, data, folder, log)
    return StudentTargets(blocks, read_maps(folder), [data.embeddings(block.teacher) for block in blocks])


def _fit_all(spec: Spec, blocks: list[TargetBlock], data: FittingData, folder: Path, log: Log) -> None:
    """Fit the map of every block and write them to `folder`."""
    rows = np.sort(
        np.random.default_rng([data.seed, 0]).choice(data.rows, min(spec.sample, data.rows), replace=False)
    )
    looks = any(block.projection.fits_student for block in blocks)
    student = data.student(rows).astype(np.float64) if looks else np.empty((len(rows), spec.width))
    if student.shape[1] != spec.width:
        raise UserError(
            f"targets.dims: {spec.width} dimensions are fitted to the student's embeddings, which have "
            f"{student.shape[1]}; make them equal"
        )
    maps: list[Affine] = []
    for number, block in enumerate(blocks):
        start = sum(len(each.bias) for each in maps)
        embeddings = data.embeddings(block.teacher)[rows].astype(np.float64)
        own = student[:, start : start + block.projection.dims]
        maps.append(fit(block.projection, embeddings, own, _place(spec, number)))
    write_maps(folder, maps)
    fitted = (f"{block.projection.reduce.kind} to {block.projection.dims} dimensions" for block in blocks)
    log("targets: " + "; ".join(fitted))


def check(spec: Spec, teacher_dims: Callable[[recipe.Teacher | None], int], rows: int) -> None:
    """Raise UserError where a projection cannot give its `dims`, or cannot be fitted on `rows` training
    texts. Nothing is embedded."""
    problems: list[str] = []
    for number, block in enumerate(blocks_of(spec)):
        dims, place = teacher_dims(block.teacher), _place(spec, number)
        problems += _problems(block.projection, dims, min(spec.sample, rows), place)
    if problems:
        raise UserError(*problems)


def _place(spec: Spec, number: int) -> str:
    return f"targets.parts[{number}]" if isinstance(spec, recipe.Split) else "targets"


def fit(
    spec: recipe.Projected, embeddings: np.ndarray, student: np.ndarray, place: str = "targets"
) -> Affine:
    """Fit the map of one block: its dimension reduction, then its alignment.

    embeddings (n, e) float64. student (n, d) is only read by ridge, CCA and the alignments. The recipe's
    section `place` is named in errors. Returns the map (e, d). Raises UserError: `dims` that the reduction
    cannot give, or fewer texts than dimensions.
    """
    teacher_dims, dims, reduce = embeddings.shape[1], spec.dims, spec.reduce
    _check_embeddings(embeddings, place)
    if isinstance(reduce, recipe.Pca):
        # a reconstruction applies it twice
        exponent = reduce.variance_exponent / 2 if reduce.rank else reduce.variance_exponent
        affine = pca(embeddings, reduce.rank or dims, reduce.centre, exponent)
        if reduce.rank:
            affine = Affine(affine.weight @ affine.weight.T, affine.bias @ affine.weight.T)
    elif isinstance(reduce, recipe.Gaussian):
        affine = gaussian(teacher_dims, dims, reduce.seed)
    elif isinstance(reduce, recipe.Ridge):
        affine = ridge(embeddings, student, RIDGE)
    elif isinstance(reduce, recipe.Cca):
        affine = cca(embeddings, student, dims)
    else:
        affine = Affine(np.eye(teacher_dims), np.zeros(teacher_dims))
    if spec.align != "none":
        align = {"procrustes": procrustes, "signed_permutation": signed_permutation}[spec.align]
        rotation = align(unit_rows(affine(embeddings)), unit_rows(student))
        affine = Affine(affine.weight @ rotation, affine.bias @ rotation)
    return affine


def _problems(spec: recipe.Projected, teacher_dims: int, texts: int, place: str) -> list[str]:
    """What keeps a projection from being fitted on so many texts, one line per problem."""
    dims, reduce, problems = spec.dims, spec.reduce, list[str]()
    if isinstance(reduce, recipe.Unreduced) and dims != teacher_dims:
        kept = f"the teacher's embeddings keep {teacher_dims} dimensions; set `reduce`"
        problems.append(f"{place}.dims: {dims}, and without `reduce` {kept}")
    if (
        isinstance(reduce, recipe.Pca)
        and reduce.rank
        and (dims != teacher_dims or reduce.rank > teacher_dims)
    ):
        rank = f"rank {reduce.rank} reconstructs the teacher's {teacher_dims} dimensions, not {dims}"
        problems.append(
            f"{place}.reduce: {rank}; set dims: {teacher_dims} and a rank of {teacher_dims} or less"
        )
    elif isinstance(reduce, recipe.Pca | recipe.Cca) and dims > teacher_dims:
        problems.append(
            f"{place}.dims: {reduce.kind} cannot make {dims} dimensions of the teacher's {teacher_dims}; "
            "lower it"
        )
    if texts <= dims and not isinstance(reduce, recipe.Unreduced | recipe.Gaussian):
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
