"""A stage with minutes: the clock ends it, and its learning rate with it, however fast the machine is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from edgedistill.session import QUIET, Session
from edgedistill.training import stage_in_progress, stages, train
from tests.conftest import World

STAGE = {"name": "distil", "objective": {"kind": "cosine"}, "batch": 32, "learning_rate": 1e-3}


class Machine:
    """A clock on which a step takes so many seconds."""

    def __init__(self, step_seconds: float):
        self.now, self.step_seconds = 0.0, step_seconds

    def monotonic(self) -> float:
        return self.now

    def step(self, *arguments: Any):
        self.now += self.step_seconds


def trained(
    world: World, out: Path, monkeypatch: pytest.MonkeyPatch, step_seconds: float, **keys: Any
) -> tuple[dict[str, Any], list[float]]:
    machine, rates = Machine(step_seconds), list[float]()

    class Clock:
        monotonic, perf_counter = machine.monotonic, time.perf_counter

    def set_rate(found: Any, stage: Any, rate: float, step: int):
        machine.step()
        rates.append(rate)
        stages.set_learning_rate(found, stage, rate, step)

    monkeypatch.setattr(stage_in_progress, "time", Clock)
    monkeypatch.setattr(stage_in_progress, "set_learning_rate", set_rate)
    spec = world.spec(stages=[{**STAGE, **keys}])
    info = train.train(spec, out, Session(data=world.data, log=QUIET.log))
    return info, rates


def test_a_slow_machine_takes_half_the_steps_and_ends_its_schedule(world: World, tmp_path, monkeypatch):
    fast, rates = trained(world, tmp_path / "fast", monkeypatch, 1.0, minutes=1)
    slow, slower = trained(world, tmp_path / "slow", monkeypatch, 2.0, minutes=1)
    assert (fast["stages"][0]["steps"], slow["stages"][0]["steps"]) == (60, 30)
    for each in (rates, slower):
        assert max(each) > 0.9e-3 and each[-1] < 0.08e-3


def test_steps_end_a_stage_before_its_minutes(world: World, tmp_path, monkeypatch):
    info, rates = trained(world, tmp_path / "both", monkeypatch, 1.0, minutes=1, steps=12)
    _, alone = trained(world, tmp_path / "alone", monkeypatch, 1.0, steps=12)
    assert info["stages"][0]["steps"] == 12 and rates == alone
    weights = [load_file(tmp_path / name / "student.safetensors") for name in ("both", "alone")]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
