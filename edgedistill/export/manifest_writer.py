"""A bundle's manifest.json: what the bundle is, its files and their hashes, its provenance."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from edgedistill import files
from edgedistill.run import Run, versions
from edgedistill.runtime.manifest import SCHEMA, digest

PACKAGES = ("onnx", "onnxruntime", "torch", "transformers", "tokenizers", "numpy")


def manifest(folder: Path, run: Run, precisions: dict[str, Any]) -> dict[str, Any]:
    """The manifest of the files that are in the folder now. precisions: {file, sha256, size_bytes, parity, drift} of each precision."""
    tokenizer: Any = run.tokenizer()
    return {
        "schema": SCHEMA,
        "name": run.recipe.name,
        "kind": run.kind,
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))),
        "recipe": run.recipe.model_dump(mode="json", by_alias=True),
        "student": run.shape,
        "teacher": run.recipe.teacher.name,
        "dims": [run.dims, *run.matryoshka_dims],
        "max_tokens": run.max_tokens,
        "prompt": run.prompt,
        "pad_id": tokenizer.pad_token_id or 0,
        "parameters": run.parameters,
        "precisions": precisions,
        "inputs": ["input_ids", "attention_mask"],
        "output": "sentence_embedding",
        "files": _hashes(folder),
        "versions": versions(PACKAGES),
        "run": run.info,
    }


def seal(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the final manifest, with the hashes of all other files and a digest of itself."""
    final = manifest | {"files": _hashes(folder)}
    files.write_json(folder / "manifest.json", final | {"digest": digest(final)})


def _hashes(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(folder).as_posix(): files.sha256_file(path) for path in paths}
