"""How closely a student's embeddings agree with its teacher's on the same texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedistill.evaluation.suites.cosines import Floats, Ints, dot, spearman, unit
from edgedistill.runtime.similarity import search

# Mean cosine of a text's embeddings by two encoders, below which they have not learned the same space. Of
# unrelated encoders it is near 0; to their teacher, on Cranfield's queries, `nano` has 0.80 and `micro` 0.51.
SAME_SPACE = 0.25
QUERIES = 2_000


def agreement(student: Floats, teacher: Floats, pairs: int = 50_000) -> dict[str, Any]:
    """Compare two sets of embeddings of the same texts, student (n, d) and teacher (n, e).

    Returns the number of `texts`; `spearman`, the rank correlation of the pairwise cosines of
    at most `pairs` sampled pairs; `cosine_mean` between the two embeddings of a text, None where d != e; and
    `top10_overlap`, the share of the teacher's ten nearest neighbours that are also among the student's, over
    QUERIES sampled texts.
    """
    student, teacher = unit(student), unit(teacher)
    random = np.random.default_rng(0)
    sampled = np.sort(random.permutation(len(student))[:QUERIES])
    overlap = _neighbour_overlap(student, teacher, sampled, 10)
    i, j = _sample_pairs(len(student), pairs, random)
    comparable = student.shape[1] == teacher.shape[1]
    return {
        "texts": len(student),
        "spearman": spearman(dot(student[i], student[j]), dot(teacher[i], teacher[j])),
        "cosine_mean": float(dot(student, teacher).mean()) if comparable else None,
        "top10_overlap": float(overlap.mean()),
    }


def space(queries: Floats, expected: Floats) -> tuple[float, str | None]:
    """(the mean cosine of embeddings of the same texts by an encoder of queries (n, d) and one of documents
    (n, e), the fact that says why the two are not in one space, or None)."""
    cosine, fact = 0.0, f"has {queries.shape[1]} dimensions, not {expected.shape[1]}"
    if queries.shape[1] == expected.shape[1]:
        cosine = float(dot(unit(queries), unit(expected)).mean())
        fact = f"embeds a query at a mean cosine of {cosine:.2f} to the documents' encoder"
    if cosine >= SAME_SPACE:
        return cosine, None
    return cosine, f"{fact}, so they are not in one space"


def _sample_pairs(rows: int, count: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Draw `count` pairs of different rows; all pairs where there are no more than that."""
    if rows * (rows - 1) // 2 <= count:
        return np.triu_indices(rows, 1)
    i = random.integers(0, rows, count)
    return i, (i + random.integers(1, rows, count)) % rows


def _neighbour_overlap(x: Floats, y: Floats, sampled: Ints, k: int) -> Floats:
    """Return the share of common k nearest neighbours of each sampled row, itself excluded:
    (len(sampled),)."""
    k = min(k, len(x) - 1)
    if k < 1:
        return np.ones(len(sampled))
    nearest = []
    for each in (x, y):
        found = search(each[sampled], each, k + 1)[0].tolist()
        others = ([at for at in row if at != own] for row, own in zip(found, sampled.tolist(), strict=True))
        nearest.append([set(row[:k]) for row in others])
    return np.array([len(one & other) / k for one, other in zip(*nearest, strict=True)])
