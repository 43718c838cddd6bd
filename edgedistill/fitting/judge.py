"""What a student is worth, on what nobody trained on: the user's texts and queries, and general ones; and the
verdict on a training, by the same measures before and after.

The score is the mean of two halves. The user's half: agreement with the teacher on held-out texts, nDCG@10 of
queries made of them, and of the user's own. The general half: graded pairs of sentences, and nDCG@10 of
sentences of Python's documentation that are to find their neighbours. So what learns the user's texts by
forgetting all others is not the better student.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from edgedistill import files, quantization
from edgedistill.data import corpus, deduplicate, readers
from edgedistill.data.corpus import Corpus
from edgedistill.evaluation import scoring, teacher_agreement
from edgedistill.evaluation.scoring import Encode, Encoder
from edgedistill.evaluation.tables import plain
from edgedistill.fitting import queries
from edgedistill.fitting.queries import Queries
from edgedistill.quantization.sample_texts import Reader, embeddings, samples
from edgedistill.runtime.prompts import ROLES
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
RESOLUTION = 0.001  # of the score: less is no difference
# Of the general half, what a better student may have lost: where it finds more of the user's texts; where
# only its agreement with the teacher has grown, by which no user finds anything (bench/LOG.md).
FORGOTTEN, UNSEEN = 0.02, 0.005

Measures = dict[str, float]  # by the names of TITLES and SUITES, and `score`, all from 0 to 1


class Judge:
    """Measures encoders against the teacher's cached embeddings of held-out texts, on the user's held-out
    `asked` queries, and on general texts."""

    def __init__(
        self, teacher: TeacherEncoder, texts: Corpus, session: Session, asked: Mapping[str, Queries]
    ) -> None:
        self.texts, self.embeddings = held_out(teacher, texts, MOST_TEXTS, session)
        general = general_queries(texts)
        self.asked = {**asked, **({"search": general} if general is not None else {})}
        self.by_teacher = by_roles(teacher, session)

    @property
    def teacher(self) -> Measures:
        """The teacher's own measures."""
        return self.measures(self.by_teacher)

    def measures(self, encoder: Any) -> Measures:
        """The measures of an encoder, as `scoring.evaluate` takes it; all are 0 where its embeddings are not
        finite."""
        encoder = Encoder.of(encoder)
        rows = encoder.text(self.texts)
        if not np.isfinite(rows).all():
            return dict.fromkeys(("agreement", *self.asked, *SUITES, "similarity", "score"), 0.0)
        compared = teacher_agreement.agreement(rows, self.embeddings)
        measured = {"agreement": (compared["top10_overlap"] + (compared["spearman"] or 0.0)) / 2}
        for name, asked in self.asked.items():
            measured[name] = asked.score(encoder)["ndcg_at_10"]
        for suite in SUITES:
            measured[suite] = scoring.evaluate(scoring.suite(suite), encoder)["average"]
        measured["similarity"] = float(np.mean([measured[suite] for suite in SUITES]))
        measured = {name: round(float(value), 5) for name, value in measured.items()}
        return {**measured, "score": round(score(measured), 5)}


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
    allowed: dict[tuple[str, ...], float] = {(suite,): FORGOTTEN for suite in SUITES}
    allowed[GENERAL] = FORGOTTEN if finds_more else UNSEEN
    remembers = all(
        _half(after, names) >= min(_half(each, names) for each in known) - most
        for names, most in allowed.items()
        if names[0] in after
    )
    return remembers and after["score"] > before["score"] + RESOLUTION


def verdict(before: Measures, after: Measures, teacher: Measures) -> str:
    """One line: what a training has brought on the user's texts, and what it cost on general ones."""
    user = next(name for name in ("own", "made", "agreement") if name in after)
    unit = "agreement with the teacher" if user == "agreement" else "nDCG"
    gain = {name: 100 * (after[name] - before[name]) for name in after if name in before}
    word = "better" if is_better(after, before, teacher) else "no better than the start, which is exported"
    general = f"{gain['similarity']:+.1f} similarity"
    general += "".join(f" ({gain[suite]:+.1f} of {suite})" for suite in SUITES if gain.get(suite, 0) < -1)
    general += f" and {gain['search']:+.1f} nDCG" if "search" in gain else ""
    return f"{word}: {gain[user]:+.1f} {unit} on your texts, {general} on general ones".replace("-", "−")


def weaker_teacher(teacher: Measures, start: Measures) -> str:
    """What is to be said of a teacher that finds less and judges worse than a student as it ships; "" of
    another."""
    labelled = [name for name in TITLES if name in teacher and name != "agreement"]
    if any(teacher[name] >= start[name] for name in labelled):
        return ""
    numbers = ", ".join(f"{100 * teacher[name]:.1f} against {100 * start[name]:.1f}" for name in labelled)
    return f"the teacher is worse than the start ({numbers}), so little can be learned from it"


def table(measured: Mapping[str, Measures], found: dict[str, Any], count: int) -> str:
    """Measures of encoders side by side, and what search beside BM25 finds, as `queries.compared` says."""
    sheet = Table("", title=f"{count:,} held-out texts", title_justify="left")
    for title in measured:
        sheet.add_column(title, justify="right")
    shown = {} if not found else dict(queries.lines(found))
    for name, title in TITLES.items():
        if name not in found and any(name in each for each in measured.values()):
            sheet.add_row(title, *(_shown(each.get(name)) for each in measured.values()))
    for title, values in shown.items():
        sheet.add_row(title, *(_shown(values.get(each)) for each in measured))
    return plain(sheet)


def _shown(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


# ---- what is measured


@cache
def _documentation() -> list[str]:
    return list(readers.texts_in(files.GENERAL_CORPUS))


def general_queries(trained: Corpus) -> Queries | None:
    """Sentences of the documentation, each of which is to find its neighbours among such passages; none that
    is trained on. None where the documentation itself is learned."""
    known = {deduplicate.key(text) for text in trained.between(0, trained.training_count)}
    sentences = _documentation()
    starts = range(0, len(sentences) - SENTENCES, max(SENTENCES, len(sentences) // (4 * PASSAGES)))
    runs = (sentences[start : start + SENTENCES] for start in starts)
    free = [run for run in runs if not any(deduplicate.key(text) in known for text in run)]
    if len(free) < queries.FEW_QUERIES:
        return None
    rows = np.linspace(0, len(free) - 1, min(PASSAGES, len(free))).astype(int)
    chosen = [free[row] for row in rows]
    passages = [" ".join(rest) for _, *rest in chosen]
    count = min(QUERIES, len(chosen))
    return queries.of_answers(
        [query for query, *_ in chosen[:count]], [[text] for text in passages[:count]], passages[count:]
    )


def by_roles(teacher: TeacherEncoder, session: Session) -> Encoder:
    """A teacher as the encoder of a suite; what it has embedded is in the cache."""

    def in_role(role: str) -> Encode:
        def encode(texts: list[str]) -> np.ndarray:
            with tempfile.TemporaryDirectory() as folder:
                corpus.write(Path(folder), texts, None, [])
                rows = TeacherPass(teacher.in_role(role), Corpus(Path(folder)), session).open()
            return rows[np.arange(len(texts))]

        return encode

    text, query, document = map(in_role, ROLES)
    return Encoder(text, query, document)


def held_out(
    teacher: TeacherEncoder, texts: Corpus, most: int, session: Session
) -> tuple[list[str], np.ndarray]:
    """At most so many of the held-out texts, evenly drawn, and the teacher's embeddings of them, which are
    cached."""
    rows = texts.spread(most, texts.training_count)
    return texts.texts(rows), TeacherPass(teacher, texts, session).open()[rows]


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

    text, query, document = map(in_role, ROLES)
    return Encoder(text, query, document)
