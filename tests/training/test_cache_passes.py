"""The teacher's cache is filled by any number of processes, and is the one that a single process writes."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from edgedistill.cli import app
from edgedistill.data import corpus
from edgedistill.data.token_cache import TokenPass
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.teacher import Embedder
from edgedistill.teacher.embedding_cache import EMBEDDINGS, HASHES
from edgedistill.training import cache_passes, train
from tests.conftest import World
from tests.faults.record import record
from tests.training.test_tuples import COSINE, data, spec, stage  # noqa: F401 (a fixture)

SHARD = 64
SHARDS = 7  # of the 440 texts


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(corpus, "SHARD", SHARD)


def session(world: World, cache: Path, **more: Any) -> Session:
    return Session(data=world.data, cache_folder=cache, **more)


def contents(cache: Path, what: str = "teachers") -> dict[str, bytes]:
    """The files of the embeddings, or of the tokens, below a cache's folder."""
    folder = cache / what
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_shares_leave_the_bytes_of_one_pass_and_training_finds_them(world: World, tmp_path):
    tiny = world.spec()
    whole = cache_passes.fill(tiny, session(world, tmp_path / "one"))["passes"]
    assert [(each["name"], each["texts"], each["shards"], each["done"]) for each in whole] == [
        ("teacher", 440, SHARDS, SHARDS),
        ("tokens", 440, SHARDS, SHARDS),
    ]
    for number, done in ((2, 2), (0, 5), (1, SHARDS)):
        found = cache_passes.fill(tiny, session(world, tmp_path / "three"), (number, 3))["passes"]
        assert [each["done"] for each in found] == [done, done]
    expected = contents(tmp_path / "one")
    assert contents(tmp_path / "three") == expected and len(expected) == 3 * SHARDS
    changed = {path: path.stat().st_mtime_ns for path in (tmp_path / "three" / "teachers").rglob("*.npy")}
    cache_passes.fill(tiny, session(world, tmp_path / "three"), (1, 2))
    assert {path: path.stat().st_mtime_ns for path in changed} == changed
    lines = list[str]()
    train.train(tiny, tmp_path / "run", session(world, tmp_path / "three", log=lines.append))
    assert not [line for line in lines if "embedding" in line], lines
    assert contents(tmp_path / "three", "tokens").items() > contents(tmp_path / "one", "tokens").items()
    train.train(tiny, tmp_path / "again", session(world, tmp_path / "one"))
    assert contents(tmp_path / "three", "tokens") == contents(tmp_path / "one", "tokens")
    record("determinism", "a cache filled in three shares, and in one", tried=len(expected), wrong=0)


def test_tokens_of_shards_are_made_once_and_again_where_they_were_damaged(
    world: World, tmp_path, monkeypatch
):
    tiny, here = world.spec(), session(world, tmp_path)
    cache_passes.fill(tiny, here, (0, 2))
    shards = next((tmp_path / "tokens").glob("*.shards"))
    assert sorted(each.name for each in shards.iterdir()) == ["00000", "00002", "00004", "00006"]
    before, made = (shards / "00002" / "ids.bin").read_bytes(), list[int]()
    (shards / "00002" / "ids.bin").write_bytes(before[:-1])
    tokenized = TokenPass._tokenized
    monkeypatch.setattr(TokenPass, "_tokenized", lambda self, n: made.append(n) or tokenized(self, n))
    found = cache_passes.fill(tiny, here, (0, 2))["passes"]
    assert made == [2] and (shards / "00002" / "ids.bin").read_bytes() == before and found[1]["done"] == 4
    train.train(tiny, tmp_path / "run", here)
    assert made == [2, 1, 3, 5], "what a share has is joined"


def test_a_vocabulary_of_the_corpus_is_left_to_train(world: World, tmp_path):
    lines = list[str]()
    trimmed = world.spec(student={**world.recipe()["student"], "trim": {"min_count": 1}})
    found = cache_passes.fill(trimmed, session(world, tmp_path, log=lines.append))["passes"]
    assert [each["name"] for each in found] == ["teacher"] and not (tmp_path / "tokens").exists()
    assert "student.trim: the tokenizer depends on the whole corpus; train tokenizes it" in lines


def test_tuples_are_embedded_in_their_roles(data: World, tmp_path):  # noqa: F811
    of_tuples = spec(data, stage(COSINE, {"queries": {"per_text": 2}}))
    found = cache_passes.fill(of_tuples, session(data, tmp_path / "cache"))["passes"]
    assert {each["name"] for each in found} == {"query", "document", "tokens"}
    lines = list[str]()
    train.train(of_tuples, tmp_path / "run", session(data, tmp_path / "cache", log=lines.append))
    assert not [line for line in lines if "embedding" in line], lines


COMMAND = """
import os, time
from edgedistill import cli
from edgedistill.data import corpus
from edgedistill.teacher import encoder
corpus.SHARD = 64
embed = encoder.TeacherEncoder.embed
def slow(self, *given):
    time.sleep(float(os.environ.get("SLOW", 0)))
    return embed(self, *given)
encoder.TeacherEncoder.embed = slow
cli.main()
"""


def test_a_killed_job_loses_at_most_its_shard(world: World, tmp_path):
    """Two jobs, the second killed with SIGKILL within its second shard, and started again."""
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(world.spec().model_dump(by_alias=True)), encoding="utf-8")
    cache_passes.fill(world.spec(), session(world, tmp_path / "one"), (1, 2))
    environment = {**os.environ, "EDGEDISTILL_CACHE": str(tmp_path / "two"), "SLOW": "0.3"}
    command = [sys.executable, "-c", COMMAND, "cache", str(path), "--data", str(world.data), "--only", "2/2"]
    command += ["--device=cpu"]
    job = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    marks = partial((tmp_path / "two" / "teachers").glob, "*/*/0????/files.json")
    while len(list(marks())) < 1 and job.poll() is None:
        time.sleep(0.02)
    job.send_signal(signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    kept = {path.parent: path.stat().st_mtime_ns for path in marks()}
    assert 1 <= len(kept) < 3
    done = cache_passes.fill(world.spec(), session(world, tmp_path / "two"), (1, 2))["passes"]
    assert [(each["name"], each["done"], each["shards"]) for each in done] == [
        ("teacher", 3, 7),
        ("tokens", 3, 7),
    ]
    assert {path.parent: path.stat().st_mtime_ns for path in marks()}.items() >= kept.items()
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_an_embedder_is_a_function_of_batches_that_pickles(world: World, tmp_path):
    tiny = world.spec()
    found = cache_passes.fill(tiny, session(world, tmp_path))["passes"][0]
    hashes, rows = (np.load(Path(found["folder"], "00000", name)) for name in (HASHES, EMBEDDINGS))
    opened = cache_passes.open_sources(tiny, session(world, tmp_path)).texts
    assert opened is not None
    (texts,) = opened.sides
    embedder = Embedder(tiny, "body", session=Session(device="cpu"))
    batch = {"body": [f" {text}\n" for text in texts.between(0, SHARD)], "id": np.arange(SHARD)}
    embedder(batch)
    again = pickle.loads(pickle.dumps(embedder))(batch)
    assert list(again) == ["body", "id", "hash", "embedding"] and again["body"] == batch["body"]
    assert np.array_equal(again["hash"], hashes) and np.array_equal(again["embedding"], rows)
    assert again["embedding"].dtype == np.float16 and len(pickle.dumps(embedder)) < 5_000
    assert embedder({"body": []})["embedding"].shape == (0, 32)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--only", "4/3"], "--only 4/3: not a share; give I/N, such as 3/16, with I from 1 to N"),
        (["--only", "0/3"], "--only 0/3: not a share"),
        (["--only", "2"], "--only 2: not a share"),
        (["--set", "stages=[]", "--set", "student={kind: teacher}"], "no teacher model embeds texts for it"),
    ],
)
def test_what_cannot_be_is_refused_by_name(world: World, tmp_path, options: list[str], says: str):
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(world.recipe()), encoding="utf-8")
    arguments = ["cache", str(path), "--data", str(world.data), *options]
    with pytest.raises(UserError) as refused:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert says in str(refused.value)
