"""A bundle's manifest.json: which ones are refused, and the hashes of the bundle's files.

A stranger may have written its fields, and with them the hashes and the digest that vouch for them: every
field that a runner uses is checked for what an export writes there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from edgedistill import files
from edgedistill.errors import UserError, shown
from edgedistill.runtime.compact import is_calibration
from edgedistill.runtime.trust import GET_AGAIN

SCHEMA = 1
LARGEST_BYTES = 4_000_000
# that of a graph is the most that a message of protobuf can have
LARGEST_FILE_BYTES = {".onnx": 2**31 - 1, ".safetensors": 2**34}  # of other files:
LARGEST_OTHER_BYTES = 64_000_000  # a vocabulary of 250,000 tokens takes 9 to 17 MB
PAIR = "pair"  # kind of a bundle of two encoders, each in a folder of its own
PAIR_KEYS = ("name", "kind", "files")
MEAN = "mean"  # `documents` of a pair whose documents are embedded by both encoders
REQUIRED_KEYS = ("name", "kind", "dims", "max_tokens", "prompt", "precisions", "files", "output")
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
INPUTS = ("input_ids", "attention_mask", "input_ids_2", "attention_mask_2")  # of one text, or of a pair
FILE_NAME = "a plain name of a file inside the bundle's folder"
# devices, on Windows
RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{at}" for port in ("com", "lpt") for at in range(10))}
_HASH = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"(?:19[7-9]|2\d\d)\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d)", re.ASCII)
# letters that all systems allow in a file's name, and the slash
_PLAIN = re.compile(r"[^\\:*?\"<>|\x00-\x1f\x7f]*")


def read(folder: Path) -> dict[str, Any]:
    """A bundle's manifest. Raises UserError for a folder that is not a bundle, for damaged JSON, missing
    keys, a newer schema, and with every field that holds what no export writes, such as the name of a file
    outside the folder.
    """
    path = folder / "manifest.json"
    if not path.is_file():
        if (folder / "run.json").is_file():
            raise UserError(
                f"{folder}: a run, not a bundle; export it first with edgedistill export {folder}"
            )
        raise UserError(f"{folder}: not a bundle (no manifest.json); create one with edgedistill export RUN")
    if path.stat().st_size > LARGEST_BYTES or _leaves(folder, path.name):
        raise UserError(
            f"{path}: above {LARGEST_BYTES} bytes, or a link out of the folder; copy the bundle again"
        )
    manifest = files.read_json_object(path, "copy the bundle again", finite=True)
    schema = manifest.get("schema")
    if type(schema) is not int or schema < 1:
        raise UserError(f"{path}: no schema number, so it is not a bundle's manifest; copy the bundle again")
    if schema > SCHEMA:
        raise UserError(
            f"{path}: schema {schema}, this edgedistill reads up to {SCHEMA}; install a newer one"
        )
    required = PAIR_KEYS if manifest.get("kind") == PAIR else REQUIRED_KEYS
    missing = [key for key in required if key not in manifest]
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} missing, truncated or edited; copy the bundle again")
    if problems := list(_problems(manifest)):
        raise UserError(*(f"{path}: {problem}; {GET_AGAIN}" for problem in problems))
    return manifest


def width(manifest: dict[str, Any]) -> int:
    """The numbers in a row of the graph's output: a classifier's labels, or the dimensions of embeddings."""
    return len(manifest.get("labels", [])) or int(manifest["dims"][0])


def digest(manifest: dict[str, Any]) -> str:
    """The hash of a manifest, leaving out the digest that it may already hold."""
    return files.cache_key(**{name: value for name, value in manifest.items() if name != "digest"})


def changes(folder: Path, manifest: dict[str, Any], names: Sequence[str]) -> list[str]:
    """One line for each of the named files that is missing, too large to be read, or whose sha256 differs,
    and for a manifest that does not match its digest.
    """
    problems = []
    if "digest" in manifest and manifest["digest"] != digest(manifest):
        problems.append(
            f"{folder / 'manifest.json'}: changed since export (its digest differs); copy the bundle again"
        )
    facts = {name: _file_problem(folder, name, manifest["files"].get(name)) for name in names}
    return problems + [f"{folder / name}: {fact}" for name, fact in facts.items() if fact]


def _file_problem(folder: Path, name: str, sha256: str | None) -> str | None:
    path = folder / name
    most = LARGEST_FILE_BYTES.get(path.suffix, LARGEST_OTHER_BYTES)
    if _leaves(folder, name):
        return "a link out of the bundle's folder; copy the bundle again, with the files that links lead to"
    if not path.is_file():
        return "missing; copy the bundle again"
    if path.stat().st_size > most:
        return f"{path.stat().st_size} bytes, such a file has at most {most}; copy the bundle again"
    if sha256 is None:
        return f"has no sha256 in manifest.json; {GET_AGAIN}"
    if files.sha256_file(path) != sha256:
        return "changed since export (its sha256 differs from manifest.json); copy the bundle again"
    return None


def _leaves(folder: Path, name: str) -> bool:
    """Whether a file of the bundle, or a folder on the way to it, is a link that leads out of the bundle's
    folder."""
    try:
        return not (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a circle of links
        return True


# What fields may hold


def is_file_name(name: Any) -> bool:
    """Whether something is the name of a file inside the bundle, on any system, such as onnx/model.onnx."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not _PLAIN.fullmatch(name):
        return False
    return all(
        part and part == part.rstrip(" .") and part.split(".")[0].lower() not in RESERVED
        for part in name.split("/")
    )


def is_text(value: Any, longest: int = LONGEST_PROMPT) -> bool:
    """Whether a value is a string that can be encoded: JSON can escape half a surrogate pair."""
    return (
        isinstance(value, str)
        and len(value) <= longest
        and not any("\ud800" <= letter <= "\udfff" for letter in value)
    )


def _is_name(value: Any) -> bool:
    return is_text(value, LONGEST_NAME) and value.isprintable() and value != ""


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _is_within(value: Any, lowest: int, highest: int) -> bool:
    return type(value) is int and lowest <= value <= highest


def _is_dims(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MOST_DIMS
        and all(_is_within(dim, 1, LARGEST_DIM) for dim in value)
        and value == sorted(set(value), reverse=True)
    )


def _is_labels(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MOST_LABELS
        and all(is_text(label, LONGEST_NAME) for label in value)
    )


def _is_time(value: Any) -> bool:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_rank(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_within(place, 1, MOST_PRECISIONS) for place in value.values())


# {field: (whether a value is right, what it should be)}
Rules = dict[str, tuple[Callable[[Any], bool], str]]
NAME = (_is_name, f"a name of 1 to {LONGEST_NAME} characters")
TEXT = (is_text, f"a string of at most {LONGEST_PROMPT} characters")
MAPPING = (_is_mapping, "a mapping")
FIELDS: Rules = {
    **dict.fromkeys(("name", "kind", "output"), NAME),
    # a teacher may be a path; prompts of roles are optional
    **dict.fromkeys(("prompt", "query_prompt", "document_prompt", "teacher"), TEXT),
    # what bench, the card and training read
    **dict.fromkeys(("recipe", "student", "parameters", "versions", "run"), MAPPING),
    "made_at": (_is_time, "a time such as 2026-01-31T12:00:00Z"),
    "dims": (
        _is_dims,
        f"1 to {MOST_DIMS} whole numbers from 1 to {LARGEST_DIM}, the largest first",
    ),
    "max_tokens": (
        lambda value: _is_within(value, 1, MOST_TOKENS),
        f"a whole number from 1 to {MOST_TOKENS}",
    ),
    "pad_id": (lambda value: _is_within(value, 0, LARGEST_ID), "a token id"),
    "calibration": (is_calibration, "an int8_range above 0 and a mean of numbers from -1 to 1"),
    "documents": (lambda value: value == MEAN, repr(MEAN)),
    "labels": (_is_labels, f"a list of at most {MOST_LABELS} strings"),
    "inputs": (
        lambda value: value in (list(INPUTS[:2]), list(INPUTS)),
        f"{', '.join(INPUTS[:2])} and, for pairs, {', '.join(INPUTS[2:])}",
    ),
    "precisions": (
        lambda value: _is_mapping(value) and 0 < len(value) <= MOST_PRECISIONS,
        f"a mapping of 1 to {MOST_PRECISIONS} precisions",
    ),
    "files": (
        lambda value: _is_mapping(value) and len(value) <= MOST_FILES,
        f"a mapping of at most {MOST_FILES} files to their sha256",
    ),
}
PRECISION_FIELDS: Rules = {
    # onnxruntime reads an .ort file in another way, past our check of the graph
    "file": (
        lambda value: is_file_name(value) and value.endswith(".onnx"),
        f"{FILE_NAME} that ends in .onnx",
    ),
    "size_bytes": (lambda value: _is_within(value, 0, 2**40), "a number of bytes"),
    "rank": (_is_rank, f"places from 1 to {MOST_PRECISIONS} by kind of processor"),
    "parity": MAPPING,
}


def _problems(manifest: dict[str, Any]) -> Iterator[str]:
    """Everything that is wrong with the fields that runners use: *field: fact*."""
    if _is_deeper(manifest, MOST_NESTED):
        yield f"lists and mappings nested more than {MOST_NESTED} deep"
        return
    yield from _wrong_fields(manifest, FIELDS)
    precisions, hashes = manifest.get("precisions", {}), manifest["files"]
    for name, entry in precisions.items() if isinstance(precisions, dict) else ():
        if not name.isidentifier() or len(name) > LONGEST_NAME:
            yield f"precisions[{shown(name)}]: not a name"
        elif not isinstance(entry, dict):
            yield f"precisions.{name}: {shown(entry)}, not a mapping"
        else:
            yield from _wrong_fields({"file": None, **entry}, PRECISION_FIELDS, f"precisions.{name}.")
            yield from _wrong_threshold(name, entry.get("parity"), bool(manifest.get("labels")))
    for name, value in hashes.items() if isinstance(hashes, dict) else ():
        if not is_file_name(name):
            yield f"files: {shown(name)}, not {FILE_NAME}"
        elif not isinstance(value, str) or not _HASH.fullmatch(value):
            yield f"files.{name}: {shown(value)}, not a sha256"


def _wrong_fields(values: dict[str, Any], rules: Rules, place: str = "") -> Iterator[str]:
    for key, (is_right, expected) in rules.items():
        if key in values and not is_right(values[key]):
            yield f"{place}{key}: {shown(values[key])}, not {expected}"


def _wrong_threshold(precision: str, parity: Any, classifier: bool) -> Iterator[str]:
    """There is none while it is being measured, at export."""
    if not isinstance(parity, dict) or not parity:
        return
    lowest, highest = (0, LARGEST_DIFFERENCE) if classifier else (LEAST_COSINE, 1)
    threshold: Any = parity.get("threshold")
    if type(threshold) not in (int, float) or not lowest <= threshold <= highest:
        yield (
            f"precisions.{precision}.parity.threshold: {shown(threshold)}, not a number from {lowest} to "
            f"{highest}"
        )


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether containers lie in each other more than so many levels deep; without recursion, which would
    end."""
    level = [value]
    for _ in range(levels):
        containers = [each.values() if isinstance(each, dict) else each for each in level]
        level = [inner for container in containers for inner in container if isinstance(inner, dict | list)]
    return bool(level)
