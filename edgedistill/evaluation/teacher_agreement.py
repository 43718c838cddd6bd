"""How closely a student's embeddings agree with its teacher's on the same unlabelled texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedistill.errors import CheckFailed
from edgedistill.evaluation.suites.cosines import Floats, Ints, dot, spearman, unit

LENGTH_BUCKETS = ((0, 8), (9, 16), (17, 32), (33, 64), (65, None))  # tokens, both ends included
MIN_BUCKET_TEXTS = 2


def agreement(
    student: Floats, teacher: Floats, lengths: Ints, pairs: int = 50_000, queries: int = 2_000, seed: int = 0
) -> dict[str, Any]:
    """Compare two sets of embeddings of the same texts.

    student (n, d), teacher (n, e), lengths (n,) in tokens. Returns
    `spearman`: of the pairwise cosines of at most `pairs` sampled pairs;
    `cosine_mean`, `cosine_min`: between the two embeddings of a text, None where d != e;
    `top10_overlap`: share of the teacher's ten nearest neighbours that are also among the student's, over
        `queries` sampled texts;
    `by_length`: the same per bucket of token counts; pairs are within a bucket, neighbours from all texts.
    Raises ValueError where the three differ in length, CheckFailed for embeddings that are not finite.
    """
    if len(student) != len(teacher) or len(student) != len(lengths):
        raise ValueError(
            f"{len(student)} student embeddings, {len(teacher)} teacher embeddings, {len(lengths)} lengths"
        )
    for whose, embeddings in (("student", student), ("teacher", teacher)):
        if not np.isfinite(embeddings).all():
            raise CheckFailed(
                f"the {whose}'s embeddings are not finite, so they cannot be compared; train or export it "
                "again"
            )
    student, teacher, lengths = unit(student), unit(teacher), np.asarray(lengths)
    random = np.random.default_rng(seed)
    sampled = np.sort(random.permutation(len(student))[:queries])
    overlap = _neighbour_overlap(student, teacher, sampled, 10)
    cosines = dot(student, teacher) if student.shape[1] == teacher.shape[1] else None
    all_rows = np.arange(len(student))

    def measures(rows: Ints) -> dict[str, Any]:
        i, j = _sample_pairs(rows, pairs, random)
        overlaps = overlap[np.isin(sampled, rows)]
        return {
            "texts": len(rows),
            "spearman": spearman(dot(student[i], student[j]), dot(teacher[i], teacher[j])),
            "cosine_mean": float(cosines[rows].mean()) if cosines is not None else None,
            "cosine_min": float(cosines[rows].min()) if cosines is not None else None,
            "top10_overlap": float(overlaps.mean()) if len(overlaps) else None,
        }

    buckets = {}
    for low, high in LENGTH_BUCKETS:
        rows = all_rows[(lengths >= low) & (lengths <= (high or lengths.max(initial=0)))]
        if len(rows) >= MIN_BUCKET_TEXTS:
            buckets[f"{low}-{high}" if high else f"{low}+"] = measures(rows)
    return {
        **measures(all_rows),
        "pairs": min(pairs, len(student) * (len(student) - 1) // 2),
        "by_length": buckets,
    }


def _sample_pairs(rows: Ints, count: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """`count` pairs of different rows; all pairs when there are no more than that."""
    if len(rows) * (len(rows) - 1) // 2 <= count:
        i, j = np.triu_indices(len(rows), 1)
    else:
        i = random.integers(0, len(rows), count)
        j = (i + random.integers(1, len(rows), count)) % len(rows)
    return rows[i], rows[j]


def _neighbour_overlap(x: Floats, y: Floats, sampled: Ints, k: int) -> Floats:
    """Share of common k nearest neighbours of each sampled row, itself excluded: (len(sampled),)."""
    k = min(k, len(x) - 1)
    if k < 1:
        return np.ones(len(sampled))
    shares = []
    for rows in np.array_split(sampled, max(1, len(sampled) // 256)):
        nearest = []
        for embeddings in (x, y):
            scores = embeddings[rows] @ embeddings.T
            scores[np.arange(len(rows)), rows] = -np.inf
            nearest.append(np.argpartition(-scores, k - 1, axis=1)[:, :k])
        shares += [len(set(a.tolist()) & set(b.tolist())) / k for a, b in zip(*nearest, strict=True)]
    return np.array(shares)
