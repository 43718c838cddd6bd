"""How closely a student's embeddings agree with its teacher's on the same texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgedistill.evaluation import scoring
from edgedistill.evaluation.suites.cosines import Floats, Measures, dot, spearman, unit
from edgedistill.runtime import bundle
from edgedistill.runtime.similarity import search

# Mean cosine of a text's embeddings by two encoders, below which they have not learned the same space. Of
# unrelated encoders it is near 0; to their teacher, on Cranfield's queries, `nano` has 0.80 and `micro` 0.51.
SAME_SPACE = 0.25
QUERIES = 2_000
NEAREST = 10
ENOUGH_KEPT = 0.9  # of the neighbours: about what int8 keeps of float32
SENTENCES = "sts-small"  # the suite whose sentences two bundles are compared on


def agreement(student: Floats, teacher: Floats, pairs: int = 50_000) -> Measures:
    """Compare two sets of embeddings of the same texts, student (n, d) and teacher (n, e).

    Returns the number of `texts`; `spearman`, the rank correlation of the cosines of `pairs` random pairs;
    `cosine_mean` between the two embeddings of a text, None where d != e; and `top10_overlap`, the share of
    the teacher's ten nearest neighbours that are also among the student's, over QUERIES random texts.
    """
    student, teacher, count = unit(student), unit(teacher), len(student)
    random = np.random.default_rng(0)
    queries = np.sort(random.permutation(count)[:QUERIES])
    overlap = _overlap((student[queries], student), (teacher[queries], teacher), queries)
    i, j = random.integers(0, count, (2, pairs))
    if count * (count - 1) // 2 <= pairs:  # all of them
        i, j = np.triu_indices(count, 1)
    comparable = student.shape[1] == teacher.shape[1]
    return {
        "texts": count,
        "spearman": spearman(dot(student[i], student[j]), dot(teacher[i], teacher[j])),
        "cosine_mean": float(dot(student, teacher).mean()) if comparable else None,
        "top10_overlap": overlap,
    }


def _overlap(first: tuple[Floats, Floats], second: tuple[Floats, Floats], numbers: np.ndarray) -> float:
    """The share of the NEAREST rows of each of the second's queries that the first finds too. Both are
    (queries, rows); a query is not found itself, which is the row of its number."""
    most = min(NEAREST + 1, len(second[1]))
    shares = []
    for number, *both in zip(numbers, *(search(*pair, most)[0] for pair in (first, second)), strict=True):
        ours, theirs = ({*rows[rows != number][:NEAREST].tolist()} for rows in both)
        shares += [len(ours & theirs) / len(theirs)] if theirs else []
    return float(np.mean(shares or 1))


def space(queries: Floats, expected: Floats) -> tuple[float, str | None]:
    """(the mean cosine of embeddings of the same texts by an encoder of queries (n, d) and one of documents
    (n, e), the fact that says why the two are not in one space, or None)."""
    if queries.shape[1] != expected.shape[1]:
        fact = f"has {queries.shape[1]} dimensions, not {expected.shape[1]}"
        return 0.0, f"{fact}, so they are not in one space"
    cosine = float(dot(unit(queries), unit(expected)).mean())
    fact = f"embeds a query at a mean cosine of {cosine:.2f} to the documents' encoder"
    return cosine, None if cosine >= SAME_SPACE else f"{fact}, so they are not in one space"


def beside(name: str | Path, other: str | Path) -> Measures:
    """Whether an index of one bundle's embeddings may be asked with another's: {mixable, same_space, texts,
    cosine_mean, neighbours_kept, advice}. It may within one space; between two, if nearly the same is found.

    Over the sentences of a shipped suite, `cosine_mean` is that of both embeddings of a text, and
    `neighbours_kept` the share of its NEAREST others in the index of one that the other finds there; None
    where dimensions differ.
    """
    asked = bundle.load(other)
    index = bundle.load(name)
    texts = scoring.suite(SENTENCES).texts
    same = index.space is not None and index.space == asked.space
    result: Measures = {"same_space": same, "texts": len(texts), "cosine_mean": None, "neighbours_kept": None}
    fact, share = f"has {asked.dims[0]} dimensions, {name} has {index.dims[0]}", 0.0
    if asked.dims[0] == index.dims[0]:
        queries, rows = asked.encode(texts), index.encode(texts)
        share = round(_overlap((queries, rows), (rows, rows), np.arange(len(texts))), 4)
        result |= {"cosine_mean": round(float(dot(queries, rows).mean()), 4), "neighbours_kept": share}
        spaces = "the same space" if same else "another space"
        fact = f"{spaces}, finds {share:.0%} of the {NEAREST} texts nearest to each by {name}"
    mixable = same or share >= ENOUGH_KEPT
    fact += f"; an index by {name} still answers" if mixable else f"; embed its texts again, with {other}"
    return result | {"mixable": mixable, "advice": fact}
