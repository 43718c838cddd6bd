"""kill -9 at random moments: afterwards an output is absent, or whole, and the same command ends with the
bytes of one that was left alone.

export EDGEDISTILL_KILLS=200 EDGEDISTILL_FAULTS=bench/reports/faults.json
python -m pytest -m slow tests/faults/test_kills.py
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedistill.errors import UserError
from edgedistill.training import resume
from tests.conftest import World
from tests.faults.commands import COMMANDS, Started, run, stable, timed, to_go_on
from tests.faults.record import record

KILLS = int(os.environ.get("EDGEDISTILL_KILLS", 40))
WEIGHTS = {  # of 200 kills
    "train": 56,
    "export": 30,
    "embed": 30,
    "cache": 42,
    "search": 12,
    "bench": 12,
    "adapt": 12,
    "fit": 6,
}
SEED = int(os.environ.get("EDGEDISTILL_SEED", 0))
IN_BRIEF = ("train", "embed", "cache", "search")


def state(name: str, place: Path, whole: dict) -> str:
    """What a kill left of the outputs. Fails where one is there and is not the whole one."""
    outputs = COMMANDS[name].outputs
    found = [(out, stable(name, place)[out]) for out in outputs if (place / out).exists()]
    for out, contents in found:
        assert contents == whole[out], f"{name}: {out} is there, and not as it should be"
    if found:
        return "whole"
    begun = any((place / each).exists() for each in COMMANDS[name].unfinished)
    return "resumable" if begun else "absent"


def kill_often(
    name: str, given: Path, folder: Path, kills: int, seed: int, note: Callable[[Counter[str]], Any] = len
) -> Counter[str]:
    """What each of so many kills, or up to two more, left: absent, resumable or whole. `note` gets what was
    found whenever the command has ended as ever."""
    seconds, whole = timed(name, given, folder / "alone")
    draw, found = random.Random(f"{name} {seed}"), Counter[str]()
    while found.total() < kills:
        place = folder / str(found.total())
        for _ in range(draw.choice((1, 1, 2, 3))):  # what was resumed may be killed as well
            begun, again = time.perf_counter(), to_go_on(name, place)
            started = Started(name, given, place, again)
            killed = not started.ended(draw.random() * seconds)
            if killed:
                started.signal()
            code, log = started.result()
            assert killed or code == 0, f"{name} after a kill: {log}"
            if killed:
                found[state(name, place, whole)] += 1
            elif not again:  # the machine is faster than it was
                seconds = time.perf_counter() - begun
            if done := state(name, place, whole) == "whole" and not COMMANDS[name].again:
                break
        if not done:
            code, log = run(name, given, place, again=to_go_on(name, place))
            assert code == 0, f"{name} after a kill: {log}"
            assert "Traceback" not in log
        assert stable(name, place) == whole
        shutil.rmtree(place)
        note(found)
    return found


@pytest.mark.parametrize("name", IN_BRIEF)
def test_killed_once(name: str, given: Path, tmp_path):
    assert kill_often(name, given, tmp_path, 1, seed=2).total() >= 1


def test_an_empty_folder_is_no_unfinished_run(given: Path, tmp_path):
    """What a kill leaves between making the folder and writing its recipe."""
    (tmp_path / "run.partial").mkdir()
    code, log = run("train", given, tmp_path)
    assert code == 0, log
    assert not (tmp_path / "run.partial").exists()


def test_what_a_kill_leaves_of_the_unfinished_run_is_deleted(given: Path, tmp_path):
    """Between writing the run and deleting what it was made in."""
    assert run("train", given, tmp_path)[0] == 0
    (tmp_path / "run.partial" / "tokenizer").mkdir(parents=True)
    code, log = run("train", given, tmp_path, again=True)
    assert (code, log.splitlines()[0]) == (0, "run: finished already")
    assert not (tmp_path / "run.partial").exists()


def test_another_process_does_not_train_the_same_run(world: World, tmp_path):
    spec = world.spec()
    with resume.unfinished(spec, tmp_path / "run", False):
        for resuming, line in ((True, "another process trains it"), (False, "continue it with --resume")):
            with pytest.raises(UserError, match=line), resume.unfinished(spec, tmp_path / "run", resuming):
                pass
        assert (tmp_path / "run.partial" / "recipe.yaml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHTS)
def test_killed_often(name: str, given: Path, tmp_path):
    count = round(KILLS * WEIGHTS[name] / sum(WEIGHTS.values()))

    def note(found: Counter[str]):
        if found:
            record("kills", name, kills=found.total(), wrong=0, seed=SEED, **found)

    kill_often(name, given, tmp_path, count, SEED, note)
