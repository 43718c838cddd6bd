"""Retrieval: nDCG@10 of a corpus ranked by cosine, on folders in BEIR's format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from edgedistill.data.readers import normalize
from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Encode, Floats, encoded, unit
from edgedistill.evaluation.suites.suite_files import (
    Family,
    Find,
    Rows,
    Task,
    add_texts,
    columns,
    either,
    jsonl,
)
from edgedistill.runtime.compact import compact
from edgedistill.runtime.similarity import search

CHUNK_TEXTS = 4096  # of a corpus, encoded at a time: bounds the memory
QUERIES = 1024  # scored for at a time: bounds the memory too
# candidates kept per query between chunks; more than k, so that ties at rank k are broken as trec_eval does
POOL = 100


class RetrievalFolder(Task):
    """A BEIR folder with corpus.jsonl, queries.jsonl and qrels.tsv or qrels/test.tsv, each also .gz. Another
    split than test is read from qrels/SPLIT.tsv or qrels_SPLIT.tsv, and from queries_SPLIT.jsonl if there is
    one."""

    folder: str = Field(description="next to suite.yaml, else under --data")
    split: str = Field("test", description="which judgements of the folder")
    same_ids: bool = Field(
        False,
        description="queries are texts of the corpus under the same id; a query's own text is excluded from "
        "its ranking",
    )


@dataclass(frozen=True)
class Collection:
    """One retrieval task, with its queries and relevance grades in memory and the corpus on disk."""

    corpus: Path
    query_ids: list[str]
    queries: list[str]
    relevance: list[dict[str, int]]  # per query: corpus id -> grade
    same_ids: bool

    def chunks(self, size: int = CHUNK_TEXTS) -> Iterator[tuple[list[str], list[str]]]:
        """Read the corpus from disk as (ids, texts), `size` at a time."""
        rows = jsonl(self.corpus)
        while chunk := list(islice(rows, size)):
            yield [name for name, _, _ in chunk], [normalize(f"{title} {text}") for _, title, text in chunk]


def ndcg(grades: list[int], relevant: list[int], k: int = 10) -> float:
    """Return nDCG@k with linear gain, as trec_eval's ndcg_cut does. `grades` are those of the ranked texts,
    best first; `relevant` are all grades of the query."""
    discount = 1 / np.log2(np.arange(2, k + 2))
    gained = np.maximum(np.array(grades[:k], dtype=float), 0)
    ideal = np.sort(np.maximum(np.array(relevant, dtype=float), 0))[::-1][:k]
    best = float(ideal @ discount[: len(ideal)])
    return float(gained @ discount[: len(gained)]) / best if best > 0 else 0.0


def read(part: RetrievalFolder, find: Find, rows: Rows) -> Collection:
    """Read the queries that have judgements; the corpus stays on disk."""
    folder = find(part.folder)
    corpus = either(folder, "corpus.jsonl")
    of_test = ("qrels.tsv",) if part.split == "test" else ()
    qrels = either(folder, *of_test, f"qrels/{part.split}.tsv", f"qrels_{part.split}.tsv")
    relevance: dict[str, dict[str, int]] = {}
    for query, text, grade in columns(qrels, ["query-id", "corpus-id", "score"]):
        try:
            relevance.setdefault(query, {})[text] = int(grade)
        except ValueError:
            raise UserError(
                f"{qrels}: query {query}, text {text}: grade {grade!r} is not a whole number; correct it"
            ) from None
    asked = jsonl(either(folder, f"queries_{part.split}.jsonl", "queries.jsonl"))
    queries = {name: normalize(text) for name, _, text in asked if name in relevance}
    if not queries or len(queries) < len(relevance):
        lost = next((name for name in relevance if name not in queries), None)
        fact = "no judgements" if lost is None else f"query {lost!r} is not in queries.jsonl"
        raise UserError(f"{qrels}: {fact}; take both from the same release")
    add_texts(queries.values(), rows)
    grades = [relevance[name] for name in queries]
    return Collection(corpus, list(queries), list(queries.values()), grades, part.same_ids)


def score(collection: Collection, encode: Encode, precisions: Sequence[str] = ()) -> dict[str, Any]:
    """Return `ndcg_at_10`, the number of `queries` and `texts` and, where there are `precisions`, the nDCG@10
    of the texts' embeddings in each: {precision: nDCG@10}, see `_in_fewer_bytes`."""
    stored = {precision: list[Any]() for precision in precisions}

    def keep(names: list[str], embeddings: Floats) -> None:
        ids.extend(names)
        for precision, parts in stored.items():
            parts.append(compact(embeddings, precision))

    ids = list[str]()
    values, texts = each_query(collection, encode, keep)
    found: dict[str, Any] = {"ndcg_at_10": float(np.mean(values)), "queries": len(values), "texts": texts}
    if precisions:
        queries = unit(encoded(encode, collection.queries))
        documents = {precision: np.concatenate(parts) for precision, parts in stored.items()}
        found["embeddings"] = _in_fewer_bytes(collection, queries, ids, documents)
    return found


def _in_fewer_bytes(
    collection: Collection, queries: Floats, ids: list[str], documents: dict[str, Any]
) -> dict[str, float]:
    """Return nDCG@10 of the texts' embeddings in each precision, which are held in memory, and of float32
    queries. Of bits the nearest POOL by Hamming distance are ranked by the cosine of query and bits and, as
    `binary+int8`, of query and int8."""
    variants = {precision: (rows, None) for precision, rows in documents.items()}
    if {"binary", "int8"} <= set(documents):
        variants["binary+int8"] = documents["binary"], documents["int8"]
    found = {}
    for name, (rows, rescore) in variants.items():
        numbers, cosines = search(queries, rows, POOL, POOL, rescore)
        pools = []
        for query, *ranked in zip(collection.query_ids, cosines.tolist(), numbers.tolist(), strict=True):
            own = query if collection.same_ids else None
            pairs = [(cosine, ids[number]) for cosine, number in zip(*ranked, strict=True)]
            pools.append(sorted((pair for pair in pairs if pair[1] != own), reverse=True))
        found[name] = float(np.mean(_of_each(pools, collection)))
    return found


def each_query(
    collection: Collection, encode: Encode, keep: Callable[[list[str], Floats], None] | None = None
) -> tuple[list[float], int]:
    """Return (nDCG@10 of every query, number of ranked texts). Memory is bounded, because only the best POOL
    per query are kept between chunks. `keep` gets the ids and unit embeddings of each chunk."""
    queries = unit(encoded(encode, collection.queries))
    pools: list[list[tuple[float, str]]] = [[] for _ in queries]  # (cosine, id) of each query
    count = 0
    for names, texts in collection.chunks():
        embeddings = unit(encoded(encode, texts))
        count += len(names)
        if keep is not None:
            keep(names, embeddings)
        for start in range(0, len(queries), QUERIES):
            cosines = queries[start : start + QUERIES] @ embeddings.T
            kept = np.argpartition(-cosines, min(POOL, len(names)) - 1, axis=1)[:, :POOL]
            best = np.take_along_axis(cosines, kept, axis=1).tolist()
            for query, (values, rows) in enumerate(zip(best, kept.tolist(), strict=True), start):
                own = collection.query_ids[query] if collection.same_ids else None
                found = [(value, names[row]) for value, row in zip(values, rows, strict=True)]
                pools[query] += [pair for pair in found if pair[1] != own]
                # of ties the higher id comes first, as in trec_eval
                pools[query] = sorted(pools[query], reverse=True)[:POOL]
    return _of_each(pools, collection), count


def _of_each(pools: list[list[tuple[float, str]]], collection: Collection) -> list[float]:
    """Return nDCG@10 of every query, given the (cosine, id) of its texts, best first."""
    scores = []
    for pool, relevance in zip(pools, collection.relevance, strict=True):
        grades = [relevance.get(name, 0) for _, name in pool]
        scores.append(ndcg(grades, list(relevance.values())))
    return scores


FAMILY = Family(RetrievalFolder, read, score, "ndcg_at_10", "nDCG@10 × 100", takes_precisions=True)
