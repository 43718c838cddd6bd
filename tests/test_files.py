"""Files and folders are written atomically, whichever library writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from edgedistill import files
from edgedistill.errors import UserError


@contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """Every write beyond so many bytes of a file fails, as on a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def as_numpy(path: Path):
    with path.open("wb") as file:
        np.save(file, np.zeros(50_000, np.float16))


WRITERS: list[Callable[[Path], object]] = [
    lambda path: path.write_bytes(bytes(30_000)),
    as_numpy,
    lambda path: save_file({"x": torch.zeros(30_000)}, path),
    lambda path: Tokenizer(models.WordLevel({str(n): n for n in range(5_000)}, "0")).save(str(path)),
]


@pytest.mark.parametrize("write", WRITERS, ids=["bytes", "numpy", "safetensors", "tokenizers"])
@pytest.mark.parametrize("new", [files.new_file, files.new_folder])
def test_a_full_disk_is_a_user_error_and_leaves_nothing(
    new: Callable, write: Callable[[Path], object], tmp_path
):
    message = (
        "was not written: (no space left on the device|a file larger than is allowed there); free some "
        "space, or choose another place"
    )
    path = tmp_path / "x"
    with no_file_over(20_000), pytest.raises(UserError, match=message), new(path) as temporary:
        write(temporary if new is files.new_file else temporary / "inside")
    assert not list(tmp_path.iterdir())
    with new(path) as temporary:
        write(temporary if new is files.new_file else temporary / "inside")
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_folders_that_were_made_for_nothing_are_deleted(tmp_path):
    (tmp_path / "kept").mkdir()
    path = tmp_path / "kept" / "new" / "below" / "x"
    with pytest.raises(FileNotFoundError), files.new_file(path) as temporary:
        temporary.with_name("none").read_bytes()
    with files.folder_beside(path):
        pass
    assert not list((tmp_path / "kept").iterdir())
    files.write_text(path, "x")
    assert path.read_text() == "x" and [each.name for each in path.parent.iterdir()] == ["x"]


def test_other_errors_are_not_changed(tmp_path):
    with pytest.raises(FileNotFoundError), files.new_file(tmp_path / "x"):
        (tmp_path / "nowhere").read_bytes()
    with pytest.raises(Exception, match="os error 2"), files.new_folder(tmp_path / "y"):
        Tokenizer.from_file(str(tmp_path / "nowhere"))
    assert not list(tmp_path.iterdir())


def test_two_processes_that_write_the_same_folder_at_once(tmp_path):
    """The other folder appears meanwhile: the last one wins, complete, and nothing else is left."""
    path = tmp_path / "same"
    with files.new_folder(path) as folder:
        (folder / "a").write_text("mine", encoding="utf-8")
        path.mkdir()
        (path / "a").write_text("the other's", encoding="utf-8")
        (path / "b").write_text("the other's", encoding="utf-8")
    assert [each.name for each in path.iterdir()] == ["a"]
    assert (path / "a").read_text(encoding="utf-8") == "mine"
    assert [each.name for each in tmp_path.iterdir()] == ["same"]


def test_json_is_read_with_a_byte_order_mark(tmp_path):
    (tmp_path / "x.json").write_bytes(b'\xef\xbb\xbf{"a": "\xc3\xa9"}')
    assert files.read_json_object(tmp_path / "x.json") == {"a": "é"}


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf \n", "empty"),
        (b'{"a": \n', "not JSON (line 2: Expecting value)"),
        (b"<!DOCTYPE html>", "not JSON (line 1: Expecting value)"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "a pointer of Git LFS in place of the file",
        ),
        (b'{"a": "\xe9"}', "not JSON (not UTF-8)"),
        ('{"a": 1}'.encode("utf-16"), "not JSON (not UTF-8)"),
        (b"[" * 100_000, "not JSON (nested too deeply)"),
        (b"[" + b"9" * 5_000 + b"]", "not JSON (a number of more than 4,300 digits)"),
        (b"[1, 2]", "not a JSON object"),
    ],
)
def test_a_file_without_json_is_a_user_error(content: bytes, fact: str, tmp_path):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError) as raised:
        files.read_json_object(tmp_path / "x.json", "copy it again")
    assert raised.value.problems == (f"{tmp_path / 'x.json'}: {fact}; copy it again",)


def test_a_huge_file_is_not_read_as_json(tmp_path):
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(200_000_000_000)
    with pytest.raises(UserError, match="above 1073741824 bytes; get or write the file again"):
        files.read_json(tmp_path / "x.json")


def test_json_never_holds_a_number_that_json_has_no_name_for(tmp_path):
    nan, inf = float("nan"), float("inf")
    files.write_json(
        tmp_path / "x.json", {"a": [1.5, nan, (inf, {"b": -inf})], "c": np.float64("nan"), "d": "NaN"}
    )
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8"), parse_constant=pytest.fail) == {
        "a": [1.5, None, [None, {"b": None}]],
        "c": None,
        "d": "NaN",
    }


def test_a_folder_is_hashed_once_until_a_file_in_it_changes(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"one")
    before, read = files.sha256_folder(tmp_path), files._sha256.cache_info().misses
    assert files.sha256_folder(tmp_path) == before and files._sha256.cache_info().misses == read
    (tmp_path / "weights.bin").write_bytes(b"two")
    assert files.sha256_folder(tmp_path) != before
