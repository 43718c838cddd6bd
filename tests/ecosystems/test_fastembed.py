"""fastembed opens any bundle as a custom model, without a pooling of its own."""

from __future__ import annotations

import pytest

from tests.ecosystems.conftest import Ask, assert_same

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("student", ["headless", "linear", "tanh", "first", "bilstm", "static"])
def test_a_custom_model_gives_our_embeddings(ask: Ask, student: str):
    assert_same(ask("fastembed", student))
