"""transformers.js in Node. It cuts long texts behind their special tokens, so that only whole texts are the
same."""

from __future__ import annotations

import pytest

from tests.ecosystems.conftest import Ask, assert_same

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("student", ["headless", "linear"])
def test_its_pipeline_gives_our_embeddings_head_included(ask: Ask, student: str):
    """pipeline("feature-extraction", ..., {pooling: "mean", normalize: true})"""
    assert_same(ask("transformers.js pipeline", student), "cosine_min_whole")


@pytest.mark.parametrize("student", ["tanh", "first", "bilstm", "static"])
def test_its_models_give_our_embeddings_of_any_student(ask: Ask, student: str):
    assert_same(ask("transformers.js model", student), "cosine_min_whole")
