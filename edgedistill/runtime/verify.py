"""Verify a bundle on this machine: file hashes, and golden texts in every precision."""

from __future__ import annotations

from pathlib import Path

from edgedistill.errors import raise_failed
from edgedistill.files import Json
from edgedistill.runtime import golden_file
from edgedistill.runtime import manifest as manifests
from edgedistill.runtime.bundle import SIDES, kind_of, load
from edgedistill.runtime.bundle_location import choose_precision, locate
from edgedistill.runtime.manifest import PAIR
from edgedistill.runtime.similarity import Measure
from edgedistill.runtime.trust import GET_AGAIN

OTHER_TOKENIZERS = (
    "this version of tokenizers reads tokenizer.json in another way; install the version "
    "named in manifest.json"
)


def verify(name: str | Path, device: str = "cpu") -> Json:
    """Check the sha256 of every file, then the token ids and embeddings of the golden texts, in every
    precision, or in that which the name ends in, on a device.

    Of a pair, of both encoders, whose precisions are then called query/int8 and the like. Returns {bundle,
    files, texts, precisions}, where a precision has {cosine_min, text, threshold}: the lowest cosine to the
    embeddings stored at export, the number of its text from 1, and the lowest allowed; also `fallback` where
    products run on the processor all the same. A classifier has {apart_max, text, threshold}: the largest
    difference of a probability. Raises CheckFailed with everything that differs, UserError where there is no
    such bundle, precision or device.
    """
    folder, asked = locate(name)
    manifest = manifests.read(folder)
    entries = manifest.get("precisions", {})
    place = folder / "manifest.json"
    pair = manifest["kind"] == PAIR
    if asked and not pair:
        entries = {asked: entries[choose_precision(manifest, folder, asked)]}
    needed = {"parity.json", "tokenizer.json", *(entry["file"] for entry in entries.values())}
    if pair:
        needed = {f"{side}/manifest.json" for side in SIDES}
    problems = manifests.changes(folder, manifest, sorted({*manifest["files"], *needed}))
    if "digest" not in manifest:
        problems.append(f"{place}: has no digest, so an edit would go unnoticed; {GET_AGAIN}")
    lacking = [precision for precision, entry in entries.items() if not entry.get("parity")]
    problems += [f"{place}: precisions.{name} has no parity.threshold; {GET_AGAIN}" for name in lacking]
    raise_failed(problems)
    result: Json = {"bundle": str(folder), "files": len(manifest["files"]), "texts": 0, "precisions": {}}
    if pair:
        load(folder)  # two encoders of the same dimensions
        for side in SIDES:
            of_side = verify(f"{folder / side}:{asked}" if asked else folder / side, device)
            result["texts"] += of_side["texts"]
            for precision, entry in of_side["precisions"].items():
                result["precisions"][f"{side}/{precision}"] = entry
        return result
    golden = golden_file.read(folder, manifest)
    result["texts"], measure = len(golden.items), golden.measure
    for precision, entry in entries.items():
        opened = load(folder, precision=precision, device=device)
        if not result["precisions"]:  # all precisions share the tokenizer
            for at, *_ in golden_file.different_ids(opened, golden):
                problems.append(f"{folder}: {golden.name(at)}: token ids differ; {OTHER_TOKENIZERS}")
        threshold = entry["parity"]["threshold"]
        values = measure.between(golden_file.rows(opened, golden), golden.rows)
        at = measure.worst_of(values)
        if fact := measure.problem(values[at], threshold, precision, " on this machine"):
            problems.append(f"{folder}: {golden.name(at)} {fact}")
        worst = {_key(measure): round(float(values[at]), 6), "text": at + 1, "threshold": threshold}
        result["precisions"][precision] = worst | ({"fallback": opened.fallback} if opened.fallback else {})
    raise_failed(problems, precisions=result["precisions"])
    return result


def _key(measure: Measure) -> str:
    """What the worst value is called, such as cosine_min."""
    return f"{measure.name}_{measure.worst}"


def summary(name: str, result: Json) -> str:
    """One line for a result of `verify`; a name is followed by the bundle's folder, for runners that take no
    names."""
    folder = Path(result["bundle"])
    precisions = result["precisions"]
    measure = kind_of(manifests.read(folder)).measure
    key = _key(measure)
    at = min(precisions, key=lambda precision: measure.sign * precisions[precision][key])
    place = name if Path(name) == folder else f"{name} ({folder})"
    worst = f"{measure.about} {precisions[at][key]:.5f}, of {measure.item} {precisions[at]['text']} in {at}"
    fallbacks = dict.fromkeys(entry["fallback"] for entry in precisions.values() if "fallback" in entry)
    return "; ".join(
        [
            f"{place}: OK, {result['files']} files match their hashes, {result['texts']} golden texts match "
            f"(worst {worst})",
            *fallbacks,
        ]
    )
