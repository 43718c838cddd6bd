"""Alignment of the targets with the initial student: a rotation (Procrustes) or a signed permutation. Cosines
do not change."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from scipy.optimize import linear_sum_assignment


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
