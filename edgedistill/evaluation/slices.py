"""Where a student falls behind its teacher: the score of a suite by the length and the lexical overlap of its
items, and the items on which the two differ most."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from edgedistill.evaluation import bootstrap
from edgedistill.evaluation.scoring import Suite
from edgedistill.evaluation.suites import FAMILIES
from edgedistill.evaluation.suites.cosines import spearman

SHOWN = 20  # items on which student and teacher differ most
CUTS = {  # a slice reaches from one value up to the next; overlap: shared among all different words of a pair
    "words": (0, 9, 17, 33, np.inf),
    "overlap": (0, 0.25, 0.5, np.inf),
}
LEAST = 10  # items of a slice

Samples = dict[str, Any]  # by name an array, a value an item
Items = list[tuple[str, ...]]  # the texts of each item


def add(suite: Suite, quality: dict[str, Any], teacher: dict[str, Any] | None, plan: tuple[int, int]) -> None:
    """Add to what was measured of a suite its `slices`, [{by, from, to, items, score, difference}], and,
    where the teacher's is given, `furthest`, [{task, texts, gold, student, teacher}].

    `difference` to the teacher is by the paired bootstrap, with `plan` the number of resamples and the seed.
    Of pairs with graded similarity the score is Spearman's correlation over all tasks, and the furthest are
    those whose cosines are furthest apart in rank. Suites whose items are no texts get neither.
    """
    texts_of = FAMILIES[suite.kind].items
    if texts_of is None:
        return
    items = [item for task in suite.tasks.values() for item in texts_of(task, suite.texts)]
    ours = _joined(quality)
    theirs = None if teacher is None or teacher is quality else _joined(teacher)
    quality["slices"] = [
        _slice(by, values, ends, ours, theirs, plan)
        for by, values in measures(items).items()
        for ends in zip(CUTS[by], CUTS[by][1:], strict=False)
        if np.sum((values >= ends[0]) & (values < ends[1])) >= LEAST
    ]
    if theirs is not None:
        names = [name for name, task in suite.tasks.items() for _ in texts_of(task, suite.texts)]
        quality["furthest"] = _furthest(names, items, ours, theirs)


def measures(items: Items) -> dict[str, bootstrap.Floats]:
    """Return what items are sliced by: the words of their longer text and, of pairs, the share of different
    words that both texts have."""
    words = [[re.findall(r"\w+", text.lower()) for text in item] for item in items]
    found = {"words": np.array([max(map(len, item)) for item in words], np.float64)}
    if all(len(item) == 2 for item in words):
        sets = [(set(first), set(second)) for first, second in words]
        found["overlap"] = np.array([len(a & b) / max(1, len(a | b)) for a, b in sets])
    return found


def _joined(quality: dict[str, Any]) -> Samples:
    """Return the samples of all tasks, one after another."""
    tasks = [task["samples"] for task in quality["tasks"].values()]
    return {key: np.concatenate([np.asarray(task[key], np.float64) for task in tasks]) for key in tasks[0]}


def _slice(
    by: str,
    values: bootstrap.Floats,
    ends: tuple[float, float],
    ours: Samples,
    theirs: Samples | None,
    plan: tuple[int, int],
) -> dict[str, Any]:
    rows = (values >= ends[0]) & (values < ends[1])
    upper = ends[1] if ends[1] < np.inf else None
    kept = [{key: each[rows] for key, each in side.items()} for side in (ours, theirs) if side is not None]
    scores = [_score(side) for side in kept]
    found = {"by": by, "from": ends[0], "to": upper, "items": int(rows.sum()), "score": round(scores[0], 5)}
    if len(kept) == 2:
        draws = [bootstrap.scores(by, side, *plan) for side in kept]
        found["difference"] = bootstrap.difference(draws[0], draws[1], scores[0] - scores[1])
    return found


def _score(samples: Samples) -> float:
    if "scores" in samples:
        return float(samples["scores"].mean())
    return spearman(samples["cosines"], samples["gold"]) or 0.0


def _furthest(names: list[str], items: Items, ours: Samples, theirs: Samples) -> list[dict[str, Any]]:
    key = "scores" if "scores" in ours else "cosines"
    apart = theirs[key] - ours[key]
    if key == "cosines":
        apart = (np.argsort(np.argsort(theirs[key])) - np.argsort(np.argsort(ours[key]))) / len(items)
    found = []
    for at in np.argsort(-np.abs(apart), kind="stable")[:SHOWN].tolist():
        if apart[at]:
            values = {"student": round(float(ours[key][at]), 4), "teacher": round(float(theirs[key][at]), 4)}
            gold = float(ours["gold"][at]) if "gold" in ours else None
            found.append({"task": names[at], "texts": list(items[at]), "gold": gold, **values})
    return found
