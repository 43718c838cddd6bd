"""A bundle with a damaged manifest or changed files is not opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgedistill import files
from edgedistill.errors import CheckFailed, UserError
from edgedistill.runtime import bundle, verify
from tests.runtime.conftest import rewrite


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"schema": 2},
            "manifest.json: schema 2, this edgedistill reads up to 1; install a newer one",
        ),
        (
            {"schema": "1"},
            "manifest.json: no schema number, so it is not a bundle's manifest; copy the bundle again",
        ),
    ],
)
def test_a_manifest_from_elsewhere(copy: Path, changes: dict[str, Any], message: str):
    rewrite(copy, **changes)
    for opening in (bundle.load, verify.verify):
        with pytest.raises(UserError) as caught:
            opening(copy)
        assert str(caught.value).endswith(message)


@pytest.mark.parametrize("size", [0, 1, 300, -10])
def test_a_manifest_cut_short(copy: Path, size: int):
    path = copy / "manifest.json"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match=r"manifest\.json: (empty|not JSON \(.*\)); copy the bundle again"):
        bundle.load(copy)


def test_an_edited_manifest(copy: Path):
    """Its dims and thresholds decide whether everything else is accepted."""
    manifest = files.read_json(copy / "manifest.json")
    files.write_json(copy / "manifest.json", {**manifest, "max_tokens": 16})
    for opening in (bundle.load, verify.verify):
        with pytest.raises(
            CheckFailed,
            match=r"manifest\.json: changed since export \(its digest differs\); copy the bundle again",
        ):
            opening(copy)
    del manifest["digest"]
    files.write_json(copy / "manifest.json", manifest)
    assert bundle.load(copy).encode(["a"]).shape == (1, 24)
    with pytest.raises(CheckFailed, match=r"manifest\.json: has no digest"):
        verify.verify(copy)


def test_a_manifest_without_a_key(copy: Path):
    manifest = files.read_json(copy / "manifest.json")
    del manifest["dims"], manifest["prompt"]
    files.write_json(copy / "manifest.json", manifest)
    with pytest.raises(
        UserError, match=r"manifest\.json: dims: missing.*\n.*manifest\.json: prompt: missing"
    ):
        bundle.load(copy)


@pytest.mark.parametrize("name", ["onnx/model_quantized.onnx", "tokenizer.json"])
def test_one_byte_changed_is_not_opened(copy: Path, name: str):
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    for opening in (bundle.load, verify.verify):
        with pytest.raises(
            CheckFailed,
            match=rf"{name}: changed since export \(its sha256 differs from manifest.json\); copy the bundle "
            r"again",
        ):
            opening(copy)


@pytest.mark.parametrize("name", ["onnx/model_quantized.onnx", "tokenizer.json"])
def test_a_missing_file_is_named(copy: Path, name: str):
    (copy / name).unlink()
    for opening in (bundle.load, verify.verify):
        with pytest.raises(CheckFailed, match=f"{name}: missing; copy the bundle again"):
            opening(copy)
