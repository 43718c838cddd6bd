"""What a student is worth, on what nobody trained on: the user's texts and queries, and general ones; and the
verdict on a training, by the same measures before and after.

The score is the mean of two halves. The user's half: agreement with the teacher on held-out texts, nDCG@10 of
queries made of them, and of the user's own. The general half: graded pairs of sentences, and nDCG@10 of
sentences of Python's documentation that are to find their neighbours. So what learns the user's texts by
forgetting all others is not the better student.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgedistill import quantization
from edgedistill.data import deduplicate, readers
from edgedistill.data.corpus import Corpus
from edgedistill.errors import counted
from edgedistill.evaluation import scoring, tables, teacher_agreement
from edgedistill.evaluation.scoring import Encode, Encoder
from edgedistill.evaluation.suites.cosines import Remembered
from edgedistill.fitting import queries
from edgedistill.fitting.queries import Queries
from edgedistill.quantization.sample_texts import Reader, embeddings, samples
from edgedistill.session import Session
from edgedistill.students import graph
from edgedistill.teacher.embedding_cache import TeacherPass
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student.prepared_student import PreparedStudent

MOST_TEXTS = 2_000  # held-out texts that are compared
SUITES = scoring.SHIPPED
PASSAGES, QUERIES, SENTENCES = 400, 200, 4  # of the documentation; the sentences of a passage
USER, GENERAL = ("agreement", "made", "own"), ("similarity", "search")
TITLES = {
    "agreement": "agreement with the teacher on held-out texts",
    "made": f"nDCG@10 of queries {queries.TITLES['made']}",
    "own": f"nDCG@10 of queries {queries.TITLES['own']}",
    "similarity": "similarity of general sentences (Spearman)",
    "search": "nDCG@10 of general sentences",
}
MARGIN = 0.5  # points on the user's texts: a smaller gain is within what other texts would give
RESOLUTION = 0.001  # of the score: less is no difference
FEW_STEPS = 20  # after which no gain is claimed
# Of the general half, what a better student may have lost where it finds more of the user's texts. Where only
# its agreement with the teacher has grown, by which no user finds anything, it is nothing (bench/LOG.md).
FORGOTTEN = 0.02

Measures = dict[str, float]  # by the names of TITLES and SUITES, and `score`, all from 0 to 1


class Judge:
    """Measures encoders against the teacher's cached embeddings of held-out texts, on the user's held-out
    `asked` queries, of which a few made ones judge nothing, and on general texts."""

    def __init__(
        self, teacher: TeacherEncoder, texts: Corpus, session: Session, asked: Mapping[str, Queries]
    ) -> None:
        rows = texts.spread(MOST_TEXTS, texts.training_count)
        self.texts = texts.texts(rows)
        self.embeddings = TeacherPass(teacher, texts, session).open()[rows]
        general = general_queries(texts)
        self.asked = {**asked, **({"search": general} if general is not None else {})}
        self.judging = dict(self.asked)
        if "made" in asked and len(asked["made"].queries) < queries.FEW_QUERIES:
            del self.judging["made"]
        self.by_teacher = by_roles(teacher, session)

    @property
    def teacher(self) -> Measures:
        """The teacher's own measures."""
        return self._measured(self.by_teacher, self.embeddings)

    def measures(self, encoder: Any) -> Measures:
        """The measures of an encoder, as `scoring.evaluate` takes it; all are 0 where its embeddings are not
        finite."""
        encoder = Encoder.of(encoder)
        rows = encoder.text(self.texts)
        if np.isfinite(rows).all():
            return self._measured(encoder, rows)
        return dict.fromkeys(("agreement", *self.judging, *SUITES, "similarity", "score"), 0.0)

    def _measured(self, encoder: Encoder, rows: np.ndarray) -> Measures:
        """The measures of an encoder whose embeddings of the held-out texts are `rows`."""
        compared = teacher_agreement.agreement(rows, self.embeddings)
        measured = {"agreement": (compared["top10_overlap"] + (compared["spearman"] or 0.0)) / 2}
        for name, asked in self.judging.items():
            measured[name] = asked.score(encoder)["ndcg_at_10"]
        for suite in SUITES:
            measured[suite] = scoring.evaluate(scoring.suite(suite), encoder)["average"]
        measured["similarity"] = float(np.mean([measured[suite] for suite in SUITES]))
        measured["score"] = score(measured)
        return {name: round(float(value), 5) for name, value in measured.items()}


def score(measures: Measures) -> float:
    """The mean of the user's half and the general one."""
    return (_half(measures, USER) + _half(measures, GENERAL)) / 2


def _half(measures: Measures, names: tuple[str, ...]) -> float:
    return float(np.mean([measures[name] for name in names if name in measures]))


def is_better(after: Measures, before: Measures, teacher: Measures) -> bool:
    """Whether a training has brought anything: a higher score, and little of general texts is forgotten, by
    their mean and in no suite. As little as the teacher knows of them a student may know, unless that is
    worse in everything."""
    known = [before] if weaker_teacher(teacher, before) else [before, teacher]
    finds_more = any(after[name] > before[name] for name in ("made", "own") if name in after)
    unseen = FORGOTTEN if finds_more else 0.0
    allowed = [(GENERAL, unseen), (("search",), unseen), *(((suite,), FORGOTTEN) for suite in SUITES)]
    for names, most in allowed:
        if names[0] in after and _half(after, names) < min(_half(row, names) for row in known) - most:
            return False
    return after["score"] > before["score"] + RESOLUTION


def verdict(before: Measures, after: Measures, teacher: Measures, steps: int) -> str:
    """One line: what a training has brought on the user's texts, and what it cost on general ones."""
    gain = {name: 0.0 + round(100 * (after[name] - before[name]), 1) for name in after if name in before}
    user = next(name for name in ("own", "made", "agreement") if name in after)
    word = "hardly trained" if steps < FEW_STEPS else "better"
    if not is_better(after, before, teacher):
        word = "no better than the start, which is exported"
    elif gain[user] < MARGIN:
        word = "no measurable change"
    unit = "agreement with the teacher" if user == "agreement" else "nDCG"
    suites = [f" ({gain[suite]:+.1f} of {suite})" for suite in SUITES if gain.get(suite, 0) < -1]
    search = [f" and {gain['search']:+.1f} nDCG"] if "search" in gain else []
    general = "".join([f"{gain['similarity']:+.1f} similarity", *suites, *search])
    told = f"{word}: {gain[user]:+.1f} {unit} on your texts, {general} on general ones, after "
    return told.replace("-", "−") + counted(steps, "training step")


def weaker_teacher(teacher: Measures, start: Measures) -> str:
    """What is to be said of a teacher that finds less and judges worse than a student as it ships; "" of
    another."""
    labelled = [name for name in TITLES if name in teacher and name != "agreement"]
    if any(teacher[name] >= start[name] for name in labelled):
        return ""
    numbers = ", ".join(f"{100 * teacher[name]:.1f} against {100 * start[name]:.1f}" for name in labelled)
    return f"the teacher is worse than the start ({numbers}), so little can be learned from it"


def table(measured: Mapping[str, Measures], search: dict[str, Any], count: int) -> str:
    """Measures of encoders side by side, and what search finds alone and beside BM25, as `queries.compared`
    says."""
    rows = []

    def add(title: str, values: Mapping[str, float]) -> None:
        cells = [f"{100 * values[column]:.1f}" if column in values else "" for column in measured]
        if any(cells):
            rows.append([title, *cells])

    for name, title in TITLES.items():
        if name not in search:
            add(title, {column: values[name] for column, values in measured.items() if name in values})
            continue
        searched = search[name]
        few = ", too few to tell," if searched["queries"] < queries.FEW_QUERIES else ""
        title = f"nDCG@10 of {searched['queries']:,} queries{few} {queries.TITLES[name]}"
        add(title, searched["ndcg_at_10"])
        add(f"  with BM25 (alone {100 * searched['bm25']:.1f})", searched["with_bm25"])
    return tables.of_cells([f"{count:,} held-out texts", *measured], rows)


# ---- what is measured


def general_queries(trained: Corpus) -> Queries | None:
    """Sentences of the documentation, each of which is to find its neighbours among such passages; none that
    is trained on. None where the documentation itself is learned."""
    known = {deduplicate.key(text) for text in trained.between(0, trained.training_count)}
    sentences = readers.documentation()
    starts = range(0, len(sentences) - SENTENCES, max(SENTENCES, len(sentences) // (4 * PASSAGES)))
    runs = (sentences[start : start + SENTENCES] for start in starts)
    free = [run for run in runs if known.isdisjoint(map(deduplicate.key, run))]
    if len(free) < queries.FEW_QUERIES:
        return None
    chosen = [free[row] for row in np.linspace(0, len(free) - 1, min(PASSAGES, len(free))).astype(int)]
    passages = {query: [" ".join(rest)] for query, *rest in chosen}
    asked = dict(list(passages.items())[:QUERIES])
    return queries.of_answers(asked, [text for texts in passages.values() for text in texts])


def by_roles(teacher: TeacherEncoder, session: Session) -> Encoder:
    """A teacher as the encoder of a suite, which remembers what it has embedded."""

    def in_role(role: str) -> Remembered:
        embed = teacher.in_role(role).embed
        return Remembered(lambda texts: embed(texts, session.device))

    return Encoder.by_role(in_role)


def encoder(student: PreparedStudent, precision: str) -> Encoder:
    """A trained student's graph in a precision, as `export` makes it, by the roles of texts."""
    whole = Reader(student.tokenizer, student.prompt, student.max_tokens)
    golden = whole.token_ids(whole.golden_texts())
    model, _ = quantization.within_limit(
        graph.build(student.module.eval()), precision, samples(whole, golden), golden
    )

    def in_role(role: str) -> Encode:
        reader = whole._replace(prompt=student.prompts.of(role))
        return lambda texts: embeddings(model, reader.token_ids(texts))

    return Encoder.by_role(in_role)
