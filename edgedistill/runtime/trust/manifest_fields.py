"""What a manifest's fields may hold. A stranger may have written them, and with them the hashes and the
digest that vouch for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

LONGEST_NAME = 200  # characters, of a file, a bundle, a label
LONGEST_PROMPT = 10_000
LARGEST_DIM = 65_536
MOST_DIMS = 64
MOST_TOKENS = 131_072  # of max_tokens
MOST_LABELS = 10_000
MOST_PRECISIONS = 20
MOST_FILES = 1_000
MOST_NESTED = 50
LARGEST_ID = 2**31 - 1
LEAST_COSINE = 0.5  # of a threshold: below it, verifying would accept anything
LARGEST_DIFFERENCE = 0.5  # of a probability
INPUTS = ("input_ids", "attention_mask", "input_ids_2", "attention_mask_2")
RESERVED = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{number}" for port in ("com", "lpt") for number in range(10)),
}  # devices, on Windows
_HASH = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"(?:19[7-9]|2\d\d)\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_PLAIN = re.compile(
    r"[^\\:*?\"<>|\x00-\x1f\x7f]*"
)  # letters that all systems allow in a file's name, and the slash


def name_problem(name: Any) -> str | None:
    """Why something is no name of a file inside the bundle, such as onnx/model.onnx; None where it is one."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        return f"{shown(name)}: not a file name of 1 to {LONGEST_NAME} characters"
    parts = name.split("/")
    if ".." in parts or name.startswith("/") or "\\" in name or ":" in name:
        return f"{shown(name)}: leads out of the bundle's folder"
    if not _PLAIN.fullmatch(name) or any(
        part != part.rstrip(" .") or not part or part == "." for part in parts
    ):
        return f"{shown(name)}: not a plain file name"
    if any(part.split(".")[0].lower() in RESERVED for part in parts):
        return f"{shown(name)}: a device's name on Windows"
    return None


def leaves(folder: Path, name: str) -> bool:
    """Whether a file of the bundle, or a folder on the way to it, is a link that leads out of the bundle's
    folder."""
    try:
        return not (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a circle of links
        return True


def problems(manifest: dict[str, Any]) -> list[str]:
    """Everything that is wrong with the fields that runners use: *field: fact*."""
    if _is_deeper(manifest, MOST_NESTED):
        return [f"lists and mappings nested more than {MOST_NESTED} deep"]
    return [problem for check in CHECKS for problem in check(manifest)]


def _texts(manifest: dict[str, Any]) -> Iterator[str]:
    for key in ("name", "kind", "output"):
        if not _is_text(manifest[key], LONGEST_NAME) or not manifest[key].isprintable() or not manifest[key]:
            yield f"{key}: {shown(manifest[key])}, not a name of 1 to {LONGEST_NAME} characters"
    if not _is_text(manifest["prompt"], LONGEST_PROMPT):
        yield f"prompt: {shown(manifest['prompt'])}, not a string of at most {LONGEST_PROMPT} characters"
    for key in (
        "recipe",
        "student",
        "parameters",
        "versions",
        "run",
    ):  # what bench, the card and training read
        if not isinstance(manifest.get(key, {}), dict):
            yield f"{key}: {shown(manifest[key])}, not a mapping"
    if not _is_time(manifest.get("made_at", "1970-01-01T00:00:00Z")):
        yield f"made_at: {shown(manifest['made_at'])}, not a time such as 2026-01-31T12:00:00Z"
    if not _is_text(manifest.get("teacher", ""), LONGEST_PROMPT):  # it may be a path
        yield f"teacher: {shown(manifest['teacher'])}, not a string of at most {LONGEST_PROMPT} characters"


def _numbers(manifest: dict[str, Any]) -> Iterator[str]:
    dims = manifest["dims"]
    if (
        not isinstance(dims, list)
        or not 0 < len(dims) <= MOST_DIMS
        or not all(_is_within(dim, 1, LARGEST_DIM) for dim in dims)
    ):
        yield f"dims: {shown(dims)}, not 1 to {MOST_DIMS} whole numbers from 1 to {LARGEST_DIM}"
    elif dims != sorted(set(dims), reverse=True):
        yield f"dims: {shown(dims)}, not the largest first"
    if not _is_within(manifest["max_tokens"], 1, MOST_TOKENS):
        yield f"max_tokens: {shown(manifest['max_tokens'])}, not a whole number from 1 to {MOST_TOKENS}"
    if not _is_within(manifest.get("pad_id", 0), 0, LARGEST_ID):
        yield f"pad_id: {shown(manifest['pad_id'])}, not a token id"


def _lists(manifest: dict[str, Any]) -> Iterator[str]:
    labels, inputs = manifest.get("labels", []), manifest.get("inputs", list(INPUTS[:2]))
    if (
        not isinstance(labels, list)
        or len(labels) > MOST_LABELS
        or not all(_is_text(label, LONGEST_NAME) for label in labels)
    ):
        yield f"labels: {shown(labels)}, not a list of at most {MOST_LABELS} strings"
    if inputs not in (list(INPUTS[:2]), list(INPUTS)):
        yield f"inputs: {shown(inputs)}, not {', '.join(INPUTS[:2])} and, for pairs, {', '.join(INPUTS[2:])}"


def _files(manifest: dict[str, Any]) -> Iterator[str]:
    hashes = manifest["files"]
    if not isinstance(hashes, dict) or len(hashes) > MOST_FILES:
        yield f"files: {shown(hashes)}, not a mapping of at most {MOST_FILES} files to their sha256"
        return
    for name, value in hashes.items():
        if problem := name_problem(name):
            yield f"files: {problem}"
        elif not isinstance(value, str) or not _HASH.fullmatch(value):
            yield f"files.{name}: {shown(value)}, not a sha256"


def _precisions(manifest: dict[str, Any]) -> Iterator[str]:
    precisions = manifest["precisions"]
    if not isinstance(precisions, dict) or not 0 < len(precisions) <= MOST_PRECISIONS:
        yield f"precisions: {shown(precisions)}, not a mapping of 1 to {MOST_PRECISIONS} precisions"
        return
    for name, entry in precisions.items():
        place = (
            f"precisions.{name}"
            if name.isidentifier() and len(name) <= LONGEST_NAME
            else f"precisions[{shown(name)}]"
        )
        if not place.startswith("precisions."):
            yield f"{place}: not a name"
        elif not isinstance(entry, dict):
            yield f"{place}: {shown(entry)}, not a mapping"
        else:
            yield from (
                f"{place}.{problem}" for problem in _entry_problems(entry, bool(manifest.get("labels")))
            )


def _entry_problems(entry: dict[str, Any], classifier: bool) -> Iterator[str]:
    if problem := name_problem(entry.get("file")):
        yield f"file: {problem}"
    elif not entry["file"].endswith(
        ".onnx"
    ):  # onnxruntime reads an .ort file in another way, past our check of the graph
        yield f"file: {shown(entry['file'])}, which does not end in .onnx"
    if not _is_within(entry.get("size_bytes", 0), 0, 2**40):
        yield f"size_bytes: {shown(entry['size_bytes'])}, not a number of bytes"
    rank = entry.get("rank", {})
    if not isinstance(rank, dict) or not all(
        _is_within(place, 1, MOST_PRECISIONS) for place in rank.values()
    ):
        yield f"rank: {shown(rank)}, not places from 1 to {MOST_PRECISIONS} by kind of processor"
    parity = entry.get("parity", {})  # none while it is being measured, at export
    if not isinstance(parity, dict):
        yield f"parity: {shown(parity)}, not a mapping"
    elif parity:
        lowest, highest = (0, LARGEST_DIFFERENCE) if classifier else (LEAST_COSINE, 1)
        threshold = parity.get("threshold")
        if (
            not isinstance(threshold, int | float)
            or isinstance(threshold, bool)
            or not lowest <= threshold <= highest
        ):
            yield f"parity.threshold: {shown(threshold)}, not a number from {lowest} to {highest}"


CHECKS: list[Callable[[dict[str, Any]], Iterator[str]]] = [_texts, _numbers, _lists, _precisions, _files]


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        containers = [
            each.values() if isinstance(each, dict) else each
            for each in level
            if isinstance(each, dict | list)
        ]
        level = [inner for container in containers for inner in container]
    return any(isinstance(each, dict | list) for each in level)


def _is_text(value: Any, longest: int) -> bool:
    """Whether a value is a string that can be encoded: JSON can escape half a surrogate pair."""
    return (
        isinstance(value, str)
        and len(value) <= longest
        and not any("\ud800" <= letter <= "\udfff" for letter in value)
    )


def _is_time(value: Any) -> bool:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_within(value: Any, lowest: int, highest: int) -> bool:
    return type(value) is int and lowest <= value <= highest


def shown(value: Any) -> str:
    """A value of a stranger's file, in one line of at most 80 characters."""
    text = ascii(value) if isinstance(value, str | int | float | bool | None) else _outline(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _outline(value: Any) -> str:
    return f"a {type(value).__name__} of {len(value)}" if not value or len(value) > 8 else ascii(value)
