"""A small bundle in three precisions, and a copy of it to break."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from edgedistill import files
from edgedistill.export import bundle_writer
from edgedistill.runtime.manifest import digest
from tests.export.test_export import make_run


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bundles")
    bundle_writer.export(make_run(root / "run"), ["fp32", "w8", "int8"], root / "x", lambda line: None)
    return root / "x"


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "x"))


def rewrite(folder: Path, name: str = "manifest.json", **changes: Any):
    """Change keys of a JSON file of a bundle, and update the hashes and the digest in its manifest."""
    changed = {**files.read_json(folder / name), **changes}
    files.write_json(
        folder / name, {**changed, "digest": digest(changed)} if name == "manifest.json" else changed
    )
    if name != "manifest.json":
        rewrite(
            folder,
            files={
                **files.read_json(folder / "manifest.json")["files"],
                name: files.sha256_file(folder / name),
            },
        )
