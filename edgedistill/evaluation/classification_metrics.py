"""Accuracy and F1 of predicted labels."""

from __future__ import annotations

import numpy as np


def scores(
    predicted: np.ndarray, gold: np.ndarray, labels: list[str], positive: str | None
) -> dict[str, float]:
    """Return {accuracy, f1, macro_f1} of predicted label ids (n,) against gold ones (n,); an id is an index
    in `labels`.

    `f1` is that of the label `positive`. Without one it is, of two labels, that of the last (as in 0 and 1)
    and, of more labels, the macro average.
    """
    each = {name: _f1(predicted == label, gold == label) for label, name in enumerate(labels)}
    macro = float(np.mean(list(each.values())))
    if positive is None and len(labels) == 2:
        positive = labels[-1]
    return {
        "accuracy": float((predicted == gold).mean()),
        "f1": macro if positive is None else each[positive],
        "macro_f1": macro,
    }


def _f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return 2·hits / (predicted + gold), and 0 where neither has any."""
    total = int(predicted.sum() + gold.sum())
    return 2 * int((predicted & gold).sum()) / total if total else 0.0
