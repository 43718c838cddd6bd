"""Texts, the cache and runs in an S3 server on this machine that answers with 500, slowly, half, or not at
all: what ends well has the bytes of an undisturbed pass, what does not is one line and nothing half. And in
an emulator of Google Cloud Storage, without faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgedistill.session import Session
from edgedistill.training import cache_passes
from tests.conftest import World
from tests.ecosystems.test_integrations import MISSING, ROOT, run

HERE = Path(__file__).parent
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
# A bucket, with a file in it.
FILL = """
import sys, s3fs
system = s3fs.S3FileSystem()
system.mkdir("bucket")
system.put_file(sys.argv[1], "bucket/texts.txt")
"""
# An emulator of Google Cloud Storage until stdin ends, with a bucket and a file in it.
GOOGLE = """
import os, socket, sys, fsspec
from gcp_storage_emulator.server import create_server
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
server.start()
os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{port}"
fsspec.filesystem("gs").put_file(sys.argv[1], "bucket/texts.txt")
print(os.environ["STORAGE_EMULATOR_HOST"], flush=True)
sys.stdin.read()
server.stop()
"""
LIST = """
import json, s3fs
system = s3fs.S3FileSystem()
print(json.dumps({each: system.cat_file(each).hex() for each in system.find("bucket")}))
"""
COMMAND = """
import sys
from edgedistill import cli, object_store
from edgedistill.data import corpus
corpus.SHARD, object_store.CHUNK = 128, 4_096
cli.main()
"""


class Store:
    """The server, and commands of a machine whose home is `home`."""

    def __init__(self, folder: Path, python: str, address: str):
        self.folder, self.python = folder, python
        self.environment = {**os.environ, **KEYS, "PYTHONPATH": str(ROOT), "AWS_ENDPOINT_URL": address}
        self.environment |= {"OMP_NUM_THREADS": "1", "EDGEDISTILL_CACHE": "s3://bucket/cache"}

    def fails(self, kind: str, count: int, method: str = "GET"):
        plan = {"kind": kind, "count": count, "method": method}
        (self.folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")

    def left(self) -> int:
        """How many of the planned faults have not happened."""
        return int(json.loads((self.folder / "plan.json").read_text())["count"])

    def script(self, *arguments: object) -> str:
        command = [self.python, "-c", *map(str, arguments)]
        found = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
        return found.stdout

    def command(self, home: str, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
        command = [self.python, "-c", COMMAND, *map(str, arguments)]
        environment = {**self.environment, "HOME": str(self.folder / home), **more}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def objects(self, under: str) -> dict[str, bytes]:
        found = json.loads(self.script(LIST).splitlines()[-1])
        return {
            name.removeprefix(under): bytes.fromhex(data)
            for name, data in found.items()
            if name.startswith(under)
        }


def python_with(folder: Path, *needed: str) -> str:
    environments = Path(os.environ.get("EDGEDISTILL_ENVIRONMENTS") or ROOT / ".environments")
    pythons = filter(os.path.exists, [sys.executable, environments / "stores" / "bin" / "python"])
    has = [each for each in pythons if not run(each, MISSING, *needed, folder=folder).stdout.strip()]
    if not has:
        pytest.skip(f"needs {' and '.join(needed)}; make integrations installs them")
    return str(has[0])


@contextmanager
def served(folder: Path, python: str, *arguments: object) -> Iterator[Store]:
    server = subprocess.Popen(
        [python, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        yield Store(folder, python, server.stdout.readline().strip())
    finally:
        server.communicate("", timeout=60)


@pytest.fixture
def store(world: World, tmp_path: Path) -> Iterator[Store]:
    python = python_with(tmp_path, "s3fs", "moto", "torch")
    with served(tmp_path, python, HERE / "faulty_store.py", tmp_path) as found:
        found.script(FILL, world.data / "texts.txt")
        yield found


def only_line(found: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error that the user can fix."""
    assert found.returncode == 2, found.stderr
    return found.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_store_that_fails_for_a_while_changes_nothing(world: World, tmp_path, store: Store):
    path = tmp_path / "tiny.yaml"
    corpus: dict[str, Any] = {"files": ["s3://bucket/*.txt"], "held_out": 40}
    path.write_text(json.dumps(world.recipe(rows=corpus)), encoding="utf-8")
    cache = ["cache", path, "--device", "cpu"]
    for number, kind in enumerate(("500", "cut", "slow")):  # while texts are read
        store.fails(kind, 2)
        done = store.command(f"{kind}-home", *cache, "--only", f"{number + 1}/4")
        assert done.returncode == 0 and store.left() == 0, done.stderr
    store.fails("500", 2, "PUT")  # while shards are written
    done = store.command("put-home", *cache)
    assert done.returncode == 0 and store.left() == 0, done.stderr
    assert done.stdout == "teacher: 4 of 4 shards\ntokens: 4 of 4 shards\n"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("edgedistill.data.corpus.SHARD", 128)
        cache_passes.fill(world.spec(), Session(data=world.data, cache_folder=tmp_path / "here"))
    expected = tmp_path / "here/teachers"
    shards = {each.relative_to(expected).as_posix(): each.read_bytes() for each in expected.rglob("*.*")}
    assert store.objects("bucket/cache/teachers/") == shards and len(shards) == 12
    store.fails("cut", 3)
    done = store.command("train-home", "train", path, "--out", "s3://bucket/run", "--device", "cpu")
    assert done.returncode == 0 and store.left() == 0 and "embedding" not in done.stderr, done.stderr
    assert "run.json" in store.objects("bucket/run/")


@pytest.mark.slow
def test_a_store_that_goes_on_failing_is_one_line_and_nothing_half(world: World, tmp_path, store: Store):
    texts = "s3://bucket/texts.txt"
    for kind in ("500", "short"):
        store.fails(kind, 1_000)
        out = tmp_path / f"{kind}.npy"
        line = only_line(store.command("home", "embed", "micro", texts, "--out", out))
        assert line.startswith(f"{texts}: ") and line.endswith("check the network, and run it again"), line
        assert not out.exists() and not list((tmp_path / "home").rglob("texts.txt"))
    store.fails("500", 0)
    out = tmp_path / "whole.npy"
    assert store.command("home", "embed", "micro", texts, "--out", out).returncode == 0 and out.exists()
    line = only_line(store.command("home", "embed", "micro", "s3://bucket/none.txt"))
    assert line == "s3://bucket/none.txt: no such file or folder; correct the address"
    without = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}
    line = only_line(store.command("other", "embed", "micro", texts, **without))
    assert line.startswith(f"{texts}: refused (") and line.endswith("set the store's credentials"), line
    address = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    line = only_line(store.command("other", "embed", "micro", texts, **address))
    assert line.startswith(f"{texts}: ") and line.endswith("check the network, and run it again"), line


@pytest.mark.slow
def test_a_killed_upload_is_not_taken_to_be_there(world: World, tmp_path, store: Store):
    """The run's files are there, its mark is not; the same command with --resume uploads what is lacking."""
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(world.recipe()), encoding="utf-8")
    here = {"EDGEDISTILL_CACHE": str(tmp_path / "cache")}
    train = ["train", path, "--data", world.data, "--device", "cpu", "--out", "s3://bucket/run"]
    store.fails("500", 1_000, "PUT")
    line = only_line(store.command("home", *train, **here))
    assert line.startswith("s3://bucket/run/") and "check the network" in line, line
    assert "run.json" not in store.objects("bucket/run/")
    line = only_line(store.command("other", "export", "s3://bucket/run", "--out", tmp_path / "bundle"))
    assert "s3://bucket/run: no such folder here" in line, line
    store.fails("500", 0, "PUT")
    assert store.command("home", *train, "--resume", **here).returncode == 0
    assert "run.json" in store.objects("bucket/run/")
    done = store.command("other", "export", "s3://bucket/run", "--out", tmp_path / "bundle")
    assert done.returncode == 0 and (tmp_path / "bundle" / "manifest.json").exists(), done.stderr


@pytest.mark.slow
def test_google_cloud_storage(world: World, tmp_path):
    """The run that another machine reads from there has the bytes of one that no store had a part in."""
    python = python_with(tmp_path, "gcsfs", "gcp_storage_emulator", "torch")
    path, local = tmp_path / "tiny.yaml", tmp_path / "local.yaml"
    given: dict[str, Any] = {"files": ["gs://bucket/*.txt"], "held_out": 40}
    path.write_text(json.dumps(world.recipe(rows=given)), encoding="utf-8")
    local.write_text(json.dumps(world.recipe()), encoding="utf-8")
    with served(tmp_path, python, "-c", GOOGLE, world.data / "texts.txt") as store:
        there = {"STORAGE_EMULATOR_HOST": store.environment.pop("AWS_ENDPOINT_URL")}
        there["EDGEDISTILL_CACHE"] = "gs://bucket/cache"
        train = ["train", path, "--device", "cpu", "--out", "gs://bucket/run"]
        done = store.command("home", *train, **there)
        assert done.returncode == 0, done.stderr
        done = store.command("other", "export", "gs://bucket/run", "--out", tmp_path / "bundle", **there)
        assert done.returncode == 0 and (tmp_path / "bundle" / "manifest.json").exists(), done.stderr
        line = only_line(store.command("other", "embed", "micro", "gs://bucket/none.txt", **there))
        assert line == "gs://bucket/none.txt: no such file or folder; correct the address"
    here = {"EDGEDISTILL_CACHE": str(tmp_path / "cache")}
    train = ["train", local, "--data", world.data, "--device", "cpu", "--out", tmp_path / "run"]
    assert store.command("third", *train, **here).returncode == 0
    (copy,) = (tmp_path / "other").rglob("student.safetensors")
    assert copy.read_bytes() == (tmp_path / "run" / "student.safetensors").read_bytes()
