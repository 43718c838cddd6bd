"""Untuned similarity: do cosines of vectors, never trained on the task, tell pairs that belong together (SRA, §5.5, Table 5)?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from edgedistill.data import labelled
from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Encode, Floats, Ints, dot, encoded, unit
from edgedistill.evaluation.suites.suite_files import Find, Part


class PairTables(Part):
    """Pairs with one of two labels; the threshold comes from `dev`, the scores from `test`."""

    name: str = Field(description="of the task")
    dev: str = Field(description="a table: beside suite.yaml, else under --data")
    test: str
    texts: list[str] = Field(["sentence1", "sentence2"], min_length=2, max_length=2, description="the two columns of a pair")
    label: str = "label"
    positive: str | None = Field(None, description="the label of pairs that belong together; default: the last of the two")


class SimilaritySuite(Part):
    """Pairs told apart by a threshold on their cosine."""

    kind: Literal["similarity"]
    name: str | None = None
    about: str = ""
    tasks: list[PairTables] = Field(min_length=1)


@dataclass(frozen=True)
class Told:
    """One split: rows of the suite's texts, and whether each pair belongs together."""

    first: Ints  # (n,) into Suite.texts
    second: Ints
    same: npt.NDArray[np.bool_]  # (n,)


def read(spec: SimilaritySuite, find: Find) -> tuple[list[str], dict[str, tuple[Told, Told]]]:
    """(every distinct text once, (dev, test) of each task by name). Raises UserError where labels are not two."""
    known: dict[str, int] = {}
    tasks = {part.name: _read_task(part, find, known) for part in spec.tasks}
    return list(known), tasks


def score(texts: list[str], tasks: dict[str, tuple[Told, Told]], encode: Encode) -> dict[str, dict[str, Any]]:
    """Per task `accuracy` and `f1` of test, each at the threshold that was best for it on dev, and the thresholds."""
    vectors = unit(encoded(encode, texts))
    out = {}
    for name, (dev, test) in tasks.items():
        before, cosine = _cosines(vectors, dev), _cosines(vectors, test)
        at = thresholds(before, dev.same)
        accuracy, f1 = (_measures(cosine >= at[which], test.same)[which] for which in ("accuracy", "f1"))
        out[name] = {"accuracy": accuracy, "f1": f1, "thresholds": at, "pairs": len(test.same)}
    return out


def thresholds(cosine: Floats, same: npt.NDArray[np.bool_]) -> dict[str, float]:
    """{accuracy, f1}: the cosine from which pairs are taken to belong together, best for each measure; between two cosines that occur.

    The paper says no rule; labels choose one number here, of the dev split alone.
    """
    order = np.argsort(-cosine, kind="stable")
    hits = np.concatenate([[0], np.cumsum(same[order])])
    taken = np.arange(len(same) + 1)
    accuracy = (hits + (len(same) - same.sum()) - (taken - hits)) / len(same)
    f1 = 2 * hits / np.maximum(taken + same.sum(), 1)
    ranked = cosine[order]
    edges = np.concatenate([[ranked[0] + 1e-6], (ranked[:-1] + ranked[1:]) / 2, [ranked[-1] - 1e-6]])
    possible = np.concatenate([[True], ranked[:-1] > ranked[1:], [True]])  # equal cosines are taken together
    best = {name: int(np.argmax(np.where(possible, values, -1))) for name, values in (("accuracy", accuracy), ("f1", f1))}
    return {name: float(edges[at]) for name, at in best.items()}


def _measures(found: npt.NDArray[np.bool_], same: npt.NDArray[np.bool_]) -> dict[str, float]:
    return labelled.scores(found.astype(np.int64), same.astype(np.int64), ["0", "1"], "1")


def _cosines(vectors: Floats, told: Told) -> Floats:
    return dot(vectors[told.first], vectors[told.second])


def _read_task(part: PairTables, find: Find, known: dict[str, int]) -> tuple[Told, Told]:
    dev, test = (labelled.of_file(find(name), part.texts, part.label, part.name) for name in (part.dev, part.test))
    names = labelled.ordered(dev.labels, part.dev)
    positive = part.positive if part.positive is not None else names[-1]
    if len(names) != 2 or set(test.labels) - set(names) or positive not in names:
        raise UserError(
            f"{part.name}: labels {', '.join(sorted({*names, *test.labels}))}; similarity tells two apart, and `positive` is one"
        )

    def told(rows: labelled.Rows) -> Told:
        numbers = [[known.setdefault(item[side], len(known)) for item in rows.items] for side in (0, 1)]
        return Told(np.array(numbers[0]), np.array(numbers[1]), np.array([label == positive for label in rows.labels]))

    return told(dev), told(test)
