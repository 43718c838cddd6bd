"""Scripts of bench/, which measure what `edgedistill bench` does not: counts and tables."""

from __future__ import annotations

from typing import Any

import measured_tables
import overlap

# other processors


def row(**values: Any) -> dict[str, Any]:
    return {"runner": "here", "kind": "nano", "precision": "int8", **values}


def test_the_table_of_processors_has_the_worst_cosine_and_the_reasons():
    rows = [
        row(cosine_min=0.997524, texts=32, below_threshold=0),
        row(runner="A72", cosine_min=0.9612, texts=32, below_threshold=3),
        row(runner="A72", kind="bert", precision="w8", error="exit code -4"),
        row(runner="N1", precision=None, not_run="no qemu"),
    ]
    report = {"processors": {"A72": "NEON", "N1": "dots"}, "machine": {"cpu": "EPYC"}, "rows": rows}
    text = measured_tables.processors(report)
    assert "| bundle | precision | EPYC | A72 |" in text
    assert "| `nano` | int8 | 0.99752 | 0.96120 |" in text and "| bert | w8 |  | fails |" in text
    assert "A72: NEON<br>3 of 32 embeddings are below what `verify` asks of their precision<br>" in text
    assert "N1 was not run: no qemu<br>A72, bert: exit code -4" in text


# training texts in test sets


def test_texts_have_words_or_thirteen_in_a_row_in_common():
    words = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    long = overlap.marks(words)
    assert long & overlap.marks(words.removesuffix(" fourteen"))
    assert not long & overlap.marks(words.removesuffix(" thirteen fourteen"))
    assert overlap.marks("A caf\u00e9.") == overlap.marks("a CAFE!")
