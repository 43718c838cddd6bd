"""Initial embeddings from translations: compared with the formula in plain loops, and with the teacher's
rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from edgedistill import recipe
from edgedistill.data import rows as training_rows
from edgedistill.errors import UserError
from edgedistill.session import QUIET, Session
from edgedistill.teacher.embedder import open_teacher
from edgedistill.training.initial_student import initial_weights, student_tokenizer
from edgedistill.training.load_models import Models
from edgedistill.vocabulary import initial_embeddings
from tests.conftest import WORDS, World
from tests.training.test_multi_stage import BOTH, data, quiet, written  # noqa: F401 (a fixture)

STUDENT = {
    "kind": "recurrent",
    "layers": 2,
    "repeats": 1,
    "unigram": {"vocabulary_size": 600},
    "max_tokens": 32,
}
STAGES = [{"name": "teach", "objective": BOTH, "steps": 2, "batch": 8}]


def opened(world: World, folder: Path, of: str) -> tuple[recipe.Recipe, Any, training_rows.Rows, Any]:
    """Recipe, teacher, pairs and the student's tokenizer."""
    spec = recipe.parse(
        written(world, "assistant", student={**STUDENT, "embeddings": {"of": of}}, stages=STAGES), "test"
    )
    assert spec.rows is not None
    asked, pairs = (
        open_teacher(spec.teacher, Session(data=folder)),
        training_rows.build(spec.rows, Session(data=folder), spec.seed),
    )
    return spec, asked, pairs, student_tokenizer.build(spec, Models(asked), pairs, QUIET)


def table(world: World, folder: Path, of: str) -> np.ndarray:
    spec, asked, pairs, words = opened(world, folder, of)
    session = Session(data=folder, log=quiet)
    found: Any = initial_weights.build(spec, Models(asked), words, session, pairs).module
    return found.model.embeddings.word_embeddings.weight.detach().numpy()


def test_rows_follow_the_formula():
    """Of 60 pairs, with numpy's dense counts: φ² weighs the best associates, and the share of pairs in which
    a token stands on the other side keeps its own row."""
    random = np.random.default_rng(0)
    own, known = random.standard_normal((12, 5)), random.standard_normal((30, 5))
    theirs, first, second = (random.random((60, tokens)) < 0.15 for tokens in (30, 12, 12))
    second[1:, 3] = False  # a token of one pair at most keeps its own row
    counts = [csr_matrix(held.astype(np.float32)) for held in (theirs, first, second)]
    rows = initial_embeddings.associated_rows(own.astype(np.float32), known.astype(np.float32), *counts)
    together = second.T.astype(float) @ theirs
    scores = together**2 / np.maximum(second.sum(0)[:, None] * theirs.sum(0), 1)
    assert np.allclose(rows[3], own[3], atol=1e-6)
    for token in np.flatnonzero(second.sum(0) >= initial_embeddings.MIN_PAIRS):
        best = np.argsort(-scores[token], kind="stable")[: initial_embeddings.ASSOCIATES]
        weights = scores[token, best]
        mean = weights @ known[best]
        length = weights @ np.linalg.norm(known[best], axis=1) / weights.sum()
        share = second[:, token].sum() / (second[:, token].sum() + first[:, token].sum())
        expected = share * mean / np.linalg.norm(mean) * length + (1 - share) * own[token]
        if scores[token, best[-1]] > np.sort(scores[token])[-initial_embeddings.ASSOCIATES - 1]:  # no tie
            assert np.allclose(rows[token], expected, atol=1e-4)


def test_rows_are_fitted_together():
    """Against the normal equations; and where texts say all there is to know, the rows they were made of come
    back."""
    random = np.random.default_rng(0)
    texts = csr_matrix(random.poisson(0.4, (300, 20)).astype(np.float32))
    english = csr_matrix(random.poisson(0.4, (300, 15)).astype(np.float32))
    rows, begun = (
        random.standard_normal((15, 70)).astype(np.float32),
        random.standard_normal((20, 70)).astype(np.float32),
    )
    mine, theirs = texts.toarray(), english.toarray()
    lengths, others = np.maximum(mine.sum(1), 1), np.maximum(theirs.sum(1), 1)
    means, wanted = mine / lengths[:, None], theirs / others[:, None] @ rows
    left = means.T @ (lengths[:, None] * means) + initial_embeddings.RIDGE * np.eye(20)
    expected = np.linalg.solve(left, means.T @ (lengths[:, None] * wanted) + initial_embeddings.RIDGE * begun)
    assert np.allclose(initial_embeddings.fitted_rows(begun, rows, texts, english), expected, atol=1e-3)


def test_a_word_starts_close_to_its_translation(world: World, data: Path):  # noqa: F811
    _, asked, _, words = opened(world, data, "translations")
    theirs = asked.tokenizer.get_vocab()
    spoken = {word for kind in WORDS.values() for phrase in kind for word in phrase.split()}
    both = [
        (words(word[::-1], add_special_tokens=False)["input_ids"], theirs[word])
        for word in spoken
        if word in theirs and len(word) > 3
    ]
    known, near = asked.module.model.get_input_embeddings().weight.detach().numpy(), {}
    for of in ("token_embeddings", "translations"):
        rows = table(world, data, of)
        near[of] = np.mean([np.corrcoef(rows[ids].mean(0), known[other])[0, 1] for ids, other in both])
    assert len(both) > 5 and near["translations"] > near["token_embeddings"] + 0.1, near


def test_of_pairs_and_of_a_teacher_alone(world: World):
    stage = {"name": "distil", "objective": {"kind": "cosine"}, "steps": 2, "batch": 8}
    for changes, message in (
        (
            {"student": {**STUDENT, "embeddings": {"of": "translations"}}},
            "translations need rows with `languages`",
        ),
        (
            {"student": {**STUDENT, "embeddings": {"from": "random", "of": "translations"}}},
            "`of: translations` takes them from the",
        ),
    ):
        with pytest.raises(UserError, match=message):
            recipe.parse(world.recipe(stages=[stage], **changes), "test")
