"""Is this bundle what was made, and does it say here what it said there? numpy, tokenizers and onnxruntime, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files
from edgedistill.errors import AnswerIsNo
from edgedistill.runtime import bundle


def verify(folder: str | Path) -> dict[str, Any]:
    """Check every file's bytes, then each precision's ids and vectors on this machine against those the bundle was made with.

    Returns {bundle, files, texts, precisions {cosine_min, threshold}}. Raises AnswerIsNo with all that differs.
    """
    place, _ = bundle.split(str(folder))
    manifest = bundle.read_manifest(place)
    problems = bundle.check_files(place, manifest, sorted(manifest["files"]))
    if "digest" not in manifest:
        problems.append(f"{place / 'manifest.json'}: has no digest, so nothing says that it was not edited; export the run again")
    if problems:
        raise AnswerIsNo("\n".join(problems), {"problems": problems})
    golden = files.read_json(place / "parity.json")
    if manifest.get("labels"):
        return _verify_labels(place, manifest, golden)
    expected = np.array(golden["vectors"], np.float32)
    found: dict[str, Any] = {}
    for precision, entry in manifest["precisions"].items():
        opened = bundle.load(place, precision=precision)
        ids = opened.tokenize(golden["texts"])
        problems += [
            f"{place}: text {at + 1} of {len(ids)} ({quoted(golden['texts'][at])}): token ids differ; the tokenizers package "
            "reads tokenizer.json another way here: install the version named in manifest.json"
            for at, row in enumerate(ids)
            if precision == next(iter(manifest["precisions"])) and row.tolist() != golden["ids"][at]
        ]
        cosines = alone(opened, [np.array(row, np.int64) for row in golden["ids"]], expected)
        at, threshold = int(np.argmin(cosines)), entry["parity"]["threshold"]
        found[precision] = {"cosine_min": round(float(cosines[at]), 6), "threshold": threshold}
        if not cosines[at] >= threshold:
            text = f"text {at + 1} of {len(cosines)} ({quoted(golden['texts'][at])})"
            found_here, least = shown(cosines[at], threshold)
            problems.append(f"{place}: {text} came back at cosine {found_here} here, {precision} must reach {least}")
    if problems:
        raise AnswerIsNo("\n".join(problems), {"problems": problems, "precisions": found})
    return {"bundle": str(place), "files": len(manifest["files"]), "texts": len(expected), "precisions": found}


def _verify_labels(place: Path, manifest: dict[str, Any], golden: dict[str, Any]) -> dict[str, Any]:
    """A classifier's token ids, and its probabilities item by item. Raises AnswerIsNo with all that differs."""
    found: dict[str, Any] = {}
    problems, expected = [], np.array(golden["logits"], np.float32)
    for precision, entry in manifest["precisions"].items():
        opened = bundle.load(place, precision=precision)
        ids = opened.tokenize_items(golden["texts"])
        if precision == next(iter(manifest["precisions"])):
            problems += [
                f"{place}: item {at + 1} of {len(ids)}: token ids differ; the tokenizers package reads tokenizer.json another way here: "
                "install the version named in manifest.json"
                for at, item in enumerate(ids)
                if [row.tolist() for row in item] != golden["ids"][at]
            ]
        rows = np.concatenate([opened.logits_ids([[np.array(row, np.int64) for row in item]]) for item in golden["ids"]])
        difference, threshold = bundle.apart(rows, expected), entry["parity"]["threshold"]
        at = int(np.argmax(difference))
        found[precision] = {"apart_max": round(float(difference[at]), 6), "threshold": threshold}
        if not difference[at] <= threshold:
            off = f"came back with a probability {difference[at]:.4f} off here, {precision} may move it by {threshold}"
            problems.append(f"{place}: item {at + 1} of {len(ids)} ({quoted(golden['texts'][at][0])}) {off}")
    if problems:
        raise AnswerIsNo("\n".join(problems), {"problems": problems, "precisions": found})
    return {"bundle": str(place), "files": len(manifest["files"]), "texts": len(expected), "precisions": found}


def alone(opened: bundle.Bundle, ids: Sequence[np.ndarray], expected: np.ndarray) -> np.ndarray:
    """Cosine of each text's vector, run alone, to the expected unit rows; (n,)."""
    rows = np.concatenate([opened.encode_ids([row]) for row in ids])
    return (rows.astype(np.float64) * expected).sum(1)


def shown(cosine: float, least: float) -> tuple[str, str]:
    """Both with as many digits as tell them apart."""
    digits = 4 if least < 0.999 else 6
    return f"{cosine:.{digits}f}", f"{least:.{digits}f}"


def quoted(text: str) -> str:
    """A text in double quotes, short enough for a line, invisible characters escaped."""
    shown = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text[:41])
    return f'"{shown[:40]}…"' if len(shown) > 40 else f'"{shown}"'
