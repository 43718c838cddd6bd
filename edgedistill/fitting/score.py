"""The score of a student: how far it agrees with its teacher on held-out texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx

from edgedistill import quantization
from edgedistill.data.corpus import Corpus
from edgedistill.evaluation import scoring, teacher_agreement
from edgedistill.quantization.mixed_precision import int8_with_w8
from edgedistill.quantization.sample_texts import Reader, samples
from edgedistill.runtime import onnx_session
from edgedistill.runtime.prompts import ROLES
from edgedistill.session import Session
from edgedistill.students import graph, kinds
from edgedistill.teacher import embedding_cache, tokenizer_files
from edgedistill.teacher.encoder import TeacherEncoder, embed_in_batches
from edgedistill.training.initial_student.prepared_student import PreparedStudent

MOST_TEXTS = 2_000  # held-out texts that are compared
BATCH_TOKENS = 512
Encode = Callable[[list[str]], np.ndarray]


class Judge:
    """Scores students against the teacher's cached embeddings of the held-out texts."""

    def __init__(self, teacher: TeacherEncoder, corpus: Corpus, session: Session) -> None:
        self.texts, self.embeddings = held_out(teacher, corpus, MOST_TEXTS, session)

    def score(self, encode: Encode) -> dict[str, float]:
        """The score of an encoder, all from 0 to 1; one whose embeddings are not finite has 0.

        `neighbours` is the share of the ten nearest in common, `cosines` the rank correlation of pairwise
        cosines, `agreement`, and `score`, which the race compares, the mean of both.
        """
        found = encode(self.texts)
        neighbours = cosines = 0.0
        if np.isfinite(found).all():
            compared = teacher_agreement.agreement(found, self.embeddings)
            neighbours, cosines = float(compared["top10_overlap"]), float(compared["spearman"] or 0.0)
        mean = (neighbours + cosines) / 2
        parts = {"neighbours": neighbours, "cosines": cosines, "agreement": mean, "score": mean}
        return {name: round(value, 5) for name, value in parts.items()}


def by_roles(teacher: TeacherEncoder, session: Session) -> scoring.Encoder:
    """A teacher as the encoder of a suite."""
    return scoring.Encoder(*(partial(teacher.in_role(role).embed, device=session.device) for role in ROLES))


def suite_score(suite: scoring.Suite, encode: Any) -> float:
    """The score of an encoder, as `scoring.evaluate` takes it, on a suite."""
    return float(scoring.evaluate(suite, encode)["average"])


def held_out(
    teacher: TeacherEncoder, corpus: Corpus, most: int, session: Session
) -> tuple[list[str], np.ndarray]:
    """At most so many of the held-out texts, evenly drawn, and the teacher's embeddings of them, which are
    cached."""
    drawn = np.linspace(0, len(corpus.held_out) - 1, min(most, len(corpus.held_out))).astype(int)
    rows = corpus.held_out[drawn]
    return corpus.texts(rows), embedding_cache.TeacherPass(teacher, corpus, session).open()[rows]


def _in_precision(student: PreparedStudent, precision: str) -> onnx.ModelProto:
    """A trained student's graph in a precision, as `export` makes it."""
    reader = Reader(student.tokenizer, student.prompt, student.max_tokens)
    model, golden = graph.build(student.module.eval()), reader.token_ids(reader.golden_texts())
    drawn = samples(reader, golden)
    if precision == "int8":
        return int8_with_w8(model, drawn, golden)[0]
    return quantization.convert(model, precision, drawn)


def encoder(student: PreparedStudent, precision: str) -> Encode:
    """texts -> (n, d) unit rows, by a student's graph in a precision."""
    model = _in_precision(student, precision).SerializeToString()
    session = onnx_session.open_session(model, 1, "cpu")

    def forward(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        inputs = {"input_ids": ids, "attention_mask": mask}
        found: Any = session.run(["sentence_embedding"], inputs, onnx_session.RUN_OPTIONS)[0]
        return np.asarray(found)

    def encode(texts: list[str]) -> np.ndarray:
        prompted = [student.prompt + text for text in texts]
        ids = tokenizer_files.encode_ids(student.tokenizer, prompted, student.max_tokens)
        pad, dims = student.tokenizer.pad_token_id or 0, kinds.dims(student.module)
        return embed_in_batches(forward, ids, pad, dims, BATCH_TOKENS)

    return encode
