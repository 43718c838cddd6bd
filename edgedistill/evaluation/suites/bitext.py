"""Bitext retrieval: is a text's nearest neighbour among all translations its own? (Artetxe and Schwenk 2019,
Tatoeba)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Encode, Floats, encoded, unit
from edgedistill.evaluation.suites.suite_files import Find, Part, clean, tsv

BLOCK = 1024  # texts whose cosines to all others are in memory at a time


class BitextFile(Part):
    """A table of translations, one pair per row; .tsv or .tsv.gz, split at tabs, no quoting."""

    name: str = Field(description="of the task")
    file: str = Field(description="next to suite.yaml, else under --data")
    first: str = Field(description="the column of one language")
    second: str = Field(description="the column of the other")


class BitextSuite(Part):
    """Accuracy of finding the translation by cosine, in both directions."""

    kind: Literal["bitext"]
    name: str | None = None
    about: str = ""
    tasks: list[BitextFile] = Field(min_length=1)


@dataclass(frozen=True)
class Bitext:
    """One task: second[i] is the translation of first[i]."""

    first: list[str]
    second: list[str]


def read(spec: BitextSuite, find: Find) -> tuple[list[str], dict[str, Bitext]]:
    """Returns (every distinct text of the suite once, each task by name)."""
    tasks = {part.name: _read_bitext(part, find) for part in spec.tasks}
    return list(
        dict.fromkeys(text for task in tasks.values() for side in (task.first, task.second) for text in side)
    ), tasks


def score(texts: list[str], tasks: dict[str, Bitext], encode: Encode) -> dict[str, dict[str, Any]]:
    """Per task `forward` (second found for first), `backward`, their mean `accuracy`, and `pairs`."""
    return {name: _score_bitext(task, encode) for name, task in tasks.items()}


def _score_bitext(task: Bitext, encode: Encode) -> dict[str, Any]:
    first, second = (unit(encoded(encode, side)) for side in (task.first, task.second))
    forward, backward = _accuracy(first, second, task.second), _accuracy(second, first, task.first)
    return {
        "accuracy": (forward + backward) / 2,
        "forward": forward,
        "backward": backward,
        "pairs": len(task.first),
    }


def _accuracy(queries: Floats, candidates: Floats, texts: list[str]) -> float:
    """Share of rows whose nearest candidate is that of the same row, or an equal text; the first of equal
    cosines counts."""
    nearest = [
        (queries[start : start + BLOCK] @ candidates.T).argmax(1) for start in range(0, len(queries), BLOCK)
    ]
    return float(
        np.mean([texts[at] == texts[row] for row, at in enumerate(np.concatenate(nearest).tolist())])
    )


def _read_bitext(part: BitextFile, find: Find) -> Bitext:
    path = find(part.file)
    rows = [
        (clean(cells[part.first]), clean(cells[part.second]))
        for _, cells in tsv(path, [part.first, part.second], [])
    ]
    if len(rows) < 2:
        raise UserError(
            f"{path}: {len(rows)} pairs, retrieval needs at least 2; give a table of translations"
        )
    return Bitext([first for first, _ in rows], [second for _, second in rows])
