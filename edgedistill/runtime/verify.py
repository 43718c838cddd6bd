"""Verify a bundle on this machine: file hashes, and golden texts in every precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files
from edgedistill.errors import raise_failed
from edgedistill.runtime import golden_file
from edgedistill.runtime import manifest as manifests
from edgedistill.runtime.bundle import SIDES, kind_of, load
from edgedistill.runtime.bundle_location import locate
from edgedistill.runtime.trust import GET_AGAIN

SENTENCES = "sts-small"  # the suite whose sentences two bundles are compared on
NEIGHBOURS = 10
ENOUGH_KEPT = 0.9  # of the neighbours: about what int8 keeps of float32
OTHER_TOKENIZERS = (
    "this version of tokenizers reads tokenizer.json in another way; install the version "
    "named in manifest.json"
)


def verify(name: str | Path, device: str = "cpu") -> dict[str, Any]:
    """Check the sha256 of every file, then the token ids and embeddings of the golden texts, in every
    precision on a device.

    Of a pair, of both encoders, whose precisions are then called query/int8 and the like. Returns {bundle,
    files, texts, precisions}, where a precision has {cosine_min, text, threshold}: the lowest cosine to the
    embeddings stored at export, the number of its text from 1, and the lowest allowed; also `fallback` where
    products run on the processor all the same. A classifier has {apart_max, text, threshold}: the largest
    difference of a probability. Raises CheckFailed with everything that differs, UserError where there is no
    such bundle or device.
    """
    folder, _ = locate(name)
    manifest = manifests.read(folder)
    if manifest["kind"] == manifests.PAIR:
        return _verify_pair(folder, manifest, device)
    needed = {"parity.json", "tokenizer.json", *(entry["file"] for entry in manifest["precisions"].values())}
    problems = _changes(folder, manifest, needed)
    problems += [
        f"{folder / 'manifest.json'}: precisions.{precision} has no parity.threshold; {GET_AGAIN}"
        for precision, entry in manifest["precisions"].items()
        if not entry.get("parity")
    ]
    raise_failed(problems)
    golden = golden_file.read(folder, manifest)
    precisions: dict[str, Any] = {}
    for precision, entry in manifest["precisions"].items():
        opened = load(folder, precision=precision, device=device)
        if not precisions:  # all precisions share the tokenizer
            different = golden_file.different_ids(opened, golden)
            problems += [
                f"{folder}: {golden.name(at)}: token ids differ; {OTHER_TOKENIZERS}" for at, *_ in different
            ]
        threshold, measure = entry["parity"]["threshold"], golden.measure
        values = measure.between(golden_file.rows(opened, golden), golden.rows)
        at = measure.worst_of(values)
        if fact := measure.problem(values[at], threshold, precision, " on this machine"):
            problems.append(f"{folder}: {golden.name(at)} {fact}")
        worst = {f"{measure.name}_{measure.worst}": round(float(values[at]), 6)}
        precisions[precision] = {**worst, "text": at + 1, "threshold": threshold}
        if opened.fallback:
            precisions[precision]["fallback"] = opened.fallback
    raise_failed(problems, precisions=precisions)
    return {
        "bundle": str(folder),
        "files": len(manifest["files"]),
        "texts": len(golden.items),
        "precisions": precisions,
    }


def beside(name: str | Path, other: str | Path) -> dict[str, Any]:
    """Whether an index of one bundle's embeddings may be asked with another's: {space, texts, cosine_mean,
    neighbours_kept, advice}.

    `space` is "same", "different" or "unknown". Over the sentences of a shipped suite, `cosine_mean` is that
    of both embeddings of a text, and `neighbours_kept` the share of its NEIGHBOURS nearest others in the
    index of one that the other finds there; None where dimensions differ.
    """
    opened = load(name), load(other)
    spaces = {bundle.space for bundle in opened}
    known = "same" if len(spaces) == 1 else "different"
    if None in spaces:
        known = "unknown"
    table = (files.find("suite", SENTENCES).parent / "pairs.tsv").read_text(encoding="utf-8")
    texts = list(dict.fromkeys(text for line in table.splitlines()[1:] for text in line.split("\t")[:2]))
    result: dict[str, Any] = {
        "space": known,
        "texts": len(texts),
        "cosine_mean": None,
        "neighbours_kept": None,
    }
    if opened[0].dims[0] != opened[1].dims[0]:
        return result | {"advice": "the dimensions differ: embed the texts of the index again"}
    index, asked = (bundle.encode(texts) for bundle in opened)
    nearest, again = (_nearest(rows @ index.T) for rows in (index, asked))
    kept = [len(set(one) & set(two)) / NEIGHBOURS for one, two in zip(nearest, again, strict=True)]
    result["cosine_mean"] = round(float((index * asked).sum(1).mean()), 4)
    result["neighbours_kept"] = share = round(sum(kept) / len(kept), 4)
    keep = "the index may be kept" if share >= ENOUGH_KEPT else "embed the texts of the index again"
    return result | {"advice": f"{share:.0%} of the neighbours are found: {keep}"}


def _nearest(cosines: np.ndarray) -> np.ndarray:
    """The columns of each row's NEIGHBOURS largest cosines but for its own, (n, NEIGHBOURS)."""
    np.fill_diagonal(cosines, -2)
    return np.argpartition(-cosines, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]


def _verify_pair(folder: Path, manifest: dict[str, Any], device: str) -> dict[str, Any]:
    raise_failed(_changes(folder, manifest, {f"{side}/manifest.json" for side in SIDES}))
    load(folder)  # two encoders of the same dimensions
    sides = {side: verify(folder / side, device) for side in SIDES}
    return {
        "bundle": str(folder),
        "files": len(manifest["files"]),
        "texts": sum(result["texts"] for result in sides.values()),
        "precisions": {
            f"{side}/{name}": entry
            for side, result in sides.items()
            for name, entry in result["precisions"].items()
        },
    }


def _changes(folder: Path, manifest: dict[str, Any], needed: set[str]) -> list[str]:
    """What is wrong with the manifest's files and those that are needed, and with its digest."""
    problems = manifests.changes(folder, manifest, sorted({*manifest["files"], *needed}))
    if "digest" not in manifest:
        problems.append(
            f"{folder / 'manifest.json'}: has no digest, so an edit would go unnoticed; {GET_AGAIN}"
        )
    return problems


def summary(name: str, result: dict[str, Any]) -> str:
    """One line for a result of `verify`; a name is followed by the bundle's folder, for runners that take no
    names."""
    precisions = result["precisions"]
    measure = kind_of(manifests.read(Path(result["bundle"]))).measure
    key = f"{measure.name}_{measure.worst}"
    at = min(precisions, key=lambda precision: measure.sign * precisions[precision][key])
    value, text = precisions[at][key], precisions[at]["text"]
    place = name if Path(name) == Path(result["bundle"]) else f"{name} ({result['bundle']})"
    fallbacks = dict.fromkeys(
        f"; {entry['fallback']}" for entry in precisions.values() if "fallback" in entry
    )
    return (
        f"{place}: OK, {result['files']} files match their hashes, {result['texts']} golden texts match "
        f"(worst {measure.about} {value:.5f}, of {measure.item} {text} in {at}){''.join(fallbacks)}"
    )
