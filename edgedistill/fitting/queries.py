"""A user's queries: a table of them and their answers is read, trained on behind the texts, and what search
gains is measured: nDCG@10 on queries that were held out, beside the teacher and BM25.

A query made of a held-out text is one of its sentences, and what is to be found is the rest of that text
among the others. A user's own queries are to find their answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import recipe
from edgedistill.data import file_patterns, made_tuples, rows
from edgedistill.data.bm25 import WEIGHT
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError, as_options
from edgedistill.evaluation.suites import retrieval
from edgedistill.evaluation.suites.cosines import Encoder
from edgedistill.evaluation.suites.retrieval import BESIDE
from edgedistill.evaluation.suites.suite_files import Search
from edgedistill.session import Session
from edgedistill.training.training_sources import TrainingSources

PAIR_BATCH, PAIR_WEIGHT, PAIR_RATE = 32, 0.4, 0.75  # the rate: of the learning rate on the texts
PAIR_SHARE, PAIR_EPOCHS = 0.2, 6.0  # of the steps on texts; at most so many passes
# Steps on pairs with long answers on two cores, and the share of the minutes that pairs get at most.
PAIR_STEPS_PER_MINUTE, MOST_PAIR_MINUTES = 15, 0.5
FEWEST_PAIRS = 20
PAIR_INITIAL_SHARE = 0.6  # of what the texts have taught: see bench/LOG.md
HELD_OUT_SHARE, MOST_HELD_OUT = 0.1, 150
MOST_TEXTS = 1_000  # among which the answers are to be found
MOST_QUERIES = 300
FEW_QUERIES = 50  # below which a difference of a point or two says nothing
COLUMNS = "--query-column and --text-column"
WORDS = {"--pairs.files": "--pairs", "--pairs.columns": COLUMNS, "columns and exclude": COLUMNS}
TITLES = {"made": "made of held-out texts", "own": "of the held-out pairs"}


@dataclass(frozen=True)
class Pairs:
    """A table of queries and the texts that answer them, by its columns."""

    file: str
    query_column: str = "query"
    text_column: str = "text"
    rows: int = 0  # those to train on
    held_out: int = 0  # queries

    @property
    def section(self) -> dict[str, Any]:
        """The `rows` of a recipe's stage."""
        columns = [self.query_column, self.text_column]
        return {"files": [self.file], "columns": columns, "held_out": self.held_out}

    @property
    def table(self) -> recipe.Rows:
        """The same, parsed."""
        return recipe.Rows(**self.section)

    def read(self, session: Session) -> Rows:
        """The pairs, the held-out ones last. Raises UserError as reading a table does."""
        with as_options(WORDS):
            return rows.build(self.table, session, 0, place="--pairs")


def counted(pairs: Pairs, session: Session) -> Pairs:
    """The pairs with their numbers: how many queries are held out, and about how many rows that leaves.
    Raises UserError as reading a table does, and for too few."""
    if pairs.query_column == pairs.text_column:
        fact = f"{pairs.text_column!r} is the column of queries too"
        raise UserError(f"--text-column: {fact}; name that of the texts which answer them")
    pairs = relative(pairs, session)
    whole = pairs.read(session)
    queries = len(whole.sides[0])
    if queries < FEWEST_PAIRS:
        raise UserError(f"--pairs: {queries} distinct queries, at least {FEWEST_PAIRS} are needed; add pairs")
    kept = held_out(queries, 5)
    session.log(f"{len(whole):,} pairs of {queries:,} queries, {kept:,} of them held out")
    return replace(pairs, held_out=kept, rows=round(len(whole) * (1 - kept / queries)))


def relative(pairs: Pairs, session: Session) -> Pairs:
    """The pairs, of a file by its path from the data folder where it is below that."""
    (file,), _ = file_patterns.given([pairs.file], session.data, "--pairs")
    return replace(pairs, file=file)


def held_out(count: int, least: int) -> int:
    """How many of so many texts or queries are held out to measure search with."""
    return max(least, min(MOST_HELD_OUT, int(HELD_OUT_SHARE * count)))


def stages(texts: dict[str, Any], pairs: Pairs | None) -> list[dict[str, Any]]:
    """The stages of a recipe: the one that trains on texts and, where there are pairs, behind it the one that
    trains on queries and the texts that answer them."""
    if pairs is None or not texts["steps"]:
        return [texts]
    terms = [
        {"weight": 1.0, "objective": {"kind": "each_side", "objective": {"kind": "cosine"}}},
        {"weight": PAIR_WEIGHT, "objective": {"kind": "info_nce"}},
    ]
    batch = min(PAIR_BATCH, pairs.rows)
    steps = min(round(PAIR_SHARE * texts["steps"]), round(PAIR_EPOCHS * pairs.rows / batch))
    behind: dict[str, Any] = {
        "name": "pairs",
        "objective": {"kind": "sum", "terms": terms},
        "rows": pairs.section,
        "batch": batch,
        "steps": max(1, steps),
        "learning_rate": PAIR_RATE * texts["learning_rate"],
        "initial_share": PAIR_INITIAL_SHARE,
        **{key: texts[key] for key in ("max_tokens", "optimizer", "rehearsal") if key in texts},
    }
    return [texts, behind]


def timed(stages: list[dict[str, Any]], minutes: float) -> list[dict[str, Any]]:
    """The stages, ended by the clock; their steps are the most. Pairs get the minutes that their steps take,
    at most half of all."""
    *texts, last = stages
    if not texts:
        return [{**last, "minutes": minutes}]
    of_pairs = min(MOST_PAIR_MINUTES * minutes, last["steps"] / PAIR_STEPS_PER_MINUTE)
    return [{**texts[0], "minutes": minutes - of_pairs}, {**last, "minutes": of_pairs}]


# ---- measured


@dataclass(frozen=True)
class Queries(retrieval.Collection):
    """Held-out queries, what each is to find, and the `documents` among which it is, in memory."""

    documents: list[str]

    @property
    def names(self) -> list[str]:
        """The ids of the documents."""
        return list(map(str, range(len(self.documents))))

    def chunks(self, size: int = 0) -> Iterator[tuple[list[str], list[str]]]:
        """All documents at once."""
        yield self.names, self.documents


def of_answers(answers: Mapping[str, list[str]], others: Iterable[str]) -> Queries:
    """The answers of all queries and other texts are the documents. Raises UserError where BM25 finds no
    words in them."""
    documents = list(dict.fromkeys([*chain.from_iterable(answers.values()), *others]))
    at = {text: str(row) for row, text in enumerate(documents)}
    relevance = [{at[text]: 1 for text in texts} for texts in answers.values()]
    queries = Queries(Path("--texts"), list(answers), relevance, documents)
    _ = queries.bm25  # raises
    return queries


def asked(sources: TrainingSources) -> dict[str, Queries]:
    """Queries by what they are of, see TITLES: one of each held-out text that has several sentences, and
    those that the pairs hold out, the rows of a stage.

    Raises UserError where BM25 finds no words in the texts.
    """
    collections = dict[str, Queries]()
    texts, whole = sources.texts.sides[0], sources.section.held_out
    mine = texts.own - whole
    if made := _made(texts.texts(texts.held_out[: min(whole, MOST_QUERIES)])):
        collections["made"] = of_answers(made, texts.texts(texts.spread(MOST_TEXTS - len(made), 0, mine)))
    for pairs in map(sources.of_stage, sources.tables):
        answers: dict[str, list[str]] = {}
        queries, documents = pairs.sides
        for query, answer in pairs.index[pairs.held_out].tolist():
            answers.setdefault(queries[query], []).append(documents[answer])
        answers = dict(list(answers.items())[:MOST_QUERIES])
        others = documents.texts(documents.spread(MOST_TEXTS // 2))
        others += texts.texts(texts.spread(MOST_TEXTS - len(others) - len(answers), 0, mine))
        collections["own"] = of_answers(answers, others)
    return collections


def _made(texts: list[str]) -> dict[str, list[str]]:
    """A sentence of each text that has several, and the rest of the text."""
    random = np.random.default_rng(0)
    made: dict[str, list[str]] = {}
    for text in texts:
        if sentences := made_tuples.of_text(text):
            query = sentences[int(random.integers(len(sentences)))]
            made.setdefault(query, []).append(" ".join(text.replace(query, " ").split()))
    return made


def compared(asked: Mapping[str, Queries], encoders: Mapping[str, Encoder]) -> dict[str, Any]:
    """nDCG@10 of encoders on queries, alone and beside BM25 as `search` joins them, {"made", "own"}."""

    def searched(collection: Queries) -> dict[str, Any]:
        rankings = {who: collection.rankings(encoder, Search(WEIGHT)) for who, encoder in encoders.items()}
        beside = {who: by_title[BESIDE] for who, by_title in rankings.items()}
        return {
            "queries": len(collection.queries),
            "texts": len(collection.documents),
            "ndcg_at_10": {who: by_title[""]["ndcg_at_10"] for who, by_title in rankings.items()},
            "with_bm25": {who: measures["ndcg_at_10"] for who, measures in beside.items()},
            "bm25": next(iter(beside.values()))["bm25"]["ndcg_at_10"],
        }

    return {name: searched(collection) for name, collection in asked.items()}
