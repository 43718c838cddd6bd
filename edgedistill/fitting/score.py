"""The score of a student: how far it agrees with its teacher on held-out texts and, where the user has
queries, what it finds for them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill.data import corpus
from edgedistill.data.corpus import Corpus
from edgedistill.evaluation import teacher_agreement
from edgedistill.evaluation.scoring import Encode, Encoder
from edgedistill.evaluation.suites import retrieval
from edgedistill.fitting.search import Queries
from edgedistill.quantization import mixed_precision
from edgedistill.quantization.sample_texts import Reader, embeddings, samples
from edgedistill.runtime.prompts import ROLES
from edgedistill.session import Session
from edgedistill.students import graph
from edgedistill.teacher.embedding_cache import TeacherPass
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student.prepared_student import PreparedStudent

MOST_TEXTS = 2_000  # held-out texts that are compared


class Judge:
    """Scores students against the teacher's cached embeddings of the held-out texts, and on the held-out
    `queries` of a user."""

    def __init__(
        self, teacher: TeacherEncoder, texts: Corpus, session: Session, queries: Queries | None = None
    ) -> None:
        self.texts, self.embeddings = held_out(teacher, texts, MOST_TEXTS, session)
        self.queries = queries

    def score(self, encoder: Any) -> dict[str, float]:
        """The score of an encoder, as `scoring.evaluate` takes it, all from 0 to 1; one whose embeddings are
        not finite has 0.

        `neighbours` is the share of the ten nearest in common, `cosines` the rank correlation of pairwise
        cosines, `agreement` the mean of both, `search` nDCG@10 of the user's queries, and `score`, which the
        race compares, the mean of all of them that there are.
        """
        encoder = Encoder.of(encoder)
        found = encoder.text(self.texts)
        finite, parts = bool(np.isfinite(found).all()), {"neighbours": 0.0, "cosines": 0.0}
        if finite:
            compared = teacher_agreement.agreement(found, self.embeddings)
            parts["neighbours"] = float(compared["top10_overlap"])
            parts["cosines"] = float(compared["spearman"] or 0.0)
        agreement = sum(parts.values()) / len(parts)
        if self.queries is not None:
            parts["search"] = retrieval.score(self.queries, encoder)["ndcg_at_10"] if finite else 0.0
        whole = {**parts, "agreement": agreement, "score": sum(parts.values()) / len(parts)}
        return {name: round(value, 5) for name, value in whole.items()}


def by_roles(teacher: TeacherEncoder, session: Session) -> Encoder:
    """A teacher as the encoder of a suite; what it has embedded is in the cache."""

    def in_role(role: str) -> Encode:
        def encode(texts: list[str]) -> np.ndarray:
            with tempfile.TemporaryDirectory() as folder:
                corpus.write(Path(folder), texts, None, [])
                found = TeacherPass(teacher.in_role(role), Corpus(Path(folder)), session).open()
            return found[np.arange(len(texts))]

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
    plain = Reader(student.tokenizer, student.prompt, student.max_tokens)
    golden = plain.token_ids(plain.golden_texts())
    model, _ = mixed_precision.converted(
        graph.build(student.module.eval()), precision, samples(plain, golden), golden
    )

    def in_role(role: str) -> Encode:
        reader = plain._replace(prompt=student.prompts.of(role))
        return lambda texts: embeddings(model, reader.token_ids(texts))

    text, query, document = map(in_role, ROLES)
    return Encoder(text, query, document)
