"""A bundle's parity.json: its golden texts with what torch gives for them; written, read, checked, and
compared with by a measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import files
from edgedistill.errors import UserError, quote
from edgedistill.precisions import Precision
from edgedistill.runtime.bundle import Bundle
from edgedistill.runtime.classification import probability_difference

LARGEST_BYTES = 64_000_000
MOST_TEXTS = 10_000
LONGEST_TEXT = 1_000_000  # characters
LARGEST_ID = 2**31 - 1
UNIT_LENGTH = 0.001  # the embeddings are stored with six digits


class Measure(NamedTuple):
    """How rows are compared with torch's: embeddings by their cosine, logits by the difference of their
    probabilities.

    rows, limits: the names of the rows and of their thresholds in parity.json, which is `explained` there.
        item: what one text, or pair,
    is called. about: what a value is. fact: what is wrong with one.
    name, worst: of a value, as in cosine_min. best: the value of equal rows. sign: -1 where smaller values
        are better.
    between: two arrays of n rows -> n values. required, required_drift: of a value to torch's, and of the
        same text alone and in a batch.
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
    between: Callable[[np.ndarray, np.ndarray], np.ndarray]
    required: Callable[[Precision], float]
    required_drift: Callable[[Precision], float]

    def worst_of(self, values: np.ndarray) -> int:
        """The index of the worst value; NaN is the worst of all."""
        return int(np.argmin(self.sign * values))

    def rounded(self, values: np.ndarray) -> float:
        """The worst value in six digits, never better than it was. (float32 noise is reported as
        0.999999.)"""
        return self.sign * float(np.floor((self.sign * values).min() * 1e6) / 1e6)

    def agreement(self, values: np.ndarray) -> np.ndarray:
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


class Golden(NamedTuple):
    """What every runner must reproduce: texts, their token ids, and rows (n, d) by torch, each text by
    itself.

    A classifier's texts are items, of one or two texts each, and its ids a list for each of these.
    truncated: of each text, whether it has more tokens than its ids.
    """

    measure: Measure
    texts: list[Any]
    ids: list[Any]
    truncated: list[bool]
    rows: np.ndarray

    def name(self, at: int) -> str:
        """A text in a message: its number from 1, and its beginning."""
        text = self.texts[at] if isinstance(self.texts[at], str) else self.texts[at][0]
        return f"{self.measure.item} {at + 1} of {len(self.texts)} ({quote(text)})"


def content(
    golden: Golden, about: dict[str, Any], max_tokens: int, limits: dict[str, float]
) -> dict[str, Any]:
    """parity.json. about: dims or labels. limits: the threshold of each precision."""
    return {
        "about": golden.measure.explained.format(max_tokens),
        **about,
        golden.measure.limits: limits,
        "texts": golden.texts,
        "ids": golden.ids,
        "truncated": golden.truncated,
        golden.measure.rows: [
            [round(value, 6) for value in row] for row in golden.rows.astype(np.float64).tolist()
        ],
    }


def read(folder: Path, manifest: dict[str, Any]) -> Golden:
    """The golden texts of a bundle.

    Raises UserError with all that is wrong: another shape than the manifest's, numbers that are not finite,
        embeddings that are not of unit
    length, which would make any cosine reach its threshold.
    """
    path = folder / "parity.json"
    if not path.is_file():
        raise UserError(f"{path}: missing; copy the bundle again")
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        raise UserError(
            f"{path}: {size} bytes, golden texts have at most {LARGEST_BYTES}; copy the bundle again"
        )
    golden = files.read_json_object(path, "copy the bundle again")
    if problems := list(_problems(golden, manifest)):
        raise UserError(*(f"{path}: {problem}; copy the bundle again" for problem in problems))
    measure = PROBABILITY if manifest.get("labels") else COSINE
    rows = np.array(golden[measure.rows], np.float32)
    return Golden(measure, golden["texts"], golden["ids"], golden.get("truncated", []), rows)


def different_ids(opened: Bundle, golden: Golden) -> Iterator[tuple[int, list[Any], list[Any]]]:
    """(index, the bundle's token ids, the expected ones) of each text whose ids differ."""
    if opened.labels:
        found: list[Any] = [[row.tolist() for row in item] for item in opened.tokenize_items(golden.texts)]
    else:
        found = [row.tolist() for row in opened.tokenize(golden.texts)]
    for at, (ids, expected) in enumerate(zip(found, golden.ids, strict=True)):
        if ids != expected:
            yield at, ids, expected


def rows(opened: Bundle, golden: Golden, together: bool = False) -> np.ndarray:
    """(n, d) embeddings, or (n, C) logits, of the golden token ids: each text alone, or all in one padded
    batch."""
    run: Callable[..., np.ndarray] = opened.logits_ids if opened.labels else opened.encode_ids
    if opened.labels:
        ids: list[Any] = [[np.array(row, np.int64) for row in item] for item in golden.ids]
    else:
        ids = [np.array(row, np.int64) for row in golden.ids]
    if together:
        return run(ids, batch_tokens=(1 + bool(opened.labels)) * len(ids) * opened.max_tokens)
    return np.concatenate([run([each]) for each in ids])


def _problems(golden: dict[str, Any], manifest: dict[str, Any]) -> Iterator[str]:
    texts, labels = golden.get("texts"), manifest.get("labels")
    pair = len(manifest.get("inputs", ())) == 4
    if not isinstance(texts, list) or not 0 < len(texts) <= MOST_TEXTS:
        yield f"texts: not a list of 1 to {MOST_TEXTS}"
        return
    if not all(_is_item(item, pair, bool(labels)) for item in texts):
        yield f"texts: an item that is not {'a pair of texts' if pair else 'a text'}"
    ids = golden.get("ids")
    if not isinstance(ids, list) or len(ids) != len(texts):
        yield f"ids: not a list of {len(texts)}, one for each text"
    elif not all(_is_ids(row, manifest["max_tokens"], 1 + pair, bool(labels)) for row in ids):
        yield f"ids: not 1 to {manifest['max_tokens']} token ids for each text"
    if labels:
        yield from _matrix_problems("logits", golden.get("logits"), (len(texts), len(labels)))
    else:
        yield from _matrix_problems("vectors", golden.get("vectors"), (len(texts), manifest["dims"][0]))
    truncated = golden.get("truncated")
    if truncated is not None and not (
        isinstance(truncated, list) and [type(each) for each in truncated] == [bool] * len(texts)
    ):
        yield f"truncated: not a list of {len(texts)} times true or false"


def _is_item(item: Any, pair: bool, classifier: bool) -> bool:
    texts = item if isinstance(item, list) and classifier else [item]
    return len(texts) == 1 + pair and all(
        isinstance(text, str) and len(text) <= LONGEST_TEXT and _is_unicode(text) for text in texts
    )


def _is_unicode(text: str) -> bool:
    """JSON can escape half a surrogate pair, which is not text."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _is_ids(row: Any, max_tokens: int, columns: int, classifier: bool) -> bool:
    """Whether an item has its token ids: a list, or, of a classifier, a list of lists."""
    rows = row if classifier else [row]
    return (
        isinstance(rows, list)
        and len(rows) == columns
        and all(isinstance(each, list) and 0 < len(each) <= max_tokens for each in rows)
        and all(type(token) is int and 0 <= token <= LARGEST_ID for each in rows for token in each)
    )


def _matrix_problems(name: str, rows: Any, shape: tuple[int, int]) -> Iterator[str]:
    count, width = shape
    if (
        not isinstance(rows, list)
        or len(rows) != count
        or not all(
            isinstance(row, list) and len(row) == width and all(type(value) in (int, float) for value in row)
            for row in rows
        )
    ):
        yield f"{name}: not {count} rows of {width} numbers"
        return
    with np.errstate(over="ignore"):
        found = np.array([[float(value) if abs(value) < 1e30 else np.nan for value in row] for row in rows])
    if not np.isfinite(found).all():
        yield f"{name}: a number that is not finite"
    elif name == "vectors" and np.abs(np.linalg.norm(found, axis=1) - 1).max() > UNIT_LENGTH:
        yield f"{name}: an embedding that is not of unit length"
