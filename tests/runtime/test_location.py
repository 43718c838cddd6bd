"""Bundles and precisions are found by name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import edgedistill
from edgedistill import files, machine, resolve
from edgedistill.errors import UserError
from edgedistill.precisions import PRECISIONS, fastest_first
from edgedistill.runtime import bundle, bundle_location
from tests.runtime.conftest import rewrite


def test_which_precision_is_opened(folder: Path, tmp_path, monkeypatch):
    assert edgedistill.load(folder).precision == "int8"
    assert edgedistill.load(f"{folder}:int8").precision == "int8"
    assert edgedistill.load(f"{folder}:int8", precision="fp32").precision == "fp32"
    monkeypatch.chdir(folder.parent)
    (folder.parent / "bundles").mkdir()
    (folder.parent / "bundles" / "short").symlink_to(folder)
    assert edgedistill.load("short:fp32").folder == Path("bundles/short")


def test_a_packaged_model_is_no_bundle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = "packaged:all-MiniLM-L6-v2"
    with pytest.raises(
        UserError, match=f"^{model}: a model, not a bundle; export it first: .* {model} --out"
    ):
        bundle.load(model)


def test_an_unknown_bundle_gets_the_closest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("nanoo", "nanoo:w8"):
        with pytest.raises(
            UserError, match=r"^no bundle 'nanoo'; did you mean 'nano'\? \(micro, multi, nano, small\)"
        ):
            bundle.load(name)
    for name in ("mine", ".mine.x1y2"):  # the second is being written
        (tmp_path / "bundles" / name).mkdir(parents=True)
        (tmp_path / "bundles" / name / "manifest.json").touch()
    with pytest.raises(
        UserError, match=r"^no bundle 'mien'; did you mean 'mine'\? \(micro, mine, multi, nano, small\); "
    ):
        bundle.load("mien")
    with pytest.raises(
        UserError,
        match=r"^\S+nothing: no such folder, and no bundle '\S+nothing'; choose one: \(micro, mine, multi, "
        r"nano, small\); "
        r"`edgedistill students` lists what ships, `edgedistill export MODEL` makes one$",
    ):
        bundle.load(tmp_path / "nothing")


def test_what_is_no_bundle_hides_none_that_ships(copy: Path, tmp_path, monkeypatch):
    (tmp_path / "here" / "nano").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    ships = files.shipped("bundle")["nano"].parent
    assert bundle_location.find("nano") == (ships, None) and bundle_location.locate("nano:int8")[0] == ships
    Path("bundles").mkdir()
    Path("bundles/nano").symlink_to(copy)
    line = (
        "nano: the folder bundles/nano here, and a bundle that ships; give ./bundles/nano for the first, or "
    )
    for opened in (bundle.load, bundle_location.find, resolve.resolve):
        with pytest.raises(UserError, match=f"^{line}rename it$"):
            opened("nano")  # type: ignore[operator]
    assert edgedistill.load("./bundles/nano").folder == Path("bundles/nano")
    Path("bundles/nano").unlink()
    Path("nano/run.json").touch()
    with pytest.raises(UserError, match="^nano: the folder nano here, and a bundle that ships; give ./nano "):
        resolve.resolve("nano")


def test_a_folder_that_is_not_a_bundle(tmp_path):
    with pytest.raises(
        UserError, match=r"not a bundle \(no manifest.json\); create one with edgedistill export RUN"
    ):
        bundle.load(tmp_path)
    assert bundle_location.find(str(tmp_path)) is None
    (tmp_path / "run.json").touch()
    with pytest.raises(
        UserError, match=rf"a run, not a bundle; export it first with edgedistill export {tmp_path}"
    ):
        bundle.load(tmp_path)


def test_a_precision_that_the_bundle_lacks(folder: Path, copy: Path):
    for opening in (lambda: bundle.load(folder, precision="int4"), lambda: bundle.load(f"{folder}:int4")):
        with pytest.raises(
            UserError, match=r"x: no precision 'int4'; did you mean 'int8'\? \(fp32, int8, w8\)"
        ):
            opening()
    rewrite(copy, precisions={"fp32": files.read_json(copy / "manifest.json")["precisions"]["fp32"]})
    assert bundle.load(copy).precision == "fp32"
    with pytest.raises(
        UserError, match="x: no precision 'w8'; choose fp32; edgedistill export .*x --precision writes others"
    ):
        bundle.load(f"{copy}:w8")


def test_a_shipped_bundle_is_named_as_it_was_given():
    with pytest.raises(UserError, match=r"^nano: no precision 'w8'; choose int8; edgedistill export nano "):
        bundle.load("nano:w8")


@pytest.mark.parametrize(
    ("flags", "device", "expected"),
    [
        (["avx2"], "cpu", ["int8", "qdq", "w4", "fp32", "w8", "fp16"]),
        (["avx2", "avx_vnni"], "cpu", ["int8", "qdq", "w4", "w8", "fp32", "fp16"]),
        (["avx_vnni"], "cuda", ["fp16", "fp32", "w8", "int8", "w4", "qdq"]),
    ],
)
def test_the_fastest_precision_by_the_manifests_rank(
    monkeypatch, flags: list[str], device: str, expected: list[str]
):
    monkeypatch.setattr(machine, "flags", lambda: flags)
    left = {name: {"rank": row.rank._asdict()} for name, row in PRECISIONS.items()}
    chosen = []
    while left:
        chosen.append(bundle_location.choose_precision({"precisions": left}, Path(), None, device))
        del left[chosen[-1]]
    assert chosen == expected


def test_a_precision_without_a_rank_comes_last():
    assert fastest_first({"new": {}, "w4": {"rank": {"cpu": 4}}, "newer": {}}, "cpu") == [
        "w4",
        "new",
        "newer",
    ]


def test_every_precision_is_a_row_and_a_file():
    for kind in ("cpu", "int8_cpu", "cuda"):
        assert sorted(getattr(row.rank, kind) for row in PRECISIONS.values()) == list(
            range(1, len(PRECISIONS) + 1)
        )
    assert len({row.file for row in PRECISIONS.values()}) == len(PRECISIONS)
    exact = [row.single_cosine for row in PRECISIONS.values()]
    assert exact == sorted(exact, reverse=True)  # a bundle's weights are read back from the first that it has
    assert all(
        importlib.util.find_spec(f"edgedistill.quantization.{name}") for name in PRECISIONS if name != "fp32"
    )
