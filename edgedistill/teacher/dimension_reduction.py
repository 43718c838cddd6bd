"""Linear maps from the teacher's space to the student's dimensions: PCA, ridge regression; and alignments
with the initial student that change no cosine: a rotation or a signed permutation.

Every reduction returns an affine map x W + b in float64. The signs of eigenvectors and singular vectors are
fixed, so that all machines agree. After Malashenko, Text-level distillation: how to build small but powerful
sentence encoders.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from scipy.optimize import linear_sum_assignment

from edgedistill.students.sentence_transformer import Affine


def pca(embeddings: np.ndarray, dims: int, centre: bool = True, variance_exponent: float = 0.0) -> Affine:
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


def ridge(embeddings: np.ndarray, student: np.ndarray, regularization: float) -> Affine:
    """Ridge regression onto the student's embeddings: min ‖T W + b − S‖² + λ‖W‖², with b not penalised.

    embeddings T (n, e), student S (n, d). Returns the map (e, d).
    """
    mean, student_mean = embeddings.mean(0), student.mean(0)
    centred = embeddings - mean
    gram = centred.T @ centred + regularization * np.eye(len(mean))
    weight = scipy.linalg.solve(gram, centred.T @ (student - student_mean), assume_a="pos")
    return Affine(weight, student_mean - mean @ weight)


def fix_signs(directions: np.ndarray) -> np.ndarray:
    """Flip each column (e, k) so that its largest entry is positive: solvers on different machines differ
    only in these signs."""
    largest = np.abs(directions).argmax(0)
    return directions * np.where(directions[largest, np.arange(directions.shape[1])] < 0, -1.0, 1.0)


def procrustes(targets: np.ndarray, student: np.ndarray) -> np.ndarray:
    """The orthogonal Q (d, d) that rotates (or reflects) the targets closest to the student: min ‖T Q − S‖,
    QᵀQ = 1; both (n, d).

    Schönemann 1966, A generalized solution of the orthogonal Procrustes problem.
    """
    rotation, _ = scipy.linalg.orthogonal_procrustes(targets, student)
    return np.asarray(rotation)


def signed_permutation(targets: np.ndarray, student: np.ndarray) -> np.ndarray:
    """The signed permutation Q (d, d) of the targets' dimensions that correlates most with the student's
    dimensions; both (n, d).

    This is the "reordering" of Malashenko's paper, read as the permutations among the rotations. The
    assignment is exact (Hungarian method).
    """
    left, right = targets - targets.mean(0), student - student.mean(0)
    scale = np.linalg.norm(left, axis=0)[:, None] * np.linalg.norm(right, axis=0)[None]
    correlations = left.T @ right / scale.clip(min=1e-300)
    target_dims, student_dims = linear_sum_assignment(np.abs(correlations), maximize=True)
    permutation = np.zeros_like(correlations)
    permutation[target_dims, student_dims] = np.where(correlations[target_dims, student_dims] < 0, -1.0, 1.0)
    return permutation
