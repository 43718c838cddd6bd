"""Compare embeddings: with each other, and a runner's with torch's by a measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from edgedistill.errors import UserError
from edgedistill.precisions import Precision
from edgedistill.runtime.compact import PLAIN, Calibration, compact, expanded

BLOCK = 4096  # documents whose scores are computed at a time, which bounds memory


def check_spaces(*spaces: str | None) -> None:
    """Raises UserError where two of them are known and differ."""
    known = list(dict.fromkeys(space for space in spaces if space is not None))
    if len(known) > 1:
        raise UserError(
            f"spaces {' and '.join(map(str, known))}: embeddings of two spaces, whose cosines mean "
            "nothing; embed the texts of one again (edgedistill verify A --with B measures whether "
            "that can wait)"
        )


def similarity(
    a: npt.ArrayLike, b: npt.ArrayLike, spaces: tuple[str | None, str | None] = (None, None)
) -> ndarray:
    """The cosine of every embedding of `a` with every embedding of `b`: (n, d), (m, d) -> (n, m) float32,
    between -1 and 1.

        >>> rows = encoder.encode(["A cat sleeps.", "A kitten is asleep.", "Soup is served hot."])
        >>> cosines = edgedistill.similarity(rows, rows)
        >>> cosines.shape
        (3, 3)
        >>> bool(cosines[0, 1] > cosines[0, 2])
        True

    a, b: embeddings in any precision of `encode`. One embedding, (d,), counts as (1, d). uint8 is read as
        bits, each as ±1: the cosine of two binary embeddings is 1 − 2 · (share of bits that differ). An
        embedding of zeros has cosine 0 with everything.
    spaces: the `Bundle.space` of `a` and of `b`, if you stored them; None where you did not.

    Raises UserError for arguments that are not numbers or have another shape, and if the dimensions or two
    known spaces differ.
    """
    check_spaces(*spaces)
    first = _rows(a, "a")
    second = _rows(b, "b")
    if first.shape[1] != second.shape[1]:
        raise UserError(
            f"similarity: a has {first.shape[1]} dimensions, b has {second.shape[1]}; encode both with the "
            "same bundle and dim"
        )
    return np.asarray(unit_rows(first) @ unit_rows(second).T)


def search(
    queries: npt.ArrayLike,
    documents: ndarray,
    k: int = 10,
    candidates: int = 100,
    rescore: ndarray | None = None,
    calibration: Calibration = PLAIN,
    spaces: tuple[str | None, str | None] = (None, None),
) -> tuple[ndarray, ndarray]:
    """The k documents most similar to each query, best first: their indices and cosines, both (q, k). It
    takes embeddings only and needs no bundle; `Bundle.search` also takes texts.

    Binary documents are searched in two steps: the `candidates` nearest by Hamming distance are ranked again
    by their cosine to the query in float32.

        >>> bits = encoder.encode_document(texts, precision="binary")
        >>> query = encoder.encode_query("When does the train go?")
        >>> indices, _ = edgedistill.search(query, bits, k=1, calibration=encoder.calibration)
        >>> indices
        array([[1]])

    queries: (q, d) or (d,), float32.
    documents: (n, d); (n, d/8) if binary, as `encode_document` returns them.
    k: the number of documents to return; fewer if there are fewer.
    candidates: if binary, how many documents to rank again.
    rescore: if binary, the same documents in int8 or float32, to rank the candidates with.
    calibration: if binary, the `calibration` of the bundle that embedded them. Some bundles, such as `nano`,
        do without it.
    spaces: the `Bundle.space` of the queries and of the documents, if you stored them; None where you did
        not.

    Equal documents keep their order. Raises UserError as `similarity`, and if `rescore` has another number of
    documents.
    """
    check_spaces(*spaces)
    asked = _rows(queries, "queries")
    documents = np.asarray(documents)
    binary = documents.dtype == np.uint8
    again = documents if rescore is None else rescore
    if len(again) != len(documents):
        raise UserError(
            f"search: rescore has {len(again)} embeddings, documents has {len(documents)}; give the same"
        )
    first = compact(asked, "binary", calibration) if binary else asked
    kept = np.zeros((len(asked), 0), np.int64)
    best = np.zeros((len(asked), 0), np.float32)
    for start in range(0, len(documents), BLOCK):
        scores = similarity(first, documents[start : start + BLOCK])
        numbers = np.broadcast_to(np.arange(start, start + scores.shape[1]), scores.shape)
        kept = np.hstack([kept, numbers])
        best = np.hstack([best, scores])
        kept, best = _best(kept, best, max(k, candidates) if binary else k)
    second = calibration.centred(asked) if again.dtype == np.uint8 else asked
    for at, query in enumerate(second if binary else ()):
        best[at] = similarity(query, again[kept[at]])[0]
    return _best(kept, best, k)


def _best(numbers: ndarray, scores: ndarray, most: int) -> tuple[ndarray, ndarray]:
    """The columns of (q, n) with the highest scores of each row, sorted."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :most]
    return np.take_along_axis(numbers, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _rows(embeddings: npt.ArrayLike, name: str) -> ndarray:
    fact = "not an array of numbers"
    try:
        array = np.asarray(embeddings)
        rows = np.atleast_2d(array if array.dtype == np.uint8 else array.astype(np.float32))
        if rows.ndim == 2 and array.ndim and np.isfinite(rows).all():
            return expanded(rows)
        if rows.ndim > 2:
            fact = f"an array of shape {rows.shape}, not (n, d) or (d,)"
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(f"{name}: {fact}; give embeddings, as encode returns them (texts: Bundle.search)")


def not_finite(rows: ndarray) -> int | None:
    """The index of the first row with NaN or infinity; None where there is none."""
    finite = np.isfinite(rows).reshape(len(rows), -1).all(1)
    return None if finite.all() else int(finite.argmin())


def unit_rows(rows: ndarray) -> ndarray:
    """Rows of unit length, in their own type; rows of zeros stay zeros."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


class Measure(NamedTuple):
    """How the rows of a runner are compared with torch's: embeddings by their cosine.

    rows and limits are what parity.json calls the rows and their thresholds, and explained is its first line.
    item is what a text is called, name and worst what a value is called (as in cosine_min), about says what a
    value is, and fact what is wrong with one. best is the value of equal rows; sign is -1 where smaller
    values are better. between compares two arrays of n rows and gives n values. required and required_drift
    are a precision's limits: of a value to torch's, and of a text alone to the same text in a batch.
    """

    rows: str
    limits: str
    item: str
    name: str
    worst: str
    explained: str
    about: str
    fact: str
    best: int
    sign: int
    between: Callable[[ndarray, ndarray], ndarray]
    required: Callable[[Precision], float]
    required_drift: Callable[[Precision], float]

    def worst_of(self, values: ndarray) -> int:
        """The index of the worst value; NaN is the worst of all."""
        return int(np.argmin(self.sign * values))

    def rounded(self, values: ndarray) -> float:
        """The worst value in six digits, never better than it was. (float32 noise is reported as
        0.999999.)"""
        return self.sign * float(np.floor((self.sign * values).min() * 1e6) / 1e6)

    def agreement(self, values: ndarray) -> ndarray:
        """1 for equal rows, less for others."""
        return np.asarray(1 - self.best + self.sign * values)

    def problem(self, value: float, threshold: float, precision: str, where: str) -> str | None:
        """What is wrong with a value, if anything is."""
        if self.sign * value >= self.sign * threshold:  # NaN is not
            return None
        digits = 4 if threshold < 0.999 else 6  # as many as it takes to compare them
        return self.fact.format(
            value=value, threshold=threshold, precision=precision, where=where, digits=digits
        )


COSINE = Measure(
    rows="vectors",
    limits="cosine_at_least",
    item="text",
    name="cosine",
    worst="min",
    explained="text i -> ids i (unpadded, truncated to {} tokens) -> vectors i, unit length, by torch in "
    "float32",
    about="cosine",
    fact="came back at cosine {value:.{digits}f}{where}, {precision} must reach {threshold:.{digits}f}",
    best=1,
    sign=1,
    between=lambda rows, others: (rows.astype(np.float64) * others).sum(1),
    required=lambda precision: precision.single_cosine,
    required_drift=lambda precision: precision.batch_cosine,
)


def softmax(logits: ndarray) -> ndarray:
    """(n, C) logits -> (n, C) probabilities, rows summing to 1."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def probability_difference(logits: ndarray, others: ndarray) -> ndarray:
    """(n, C) and (n, C) logits -> (n,): the largest absolute difference between the probabilities of a label,
    for each item."""
    one, other = (softmax(rows.astype(np.float64)) for rows in (logits, others))
    return np.asarray(np.abs(one - other).max(1))


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
