"""The teacher's scores of tuples: how well each document answers a query, and which documents do not.

Cosines come from cached embeddings, so that any query and document of a batch can be scored when it is read.
Joint scores, of several teachers and BM25, are of a tuple's own documents.
The negatives that are added are drawn once and cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from edgedistill import files, recipe
from edgedistill.data import bm25
from edgedistill.data.cached_folder import cached_folder, mapped
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.session import Session, progress_bar
from edgedistill.teacher.targets import EmbeddingRows

FORMAT = 4  # part of every cache key: raise it when what is written changes
MOST_SHARE = 0.95  # of the positive's cosine; a nearer document may answer the query too
CHUNK = 512  # queries scored at a time


class Embedded(NamedTuple):
    """The teacher's embeddings of the queries and the documents, of unit length, and its identity."""

    queries: EmbeddingRows
    documents: EmbeddingRows
    identity: Json

    def cosines(self, queries: ndarray, documents: ndarray) -> ndarray:
        """Of numbered queries (B,) and numbered documents (M,): (B, M) float32."""
        return np.asarray(self.queries[queries] @ self.documents[documents].T, np.float32)

    def paired(self, queries: ndarray, documents: ndarray) -> ndarray:
        """Of numbered queries (B,), each with its own documents (B, m): (B, m)."""
        rows = self.documents[documents.ravel()].reshape(*documents.shape, -1)
        return np.einsum("bd,bmd->bm", self.queries[queries], rows)


class Answers:
    """The documents of each query in all of its tuples (n, 1 + m)."""

    def __init__(self, index: ndarray) -> None:
        asked = np.repeat(index[:, 0], index.shape[1] - 1)
        order = np.argsort(asked, kind="stable")
        self._documents = index[:, 1:].ravel()[order]
        self._starts = np.searchsorted(asked[order], np.arange(int(asked.max()) + 2))

    def of(self, query: int) -> ndarray:
        return np.asarray(self._documents[self._starts[query] : self._starts[query + 1]])


@dataclass
class ScoredTuples:
    """Tuples with the negatives that were added, and the scores of their documents.

    `index` (n, 1 + m) holds for each tuple its query and its documents, the positive first. `own` (n, m)
    float32 are the scores of the tuple's own documents, where only these have any; cosines of the `teacher`
    are of any.
    """

    index: ndarray
    teacher: Embedded | None = None
    own: ndarray | None = None

    def __post_init__(self) -> None:
        self._answers = Answers(self.index[:, :2])

    def ranking(self, rows: ndarray, documents: ndarray) -> tuple[ndarray, ndarray | None, ndarray | None]:
        """(where the positives of tuples (B,) are among the documents (M,) ascending, the scores (B, M),
        which other documents answer the queries (B, M) bool); None where there are none."""
        index = self.index[rows]
        positions = np.searchsorted(documents, index[:, 1:])
        answers = np.zeros((len(index), len(documents)), bool)
        for row, (query, positive) in enumerate(index[:, :2].tolist()):
            known = self._answers.of(query)
            if len(known) > 1:
                answers[row] = np.isin(documents, known) & (documents != positive)
        scores = self.scores(rows, documents, positions)
        return positions[:, 0], scores, answers if answers.any() else None

    def scores(self, rows: ndarray, documents: ndarray, positions: ndarray) -> ndarray | None:
        """The scores of the queries of tuples and the documents of a batch, (B, M) float32, NaN where there
        are none.

        rows (B,) of tuples, documents (M,); positions (B, m) say where a tuple's documents are among them.
        """
        if self.teacher is not None:
            return self.teacher.cosines(self.index[rows, 0], documents)
        if self.own is None:
            return None
        scores = np.full((len(rows), len(documents)), np.nan, np.float32)
        np.put_along_axis(scores, positions, self.own[rows], 1)
        return scores


def build(
    spec: recipe.Rows,
    tuples: Rows,
    teachers: list[Embedded],
    scored: bool,
    session: Session,
    place: str,
    seed: int,
) -> ScoredTuples:
    """The tuples of a stage with their negatives and, where `scored`, with the scores of their documents.

    `teachers` have embedded both sides where cosines are matched, or negatives drawn by them; these are
    drawn by those of the first, the recipe's. The recipe describes the tuples at `place`. Raises UserError:
    too few documents to draw negatives from, documents without words for BM25.
    """
    index = np.asarray(tuples.index[: tuples.training_count])
    if spec.negatives is not None:
        key = files.cache_key(
            format=FORMAT,
            tuples=tuples.fingerprint,
            negatives=spec.negatives.model_dump(),
            teacher=teachers[0].identity,
            seed=seed,
        )
        draw = _Draw(spec.negatives, tuples, index, teachers[0], f"{place}.negatives", seed)
        folder = session.cache / "negatives" / key
        cached_folder(folder, lambda new: draw.write(new / "index.npy", session), session.log)
        index = mapped(folder / "index.npy")
    if not scored:
        return ScoredTuples(index)
    if tuples.scores is not None:
        return ScoredTuples(index, own=tuples.scores[: len(index)])
    if isinstance(spec.scores, recipe.JointScores):
        return ScoredTuples(index, own=_joint(spec.scores.bm25, tuples, index, teachers, place))
    return ScoredTuples(index, teachers[0])


def _joint(weight: float, tuples: Rows, index: ndarray, teachers: list[Embedded], place: str) -> ndarray:
    """The mean z-scores, among each tuple's documents, of the teachers' cosines and, with its weight, of
    BM25: (n, m) float32."""
    words = bm25.BM25(tuples.sides[1], f"{place}.scores.bm25") if weight else None
    weights = [1.0] * len(teachers) + [weight] * (words is not None)
    scores = np.empty((len(index), index.shape[1] - 1), np.float32)
    for rows in _chunks(len(index)):
        queries, documents = index[rows, 0], index[rows, 1:]
        parts = [teacher.paired(queries, documents) for teacher in teachers]
        if words is not None:
            of_words = words.scores(tuples.sides[0].texts(queries))
            parts.append(np.take_along_axis(of_words, documents, 1))
        scores[rows] = np.average([_standardized(part) for part in parts], axis=0, weights=weights)
    return scores


def _standardized(scores: ndarray) -> ndarray:
    """The z-scores of each row (n, m); 0 where all of a row are the same."""
    centred = scores - scores.mean(1, keepdims=True)
    return np.asarray(centred / np.maximum(scores.std(1, keepdims=True), 1e-6))


class _Draw(NamedTuple):
    """How negatives are drawn: by the teacher's cosines, but none too near to the positive's."""

    spec: recipe.Negatives
    tuples: Rows
    rows: ndarray
    teacher: Embedded
    place: str
    seed: int

    def write(self, file: Path, session: Session) -> None:
        """Write the index with the negatives of every tuple behind its own documents, none of them held out.
        Raises UserError for fewer documents than are to be drawn."""
        documents = np.arange(self.tuples.sides[1].training_count)
        if len(documents) < self.spec.count + self.rows.shape[1]:
            raise UserError(
                f"{self.place}.count: {self.spec.count} of {len(documents)} documents are to be drawn for "
                "each query, beside its own; lower it, or add documents"
            )
        random = np.random.default_rng(self.seed)
        negatives = []
        answers = Answers(self.rows)
        with progress_bar(len(self.rows), session.progress, "drawing negatives", "queries") as advance:
            for rows in _chunks(len(self.rows)):
                queries = self.rows[rows, 0]
                cosines = self.teacher.cosines(queries, documents)
                nearest = cosines[np.arange(len(rows)), self.rows[rows, 1]][:, None]
                scores = np.where(cosines > MOST_SHARE * nearest, -np.inf, cosines)
                for row, query in enumerate(queries.tolist()):
                    scores[row, answers.of(query)] = -np.inf
                negatives += [stratified(row, self.spec, random) for row in scores]
                advance(len(rows))
        np.save(file, np.concatenate([self.rows, np.stack(negatives)], 1))


def stratified(scores: ndarray, spec: recipe.Negatives, random: np.random.Generator) -> ndarray:
    """`count` documents (count,) spread over the range of a query's best `ranks` scores: the range is cut
    into `count` equal parts, and the document nearest to a random score of each part is drawn.

    scores (n,): −inf for what may not be drawn; where too little else is left, that is drawn too.
    """
    finite = np.isfinite(scores)
    parts = np.arange(spec.count)
    ranked = min(spec.ranks, int(finite.sum()))
    best = np.argsort(-scores, kind="stable")[: max(spec.count, ranked)]
    values = np.maximum(scores[best], scores[finite].min(initial=0))
    edges = np.linspace(values[0], values[-1], spec.count + 1)
    drawn = np.searchsorted(-values, -random.uniform(edges[1:], edges[:-1]))
    drawn = np.maximum.accumulate(drawn - parts) + parts  # no document twice
    last = len(best) - spec.count + parts
    return np.asarray(best[np.minimum(drawn, last)])


def _chunks(rows: int) -> list[ndarray]:
    return [np.arange(start, min(start + CHUNK, rows)) for start in range(0, rows, CHUNK)]
