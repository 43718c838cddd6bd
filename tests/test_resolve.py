"""What a name is: the first that fits of run, packaged model, bundle, folder and hub id."""

from __future__ import annotations

import errno

import huggingface_hub
import pytest

from edgedistill import resolve
from edgedistill.errors import UserError


def test_what_a_name_is(tmp_path):
    for name, file in (
        ("run", "run.json"),
        ("bundle", "manifest.json"),
        ("model", "config.json"),
        ("unfinished.partial", "recipe.yaml"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}", encoding="utf-8")
    found = {
        name: resolve.resolve(str(tmp_path / name))
        for name in ("run", "unfinished", "bundle", "model", "nothing")
    }
    assert found["run"] == resolve.RunFolder(str(tmp_path / "run"), tmp_path / "run")
    assert isinstance(found["unfinished"], resolve.RunFolder)
    assert found["bundle"] == resolve.BundleFolder(str(tmp_path / "bundle"), tmp_path / "bundle", None)
    assert isinstance(found["model"], resolve.ModelFolder)
    assert isinstance(found["nothing"], resolve.HubId)
    assert resolve.resolve("packaged:all-MiniLM-L6-v2") == resolve.Packaged("packaged:all-MiniLM-L6-v2")
    assert isinstance(resolve.resolve("nano:int8"), resolve.BundleFolder)
    assert resolve.model_files(found["model"], None, "teacher.model") == tmp_path / "model"
    with pytest.raises(
        UserError,
        match=r"^teacher\.model: .*bundle is a bundle, which has graphs and no model; give the model or the "
        r"run",
    ):
        resolve.model_files(found["bundle"], None, "teacher.model")


def test_a_full_disk_is_no_wrong_id(monkeypatch):
    def download(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", "/cache/blob")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError, match=r"teacher\.model: owner/name: no space left .*; free some space"):
        resolve.model_files(resolve.HubId("owner/name"), "main", "teacher.model")
