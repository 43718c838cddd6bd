"""Two processes, which meet as torchrun lets them, take the steps of one."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from edgedistill import files, recipe
from edgedistill.cli import app
from edgedistill.data import corpus
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.training import checkpoint, train
from edgedistill.training.stage_in_progress import StageInProgress
from tests.conftest import World
from tests.faults.commands import PROCESSES
from tests.faults.record import record
from tests.training.test_tuples import data, documents, stage  # noqa: F401 (a fixture)

CKD = {
    "name": "ckd",
    "objective": {
        "kind": "sum",
        "terms": [
            {"objective": {"kind": "ckd", "queue": 64, "learn_temperature": True}, "weight": 1.0},
            {"objective": {"kind": "cosine"}, "weight": 2.0},
        ],
    },
    "steps": 12,
    "batch": 15,
    "bucket": 2,
    "clip": 1.0,
    "dtype": "fp32",  # in bf16 the order of sums shows
}


def trained(rank: int, folder: Path, texts: Path, tasks: dict[str, Any], port: int):
    """One of the two: it writes the losses of each task, or the line of its error, to losses.RANK.json."""
    checkpoint.EVERY_SECONDS, corpus.SHARD = -1.0, 64
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "RANK": str(rank)}
    os.environ |= {"EDGEDISTILL_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    losses, follow = dict[str, Any](), StageInProgress.follow

    def followed(self: StageInProgress, loss: float):
        losses.setdefault(name, []).append(loss)
        if self.step == task.get("kill") and rank:
            os.kill(os.getpid(), signal.SIGKILL)
        follow(self, loss)

    StageInProgress.follow = followed  # type: ignore[method-assign]
    for number, (name, task) in enumerate(tasks.items()):
        os.environ["MASTER_PORT"] = str(port + number)
        spec = recipe.parse(task["recipe"], name)
        try:
            train.train(spec, folder / name, Session(data=texts), task.get("resume", False))
        except UserError as error:
            losses[name] = str(error)
    files.write_json(folder / f"losses.{rank}.json", losses)


def together(folder: Path, world: World, tasks: dict[str, Any]) -> list[int | None]:
    """How the two ended."""
    (folder / "tmp").mkdir()
    arguments = folder, world.data, tasks, 20_000 + os.getpid() % 10_000
    both = [PROCESSES.Process(target=trained, args=(rank, *arguments)) for rank in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join(1800)
    return [process.exitcode for process in both]


def alone(
    world: World, given: dict[str, Any], folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    losses, follow = list[float](), StageInProgress.follow

    def followed(self: StageInProgress, loss: float):
        losses.append(loss)
        follow(self, loss)

    session = Session(data=world.data, cache_folder=folder / "cache")
    with monkeypatch.context() as patched:
        patched.setattr(StageInProgress, "follow", followed)
        patched.setattr(corpus, "SHARD", 64)
        train.train(recipe.parse(given, name), folder / f"{name}-alone", session)
    return losses


def test_two_processes_train_as_one(
    data: World,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    section = {"files": ["documents.txt"], "held_out": 10}
    ranked = stage({"kind": "info_nce"}, {"queries": {"per_text": 2}}, dtype="fp32")
    recipes = {
        "queue": data.recipe(stages=[CKD], select={"suite": "mini", "every": 6}),
        "rows": data.recipe(rows=section, stages=[ranked]),
    }
    tiny = {"name": "one", "objective": {"kind": "cosine"}, "steps": 2, "batch": 1}
    tasks: dict[str, Any] = {name: {"recipe": each} for name, each in recipes.items()}
    tasks["small"] = {"recipe": data.recipe(stages=[tiny])}
    tasks["killed"] = {"recipe": recipes["queue"], "kill": 8}
    assert together(tmp_path, data, tasks) == [0, -signal.SIGKILL]
    losses = files.read_json(tmp_path / "losses.0.json")
    lost = "train: process 0 of 2 has lost another, which was killed or failed; continue with --resume"
    assert losses["killed"] == lost and (tmp_path / "killed.partial" / "checkpoints").exists()
    assert losses["small"] == "stages[0].batch: 1 rows for 2 processes; raise it, or start fewer"
    assert sorted(path.name for path in tmp_path.glob("*.partial")) == ["killed.partial"]
    shutil.rmtree(tmp_path / "tmp")
    assert together(tmp_path, data, {"killed": {"recipe": recipes["queue"], "resume": True}}) == [0, 0]
    for name, given in recipes.items():
        # From the embeddings that the two have cached: in other batches a teacher rounds otherwise.
        expected = alone(data, given, tmp_path, name, monkeypatch)
        assert np.abs(np.subtract(losses[name], expected)).max() < 1e-4, name
        one, two = (load_file(tmp_path / each / "student.safetensors") for each in (name, f"{name}-alone"))
        assert torch.cat([(one[key] - two[key]).abs().flatten() for key in one]).mean() < 1e-4
    of_first, of_second = (files.read_json(tmp_path / f"losses.{rank}.json") for rank in (0, 1))
    left = of_first["killed"]
    assert of_first == of_second and 4 <= len(left) <= 5 and left == losses["queue"][-len(left) :]
    resumed, whole = (tmp_path / name / "student.safetensors" for name in ("killed", "queue"))
    assert resumed.read_bytes() == whole.read_bytes()
    record("determinism", "trained by two processes, one of them killed and resumed", tried=1, wrong=0)
    assert (tmp_path / "killed" / "metrics.jsonl").read_text().count("\n") == 2
    assert not list(tmp_path.glob("*.partial")) and not list(tmp_path.glob("tmp/edgedistill-*"))


@pytest.mark.parametrize("command", ["check", "export"])
def test_what_runs_in_one_process_is_refused_in_several(world: World, tmp_path, monkeypatch, command: str):
    """As torchrun and accelerate launch start them: they would overwrite each other's files."""
    path = tmp_path / "a.yaml"
    path.write_text(json.dumps(world.recipe(name="a")), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(
        UserError, match=rf"^{command}: started as one of 2 processes \(WORLD_SIZE\), but .*launch$"
    ):
        CliRunner().invoke(app, [command, str(path)], catch_exceptions=False)
