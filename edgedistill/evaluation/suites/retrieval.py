"""Retrieval: nDCG@10 of a corpus ranked by cosine, and beside BM25, on folders in BEIR's format; bitext: is a
text's nearest neighbour among all translations its own? (Artetxe and Schwenk 2019, Tatoeba)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from edgedistill.data.bm25 import BM25, blocks, joined
from edgedistill.data.readers import normalize
from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Encode, Encoder, Floats, Ints, Measures, encoded, unit
from edgedistill.evaluation.suites.suite_files import (
    Find,
    Index,
    Search,
    Task,
    TaskData,
    columns,
    either,
    records,
    tabbed,
)
from edgedistill.runtime import similarity
from edgedistill.runtime.compact import compact

CHUNK_TEXTS = 4096  # of a corpus, encoded at a time
POOL = 10  # ranked per query
BESIDE = " + BM25"  # in the title of a ranking, after the suite's name
Ranking = list[tuple[float, str]]  # (score, id) of a query's texts, best first


class RetrievalFolder(Task):
    """A BEIR folder with corpus.jsonl, queries.jsonl and qrels.tsv or qrels/test.tsv, each also .gz. Another
    split than test is read from qrels/SPLIT.tsv or qrels_SPLIT.tsv, and from queries_SPLIT.jsonl if there is
    one. In place of .jsonl there may be .tsv without a header: id, title, text of the corpus, id, text of the
    queries, query, text, grade of qrels.tsv."""

    averaged: ClassVar[str] = "ndcg_at_10"
    title: ClassVar[str] = "nDCG@10 × 100"

    folder: str = Field(description="next to suite.yaml, else under --data")
    split: str = Field("test", description="which judgements of the folder")

    def read(self, find: Find) -> Collection:
        """Read the queries that have judgements; the corpus stays on disk."""
        folder = find(self.folder)
        split = self.split
        corpus = either(folder, "corpus.jsonl", "corpus.tsv")
        of_test = ("qrels.tsv",) if split == "test" else ()
        qrels = either(folder, *of_test, f"qrels/{split}.tsv", f"qrels_{split}.tsv")
        judgements = columns(qrels, ["query-id", "corpus-id", "score"])
        if ".tsv" in corpus.suffixes:
            judgements = (tuple(fields) for fields in tabbed(qrels, 3))
        relevance: dict[str, dict[str, int]] = {}
        for query, text, grade in judgements:
            if not grade.removeprefix("-").isdecimal():
                raise UserError(
                    f"{qrels}: query {query}, text {text}: grade {grade!r} is not a whole number; correct it"
                )
            relevance.setdefault(query, {})[text] = int(grade)
        path = either(folder, f"queries_{split}.jsonl", "queries.jsonl", "queries.tsv")
        queries = {name: normalize(text) for name, _, text in records(path) if name in relevance}
        lost = [name for name in relevance if name not in queries]
        if lost or not queries:
            fact = f"query {lost[0]!r} is not in {path.name}" if lost else "no judgements"
            raise UserError(f"{qrels}: {fact}; take both from the same release")
        return Collection(corpus, list(queries.values()), [relevance[name] for name in queries])


@dataclass(frozen=True)
class Collection(TaskData):
    """One retrieval task, with its queries and relevance grades in memory and the corpus on disk."""

    corpus: Path
    queries: list[str]
    relevance: list[dict[str, int]]  # per query: corpus id -> grade

    @property
    def texts(self) -> list[str]:
        return self.queries

    @property
    def timed(self) -> list[str]:
        return self.queries + next(self.chunks(), ([], []))[1]

    def chunks(self, size: int = CHUNK_TEXTS) -> Iterator[tuple[list[str], list[str]]]:
        """Read the corpus from disk as (ids, texts), `size` at a time."""
        rows = records(self.corpus)
        while chunk := list(islice(rows, size)):
            names = [name for name, _, _ in chunk]
            texts = [normalize(f"{title} {text}") for _, title, text in chunk]
            yield names, texts

    @cached_property
    def bm25(self) -> BM25:
        """BM25 over the texts, whose index is kept in memory."""
        return BM25((text for _, texts in self.chunks() for text in texts), str(self.corpus))

    def score(self, encoder: Encoder) -> Measures:
        """`ndcg_at_10`, and the number of `queries` and `texts`."""
        return self.rankings(encoder, Search())[""]

    def rankings(self, encoder: Encoder, search: Search, averaged: str = "") -> dict[str, Measures]:
        """By title: of "" by cosine and, with a weight, of " + BM25" by both, which also has the measures of
        `bm25` alone. `samples` has the nDCG@10 of every query."""
        queries = unit(encoded(encoder.query, self.queries))
        index = indexed(self, encoder.document)
        counts = {"queries": len(queries), "texts": len(index.names)}
        by_title = {"": measures(ranked(self, queries, index), self) | counts}
        if search.weight is not None:
            alone = measures(ranked_by_bm25(self, index), self)
            both = measures(ranked(self, queries, index, search.weight), self)
            by_title[BESIDE] = {**both, **counts, "bm25": alone}
        if search.precisions:
            by_title[""]["embeddings"] = _in_fewer_bytes(self, queries, index, search, encoder)
        return by_title


def ndcg(grades: list[int], relevant: list[int]) -> float:
    """Return nDCG@10 with linear gain, as trec_eval's ndcg_cut does. `grades` are those of the ranked texts,
    best first; `relevant` are all grades of the query."""
    best = _gain(sorted(relevant, reverse=True))
    return _gain(grades) / best if best > 0 else 0.0


def _gain(grades: list[int]) -> float:
    """The discounted gain of the first ten."""
    gains = np.maximum(grades[:10], 0)
    return float(gains @ (1 / np.log2(np.arange(2, 2 + len(gains)))))


def _in_fewer_bytes(
    collection: Collection, queries: Floats, index: Index, search: Search, encoder: Encoder
) -> dict[str, float]:
    """Return nDCG@10 of the texts' embeddings in each precision; queries stay float32. Of bits the nearest
    100 by Hamming distance are ranked by the cosine of query and bits and, as `binary+int8`, of query and
    int8."""
    fit = encoder.calibration
    stored = {name: compact(index.embeddings, name, fit) for name in search.precisions}
    variants: dict[str, tuple[Any, Any]] = {name: (rows, None) for name, rows in stored.items()}
    if {"binary", "int8"} <= set(stored):
        variants["binary+int8"] = stored["binary"], stored["int8"]
    averages = {}
    for name, (rows, rescore) in variants.items():
        numbers, cosines = similarity.search(queries, rows, k=100, rescore=rescore, calibration=fit)
        averages[name] = float(np.mean(_ndcg(_sorted(cosines, numbers, index.names), collection)))
    return averages


def indexed(collection: Collection, encode: Encode) -> Index:
    """Embed the texts. Raises UserError where there is none."""
    names = []
    embeddings = []
    for ids, texts in collection.chunks():
        embeddings.append(unit(encoded(encode, texts)))
        names += ids
    if not names:
        raise UserError(f"{collection.corpus}: no texts; take it from the same release as the queries")
    return Index(names, np.concatenate(embeddings))


def ranked(
    collection: Collection, queries: Floats, index: Index, weight: float | None = None
) -> list[Ranking]:
    """Rank the texts for each query (q, d) by cosine, with a weight by words too."""
    pools = []
    for taken in blocks(len(queries), len(index.names)):
        scores: Floats = queries[taken] @ index.embeddings.T
        if weight is not None:
            words = collection.bm25
            scores = joined(scores, words.shares(collection.queries[taken]), weight * words.weight)
        pools += _best(scores, index.names)
    return pools


def ranked_by_bm25(collection: Collection, index: Index) -> list[Ranking]:
    """Rank by BM25 alone the texts that have a word of the query."""
    pools = []
    for taken in blocks(len(collection.queries), len(index.names)):
        best = _best(collection.bm25.scores(collection.queries[taken]), index.names)
        pools += [[pair for pair in ranking if pair[0] > 0] for ranking in best]
    return pools


def _best(scores: Floats, names: list[str]) -> list[Ranking]:
    """Return the POOL best texts of each query, given their scores (q, n)."""
    place = min(POOL, len(names)) - 1
    least = -np.partition(-scores, place, axis=1)[:, place]
    pools = []
    for row, edge in zip(scores, least, strict=True):
        kept = np.flatnonzero(row >= edge)  # all that tie at the edge
        pools.append(_sorted(row[None, kept], kept[None], names)[0][:POOL])
    return pools


def _sorted(scores: Floats, kept: Ints, names: list[str]) -> list[Ranking]:
    """Return the ranking of each query, given the scores (q, k) of its texts in the rows `kept` (q, k); of
    ties the higher id comes first, as in trec_eval."""
    return [
        sorted(((value, names[row]) for value, row in zip(*scored, strict=True)), reverse=True)
        for scored in zip(scores.tolist(), kept.tolist(), strict=True)
    ]


def measures(ranking: list[Ranking], collection: Collection) -> Measures:
    """Return nDCG@10, the mean over the queries, and as `samples` that of each."""
    scores = _ndcg(ranking, collection)
    return {"ndcg_at_10": float(np.mean(scores)), "samples": {"scores": scores}}


def _ndcg(ranking: list[Ranking], collection: Collection) -> list[float]:
    """Return nDCG@10 of every query."""
    return [
        ndcg([relevance.get(name, 0) for _, name in pool], list(relevance.values()))
        for pool, relevance in zip(ranking, collection.relevance, strict=True)
    ]


class BitextFile(Task):
    """A table of translations, one pair per row."""

    file: str = Field(description="next to suite.yaml, else under --data")
    first: str = Field(description="the column of one language")
    second: str = Field(description="the column of the other")

    def read(self, find: Find) -> Bitext:
        path = find(self.file)
        pairs = list(columns(path, [self.first, self.second]))
        if len(pairs) < 2:
            raise UserError(
                f"{path}: {len(pairs)} pairs, retrieval needs at least 2; give a table of translations"
            )
        return Bitext([first for first, _ in pairs], [second for _, second in pairs])


@dataclass
class Bitext(TaskData):
    """One task: second[i] is the translation of first[i]."""

    first: list[str]
    second: list[str]

    @property
    def texts(self) -> list[str]:
        return self.first + self.second

    def score(self, encoder: Encoder) -> Measures:
        """`forward` (second found for first), `backward`, their mean `accuracy`, and `pairs`."""
        first = unit(encoder.text(self.first))
        second = unit(encoder.text(self.second))
        forward = _hits(first, second, self.second)
        backward = _hits(second, first, self.first)
        return {
            "accuracy": float(np.mean([forward, backward])),
            "forward": float(np.mean(forward)),
            "backward": float(np.mean(backward)),
            "pairs": len(self.first),
            "samples": {"scores": np.mean([forward, backward], axis=0).tolist()},
        }


def _hits(queries: Floats, candidates: Floats, texts: list[str]) -> list[bool]:
    """Whether the nearest candidate of each row is that of the same row, or an equal text; the first of equal
    cosines counts."""
    nearest = similarity.search(queries, candidates, k=1)[0][:, 0].tolist()
    return [texts[at] == texts[row] for row, at in enumerate(nearest)]
