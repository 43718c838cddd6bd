"""sentence-transformers opens a bundle as it stands: its own pooling, dense layers and unit length on our
graphs."""

from __future__ import annotations

import pytest

from tests.ecosystems.conftest import Ask, assert_same

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("student", ["headless", "linear", "tanh", "first"])
def test_its_onnx_backend_gives_our_embeddings(ask: Ask, student: str) -> None:
    assert_same(ask("sentence-transformers", student))


def test_a_static_student_needs_no_backend(ask: Ask) -> None:
    row = ask("sentence-transformers", "static")["fp32"]
    assert (
        row["below_threshold"] == 2
    )  # the empty text, which has no tokens there, and the one that spells out special tokens


def test_it_has_no_place_for_a_bilstm(ask: Ask) -> None:
    assert (
        ask("sentence-transformers", "bilstm")[None]["reason"] == "needs a transformer, or a static student"
    )
