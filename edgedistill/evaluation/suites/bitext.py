"""Bitext retrieval: is a text's nearest neighbour among all translations its own? (Artetxe and Schwenk 2019,
Tatoeba)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Encode, Floats, encoded, unit
from edgedistill.evaluation.suites.suite_files import Family, Find, Rows, Task, add_texts, columns
from edgedistill.runtime.similarity import search


class BitextFile(Task):
    """A table of translations, one pair per row."""

    file: str = Field(description="next to suite.yaml, else under --data")
    first: str = Field(description="the column of one language")
    second: str = Field(description="the column of the other")


class Bitext(NamedTuple):
    """One task: second[i] is the translation of first[i]."""

    first: list[str]
    second: list[str]


def read(part: BitextFile, find: Find, rows: Rows) -> Bitext:
    """Read a table of translations."""
    path = find(part.file)
    pairs = list(columns(path, [part.first, part.second]))
    if len(pairs) < 2:
        raise UserError(
            f"{path}: {len(pairs)} pairs, retrieval needs at least 2; give a table of translations"
        )
    task = Bitext([first for first, _ in pairs], [second for _, second in pairs])
    add_texts([*task.first, *task.second], rows)
    return task


def score(task: Bitext, encode: Encode) -> dict[str, Any]:
    """Return `forward` (second found for first), `backward`, their mean `accuracy`, and `pairs`."""
    first, second = (unit(encoded(encode, side)) for side in task)
    forward, backward = _found(first, second, task.second), _found(second, first, task.first)
    return {
        "accuracy": float(np.mean([forward, backward])),
        "forward": float(np.mean(forward)),
        "backward": float(np.mean(backward)),
        "pairs": len(task.first),
        "samples": {"scores": np.mean([forward, backward], axis=0).tolist()},
    }


def _found(queries: Floats, candidates: Floats, texts: list[str]) -> list[bool]:
    """Return for each row whether its nearest candidate is that of the same row, or an equal text; the first
    of equal cosines counts."""
    nearest = search(queries, candidates, k=1)[0][:, 0].tolist()
    return [texts[at] == texts[row] for row, at in enumerate(nearest)]


FAMILY = Family(BitextFile, read, score)
