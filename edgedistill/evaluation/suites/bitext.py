"""Bitext retrieval: is a text's nearest neighbour among all translations its own? (Artetxe and Schwenk 2019,
Tatoeba)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Encoder, Floats, Measures, unit
from edgedistill.evaluation.suites.suite_files import Find, Task, TaskData, columns
from edgedistill.runtime.similarity import search


class BitextFile(Task):
    """A table of translations, one pair per row."""

    file: str = Field(description="next to suite.yaml, else under --data")
    first: str = Field(description="the column of one language")
    second: str = Field(description="the column of the other")

    def read(self, find: Find) -> Bitext:
        path = find(self.file)
        pairs = list(columns(path, [self.first, self.second]))
        if len(pairs) < 2:
            fact = f"{len(pairs)} pairs, retrieval needs at least 2"
            raise UserError(f"{path}: {fact}; give a table of translations")
        return Bitext([first for first, _ in pairs], [second for _, second in pairs])


@dataclass
class Bitext(TaskData):
    """One task: second[i] is the translation of first[i]."""

    first: list[str]
    second: list[str]

    @property
    def texts(self) -> list[str]:
        return self.first + self.second

    def score(self, encoder: Encoder) -> Measures:
        """`forward` (second found for first), `backward`, their mean `accuracy`, and `pairs`."""
        first, second = unit(encoder.text(self.first)), unit(encoder.text(self.second))
        forward, backward = _hits(first, second, self.second), _hits(second, first, self.first)
        return {
            "accuracy": float(np.mean([forward, backward])),
            "forward": float(np.mean(forward)),
            "backward": float(np.mean(backward)),
            "pairs": len(self.first),
            "samples": {"scores": np.mean([forward, backward], axis=0).tolist()},
        }


def _hits(queries: Floats, candidates: Floats, texts: list[str]) -> list[bool]:
    """Whether the nearest candidate of each row is that of the same row, or an equal text; the first of equal
    cosines counts."""
    nearest = search(queries, candidates, k=1)[0][:, 0].tolist()
    return [texts[at] == texts[row] for row, at in enumerate(nearest)]
