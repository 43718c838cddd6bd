"""A user's queries: a table of them and their answers is read, trained on behind the texts, and what search
gains is measured: nDCG@10 on queries that were held out, beside the teacher and BM25.

A query made of a held-out text is one of its sentences, and what is to be found is the rest of that text
among the others. A user's own queries are to find their answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import recipe
from edgedistill.data import file_patterns, made_tuples, rows
from edgedistill.data.corpus import Corpus
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.evaluation.suites import retrieval
from edgedistill.evaluation.suites.cosines import Encoder, encoded, unit
from edgedistill.evaluation.suites.suite_files import Index
from edgedistill.session import Session

PAIR_BATCH, PAIR_WEIGHT, PAIR_RATE = 32, 0.4, 0.75  # the rate: of the learning rate on the texts
PAIR_SHARE, PAIR_EPOCHS = 0.2, 6.0  # of the steps on texts; at most so many passes
# Steps on pairs with long answers on two cores, and the share of the minutes that pairs get at most.
PAIR_STEPS_PER_MINUTE, MOST_PAIR_MINUTES = 15, 0.5
FEWEST_PAIRS = 20
PAIR_INITIAL_SHARE = 0.6  # of what the texts have taught: see bench/LOG.md
HELD_OUT_SHARE, MOST_HELD_OUT = 0.1, 150
MOST_TEXTS = 1_000  # among which the answers are to be found
MOST_QUERIES = 300
WEIGHTS = (0.5, 1.0, 2.0, 3.0)  # of BM25, of which the best is chosen on held-out queries
FEW_QUERIES = 50  # below which a difference of a point or two says nothing
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
        try:
            return rows.build(self.table, session, 0, place="--pairs")
        except UserError as error:
            raise UserError(*map(_of_options, error.problems)) from None


def counted(pairs: Pairs, session: Session) -> Pairs:
    """The pairs with their numbers: how many queries are held out, and about how many rows that leaves.
    Raises UserError as reading a table does, and for too few."""
    if pairs.query_column == pairs.text_column:
        fact = f"{pairs.text_column!r} is the column of queries too"
        raise UserError(f"--text-column: {fact}; name that of the texts which answer them")
    found = relative(pairs, session)
    whole = found.read(session)
    queries = len(whole.sides[0])
    if queries < FEWEST_PAIRS:
        raise UserError(f"--pairs: {queries} distinct queries, at least {FEWEST_PAIRS} are needed; add pairs")
    kept = held_out(queries, 5)
    session.log(f"{len(whole):,} pairs of {queries:,} queries, {kept:,} of them held out")
    return replace(found, held_out=kept, rows=round(len(whole) * (1 - kept / queries)))


def relative(pairs: Pairs, session: Session) -> Pairs:
    """The pairs, of a file by its path from the data folder where it is below that."""
    (file,), _ = file_patterns.given([pairs.file], session.data, "--pairs")
    return replace(pairs, file=file)


def held_out(count: int, least: int) -> int:
    """How many of so many texts or queries are held out to measure search with."""
    return max(least, min(MOST_HELD_OUT, int(HELD_OUT_SHARE * count)))


def _of_options(problem: str) -> str:
    """A table's problem in words of the command line."""
    columns = "--query-column and --text-column"
    problem = problem.replace("--pairs.files", "--pairs").replace("--pairs.columns", columns)
    return problem.replace("columns and exclude", columns)


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


def of_answers(queries: list[str], answers: list[list[str]], others: list[str]) -> Queries:
    """The answers of all queries and other texts are the documents."""
    documents = list(dict.fromkeys([text for each in answers for text in each] + others))
    at = {text: str(row) for row, text in enumerate(documents)}
    relevance = [{at[text]: 1 for text in each} for each in answers]
    found = Queries(Path("--texts"), queries, relevance, documents)
    _ = found.bm25  # which raises
    return found


def asked(texts: Corpus, whole: int, pairs: Rows | None) -> dict[str, Queries]:
    """Queries by what they are of, see TITLES: one of each of the first `whole` held-out texts that has
    several sentences, and those that are held out of pairs.

    Raises UserError where BM25 finds no words in the texts.
    """
    own, found = texts.own - whole, dict[str, Queries]()
    if made := list(_made(texts.texts(texts.held_out[: min(whole, MOST_QUERIES)]))):
        queries, answers = [query for query, _ in made], [[rest] for _, rest in made]
        found["made"] = of_answers(
            queries, answers, texts.texts(texts.spread(MOST_TEXTS - len(made), 0, own))
        )
    if pairs is not None:
        of: dict[str, list[str]] = {}
        for query, answer in pairs.index[pairs.held_out].tolist():
            of.setdefault(pairs.sides[0][query], []).append(pairs.sides[1][answer])
        queries, answers = list(of)[:MOST_QUERIES], list(of.values())[:MOST_QUERIES]
        others = pairs.sides[1].texts(pairs.sides[1].spread(MOST_TEXTS // 2))
        others += texts.texts(texts.spread(MOST_TEXTS - len(others) - len(queries), 0, own))
        found["own"] = of_answers(queries, answers, others)
    return found


def _made(texts: list[str]) -> Iterator[tuple[str, str]]:
    """A sentence of each text that has several, and the rest of the text."""
    random = np.random.default_rng(0)
    for text in texts:
        if found := made_tuples.of_text(text):
            query = found[int(random.integers(len(found)))]
            yield query, " ".join(text.replace(query, " ").split())


def compared(
    of: dict[str, Queries], encoders: dict[str, Encoder], chosen: str, session: Session
) -> dict[str, Any]:
    """nDCG@10 of encoders on queries, alone and beside BM25, {"bm25_weight", "made", "own"}: the weight is
    the best one of the encoder `chosen` on the user's own queries, else on those made of the texts."""
    scores = dict[str, dict[str, dict[float | None, float]]]()
    for name, queries in of.items():
        session.log(f"searching with {len(queries.queries):,} queries {TITLES[name]}")
        scores[name] = {each: _scores(queries, encoder) for each, encoder in encoders.items()}
    if not scores:
        return {}
    judged = scores["own" if "own" in scores else "made"][chosen]
    weight, found = max(WEIGHTS, key=lambda each: judged[each]), dict[str, Any]()
    for name, queries in of.items():
        bm25 = retrieval.ranked_by_bm25(queries, Index(queries.names, np.empty(0)))
        found[name] = {
            "queries": len(queries.queries),
            "texts": len(queries.documents),
            "ndcg_at_10": {each: by_weight[None] for each, by_weight in scores[name].items()},
            "with_bm25": {each: by_weight[weight] for each, by_weight in scores[name].items()},
            "bm25": _ndcg(queries, bm25),
        }
    return {"bm25_weight": weight, **found}


def _scores(queries: Queries, encoder: Encoder) -> dict[float | None, float]:
    """nDCG@10 of an encoder by the weight of BM25 beside it; None: alone."""
    index = retrieval.indexed(queries, encoder.document)
    rows = unit(encoded(encoder.query, queries.queries))
    return {each: _ndcg(queries, retrieval.ranked(queries, rows, index, each)) for each in (None, *WEIGHTS)}


def _ndcg(queries: Queries, ranking: list[retrieval.Ranking]) -> float:
    return float(retrieval.measures(ranking, queries)["ndcg_at_10"])


def lines(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """The rows of a table of what was `compared`: title, and each encoder's nDCG@10."""
    for name in (each for each in TITLES if each in found):
        of = found[name]
        few = ", too few to tell," if of["queries"] < FEW_QUERIES else ""
        yield f"nDCG@10 of {of['queries']:,} queries{few} {TITLES[name]}", of["ndcg_at_10"]
        beside = f"  with BM25 (weight {found['bm25_weight']:g}; alone {100 * of['bm25']:.1f})"
        yield beside, of["with_bm25"]
