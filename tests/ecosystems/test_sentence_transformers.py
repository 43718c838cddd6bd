"""sentence-transformers opens a bundle as it stands: its own pooling, dense layers and unit length on our
graphs."""

from __future__ import annotations

import pytest

from tests.ecosystems.conftest import Ask, assert_same

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("student", ["headless", "linear", "tanh", "first"])
def test_its_onnx_backend_gives_our_embeddings(ask: Ask, student: str):
    assert_same(ask("sentence-transformers", student))


def test_it_has_no_place_for_a_bilstm(ask: Ask):
    assert ask("sentence-transformers", "bilstm")[None]["reason"] == "needs a transformer"
