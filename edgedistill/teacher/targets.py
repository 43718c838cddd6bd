"""Teacher space -> student space: PCA, random projection, ridge, CCA, Procrustes, split and joined teachers.

Everything here ends as affine maps x W + b, one a block, fitted once in float64 on a sample of the corpus, their signs fixed so that
all machines agree, and kept with the run: a resumed run, and any other machine, uses the same bytes. After Malashenko, Text-level
distillation: how to build small but powerful sentence encoders.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.linalg
from scipy.optimize import linear_sum_assignment

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.session import Log, silent
from edgedistill.students.affine import Affine, read_maps, write_maps


class Rows(Protocol):
    """Vectors of a corpus: rows (n,) -> (n, dims) float32."""

    @property
    def dims(self) -> int: ...

    def __getitem__(self, rows: np.ndarray) -> np.ndarray: ...


class Plan(NamedTuple):
    """A block of the targets, as the recipe has it: which teachers' vectors, weighed how, and the way to the student's space."""

    sources: list[tuple[recipe.Teacher | None, float]]
    projected: recipe.Projected
    weight: float
    unit: bool


class Targets:
    """What the student is to match, (n, dims) float32, made of teacher vectors when it is asked for."""

    def __init__(self, plans: list[Plan], maps: list[Affine], sources: list[list[Rows]]) -> None:
        self.plans, self.sources = plans, sources
        self.maps = [Affine(each.weight.astype(np.float32), each.bias.astype(np.float32)) for each in maps]
        self.dims = sum(len(each.bias) for each in maps)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        parts = []
        for plan, affine, sources in zip(self.plans, self.maps, self.sources, strict=True):
            block = affine(joined(plan, sources, rows))
            parts.append(np.float32(plan.weight**0.5) * (unit(block) if plan.unit else block))
        return np.concatenate(parts, 1)


def plans(spec: recipe.One | recipe.Split | recipe.Concat) -> list[Plan]:
    """The blocks of a recipe's targets; weights of blocks, and of joined teachers, sum to 1."""
    if isinstance(spec, recipe.Split):
        weights = [weight for _, weight in spec.blocks]
        return [Plan([(part.teacher, 1.0)], part, weight, True) for part, weight in zip(spec.parts, weights, strict=True)]
    if isinstance(spec, recipe.Concat):
        total = sum(part.weight for part in spec.parts)
        return [Plan([(part.teacher, part.weight / total) for part in spec.parts], spec, 1.0, spec.unit)]
    return [Plan([(spec.teacher, 1.0)], spec, 1.0, spec.unit)]


def joined(plan: Plan, sources: list[Rows], rows: np.ndarray) -> np.ndarray:
    """(n, e) the teachers' unit vectors one behind the other, each as long as the root of its weight: cosines add up, weighted."""
    parts = [np.float32(weight**0.5) * vectors[rows] for (_, weight), vectors in zip(plan.sources, sources, strict=True)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)


def make(
    spec: recipe.One | recipe.Split | recipe.Concat,
    vectors: Callable[[recipe.Teacher | None], Rows],
    texts: int,
    student: Callable[[np.ndarray], np.ndarray],
    seed: int,
    folder: Path,
    log: Log = silent,
) -> Targets:
    """The targets of a recipe: maps read from `folder` where a run has fitted them before, else fitted and written there.

    `vectors` gives a teacher's vectors of the corpus, `texts` how many of its first rows may be looked at, `student` the untrained
    student's unit vectors (n, d) of rows. Raises UserError: widths that do not go together, a sample too small to fit on.
    """
    blocks = plans(spec)
    if not folder.exists():
        rows = np.sort(np.random.default_rng([seed, 0]).choice(texts, min(spec.sample, texts), replace=False))
        looks = any(plan.projected.looks for plan in blocks)
        own = student(rows).astype(np.float64) if looks else np.empty((len(rows), spec.width))
        if own.shape[1] != spec.width:
            raise UserError(
                f"targets.dims: {spec.width} numbers cannot follow the student's own, which are {own.shape[1]}; make them equal"
            )
        maps: list[Affine] = []
        notes: list[dict[str, Any]] = []
        for number, plan in enumerate(blocks):
            start = sum(len(each.bias) for each in maps)
            theirs = joined(plan, _of(plan, vectors), rows).astype(np.float64)
            affine, note = fit(plan.projected, theirs, own[:, start : start + plan.projected.dims], _place(spec, number))
            maps.append(affine)
            notes.append({**note, "teachers": [teacher.name if teacher else None for teacher, _ in plan.sources], "weight": plan.weight})
        write_maps(folder, maps, {"kind": spec.kind, "sample": len(rows), "seed": seed, "blocks": notes})
        log("targets: " + "; ".join(_said(note) for note in notes))
    return Targets(blocks, read_maps(folder), [_of(plan, vectors) for plan in blocks])


def _of(plan: Plan, vectors: Callable[[recipe.Teacher | None], Rows]) -> list[Rows]:
    return [vectors(teacher) for teacher, _ in plan.sources]


def check(spec: recipe.One | recipe.Split | recipe.Concat, width: Callable[[recipe.Teacher | None], int], texts: int) -> None:
    """Raise UserError for `dims` that a reducer cannot make of its teachers' numbers, or fit on so many texts; nothing is embedded."""
    for number, plan in enumerate(plans(spec)):
        _possible(plan.projected, sum(width(teacher) for teacher, _ in plan.sources), min(spec.sample, texts), _place(spec, number))


def _place(spec: recipe.One | recipe.Split | recipe.Concat, number: int) -> str:
    return f"targets.parts[{number}]" if isinstance(spec, recipe.Split) else "targets"


def _said(note: dict[str, Any]) -> str:
    aligned = "" if note["align"] == "none" else f", {note['align']}"
    kept = f", {note['variance_kept']:.3f} of the variance" if "variance_kept" in note else ""
    back = f"{note['rank']} directions of " if "rank" in note else ""
    weighed = f", their variance to the power {note['power']:g}" if "power" in note else ""
    return f"{note['reduce']} to {back}{note['dims']} numbers{kept}{weighed}{aligned}"


def fit(spec: recipe.Projected, vectors: np.ndarray, student: np.ndarray, place: str = "targets") -> tuple[Affine, dict[str, Any]]:
    """The map of one block: its reducer, then its alignment. vectors (n, e) float64; student (n, d), unread where nothing looks at it.

    Returns (map (e, d), what it did). Raises UserError: `dims` that the reducer cannot give, fewer texts than numbers.
    """
    width, dims, reduce = vectors.shape[1], spec.dims, spec.reduce
    _possible(spec, width, len(vectors), place)
    note: dict[str, Any] = {"reduce": reduce.kind, "dims": dims, "align": spec.align}
    if isinstance(reduce, recipe.Pca):
        half = reduce.power / 2 if reduce.rank else reduce.power  # leading back multiplies by it once more
        affine, note["variance_kept"] = pca(vectors, reduce.rank or dims, reduce.centre, half)
        if reduce.rank:
            note["rank"] = reduce.rank
            affine = Affine(affine.weight @ affine.weight.T, affine.bias @ affine.weight.T)
        if reduce.power:
            note["power"] = reduce.power
    elif isinstance(reduce, recipe.Gaussian):
        affine = gaussian(width, dims, reduce.seed)
    elif isinstance(reduce, recipe.Ridge):
        affine = ridge(vectors, student, reduce.strength)
    elif isinstance(reduce, recipe.Cca):
        affine, found = cca(vectors, student, dims, reduce.strength)
        note["correlations"] = {"first": round(float(found[0]), 6), "last": round(float(found[-1]), 6)}
    else:
        affine = Affine(np.eye(width), np.zeros(width))
    if spec.align != "none":
        turn = {"procrustes": procrustes, "signed_permutation": signed_permutation}[spec.align]
        rotation = turn(unit(affine(vectors)), unit(student))
        affine = Affine(affine.weight @ rotation, affine.bias @ rotation)
    return affine, note


def _possible(spec: recipe.Projected, width: int, texts: int, place: str) -> None:
    dims, reduce = spec.dims, spec.reduce
    if isinstance(reduce, recipe.Whole) and dims != width:
        raise UserError(f"{place}.dims: without a reducer the teacher's vectors keep {width} numbers, not {dims}; choose a `reduce`")
    if isinstance(reduce, recipe.Pca) and reduce.rank and (dims != width or reduce.rank > width):
        led = f"rank {reduce.rank} leads {width} numbers back to {width}, not to {dims}"
        raise UserError(f"{place}.reduce: {led}; set dims: {width} and rank: {width} or less")
    if isinstance(reduce, recipe.Pca | recipe.Cca) and dims > width:
        raise UserError(f"{place}.dims: {reduce.kind} makes {dims} numbers of {width}; it can only take away")
    if texts <= dims and not isinstance(reduce, recipe.Whole | recipe.Gaussian):
        raise UserError(f"{place}.dims: {dims} numbers cannot be fitted on {texts:,} texts; add texts, raise targets.sample, or lower it")


def pca(vectors: np.ndarray, dims: int, centre: bool = True, power: float = 0.0) -> tuple[Affine, float]:
    """The `dims` orthonormal directions of most variance, largest first, and the share of the variance they keep.

    vectors (n, e). Without `centre`, of most length (as in sentence-transformers' bias-free dense layer). At full width a rotation.
    `power`: each direction times its variance, in units of their mean variance, to this; −½ whitens.
    """
    mean = vectors.mean(0) if centre else np.zeros(vectors.shape[1])
    centred = vectors - mean
    values, directions = scipy.linalg.eigh(centred.T @ centred)
    values = values[::-1].clip(min=0)
    kept = values[:dims] / max(values[:dims].mean(), 1e-300)
    weight = signed(directions[:, ::-1][:, :dims]) * kept.clip(min=1e-9) ** power
    return Affine(weight, -mean @ weight), float(values[:dims].sum() / max(values.sum(), 1e-300))


def gaussian(width: int, dims: int, seed: int) -> Affine:
    """A projection drawn from N(0, 1/dims): lengths and distances stay what they were in the mean (Johnson and Lindenstrauss)."""
    return Affine(np.random.default_rng(seed).standard_normal((width, dims)) / dims**0.5, np.zeros(dims))


def ridge(vectors: np.ndarray, student: np.ndarray, strength: float) -> Affine:
    """The map that least misses the student's vectors: min ‖T W + b − S‖² + λ‖W‖², b not weighed. vectors (n, e), student (n, d)."""
    mean, wanted = vectors.mean(0), student.mean(0)
    centred = vectors - mean
    weight = scipy.linalg.solve(centred.T @ centred + strength * np.eye(len(mean)), centred.T @ (student - wanted), assume_a="pos")
    return Affine(weight, wanted - mean @ weight)


def cca(vectors: np.ndarray, student: np.ndarray, dims: int, strength: float) -> tuple[Affine, np.ndarray]:
    """The teacher's canonical directions, each of variance 1, most correlated first, and the correlations (dims,).

    W = C_t^(−½) U, with U Σ Vᵀ the SVD of C_t^(−½) C_ts C_s^(−½) and `strength` mean variances added to either diagonal. vectors
    (n, e), student (n, d), dims ≤ d, e. In closed form: scikit-learn's iterates one direction after the other, minutes for 128.
    """
    mean = vectors.mean(0)
    left, right = vectors - mean, student - student.mean(0)
    white_left, white_right = _whitening(left, strength), _whitening(right, strength)
    between = white_left @ (left.T @ right / len(left)) @ white_right
    directions, correlations, _ = scipy.linalg.svd(between, full_matrices=False)
    weight = signed(white_left @ directions[:, :dims])
    return Affine(weight, -mean @ weight), correlations[:dims]


def _whitening(centred: np.ndarray, strength: float) -> np.ndarray:
    """C^(−½) of centred vectors (n, e), `strength` mean variances on the diagonal."""
    covariance = centred.T @ centred / len(centred)
    values, directions = scipy.linalg.eigh(covariance + strength * np.trace(covariance) / len(covariance) * np.eye(len(covariance)))
    return (directions * values.clip(min=1e-300) ** -0.5) @ directions.T


def procrustes(targets: np.ndarray, student: np.ndarray) -> np.ndarray:
    """The rotation (or reflection) Q (d, d) that brings targets nearest to the student: min ‖T Q − S‖, QᵀQ = 1; both (n, d)."""
    rotation, _ = scipy.linalg.orthogonal_procrustes(targets, student)
    return np.asarray(rotation)


def signed_permutation(targets: np.ndarray, student: np.ndarray) -> np.ndarray:
    """The order and signs of the targets' numbers, as Q (d, d), that correlate most with the student's numbers; both (n, d).

    The paper's "reordering", read as the permutations among the rotations; the assignment is exact (Hungarian method).
    """
    left, right = targets - targets.mean(0), student - student.mean(0)
    scale = np.linalg.norm(left, axis=0)[:, None] * np.linalg.norm(right, axis=0)[None]
    correlations = left.T @ right / scale.clip(min=1e-300)
    theirs, mine = linear_sum_assignment(np.abs(correlations), maximize=True)
    turn = np.zeros_like(correlations)
    turn[theirs, mine] = np.where(correlations[theirs, mine] < 0, -1.0, 1.0)
    return turn


def signed(directions: np.ndarray) -> np.ndarray:
    """Columns with the sign that makes their largest number positive: solvers of different machines disagree on nothing else."""
    largest = np.abs(directions).argmax(0)
    return directions * np.where(directions[largest, np.arange(directions.shape[1])] < 0, -1.0, 1.0)


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows at unit length; zero stays zero."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(min=1e-12)
