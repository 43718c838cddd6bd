"""How closely a student's embeddings agree with its teacher's on the same unlabelled texts, and which texts
these are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from edgedistill import recipe
from edgedistill.data import corpus, parallel_corpus
from edgedistill.errors import CheckFailed, UserError
from edgedistill.evaluation import scoring
from edgedistill.evaluation.suites.cosines import Floats, Ints, dot, spearman, unit
from edgedistill.recipe import recorded
from edgedistill.runtime import bundle
from edgedistill.runtime.similarity import search
from edgedistill.session import Session

MAX_TEXTS = 5000  # drawn evenly from the held-out texts, because the teacher has to encode them
# Mean cosine of a text's embeddings by two encoders, below which they have not learned the same space. Of
# unrelated encoders it is near 0; to their teacher, on Cranfield's queries, `nano` has 0.80 and `micro` 0.51.
SAME_SPACE = 0.25


def agreement(
    student: Floats, teacher: Floats, pairs: int = 50_000, queries: int = 2_000, seed: int = 0
) -> dict[str, Any]:
    """Compare two sets of embeddings of the same texts, student (n, d) and teacher (n, e).

    Returns the number of `texts` and of `pairs`; `spearman`, the rank correlation of the pairwise cosines of
    at most `pairs` sampled pairs; `cosine_mean` between the two embeddings of a text, None where d != e; and
    `top10_overlap`, the share of the teacher's ten nearest neighbours that are also among the student's, over
    `queries` sampled texts. Raises ValueError where the two differ in length, CheckFailed for embeddings that
    are not finite.
    """
    if len(student) != len(teacher):
        raise ValueError(f"{len(student)} student embeddings, {len(teacher)} teacher embeddings")
    for whose, embeddings in (("student", student), ("teacher", teacher)):
        if not np.isfinite(embeddings).all():
            raise CheckFailed(
                f"the {whose}'s embeddings are not finite, so they cannot be compared; train or export it "
                "again"
            )
    student, teacher = unit(student), unit(teacher)
    random = np.random.default_rng(seed)
    sampled = np.sort(random.permutation(len(student))[:queries])
    overlap = _neighbour_overlap(student, teacher, sampled, 10)
    i, j = _sample_pairs(len(student), pairs, random)
    comparable = student.shape[1] == teacher.shape[1]
    return {
        "texts": len(student),
        "spearman": spearman(dot(student[i], student[j]), dot(teacher[i], teacher[j])),
        "cosine_mean": float(dot(student, teacher).mean()) if comparable else None,
        "top10_overlap": float(overlap.mean()),
        "pairs": len(i),
    }


def space(queries: Floats, expected: Floats) -> tuple[float, str | None]:
    """(the mean cosine of embeddings of the same texts by an encoder of queries (n, d) and one of documents
    (n, e), the fact that says why the two are not in one space, or None)."""
    if queries.shape[1] != expected.shape[1]:
        fact = f"has {queries.shape[1]} dimensions, not {expected.shape[1]}"
        return 0.0, f"{fact}, so they are not in one space"
    cosine = float(dot(unit(queries), unit(expected)).mean())
    if cosine >= SAME_SPACE:
        return cosine, None
    fact = f"embeds a query at a mean cosine of {cosine:.2f} to the documents' encoder"
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


class Reference(NamedTuple):
    """n texts with the teacher's embeddings (n, d), and where they come from."""

    texts: list[str]
    embeddings: np.ndarray
    source: str


class ReferenceEmbeddings:
    """Embeds the held-out texts of each recipe's corpus with the teacher, once per corpus and seed; where a
    corpus' files are not there, the texts of the suites."""

    def __init__(
        self, open_teacher: Callable[[], bundle.Bundle], suites: list[scoring.Suite], session: Session
    ) -> None:
        self.open_teacher, self.suites, self.session = open_teacher, suites, session
        self.by_corpus: dict[str, Reference] = {}

    def of(self, manifest: dict[str, Any], name: str) -> Reference:
        """Return the reference for a bundle: texts that its recipe held out from training, else the texts of
        the suites. `name` is for the log."""
        described = manifest.get("recipe") or {}
        key = json.dumps([described.get("corpus"), described.get("seed")], sort_keys=True)
        if key not in self.by_corpus:
            texts, source = self._texts(described, name)
            self.session.log(f"agreement of {name} with the teacher: {len(texts):,} {source}")
            self.by_corpus[key] = Reference(texts, self.open_teacher().encode(texts), source)
        return self.by_corpus[key]

    def _texts(self, described: dict[str, Any], name: str) -> tuple[list[str], str]:
        try:
            spec = recipe.parse(described, "manifest.json: recipe")
            if spec.corpus is not None and spec.corpus.held_out:
                recorded.check_confined(spec.corpus, self.session.data, "manifest.json: recipe.corpus")
                if isinstance(spec.corpus, recipe.Parallel):  # the side that the teacher reads
                    built = parallel_corpus.build(spec.corpus, self.session, spec.seed).source_side
                else:
                    built = corpus.build(spec.corpus, self.session, spec.seed)
                rows = built.spread(MAX_TEXTS, built.training_count)
                return built.texts(rows), "held-out texts of its recipe's corpus"
        except UserError as error:
            needs_data = (described.get("corpus") or {}).get("kind", "files") in ("files", "parallel")
            reason = f" ({error.problems[0]})"
            if needs_data and self.session.data is None:
                reason = " without --data"
            self.session.log(
                f"{name}: held-out texts not available{reason}; agreement is measured on the suite's texts"
            )
        texts = dict.fromkeys(text for suite in self.suites for text in suite.texts if text)
        return list(texts)[:MAX_TEXTS], f"texts of {', '.join(suite.name for suite in self.suites)}"
