"""`torchrun` and `accelerate launch` themselves, as recipes/SCALE.md writes them: two processes on processors
train as one, a process that is killed with SIGKILL among them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import World
from tests.faults.record import record
from tests.training.test_processes import CKD

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "recipes" / "SCALE.md").read_text(encoding="utf-8")
COMMANDS = {
    command.split()[0]: command
    for command in re.findall(r"^((?:torchrun|accelerate).* train .*)$", PAGE, re.MULTILINE)
}
# What every Python that the launcher starts runs first: in the processes that train, shards and checkpoints
# are small, and the second process kills itself at step 8, once.
CUSTOM = """
import os
if "RANK" in os.environ:
    from edgedistill.data import corpus
    from edgedistill.training import checkpoint
    from edgedistill.training.stage_in_progress import StageInProgress
    checkpoint.EVERY_SECONDS, corpus.SHARD = -1.0, 64
    follow = StageInProgress.follow
    def followed(self, loss):
        if os.environ["RANK"] == "1" and self.step == 8 and not os.path.exists(os.environ["KILLED"]):
            open(os.environ["KILLED"], "w").close()
            os.kill(os.getpid(), 9)
        follow(self, loss)
    StageInProgress.follow = followed
"""


def mean_loss(log: str) -> float:
    """That of the stage, as a process that trains alone, or the first of several, logs it."""
    (found,) = re.findall(r"mean loss ([\d.]+)", log)
    return float(found)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_a_launcher_trains_as_one_process_and_goes_on_after_a_kill(world: World, tmp_path, launcher: str):
    """The killed process ends the command; the same command with `--resume` goes on."""
    path, custom = tmp_path / "mine.yaml", tmp_path / "custom"
    custom.mkdir()
    (custom / "sitecustomize.py").write_text(CUSTOM, encoding="utf-8")
    path.write_text(json.dumps(world.recipe(stages=[CKD])), encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(custom), str(ROOT)]),
        "EDGEDISTILL_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
        "KILLED": str(tmp_path / "was-killed"),
    }

    def run(command: list[str], out: str, **more: str) -> subprocess.CompletedProcess[str]:
        given = [*command, "--out", str(tmp_path / out), "--device", "cpu"]
        found = subprocess.run(
            given, env={**environment, **more}, capture_output=True, text=True, check=False, timeout=1800
        )
        return found

    command = shlex.split(COMMANDS[launcher].replace(" 8 ", " 2 "))
    command = [str(world.data) if each == "~/texts" else each for each in command]
    command = [str(path) if each == "mine.yaml" else each for each in command]
    command[0] = str(Path(sys.executable).with_name(launcher))
    port = {"torchrun": (1, "--master-port"), "accelerate": (2, "--main_process_port")}[launcher]
    command[port[0] : port[0]] = [port[1], str(20_000 + os.getpid() % 10_000)]
    killed = run(command, "killed")
    assert killed.returncode and (tmp_path / "killed.partial" / "checkpoints").exists(), killed.stderr
    killed = run([*command, "--resume"], "killed")
    assert killed.returncode == 0 and (tmp_path / "was-killed").exists(), killed.stderr
    whole = run(command, "whole")
    alone = run([sys.executable, *command[command.index("-m") :]], "alone", RANK="0", WORLD_SIZE="1")
    assert whole.returncode == alone.returncode == 0, whole.stderr + alone.stderr
    found = {name: tmp_path / name / "student.safetensors" for name in ("killed", "whole", "alone")}
    assert found["killed"].read_bytes() == found["whole"].read_bytes()
    record("determinism", f"{launcher}, two processes, one of them killed and resumed", tried=1, wrong=0)
    one, two = (load_file(found[name]) for name in ("alone", "whole"))
    assert torch.cat([(one[key] - two[key]).abs().flatten() for key in one]).mean() < 1e-4
    assert abs(mean_loss(alone.stderr) - mean_loss(whole.stderr)) < 2e-4
