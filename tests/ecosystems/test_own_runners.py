"""Our own runners in Python, and the core in Node: the same embeddings of every student."""

from __future__ import annotations

import pytest

from tests.ecosystems.conftest import Ask, assert_same

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("runner", ["edgedistill", "export/python", "export/core"])
@pytest.mark.parametrize("student", ["linear", "tanh", "bilstm", "static"])
def test_they_give_our_embeddings(ask: Ask, runner: str, student: str):
    assert_same(ask(runner, student))
