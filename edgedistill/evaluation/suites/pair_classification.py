"""Zero-shot pair classification: do the two texts of a pair match? A threshold on their cosine decides (SRA,
§5.5, Table 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from edgedistill.data import labelled_tasks
from edgedistill.errors import UserError
from edgedistill.evaluation.suites import labelled_task
from edgedistill.evaluation.suites.cosines import Encode, Floats, Ints, dot, encoded, unit
from edgedistill.evaluation.suites.suite_files import Find, Part


class PairTables(Part):
    """Tables of pairs with two labels; the threshold is chosen on `dev`, `test` is scored."""

    name: str = Field(description="of the task")
    dev: str = Field(description="a table: next to suite.yaml, else under --data")
    test: str
    texts: list[str] = Field(
        ["sentence1", "sentence2"], min_length=2, max_length=2, description="the two columns of a pair"
    )
    label: str = "label"
    positive: str | None = Field(
        None, description="the label of matching pairs; default: the last of the two"
    )


class PairClassificationSuite(Part):
    """Accuracy of classifying pairs by a threshold on their cosine."""

    kind: Literal["pair_classification"]
    name: str | None = None
    about: str = ""
    tasks: list[PairTables] = Field(min_length=1)


@dataclass(frozen=True)
class LabelledPairs:
    """One split: pairs as rows of the suite's texts, and whether each pair matches."""

    first: Ints  # (n,) into Suite.texts
    second: Ints
    matches: npt.NDArray[np.bool_]  # (n,)


def read(
    spec: PairClassificationSuite, find: Find
) -> tuple[list[str], dict[str, tuple[LabelledPairs, LabelledPairs]]]:
    """Returns (every distinct text once, (dev, test) of each task by name). Raises UserError where a task has
    not exactly two labels."""
    known: dict[str, int] = {}
    tasks = {part.name: _read_task(part, find, known) for part in spec.tasks}
    return list(known), tasks


def score(
    texts: list[str], tasks: dict[str, tuple[LabelledPairs, LabelledPairs]], encode: Encode
) -> dict[str, dict[str, Any]]:
    """Per task `accuracy` and `f1` on test, each at the threshold that was best for it on dev, the
    `thresholds`, and `pairs`."""
    embeddings = unit(encoded(encode, texts))
    scores = {}
    for name, (dev, test) in tasks.items():
        cosine = _cosines(embeddings, test)
        best = thresholds(_cosines(embeddings, dev), dev.matches)
        accuracy, f1 = (_measures(cosine >= best[which], test.matches)[which] for which in ("accuracy", "f1"))
        scores[name] = {"accuracy": accuracy, "f1": f1, "thresholds": best, "pairs": len(test.matches)}
    return scores


def thresholds(cosine: Floats, matches: npt.NDArray[np.bool_]) -> dict[str, float]:
    """The best threshold for each measure, {accuracy, f1}: pairs with at least this cosine match; midway
    between two cosines that occur.

    cosine (n,), matches (n,) bool, of the dev split. The paper states no rule for choosing the threshold.
    """
    order = np.argsort(-cosine, kind="stable")
    hits = np.concatenate([[0], np.cumsum(matches[order])])
    taken = np.arange(len(matches) + 1)
    accuracy = (hits + (len(matches) - matches.sum()) - (taken - hits)) / len(matches)
    f1 = 2 * hits / np.maximum(taken + matches.sum(), 1)
    ranked = cosine[order]
    edges = np.concatenate([[ranked[0] + 1e-6], (ranked[:-1] + ranked[1:]) / 2, [ranked[-1] - 1e-6]])
    possible = np.concatenate([[True], ranked[:-1] > ranked[1:], [True]])  # equal cosines are taken together
    best = {
        name: int(np.argmax(np.where(possible, values, -1)))
        for name, values in (("accuracy", accuracy), ("f1", f1))
    }
    return {name: float(edges[at]) for name, at in best.items()}


def _measures(predicted: npt.NDArray[np.bool_], matches: npt.NDArray[np.bool_]) -> dict[str, float]:
    return labelled_task.scores(predicted.astype(np.int64), matches.astype(np.int64), ["0", "1"], "1")


def _cosines(embeddings: Floats, pairs: LabelledPairs) -> Floats:
    return dot(embeddings[pairs.first], embeddings[pairs.second])


def _read_task(part: PairTables, find: Find, known: dict[str, int]) -> tuple[LabelledPairs, LabelledPairs]:
    dev, test = (
        labelled_tasks.read_table(find(name), part.texts, part.label, part.name)
        for name in (part.dev, part.test)
    )
    names = labelled_tasks.ordered_labels(dev.labels, part.dev)
    positive = part.positive if part.positive is not None else names[-1]
    if len(names) != 2 or set(test.labels) - set(names) or positive not in names:
        raise UserError(
            f"{part.name}: labels {', '.join(sorted({*names, *test.labels}))}; exactly two are needed, and "
            "`positive` is one of them"
        )

    def labelled_pairs(rows: labelled_tasks.LabelledRows) -> LabelledPairs:
        indices = [[known.setdefault(item[side], len(known)) for item in rows.items] for side in (0, 1)]
        return LabelledPairs(
            np.array(indices[0]), np.array(indices[1]), np.array([label == positive for label in rows.labels])
        )

    return labelled_pairs(dev), labelled_pairs(test)
