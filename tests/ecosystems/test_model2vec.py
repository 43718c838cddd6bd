"""model2vec opens a static student. It leaves out unknown tokens, of which the tiny vocabulary has many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ecosystems.conftest import Ask, read

pytestmark = pytest.mark.slow


def test_texts_of_known_tokens_have_our_embeddings(ask: Ask, shelf: Path) -> None:
    row = ask("model2vec", "static")["fp32"]
    golden = read(shelf / "static", "parity.json")
    known = [
        at
        for at, ids in enumerate(golden["ids"])
        if len(ids) > 2 and 1 not in ids and "[SEP]" not in golden["texts"][at]
    ]
    assert row["texts"] - row["below_threshold"] >= len(known) >= 5
