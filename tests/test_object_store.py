"""Texts, the cache and runs in an object store: read from whole copies, uploaded with their mark last. In
fsspec's own memory; in an S3 server with faults in ecosystems/test_object_stores.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from typer.testing import CliRunner

from edgedistill import object_store, recipe
from edgedistill.cli import app
from edgedistill.data import file_patterns
from edgedistill.errors import UserError
from edgedistill.resolve import HubId, RunFolder, resolve
from edgedistill.session import Session
from edgedistill.teacher import embedding_cache
from edgedistill.training import teacher_cache
from tests.conftest import World, sentences


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """fsspec's memory, emptied afterwards; this machine's cache is in a home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("EDGEDISTILL_CACHE", raising=False)
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def machine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """From here on, another machine: nothing of the store is here."""
    monkeypatch.setenv("HOME", str(folder))


def written(world: World, folder: Path, **changes: Any) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(json.dumps(world.recipe(**changes)), encoding="utf-8")
    return path


def invoke(*arguments: object) -> str:
    return CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False).stdout


def test_texts_are_copied_once_and_again_where_they_changed(store: Any) -> None:
    for name, text in (("a/one.txt", "1"), ("a/b/two.txt", "2"), ("a/three.csv", "text\n3")):
        store.pipe_file(f"/bucket/{name}", text.encode())
    at = "memory://bucket/a"

    def found(*patterns: str) -> list[str]:
        return [path.read_text() for path in file_patterns.matching_files(list(patterns), None, "--texts")]

    assert found(at) == ["2", "1", "text\n3"] and found(f"{at}/*.txt") == ["1"]
    assert found(f"{at}/**/*.txt") == ["2", "1"] and found(f"{at}/three.csv") == ["text\n3"]
    [copy] = file_patterns.matching_files([f"{at}/one.txt"], None, "--texts")
    assert copy.as_posix().endswith("/bucket/a/one.txt")
    before = copy.stat().st_mtime_ns
    assert found(f"{at}/one.txt") == ["1"] and copy.stat().st_mtime_ns == before
    copy.write_text("damaged")
    assert found(f"{at}/one.txt") == ["1"]
    store.pipe_file("/bucket/a/one.txt", b"new")
    assert found(f"{at}/one.txt") == ["new"]


def test_a_run_and_its_cache_in_a_store_are_those_written_here(
    world: World, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_cache, "SHARD", 128)  # four of the 440 texts
    store.pipe_file("/bucket/texts.txt", (world.data / "texts.txt").read_bytes())
    path = written(world, tmp_path, corpus={"texts": ["memory://bucket/texts.txt"], "held_out": 40})
    here = Session(data=world.data, cache_folder=tmp_path / "here")
    teacher_cache.fill(recipe.parse(world.recipe(), "tiny"), here)
    monkeypatch.setenv("EDGEDISTILL_CACHE", "memory://bucket/cache")
    assert invoke("cache", path, "--only", "1/2") == "teacher: 2 of 4 shards\n"
    machine(monkeypatch, tmp_path / "second")
    assert invoke("cache", path, "--only", "2/2") == "teacher: 4 of 4 shards\n"
    shards = {each.name: each.read_bytes() for each in (tmp_path / "here/teachers").rglob("*.*")}
    there = {Path(each).name: store.cat_file(each) for each in store.find("/bucket/cache/teachers")}
    assert there == shards and len(there) == 13
    # The bytes of a shard that is marked are not asked for again.
    machine(monkeypatch, tmp_path / "third")
    embed = embedding_cache.TeacherPass.embed_shard
    monkeypatch.setattr(embedding_cache.TeacherPass, "embed_shard", lambda *given: pytest.fail("embedded"))
    out = "memory://bucket/runs/tiny"
    assert invoke("train", path, "--out", out, "--device", "cpu") == f"{out}\n"
    monkeypatch.setattr(embedding_cache.TeacherPass, "embed_shard", embed)
    names = {each.removeprefix("/bucket/runs/tiny/") for each in store.find("/bucket/runs/tiny")}
    assert {"run.json", "student.safetensors", "tokenizer/tokenizer.json"} <= names
    machine(monkeypatch, tmp_path / "fourth")
    found = resolve(out)
    assert isinstance(found, RunFolder)
    weights = store.cat_file("/bucket/runs/tiny/student.safetensors")
    assert (found.folder / "student.safetensors").read_bytes() == weights
    with pytest.raises(UserError, match="exists"):
        invoke("train", path, "--out", out)
    invoke("train", path, "--out", out, "--resume")


def test_what_was_not_uploaded_whole_is_not_there(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill leaves it: files, and no mark; and an earlier run's mark goes before its files do."""
    place = object_store.place_of("memory://bucket/run")
    for name, text in (("run.json", "old"), ("a/weights", "old")):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    object_store.push(place, "run.json")
    for name in ("run.json", "a/weights"):
        (place / name).write_text("new")
    put = type(store).put_file

    def failing(self: Any, local: str, path: str) -> None:
        raise ConnectionResetError("cut")

    monkeypatch.setattr(type(store), "put_file", failing)
    with pytest.raises(UserError, match="^memory://bucket/run/a/weights: ConnectionResetError: cut; check"):
        object_store.push(place, "run.json")
    machine(monkeypatch, tmp_path / "second")
    assert isinstance(resolve("memory://bucket/run"), HubId)
    machine(monkeypatch, tmp_path / "home")
    monkeypatch.setattr(type(store), "put_file", put)
    object_store.push(place, "run.json")
    machine(monkeypatch, tmp_path / "second")
    found = resolve("memory://bucket/run")
    assert isinstance(found, RunFolder) and (found.folder / "a/weights").read_text() == "new"


def test_every_door_reads_texts_from_a_store(world: World, store: Any, tmp_path: Path) -> None:
    store.pipe_file("/bucket/texts.txt", "\n".join(sentences(60)).encode())
    texts, out = "memory://bucket/texts.txt", tmp_path / "texts.npy"
    invoke("embed", "micro", texts, "--out", out)
    assert out.stat().st_size > 60 * 4
    assert "tiny" in invoke("check", written(world, tmp_path, corpus={"texts": [texts]}))
    trimmed = json.loads(invoke("trim", world.teacher, "--corpus", texts, "--out", tmp_path / "m", "--json"))
    assert trimmed["sources"][0]["name"] == texts and trimmed["sources"][0]["texts"] == 60


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("memory://bucket/none.txt", "no file matches 'memory://bucket/none.txt'; check the pattern"),
        ("memory://bucket/*.txt", "no file matches 'memory://bucket/*.txt'; check the pattern"),
        ("ftp://bucket/a.txt", "ftp://bucket/a.txt: no object store 'ftp'; choose one: (gs, hf, memory, s3)"),
        ("gs://bucket/a.txt", "pip install 'edgedistill[remote]'"),
    ],
)
def test_addresses_of_no_texts_are_refused_by_name(store: Any, address: str, says: str) -> None:
    with pytest.raises(UserError) as refused:
        file_patterns.matching_files([address], None, "--texts")
    assert says in str(refused.value)


def test_a_name_that_leaves_its_folder_is_refused(store: Any, tmp_path: Path) -> None:
    for name in ("memory://bucket/../../x", "memory://", "memory://a//b"):
        with pytest.raises(UserError, match="not the address of a file or folder"):
            object_store.place_of(name)
