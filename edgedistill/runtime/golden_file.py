"""A bundle's parity.json, its golden texts: read and checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files
from edgedistill.errors import UserError

LARGEST_BYTES = 64_000_000
MOST_TEXTS = 10_000
LONGEST_TEXT = 1_000_000  # characters
LARGEST_ID = 2**31 - 1
UNIT_LENGTH = 0.001  # the embeddings are stored with six digits


def read(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """{texts, ids, vectors, …} of an encoder, {texts, ids, logits, …} of a classifier, whose texts may be pairs.

    Raises UserError with all that is wrong: another shape than the manifest's, numbers that are not finite, embeddings that are not of unit
    length, which would make any cosine reach its threshold.
    """
    path = folder / "parity.json"
    if not path.is_file():
        raise UserError(f"{path}: missing; copy the bundle again")
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        raise UserError(f"{path}: {size} bytes, golden texts have at most {LARGEST_BYTES}; copy the bundle again")
    golden = files.read_json_object(path, "copy the bundle again")
    if problems := list(_problems(golden, manifest)):
        raise UserError(*(f"{path}: {problem}; copy the bundle again" for problem in problems))
    return golden


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
    if truncated is not None and not (isinstance(truncated, list) and [type(each) for each in truncated] == [bool] * len(texts)):
        yield f"truncated: not a list of {len(texts)} times true or false"


def _is_item(item: Any, pair: bool, classifier: bool) -> bool:
    texts = item if isinstance(item, list) and classifier else [item]
    return len(texts) == 1 + pair and all(isinstance(text, str) and len(text) <= LONGEST_TEXT and _is_unicode(text) for text in texts)


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
        or not all(isinstance(row, list) and len(row) == width and all(type(value) in (int, float) for value in row) for row in rows)
    ):
        yield f"{name}: not {count} rows of {width} numbers"
        return
    with np.errstate(over="ignore"):
        found = np.array([[float(value) if abs(value) < 1e30 else np.nan for value in row] for row in rows])
    if not np.isfinite(found).all():
        yield f"{name}: a number that is not finite"
    elif name == "vectors" and np.abs(np.linalg.norm(found, axis=1) - 1).max() > UNIT_LENGTH:
        yield f"{name}: an embedding that is not of unit length"
