"""Where a student falls behind its teacher: the score of a suite by the length and the lexical overlap of its
items, and the items on which the two differ most."""

from __future__ import annotations

import re
from itertools import pairwise
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


def add(
    suite: Suite, measured: list[dict[str, Any]], teacher: dict[str, Any] | None, plan: tuple[int, int]
) -> None:
    """Add to what was measured of a suite its `slices`, [{by, from, to, items, score, difference}], and,
    where the teacher's is among them, `furthest`, [{task, texts, gold, student, teacher}].

    `difference` to the teacher is by the paired bootstrap, with `plan` the number of resamples and the seed.
    Of pairs with graded similarity the score is Spearman's correlation over all tasks, and the furthest are
    those whose cosines are furthest apart in rank. Suites whose items are no texts get neither.
    """
    texts_of = FAMILIES[suite.kind].items
    if texts_of is None:
        return
    named = [(name, item) for name, task in suite.tasks.items() for item in texts_of(task, suite.texts)]
    samples = [_joined(quality) for quality in measured]
    at = next((number for number, quality in enumerate(measured) if quality is teacher), None)
    for quality in measured:
        quality["slices"] = []
    for by, values in measures([item for _, item in named]).items():
        for low, high in pairwise(CUTS[by]):
            rows = (values >= low) & (values < high)
            if rows.sum() < LEAST:
                continue
            about = {"by": by, "from": low, "to": high if high < np.inf else None, "items": int(rows.sum())}
            parts = [{key: each[rows] for key, each in of.items()} for of in samples]
            scores = [_score(part) for part in parts]
            draws = [] if at is None else [bootstrap.scores(by, part, *plan) for part in parts]
            for number, quality in enumerate(measured):
                found: dict[str, Any] = {**about, "score": round(scores[number], 5)}
                if at is not None and number != at:
                    mean = scores[number] - scores[at]
                    found["difference"] = bootstrap.difference(draws[number], draws[at], mean)
                quality["slices"].append(found)
    for number, quality in enumerate(measured):
        if at is not None and number != at:
            quality["furthest"] = _furthest(named, samples[number], samples[at])


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


def _score(samples: Samples) -> float:
    if "scores" in samples:
        return float(samples["scores"].mean())
    return spearman(samples["cosines"], samples["gold"]) or 0.0


def _furthest(
    named: list[tuple[str, tuple[str, ...]]], ours: Samples, theirs: Samples
) -> list[dict[str, Any]]:
    key = "scores" if "scores" in ours else "cosines"
    apart = theirs[key] - ours[key]
    if key == "cosines":
        apart = (np.argsort(np.argsort(theirs[key])) - np.argsort(np.argsort(ours[key]))) / len(named)
    found = []
    for at in np.argsort(-np.abs(apart), kind="stable")[:SHOWN].tolist():
        if apart[at]:
            values = {"student": round(float(ours[key][at]), 4), "teacher": round(float(theirs[key][at]), 4)}
            gold = float(ours["gold"][at]) if "gold" in ours else None
            task, texts = named[at]
            found.append({"task": task, "texts": list(texts), "gold": gold, **values})
    return found
