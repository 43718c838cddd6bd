"""The score of a student: how far it agrees with its teacher on held-out texts, and what it keeps of the
teacher's score on a suite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import run
from edgedistill.data.corpus import Corpus
from edgedistill.evaluation import scoring, teacher_agreement
from edgedistill.fitting import student_cost
from edgedistill.runtime import onnx_session
from edgedistill.session import Session
from edgedistill.students import kinds
from edgedistill.teacher import embedding_cache, tokenizer_files
from edgedistill.teacher.encoder import TeacherEncoder, embed_in_batches
from edgedistill.training.initial_student.prepared_student import PreparedStudent

MOST_TEXTS = 2_000  # held-out texts that are compared
BATCH_TOKENS = 512
Encode = Callable[[list[str]], np.ndarray]


@dataclass(frozen=True)
class Score:
    """All from 0 to 1. neighbours: share of the ten nearest in common; cosines: rank correlation of pairwise
    cosines; kept: of the teacher's score on the suite, None without one. value: what the race compares.
    """

    neighbours: float
    cosines: float
    kept: float | None = None

    @property
    def agreement(self) -> float:
        return (self.neighbours + self.cosines) / 2

    @property
    def value(self) -> float:
        return self.agreement if self.kept is None else (self.agreement + self.kept) / 2

    def as_data(self) -> dict[str, Any]:
        kept = {} if self.kept is None else {"kept": round(self.kept, 5)}
        plain = {
            "neighbours": self.neighbours,
            "cosines": self.cosines,
            "agreement": self.agreement,
            "score": self.value,
        }
        return {**{name: round(value, 5) for name, value in plain.items()}, **kept}


class Judge:
    """Scores students against the teacher's cached embeddings of the held-out texts, and on a suite if there
    is one.
    """

    def __init__(
        self, teacher: TeacherEncoder, corpus: Corpus, suite: scoring.Suite | None, session: Session
    ) -> None:
        rows = corpus.held_out[
            np.linspace(0, len(corpus.held_out) - 1, min(MOST_TEXTS, len(corpus.held_out))).astype(int)
        ]
        self.texts = corpus.texts(rows)
        self.embeddings = embedding_cache.embed_corpus(teacher, corpus, session)[rows]
        ids = tokenizer_files.encode_ids(teacher.tokenizer, self.texts, teacher.max_tokens)
        self.lengths = np.array([len(row) for row in ids])
        self.suite = suite
        self.suite_score = (
            _suite_score(suite, lambda texts: teacher.embed(texts, session.device))
            if suite is not None
            else None
        )

    def score(self, encode: Encode) -> Score:
        """The score of an encoder; one whose embeddings are not finite has 0."""
        found = encode(self.texts)
        if not np.isfinite(found).all():
            return Score(0.0, 0.0, None if self.suite is None else 0.0)
        compared = teacher_agreement.agreement(found, self.embeddings, self.lengths)
        kept = (
            _suite_score(self.suite, encode) / self.suite_score
            if self.suite is not None and self.suite_score
            else None
        )
        return Score(float(compared["top10_overlap"]), float(compared["spearman"] or 0.0), kept)

    def score_student(self, student: PreparedStudent, precision: str) -> Score:
        """The score of a student's graph in a precision."""
        return self.score(encoder(student, precision))


def _suite_score(suite: scoring.Suite, encode: Encode) -> float:
    return float(scoring.evaluate(suite, encode)["average"])


def encoder(student: PreparedStudent, precision: str) -> Encode:
    """texts -> (n, d) unit rows, by a student's graph in a precision."""
    session = onnx_session.open_session(
        student_cost.in_precision(student, precision).SerializeToString(), 1, "cpu"
    )

    def forward(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return session.run(
            ["sentence_embedding"], {"input_ids": ids, "attention_mask": mask}, onnx_session.RUN_OPTIONS
        )[0]

    def encode(texts: list[str]) -> np.ndarray:
        ids = tokenizer_files.encode_ids(
            student.tokenizer, [student.prompt + text for text in texts], student.max_tokens
        )
        return embed_in_batches(
            forward, ids, student.tokenizer.pad_token_id or 0, kinds.dims(student.module), BATCH_TOKENS
        )

    return encode


def open_student(folder: Path) -> PreparedStudent:
    """The student of a finished run."""
    opened = run.open_run(folder)
    return PreparedStudent(opened.student(), opened.shape, opened.tokenizer())
