"""Accuracy and F1 of predicted labels."""

from __future__ import annotations

import numpy as np


def scores(
    predicted: np.ndarray, gold: np.ndarray, labels: list[str], positive: str | None
) -> dict[str, float]:
    """{accuracy, f1, macro_f1} of predicted label ids (n,) against gold ones (n,); an id is an index in
    `labels`.

    `f1` is that of the label `positive`; by default, of two labels the last (as in 0 and 1), of more labels
        the macro average.
    """
    each = {name: _f1(predicted == label, gold == label) for label, name in enumerate(labels)}
    macro = float(np.mean(list(each.values())))
    chosen = positive if positive is not None else labels[-1] if len(labels) == 2 else None
    return {
        "accuracy": float((predicted == gold).mean()),
        "f1": each[chosen] if chosen is not None else macro,
        "macro_f1": macro,
    }


def _f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """2·hits / (predicted + gold); 0 where neither has any."""
    total = int(predicted.sum() + gold.sum())
    return 2 * int((predicted & gold).sum()) / total if total else 0.0
