"""The table of bench/ecosystems.py: which numbers it shows, and what it says of runners that were not run."""

from __future__ import annotations

from typing import Any

import ecosystems
import numpy as np

GOLDEN: dict[str, Any] = {
    "vectors": [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]],
    "ids": [[1], [1], [1, 2]],
    "cosine_at_least": {"fp32": 0.99},
}


def row(**values: Any) -> dict[str, Any]:
    return {"runner": "edgedistill", "kind": "bert", "precision": "fp32", **values}


def test_the_worst_cosine_is_of_all_texts_and_of_whole_ones():
    found = ecosystems.compared([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]], GOLDEN, "fp32")
    assert (found["cosine_min"], found["cosine_min_whole"], found["below_threshold"], found["dims"]) == (
        0.96,
        1.0,
        1,
        2,
    )
    same = ecosystems.compared(np.array(GOLDEN["vectors"]).tolist(), GOLDEN, "fp32")
    assert (same["cosine_min"], same["below_threshold"]) == (1.0, 0)


def test_the_table_has_a_row_for_each_precision_and_names_what_was_not_run():
    rows = [
        row(version="1.0", cosine_min=0.999994, texts=32, below_threshold=0),
        row(runner="optimum", version="2.0", cosine_min=0.5, texts=32, below_threshold=3),
        row(runner="fastembed", precision=None, not_run="no environment"),
        row(runner="QNN (not run)", precision=None, reason="needs a fixed shape"),
        row(runner="export/core", error="SyntaxError: x"),
    ]
    text = ecosystems.table({"rows": rows})
    assert "| student | precision | edgedistill | export/core | optimum |" in text
    assert "| bert | fp32 | 0.99999 | fails | 0.50000 (29 of 32) |" in text
    assert "Not run: fastembed." in text and "Failed: export/core: SyntaxError: x." in text
