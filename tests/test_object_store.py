"""Texts, the cache and runs in an object store: read in chunks, uploaded with their mark last. In
fsspec's own memory; in an S3 server with faults in ecosystems/test_object_stores.py."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as arrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from edgedistill import object_store, recipe
from edgedistill.cli import app
from edgedistill.data import corpus, file_patterns, readers
from edgedistill.errors import UserError
from edgedistill.resolve import HubId, RunFolder, resolve
from edgedistill.session import Session
from edgedistill.training import cache_passes
from tests.conftest import World, sentences


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """fsspec's memory, emptied afterwards; this machine's cache is in a home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("EDGEDISTILL_CACHE", raising=False)
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def machine(monkeypatch, folder: Path):
    """From here on, another machine: nothing of the store is here."""
    monkeypatch.setenv("HOME", str(folder))


def written(world: World, folder: Path, **changes: Any) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(json.dumps(world.recipe(**changes)), encoding="utf-8")
    return path


def invoke(*arguments: object) -> str:
    return CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False).stdout


def texts_at(*patterns: str) -> list[list[str]]:
    paths = file_patterns.matching_files(list(patterns), None, "--texts")
    return [list(readers.texts_in(path)) for path in paths]


def test_texts_are_read_where_they_are(store: Any, tmp_path):
    """In chunks; by their addresses, patterns and folders, whatever their type."""
    lines, packed = sentences(60), tmp_path / "texts.parquet"
    parquet.write_table(arrow.table({"text": lines}), packed, row_group_size=7)
    contents = {
        "one.txt": "\n".join(lines).encode(),
        "b/two.txt.gz": gzip.compress("\n".join(lines[:40]).encode()),
        "three.jsonl": "\n".join(json.dumps({"text": line}) for line in lines).encode(),
        "four.json": json.dumps(lines).encode(),
        "five.csv": ("text\n" + "\n".join(f'"{line}"' for line in lines)).encode(),
        "six.parquet": packed.read_bytes(),
    }
    for name, content in contents.items():
        store.pipe_file(f"/bucket/a/{name}", content)
    at = "memory://bucket/a"
    found = texts_at(at)  # in the order of their names
    assert len(found) == 6 and found.pop(0) == lines[:40] and all(each == lines for each in found)
    assert texts_at(f"{at}/*.txt", f"{at}/**/*.gz") == [lines, lines[:40]]
    assert texts_at(f"{at}/six.parquet") == [lines]
    for name in ("notes [2024]/a #1.txt", "notes [2024]/50%20?.txt"):
        store.pipe_file(f"/b/{name}", b"one")
        assert texts_at(f"memory://b/{name}") == [["one"]], "brackets of a name are no pattern"
    assert texts_at("memory://b/notes [2024]/*.txt") == [["one"], ["one"]]
    [path] = file_patterns.matching_files([f"{at}/one.txt"], None, "--texts")
    assert str(path) == f"{at}/one.txt" and path.name == "one.txt"
    assert not [each for each in tmp_path.rglob("*") if each.is_file() and each != packed], (
        "nothing is copied"
    )


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(object_store, "CHUNK", 100)


def test_a_file_that_is_cut_off_or_changes_while_it_is_read_is_refused(store: Any, tmp_path, monkeypatch):
    address, lines = "memory://bucket/texts.txt", sentences(60)
    store.pipe_file("/bucket/texts.txt", "\n".join(lines).encode())
    [path] = file_patterns.matching_files([address], None, "--texts")
    texts = readers.texts_in(path)
    assert next(texts) == lines[0]
    store.pipe_file("/bucket/texts.txt", "\n".join(lines[::-1]).encode())  # of the same size
    with pytest.raises(UserError, match=f"^{address}: changed while it was read; run the command again$"):
        list(texts)
    with pytest.raises(UserError, match="changed while it was read"):  # listed before it changed
        list(readers.texts_in(path))
    assert texts_at(address) == [lines[::-1]]
    session = Session(cache_folder=tmp_path / "cache")
    first = corpus.build(recipe.Rows(files=[address]), session, 0)
    store.pipe_file("/bucket/texts.txt", "\n".join(lines[1:]).encode())
    second = corpus.build(recipe.Rows(files=[address]), session, 0)
    assert len(first) == 60 and len(second) == 59
    cat = type(store).cat_file
    monkeypatch.setattr(type(store), "cat_file", lambda self, path, **range: cat(self, path, **range)[:-1])
    with pytest.raises(UserError, match=f"{address}: cut off: 99 of 100 bytes came from byte 0 on; check"):
        texts_at(address)
    with pytest.raises(UserError, match="cut off"):
        corpus.build(recipe.Rows(files=[address], held_out=1), session, 0)
    assert len(list((tmp_path / "cache" / "corpora").iterdir())) == 2, "nothing half"


def test_a_run_and_its_cache_in_a_store_are_those_written_here(
    world: World, store: Any, tmp_path, monkeypatch
):
    monkeypatch.setattr(corpus, "SHARD", 128)  # four of the 440 texts
    store.pipe_file("/bucket/texts.txt", (world.data / "texts.txt").read_bytes())
    path = written(world, tmp_path, rows={"files": ["memory://bucket/texts.txt"], "held_out": 40})
    here = Session(data=world.data, cache_folder=tmp_path / "here")
    cache_passes.fill(world.spec(), here)
    monkeypatch.setenv("EDGEDISTILL_CACHE", "memory://bucket/cache")
    assert invoke("cache", path, "--only", "1/2") == "teacher: 2 of 4 shards\ntokens: 2 of 4 shards\n"
    machine(monkeypatch, tmp_path / "second")
    assert invoke("cache", path, "--only", "2/2") == "teacher: 4 of 4 shards\ntokens: 4 of 4 shards\n"
    expected = tmp_path / "here/teachers"
    shards = {each.relative_to(expected).as_posix(): each.read_bytes() for each in expected.rglob("*.*")}
    found = store.find("/bucket/cache/teachers")
    there = {each.removeprefix("/bucket/cache/teachers/"): store.cat_file(each) for each in found}
    assert there == shards and len(there) == 12
    out = "memory://bucket/runs/tiny"
    assert invoke("train", path, "--out", out, "--device", "cpu") == f"{out}\n"
    shards = list((tmp_path / "here/tokens").glob("*.shards/*/ids.bin"))
    [joined] = [each for each in store.find("/bucket/cache/tokens") if each.count("/") == 5 and "ids" in each]
    assert store.cat_file(joined) == b"".join(each.read_bytes() for each in sorted(shards))
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


def test_what_was_not_uploaded_whole_is_not_there(store: Any, tmp_path, monkeypatch):
    """As a kill leaves it: files, and no mark; and an earlier run's mark goes before its files do."""
    place = object_store.place_of("memory://bucket/run")
    for name, text in (("run.json", "old"), ("a/weights", "old")):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    object_store.push(place, "run.json")
    for name in ("run.json", "a/weights"):
        (place / name).write_text("new")
    put = type(store).put_file

    def failing(self: Any, local: str, path: str):
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


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("memory://bucket/none.txt", "'memory://bucket/none.txt': no such file"),
        ("memory://bucket/*.txt", "'memory://bucket/*.txt': no such file"),
        ("ftp://bucket/a.txt", "ftp://bucket/a.txt: no object store 'ftp'; choose one: (gs, hf, memory, s3)"),
        ("gs://bucket/a.txt", 'in your clone of edgedistill: pip install ".[remote]"'),
    ],
)
def test_addresses_of_no_texts_are_refused_by_name(store: Any, address: str, says: str):
    with pytest.raises(UserError) as refused:
        file_patterns.matching_files([address], None, "--texts")
    assert says in str(refused.value)


def test_a_name_that_leaves_its_folder_is_refused(store: Any, tmp_path):
    for name in ("memory://bucket/../../x", "memory://", "memory://a//b"):
        with pytest.raises(UserError, match="not the address of a file or folder"):
            object_store.place_of(name)
