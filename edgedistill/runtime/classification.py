"""Predicted labels: what a classifier's bundle returns, and the measure that compares its logits with
torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edgedistill.runtime.similarity import Measure

Item = str | Sequence[str]  # what a classifier labels: a text, or a pair of texts


class Classification(NamedTuple):
    """The predicted labels of n items: the most probable label of each, and the probabilities of all labels,
    (n, C) float32, in the order of `Bundle.labels`. The rows of these sum to 1."""

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


PROBABILITY = Measure(
    rows="logits",
    limits="probability_within",
    item="item",
    name="apart",
    worst="max",
    explained="item i (a text, or a pair) -> ids i of each of its texts (unpadded, truncated to {} tokens) "
    "-> logits i by torch in float32",
    about="difference of probabilities",
    fact="has a probability that differs by {value:.{digits}f} from torch's{where}, {precision} must stay "
    "within {threshold}",
    best=0,
    sign=-1,
    between=probability_difference,
    required=lambda precision: precision.probability_difference,
    required_drift=lambda precision: 0,
)
