"""What an adaptation changes for search: nDCG@10 on queries that were held out, beside the teacher and BM25.

A query made of a held-out text is one of its sentences, and what is to be found is the rest of that text
among the others. A user's own queries are to find their answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files, recipe
from edgedistill.data import corpus, made_tuples
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.evaluation.suites import retrieval
from edgedistill.evaluation.suites.cosines import Encode, Encoder, encoded, unit
from edgedistill.session import Session
from edgedistill.teacher.embedding_cache import HashIndex, TeacherPass, text_hashes
from edgedistill.teacher.encoder import TeacherEncoder

MOST_TEXTS = 1_000  # among which the answers are to be found
MOST_QUERIES = 300
WEIGHTS = (0.25, 0.5, 1.0)  # of BM25, of which the best is chosen on the queries that were made


@dataclass(frozen=True)
class Queries:
    """Held-out queries, what each is to find, and the texts among which it is."""

    title: str
    texts: list[str]
    answers: list[list[str]]
    others: list[str]

    def write(self, folder: Path) -> retrieval.Collection:
        """The collection as bench reads one, in `folder`."""
        documents = list(dict.fromkeys([text for each in self.answers for text in each] + self.others))
        numbers = {text: str(at) for at, text in enumerate(documents)}
        rows = ({"_id": numbers[text], "title": "", "text": text} for text in documents)
        lines = (files.json_text(row) + "\n" for row in rows)
        (folder / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
        relevance = [{numbers[text]: 1 for text in each} for each in self.answers]
        names = [str(at) for at in range(len(self.texts))]
        return retrieval.Collection(folder / "corpus.jsonl", names, self.texts, relevance)


def made(texts: Corpus, own: int, held_out: int) -> Queries | None:
    """A query of each of the `held_out` texts of several sentences, to find the rest of the text among the
    other `own` whole texts; None where there are no such texts."""
    spec, random = recipe.TupleCorpus(kind="corpus"), np.random.default_rng(0)
    queries, answers = list[str](), list[list[str]]()
    for row in texts.held_out[: min(held_out, MOST_QUERIES)].tolist():
        if found := made_tuples.of_text(spec, text := texts[row]):
            query = found[int(random.integers(len(found)))]
            queries.append(query)
            answers.append([" ".join(text.replace(query, " ").split())])
    if not queries:
        return None
    return Queries("made of held-out texts", queries, answers, _spread(texts, own, MOST_TEXTS - len(answers)))


def own_queries(pairs: ParallelCorpus, texts: Corpus, own: int, name: str) -> Queries:
    """The held-out queries of a user's pairs, to find their answers among the answers to others, and the
    texts."""
    answers: dict[str, list[str]] = {}
    for query, answer in pairs.index[pairs.held_out].tolist():
        answers.setdefault(pairs.source_side[query], []).append(pairs.target_side[answer])
    chosen = dict(list(answers.items())[:MOST_QUERIES])
    others = _spread(pairs.target_side, len(pairs.target_side), MOST_TEXTS // 2)
    others += _spread(texts, own, MOST_TEXTS - len(others) - len(chosen))
    return Queries(f"held out of {name}", list(chosen), list(chosen.values()), others)


def _spread(texts: Corpus, first: int, most: int) -> list[str]:
    """At most so many of the first texts, spread evenly."""
    return texts.texts(np.linspace(0, first - 1, max(0, min(most, first))).astype(int))


class Measured:
    """nDCG@10 of several encoders on the same queries, alone and beside BM25."""

    def __init__(self, queries: Queries, folder: Path, teacher: TeacherEncoder, session: Session) -> None:
        """Measures BM25 and the teacher; the collection is written to `folder`."""
        self.queries = queries
        self.collection = queries.write(folder)
        self.alone: dict[str, float] = {}
        self.beside: dict[str, dict[float, float]] = {}  # by encoder, by BM25's weight
        index = self.add("teacher", by_roles(teacher, self.collection, session))
        self.bm25, self.texts = self._ndcg(retrieval.ranked_by_bm25(self.collection, index)), len(index.names)

    def add(self, name: str, encoder: Encoder) -> retrieval.Index:
        """Measure an encoder. Returns the index of its embeddings."""
        index = retrieval.indexed(self.collection, encoder.document)
        asked = unit(encoded(encoder.query, self.queries.texts))
        self.alone[name] = self._ndcg(retrieval.ranked(self.collection, asked, index))
        self.beside[name] = {
            weight: self._ndcg(retrieval.ranked(self.collection, asked, index, weight)) for weight in WEIGHTS
        }
        return index

    def _ndcg(self, ranking: list[retrieval.Ranking]) -> float:
        return retrieval.measures(ranking, self.collection)["ndcg_at_10"]

    def weight(self, name: str) -> float:
        """The weight of BM25 with which an encoder is best."""
        return max(WEIGHTS, key=lambda weight: self.beside[name][weight])

    def record(self, weight: float) -> dict[str, Any]:
        """What is reported, with one weight of BM25."""
        beside = {name: each[weight] for name, each in self.beside.items()}
        sizes = {"queries": len(self.queries.texts), "texts": self.texts}
        return {**sizes, "ndcg_at_10": self.alone, "with_bm25": beside, "bm25": self.bm25}


def by_roles(teacher: TeacherEncoder, collection: retrieval.Collection, session: Session) -> Encoder:
    """The teacher on the texts of a collection and its queries; what training has embedded is in the
    cache."""

    def in_role(role: str, texts: list[str]) -> Encode:
        folder = collection.corpus.parent / role
        folder.mkdir()
        corpus.write(folder, texts, None, [])
        rows = TeacherPass(teacher.in_role(role), Corpus(folder), session).open()
        index = HashIndex(text_hashes(texts))
        return lambda asked: rows[index.find(text_hashes(asked))]

    queries = in_role("query", collection.queries)
    return Encoder(
        queries, queries, in_role("document", [text for _, texts in collection.chunks() for text in texts])
    )


def lines(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """The rows of a table of what was measured, {"bm25_weight", "made", "own"}: title, and each encoder's
    nDCG@10."""
    titles = {"made": "made of held-out texts", "own": "of the held-out pairs"}
    for name in (each for each in titles if each in found):
        of = found[name]
        yield f"nDCG@10 of {of['queries']:,} queries {titles[name]}", of["ndcg_at_10"]
        beside = f"  with BM25 (weight {found['bm25_weight']:g}; alone {100 * of['bm25']:.1f})"
        yield beside, of["with_bm25"]
