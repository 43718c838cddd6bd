"""A bundle's manifest.json: which ones are refused, and the hashes of the bundle's files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgedistill import files
from edgedistill.errors import UserError
from edgedistill.runtime.trust import GET_AGAIN, manifest_fields

SCHEMA = 1
LARGEST_BYTES = 4_000_000
LARGEST_FILE_BYTES = {".onnx": 2**31 - 1, ".safetensors": 2**34}  # of other files:
LARGEST_OTHER_BYTES = 64_000_000
REQUIRED_KEYS = ("name", "kind", "dims", "max_tokens", "prompt", "precisions", "files", "output")


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
    if path.stat().st_size > LARGEST_BYTES or manifest_fields.leaves(folder, path.name):
        raise UserError(
            f"{path}: above {LARGEST_BYTES} bytes, or a link out of the folder; copy the bundle again"
        )
    manifest = files.read_json_object(path, "copy the bundle again", finite=True)
    schema = manifest.get("schema")
    if type(schema) is not int or schema < 1:
        raise UserError(f"{path}: no schema number, so it is not a bundle's manifest; copy the bundle again")
    if schema > SCHEMA:
        raise UserError(
            f"{path}: schema {schema}, this edgedistill reads up to {SCHEMA}; pip install --upgrade "
            "edgedistill"
        )
    missing = [key for key in REQUIRED_KEYS if key not in manifest]
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} missing, truncated or edited; copy the bundle again")
    if problems := manifest_fields.problems(manifest):
        raise UserError(*(f"{path}: {problem}; {GET_AGAIN}" for problem in problems))
    return manifest


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
    for name in names:
        path, expected = folder / name, manifest["files"].get(name)
        if manifest_fields.leaves(folder, name):
            problems.append(
                f"{path}: a link out of the bundle's folder; copy the bundle again, with the files that "
                "links lead to"
            )
        elif not path.is_file():
            problems.append(f"{path}: missing; copy the bundle again")
        elif (size := path.stat().st_size) > (
            most := LARGEST_FILE_BYTES.get(path.suffix, LARGEST_OTHER_BYTES)
        ):
            problems.append(f"{path}: {size} bytes, such a file has at most {most}; copy the bundle again")
        elif files.sha256_file(path) != expected:
            problems.append(
                f"{path}: changed since export (its sha256 differs from manifest.json); copy the bundle again"
            )
    return problems
