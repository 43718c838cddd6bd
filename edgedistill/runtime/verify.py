"""Verify a bundle on this machine: file hashes, and golden texts in every precision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill.errors import CheckFailed
from edgedistill.runtime import golden_file
from edgedistill.runtime import manifest as manifests
from edgedistill.runtime.bundle import Bundle, load
from edgedistill.runtime.bundle_location import locate
from edgedistill.runtime.classification import probability_difference
from edgedistill.runtime.trust import GET_AGAIN


def verify(name: str | Path) -> dict[str, Any]:
    """Check the sha256 of every file, then the token ids and embeddings of the golden texts, in every precision.

    Returns {bundle, files, texts, precisions}, where a precision has {cosine_min, text, threshold}: the lowest cosine to the embeddings
    stored at export, the number of its text from 1, and the lowest allowed. A classifier has {apart_max, text, threshold}: the largest
    difference of a probability.
    Raises CheckFailed with everything that differs, UserError where there is no such bundle.
    """
    folder, _ = locate(name)
    manifest = manifests.read(folder)
    problems = manifests.changes(folder, manifest, sorted(manifest["files"]))
    if "digest" not in manifest:
        problems.append(f"{folder / 'manifest.json'}: has no digest, so an edit would go unnoticed; {GET_AGAIN}")
    problems += [
        f"{folder / 'manifest.json'}: no sha256 of {name}; {GET_AGAIN}"
        for name in ("parity.json", "tokenizer.json", *(entry["file"] for entry in manifest["precisions"].values()))
        if name not in manifest["files"]
    ]
    problems += [
        f"{folder / 'manifest.json'}: precisions.{precision} has no parity.threshold; {GET_AGAIN}"
        for precision, entry in manifest["precisions"].items()
        if not entry.get("parity")
    ]
    if problems:
        raise CheckFailed("\n".join(problems), {"problems": problems})
    golden = golden_file.read(folder, manifest)
    found: dict[str, Any] = {}
    for precision, entry in manifest["precisions"].items():
        opened = load(folder, precision=precision)
        if not found:  # all precisions share the tokenizer
            problems += _check_tokens(opened, golden)
        found[precision], differences = compare(opened, golden, entry["parity"]["threshold"])
        problems += differences
    if problems:
        raise CheckFailed("\n".join(problems), {"problems": problems, "precisions": found})
    return {"bundle": str(folder), "files": len(manifest["files"]), "texts": len(golden["texts"]), "precisions": found}


def summary(name: str, found: dict[str, Any]) -> str:
    """One line for a result of `verify`; a name is followed by the bundle's folder, for runners that take no names."""
    precisions = found["precisions"]
    if all("cosine_min" in entry for entry in precisions.values()):
        at = min(precisions, key=lambda precision: precisions[precision]["cosine_min"])
        worst = f"worst cosine {precisions[at]['cosine_min']:.5f}, of text {precisions[at]['text']} in {at}"
    else:
        at = max(precisions, key=lambda precision: precisions[precision]["apart_max"])
        worst = f"largest difference of a probability {precisions[at]['apart_max']:.5f}, of item {precisions[at]['text']} in {at}"
    place = name if Path(name) == Path(found["bundle"]) else f"{name} ({found['bundle']})"
    return f"{place}: OK, {found['files']} files match their hashes, {found['texts']} golden texts match ({worst})"


def _check_tokens(opened: Bundle, golden: dict[str, Any]) -> list[str]:
    """A line for each golden text, or pair, whose token ids differ."""
    texts = golden["texts"]
    ids = [[row.tolist() for row in item] for item in opened.tokenize_items(texts)] if opened.labels else _lists(opened.tokenize(texts))
    way_out = "this version of tokenizers reads tokenizer.json in another way; install the version named in manifest.json"
    return [
        f"{opened.folder}: {_named(golden, at)}: token ids differ; {way_out}"
        for at, (row, expected) in enumerate(zip(ids, golden["ids"], strict=True))
        if row != expected
    ]


def _lists(rows: Sequence[np.ndarray]) -> list[list[int]]:
    return [row.tolist() for row in rows]


def compare(opened: Bundle, golden: dict[str, Any], threshold: float) -> tuple[dict[str, float], list[str]]:
    """({cosine_min, text, threshold}, problems) of an encoder, ({apart_max, text, threshold}, problems) of a classifier: each golden
    text, or item, alone, against what was stored at export; text: the number of the worst, from 1.
    """
    return (_check_labels if opened.labels else _check_embeddings)(opened, golden, threshold)


def golden_rows(opened: Bundle, golden: dict[str, Any]) -> np.ndarray:
    """(n, d) embeddings, or (n, C) logits, of the golden token ids, each text or item alone."""
    if opened.labels:
        return np.concatenate([opened.logits_ids([[np.array(row, np.int64) for row in item]]) for item in golden["ids"]])
    return np.concatenate([opened.encode_ids([np.array(row, np.int64)]) for row in golden["ids"]])


def _check_embeddings(opened: Bundle, golden: dict[str, Any], threshold: float) -> tuple[dict[str, float], list[str]]:
    rows = golden_rows(opened, golden)
    cosines = (rows.astype(np.float64) * np.array(golden["vectors"], np.float32)).sum(1)
    at = int(np.argmin(cosines))
    problems = []
    if not cosines[at] >= threshold:
        cosine, needed = format_cosines(cosines[at], threshold)
        problems = [f"{opened.folder}: {_named(golden, at)} has cosine {cosine} on this machine, {opened.precision} must reach {needed}"]
    return {"cosine_min": round(float(cosines[at]), 6), "text": at + 1, "threshold": threshold}, problems


def _check_labels(opened: Bundle, golden: dict[str, Any], threshold: float) -> tuple[dict[str, float], list[str]]:
    rows = golden_rows(opened, golden)
    differences = probability_difference(rows, np.array(golden["logits"], np.float32))
    at = int(np.argmax(differences))
    problems = []
    if not differences[at] <= threshold:
        fact = f"has a probability that differs by {differences[at]:.4f} on this machine, {opened.precision} allows {threshold}"
        problems = [f"{opened.folder}: {_named(golden, at)} {fact}"]
    return {"apart_max": round(float(differences[at]), 6), "text": at + 1, "threshold": threshold}, problems


def _named(golden: dict[str, Any], at: int) -> str:
    item = golden["texts"][at]
    kind, text = ("text", item) if isinstance(item, str) else ("item", item[0])
    return f"{kind} {at + 1} of {len(golden['texts'])} ({quote(text)})"


def format_cosines(cosine: float, threshold: float) -> tuple[str, str]:
    """Both numbers with as many digits as it takes to compare them."""
    digits = 4 if threshold < 0.999 else 6
    return f"{cosine:.{digits}f}", f"{threshold:.{digits}f}"


def quote(text: str) -> str:
    """A text in double quotes, shortened to fit a line, with invisible characters escaped."""
    shown = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text[:41])
    return f'"{shown[:40]}…"' if len(shown) > 40 else f'"{shown}"'
