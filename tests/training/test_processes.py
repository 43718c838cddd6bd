"""Two processes, which meet as torchrun lets them, take the steps of one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from edgedistill import recipe
from edgedistill.cli import app
from edgedistill.data import corpus
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.training import train
from edgedistill.training.stage_in_progress import StageInProgress
from tests.conftest import World
from tests.faults.record import record
from tests.training.test_tuples import data, documents, stage  # noqa: F401 (a fixture)

SCRIPT = """
import json, os, sys
from pathlib import Path
from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.data import corpus
from edgedistill.training import checkpoint, train
from edgedistill.training.stage_in_progress import StageInProgress

checkpoint.EVERY_SECONDS, corpus.SHARD = -1.0, 64
first, follow, losses = os.environ["RANK"] == "0", StageInProgress.follow, {}

def followed(self, loss):
    losses.setdefault(name, []).append(loss)
    if self.step == task.get("kill") and not first:
        os.kill(os.getpid(), 9)
    follow(self, loss)

StageInProgress.follow = followed
folder, data, tasks = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
for number, (name, task) in enumerate(tasks.items()):
    os.environ["MASTER_PORT"] = str(int(sys.argv[4]) + number)
    spec = recipe.parse(task["recipe"], name)
    try:
        train.train(spec, folder / name, Session(data=data), task.get("resume", False))
    except UserError as error:
        losses[name] = str(error)
print(json.dumps(losses))
"""

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


def started(folder: Path, world: World, tasks: dict[str, Any]) -> list[subprocess.Popen[str]]:
    found, port = [], str(20_000 + os.getpid() % 10_000)
    for rank in "01":
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "RANK": rank}
        environment |= {"EDGEDISTILL_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
        arguments = [str(folder), str(world.data), json.dumps(tasks), port]
        found.append(
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT, *arguments],
                env={**environment, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return found


def ended(processes: list[subprocess.Popen[str]]) -> list[Any]:
    outputs = [process.communicate(timeout=1800) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs[0][1] + outputs[1][1]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


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
    (tmp_path / "tmp").mkdir()
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
    first, second = started(tmp_path, data, tasks)
    second.communicate(timeout=1800)
    out, errors = first.communicate(timeout=1800)
    assert second.returncode == -signal.SIGKILL and first.returncode == 0, errors
    losses = json.loads(out.splitlines()[-1])
    lost = "train: process 0 of 2 has lost another, which was killed or failed; continue with --resume"
    assert losses["killed"] == lost and (tmp_path / "killed.partial" / "checkpoints").exists()
    assert losses["small"] == "stages[0].batch: 1 rows for 2 processes; raise it, or start fewer"
    assert sorted(path.name for path in tmp_path.glob("*.partial")) == ["killed.partial"]
    shutil.rmtree(tmp_path / "tmp")
    (tmp_path / "tmp").mkdir()
    again = started(tmp_path, data, {"killed": {"recipe": recipes["queue"], "resume": True}})
    for name, given in recipes.items():
        # From the embeddings that the two have cached: in other batches a teacher rounds otherwise.
        expected = alone(data, given, tmp_path, name, monkeypatch)
        assert np.abs(np.subtract(losses[name], expected)).max() < 1e-4, name
        one, two = (load_file(tmp_path / each / "student.safetensors") for each in (name, f"{name}-alone"))
        assert torch.cat([(one[key] - two[key]).abs().flatten() for key in one]).mean() < 1e-4
    of_first, of_second = ended(again)
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
