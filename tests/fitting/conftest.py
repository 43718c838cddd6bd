"""A fit of the tiny world, killed in training and resumed: seconds in place of an hour."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from edgedistill import recipe
from edgedistill.fitting import fit, record
from edgedistill.fitting.cost import Budget
from edgedistill.fitting.pace import Pace
from edgedistill.fitting.record import FitRequest
from edgedistill.session import Session
from tests.conftest import World

ROOT = Path(__file__).resolve().parents[2]
PACE = Pace(
    teacher_share=0.5,
    survey_share=0.1,
    finish_s=0,
    finish_share=0,
    shortest_rung_s=0.01,
    timing_s=0.05,
    most_epochs=2,
    wanted=5,
)
KILLED = """
import json
import sys
from pathlib import Path
from pydantic import TypeAdapter
from edgedistill.fitting import fit, record
from edgedistill.session import Session
from edgedistill.training import checkpoint
from tests.fitting.conftest import PACE

checkpoint.EVERY_SECONDS = 0.0
folder, resume = Path(sys.argv[2]), sys.argv[3] == "resume"
asked = TypeAdapter(record.FitRequest).validate_python(json.loads(sys.argv[1]))
fit.fit(asked, folder, Session(), resume, PACE)
"""


def request(world: World, **changes: Any) -> FitRequest:
    """The tiny world's request: its teacher, its texts, a budget that some candidates keep to."""
    given = {
        "teacher": recipe.Teacher(model=str(world.teacher)),
        "texts": (str(world.data / "texts.txt"),),
        "budget": Budget(0.05, 50.0),
    }
    return FitRequest(**{**given, "minutes": 5.0, **changes})


def killed(asked: FitRequest, folder: Path, at: str) -> None:
    """Begin a fit, or go on with it, in a process of its own; kill -9 once a path of its folder is there. at:
    a pattern."""
    resume = "resume" if (folder / record.STATE).exists() else ""
    command = [sys.executable, "-c", KILLED, json.dumps(asked.settings()), str(folder), resume]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        while not list(folder.glob(at)):
            assert process.poll() is None, process.stderr.read().decode()
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


class Finished(NamedTuple):
    """A finished fit: its folder, its result and its log; killed: its state when it was killed."""

    folder: Path
    result: dict[str, Any]
    logged: list[str]
    request: FitRequest
    killed: record.State


def state_of(folder: Path) -> record.State:
    found = record.read(folder)
    assert found is not None
    return found


@pytest.fixture(scope="package")
def finished(world: World, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder, logged, asked = tmp_path_factory.mktemp("fits") / "fit", list[str](), request(world)
    killed(asked, folder, "trials/*.partial/checkpoints/00-*")
    state = state_of(folder)
    done = fit.fit(asked, folder, Session(log=logged.append), resume=True, pace=PACE)
    return Finished(folder, done, logged, asked, state)
