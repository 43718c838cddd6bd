"""The pairs or queries of a suite on which a student is furthest from its teacher."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedistill.evaluation.scoring import Suite
from edgedistill.evaluation.suites import FAMILIES

SHOWN = 20


def add(suite: Suite, measured: list[dict[str, Any]], teacher: dict[str, Any] | None) -> None:
    """Add to each student's scores on a suite `furthest`, [{task, texts, gold, student, teacher}].

    Of pairs these are the ones whose cosines are furthest apart in rank, of queries those whose scores are.
    Suites whose items are no texts get none.
    """
    texts_of = FAMILIES[suite.kind].items
    if texts_of is None or teacher is None:
        return
    items = [(name, item) for name, task in suite.tasks.items() for item in texts_of(task, suite.texts)]
    for quality in measured:
        if quality is not teacher:
            quality["furthest"] = _furthest(items, _joined(quality), _joined(teacher))


def _joined(quality: dict[str, Any]) -> dict[str, np.ndarray]:
    """The samples of all tasks, one after another."""
    tasks = [task["samples"] for task in quality["tasks"].values()]
    return {key: np.concatenate([np.asarray(task[key], np.float64) for task in tasks]) for key in tasks[0]}


def _furthest(
    items: list[tuple[str, tuple[str, ...]]], student: dict[str, np.ndarray], teacher: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    key = "scores" if "scores" in student else "cosines"
    apart = teacher[key] - student[key]
    if key == "cosines":
        ranks = [np.argsort(np.argsort(samples[key])) for samples in (teacher, student)]
        apart = (ranks[0] - ranks[1]) / len(items)
    rows = []
    for at in np.argsort(-np.abs(apart), kind="stable")[:SHOWN].tolist():
        if apart[at]:
            task, texts = items[at]
            row = {"task": task, "texts": list(texts), "gold": None}
            if "gold" in student:
                row["gold"] = float(student["gold"][at])
            row["student"], row["teacher"] = (round(float(each[key][at]), 4) for each in (student, teacher))
            rows.append(row)
    return rows
