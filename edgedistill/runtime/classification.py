"""What a classifier bundle returns: predicted labels and probabilities."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Classification(NamedTuple):
    """The predicted labels of n items.

    labels: the most probable label of each item. probabilities: (n, C) float32, rows summing to 1, in the
        order of `Bundle.labels`.
    """

    labels: list[str]
    probabilities: np.ndarray


def softmax(logits: np.ndarray) -> np.ndarray:
    """(n, C) logits -> (n, C) probabilities, rows summing to 1."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def probability_difference(logits: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n, C) and (n, C) logits -> (n,): the largest absolute difference between the probabilities of a label,
    for each item."""
    return np.asarray(np.abs(softmax(logits.astype(np.float64)) - softmax(others.astype(np.float64))).max(1))
