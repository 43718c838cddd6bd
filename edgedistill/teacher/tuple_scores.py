"""The teacher's scores of tuples: how well each document answers a query, and which documents do not.

Cosines come from cached embeddings, and BM25 from an index in memory, so that any query and document of a
batch can be scored when it is read. What needs all documents of a query is computed once and cached: the
moments of z-scores, the negatives that are added, the scores of a cross-encoder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import files, recipe, resolve
from edgedistill.data import bm25
from edgedistill.data.cached_folder import cached_folder, mapped
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.session import Session, progress_bar
from edgedistill.teacher.targets import EmbeddingRows

FORMAT = 3  # part of every cache key: raise it when what is written changes
MOST_SHARE = 0.95  # of the positive's cosine; a nearer document may answer the query too
CHUNK = 512  # queries scored at a time
MOMENTS = 20_000  # documents, spread evenly, from which the mean and deviation of a query's scores are taken


class Embedded(NamedTuple):
    """The embeddings by one teacher of the queries and the documents, of unit length, and its identity."""

    queries: EmbeddingRows
    documents: EmbeddingRows
    identity: dict[str, Any]


# scores of numbered queries (B,) and numbered documents (M,): (B, M) float32
Scorer = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass
class ScoredTuples:
    """Tuples with the negatives that were added, and the scores of their documents.

    `index` (n, 1 + m) holds for each tuple its query and its documents, the positive first. `own` (n, m)
    float32 are the scores of the tuple's own documents, where only these have any; `scorer` scores any.
    """

    index: np.ndarray
    scorer: Scorer | None = None
    own: np.ndarray | None = None

    def __post_init__(self) -> None:
        # The known answers of all queries, by query: those of query q are answers[starts[q] : starts[q + 1]].
        asked, answers = self.index[:, 0], self.index[:, 1]
        order = np.lexsort((answers, asked))
        self._answers = np.asarray(answers[order])
        self._starts = np.searchsorted(asked[order], np.arange(int(asked.max()) + 2))

    def ranking(
        self, rows: np.ndarray, documents: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """(where the positives of tuples (B,) are among the documents (M,) ascending, the scores (B, M),
        which other documents answer the queries (B, M) bool); None where there are none."""
        index = self.index[rows]
        positions = np.searchsorted(documents, index[:, 1:])
        answers = np.zeros((len(index), len(documents)), bool)
        for row, (query, positive) in enumerate(index[:, :2].tolist()):
            known = self._answers[self._starts[query] : self._starts[query + 1]]
            if len(known) > 1:
                answers[row] = np.isin(documents, known) & (documents != positive)
        scores = self.scores(rows, documents, positions)
        return positions[:, 0], scores, answers if answers.any() else None

    def scores(self, rows: np.ndarray, documents: np.ndarray, positions: np.ndarray) -> np.ndarray | None:
        """The scores of the queries of tuples and the documents of a batch, (B, M) float32, NaN where there
        are none.

        rows (B,) of tuples, documents (M,); positions (B, m) say where a tuple's documents are among them.
        """
        if self.scorer is not None:
            return self.scorer(self.index[rows, 0], documents)
        if self.own is None:
            return None
        found = np.full((len(rows), len(documents)), np.nan, np.float32)
        np.put_along_axis(found, positions, self.own[rows], 1)
        return found


def build(
    spec: recipe.Tuples,
    tuples: Rows,
    teachers: list[Embedded],
    scored: bool,
    session: Session,
    place: str,
    seed: int,
) -> ScoredTuples:
    """The tuples of a stage with their negatives and, where `scored`, with the teacher's scores.

    `teachers` have embedded both sides; the first is the recipe's own, by whose cosines a negative is judged
    too near. The recipe describes them at `place`. Raises UserError: too few documents to draw negatives
    from, documents without words for BM25, a cross-encoder that is none.
    """
    of, index = spec.scores, np.asarray(tuples.index[: tuples.training_count])
    identity = [each.identity for each in teachers]
    near, scorer = cosines(teachers[:1]), None
    if not of.of_the_tuple and (scored or spec.negatives is not None):
        dense = cosines(teachers[1:]) if of.teachers else near
        scorer = _scorer(of, tuples, dense, identity, session, place)
    if spec.negatives is not None:
        key = files.cache_key(
            format=FORMAT,
            tuples=tuples.fingerprint,
            scores=of.model_dump(mode="json", include={"bm25"}),
            negatives=spec.negatives.model_dump(),
            teachers=identity,
            seed=seed,
        )
        draw = _Draw(spec.negatives, tuples, index, scorer or near, near, f"{place}.negatives", seed)
        folder = cached_folder(
            session.cache / "negatives" / key, lambda new: draw.write(new / "index.npy", session), session.log
        )
        index = mapped(folder / "index.npy")
    if not scored:
        return ScoredTuples(index)
    if of.columns is not None:
        assert tuples.scores is not None, "the table has these columns"
        return ScoredTuples(index, own=tuples.scores[: len(index)])
    if of.cross_encoder is not None:
        return ScoredTuples(index, own=_cross_encoder(of.cross_encoder, tuples, index, session, place))
    return ScoredTuples(index, scorer)


def cosines(teachers: list[Embedded]) -> Scorer:
    """The mean of the teachers' cosines."""

    def score(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        found = [each.queries[queries] @ each.documents[documents].T for each in teachers]
        return np.asarray(np.mean(found, axis=0, dtype=np.float32))

    return score


def _scorer(
    of: recipe.Scores,
    tuples: Rows,
    dense: Scorer,
    identity: list[Any],
    session: Session,
    place: str,
) -> Scorer:
    """What scores any query and document of the tuples: the cosines `dense`, of teachers with this identity,
    or with `bm25` the sum of their z-scores and the weighted ones of BM25, each over all documents."""
    if of.bm25 is None:
        return dense
    index = bm25.BM25(tuples.sides[1], f"{place}.scores.bm25")  # raises where the documents have no words

    def of_words(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        return index.scores(tuples.sides[0].texts(queries))[:, documents]

    parts, weight = (dense, of_words), np.float32(of.bm25.weight)
    key = files.cache_key(format=FORMAT, tuples=tuples.fingerprint, teachers=identity, of=len(of.teachers))

    def write(new: Path) -> None:
        """The moments of all queries: (n, 4), those of the cosines, then of BM25."""
        sample, found = tuples.sides[1].spread(MOMENTS), []
        with progress_bar(len(tuples.sides[0]), session.progress, "scoring", "queries") as advance:
            for queries in _chunks(len(tuples.sides[0])):
                found.append(np.concatenate([bm25.moments(part(queries, sample)) for part in parts], 1))
                advance(len(queries))
        np.save(new / "moments.npy", np.concatenate(found))

    moments = np.load(cached_folder(session.cache / "scores" / key, write, session.log) / "moments.npy")

    def score(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        known = np.split(moments[queries], 2, axis=1)
        cosine, lexical = (
            bm25.standardized(part(queries, documents), of_part)
            for part, of_part in zip(parts, known, strict=True)
        )
        return np.asarray(cosine + weight * lexical)

    return score


class _Draw(NamedTuple):
    """How negatives are drawn: by the scores `ranked`, but none whose cosine to the query is too near to the
    positive's."""

    spec: recipe.Negatives
    tuples: Rows
    rows: np.ndarray
    ranked: Scorer
    near: Scorer
    place: str
    seed: int

    def write(self, file: Path, session: Session) -> None:
        """Write the index with the negatives of every tuple behind its own documents, none of them held out.
        Raises UserError for fewer documents than are to be drawn."""
        documents = np.arange(self.tuples.sides[1].training_count)
        taken = self.spec.count + self.rows.shape[1]
        if len(documents) < taken:
            fact = f"{self.spec.count} of {len(documents)} documents are to be drawn for each query"
            raise UserError(f"{self.place}.count: {fact}, beside its own; lower it, or add documents")
        random, found = np.random.default_rng(self.seed), []
        answers = _answers(self.rows)
        with progress_bar(len(self.rows), session.progress, "drawing negatives", "queries") as advance:
            for rows in _chunks(len(self.rows)):
                queries = self.rows[rows, 0]
                scores = self.ranked(queries, documents)
                cosine = scores if self.ranked is self.near else self.near(queries, documents)
                nearest = cosine[np.arange(len(rows)), self.rows[rows, 1]][:, None]
                scores = np.where(cosine > MOST_SHARE * nearest, -np.inf, scores)
                for row, query in enumerate(queries.tolist()):
                    scores[row, answers[query]] = -np.inf
                found += [stratified(row, self.spec, random) for row in scores]
                advance(len(rows))
        np.save(file, np.concatenate([self.rows, np.stack(found)], 1))


def stratified(scores: np.ndarray, spec: recipe.Negatives, random: np.random.Generator) -> np.ndarray:
    """`count` documents (count,) spread over the range of a query's best `ranks` scores: the range is cut
    into `count` equal parts, and the document nearest to a random score of each part is drawn.

    scores (n,): −inf for what may not be drawn; where too little else is left, that is drawn too.
    """
    finite, parts = np.isfinite(scores), np.arange(spec.count)
    best = np.argsort(-scores, kind="stable")[: max(spec.count, min(spec.ranks, int(finite.sum())))]
    values = np.maximum(scores[best], scores[finite].min(initial=0))
    edges = np.linspace(values[0], values[-1], spec.count + 1)
    found = np.searchsorted(-values, -random.uniform(edges[1:], edges[:-1]))
    found = np.maximum.accumulate(found - parts) + parts  # no document twice
    return np.asarray(best[np.minimum(found, len(best) - spec.count + parts)])


def _answers(index: np.ndarray) -> dict[int, list[int]]:
    """The documents of each query in all of its tuples."""
    found: dict[int, list[int]] = {}
    for query, *documents in index.tolist():
        found.setdefault(query, []).extend(documents)
    return found


def _cross_encoder(
    spec: recipe.CrossEncoder, tuples: Rows, index: np.ndarray, session: Session, place: str
) -> np.ndarray:
    """A cross-encoder's scores of each tuple's documents, (n, m) float32, from the cache where it has
    them."""
    at = f"{place}.scores.cross_encoder"
    folder = resolve.model_files(resolve.resolve(spec.model), spec.revision, at)
    hashes = files.sha256_folder(folder, resolve.MODEL_FILES)
    content = files.cache_key(
        format=FORMAT,
        tuples=tuples.fingerprint,
        index=hashlib.sha256(index.tobytes()).hexdigest(),
        model=hashes,
        most=spec.max_tokens,
    )

    def write(new: Path) -> None:
        model = _open_cross_encoder(folder, spec, session, at)
        queries, documents = tuples.sides[0], tuples.sides[1]
        found = []
        with progress_bar(len(index), session.progress, "cross-encoder", "queries") as advance:
            for rows in _chunks(len(index)):
                pairs = [
                    (queries[row[0]], documents[each]) for row in index[rows].tolist() for each in row[1:]
                ]
                found.append(np.asarray(model.predict(pairs, show_progress_bar=False), np.float32))
                advance(len(rows))
        scores = np.concatenate(found).reshape(len(index), -1)
        if not np.isfinite(scores).all() or np.ptp(scores) == 0:
            raise UserError(f"{at}: its scores are not finite, or all the same; choose another model")
        np.save(new / "scores.npy", scores)

    found = cached_folder(session.cache / "scores" / content, write, session.log)
    return np.asarray(np.load(found / "scores.npy"))


def _open_cross_encoder(folder: Path, spec: recipe.CrossEncoder, session: Session, place: str) -> Any:
    """The model of sentence-transformers. Raises UserError for a model without a head of one score."""
    from sentence_transformers import CrossEncoder

    config = files.read_json_object(folder / "config.json", f"set {place}.model to a cross-encoder")
    heads = [each for each in config.get("architectures") or [] if each.endswith("ForSequenceClassification")]
    labels = len(config.get("id2label") or {"0": "", "1": ""})
    if not heads or labels != 1:
        fact = f"{labels} labels" if heads else f"no classifier head ({config.get('architectures')})"
        raise UserError(f"{place}.model: {spec.model} has {fact}, a cross-encoder gives one score; name one")
    return CrossEncoder(
        str(folder), max_length=spec.max_tokens, trust_remote_code=session.remote_code, device=session.device
    )


def _chunks(rows: int) -> list[np.ndarray]:
    return [np.arange(start, min(start + CHUNK, rows)) for start in range(0, rows, CHUNK)]
