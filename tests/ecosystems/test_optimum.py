"""optimum's ORTModelForFeatureExtraction: the mean of its last_hidden_state is our embedding, head
included."""

from __future__ import annotations

import pytest

from tests.ecosystems.conftest import Ask, assert_same

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("student", ["headless", "linear"])
def test_its_pooled_output_is_our_embedding(ask: Ask, student: str):
    assert_same(ask("optimum", student))


def test_a_head_behind_another_pooling_is_not_in_its_output(ask: Ask):
    assert ask("optimum", "first")["fp32"]["error"] == "32 dimensions, the bundle's embeddings have 24"
