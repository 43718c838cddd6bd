"""A stage whose loss or weights are no longer finite stops: the error names stage, rate and step, and no run
is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.training import train
from tests.conftest import World

STUDENTS: dict[str, dict[str, Any]] = {
    "bert": {"kind": "bert", "layers": 1, "width": 16, "heads": 2, "head": "linear"},
    "bilstm": {"kind": "bilstm", "width": 16, "hidden": 16, "embeddings": {"from": "random"}},
    "static": {"kind": "static", "width": 16, "head": "linear"},
}


def stopped(world: World, out: Path, steps: int, rate: float, **changes: Any) -> str:
    stages = [{"name": "distil", "objective": {"kind": "cosine"}, "steps": steps, "batch": 16, "warmup": 0}]
    spec = world.spec(stages=stages, **changes)
    # a rate that breaks the weights of a tiny student at once is above what recipes take
    spec = spec.model_copy(update={"stages": [spec.stages[0].model_copy(update={"learning_rate": rate})]})
    with pytest.raises(UserError) as caught:
        train.train(spec, out, Session(data=world.data, log=lambda line: None))
    assert not list(out.parent.glob(f"{out.name}*"))
    return str(caught.value)


@pytest.mark.parametrize("student", STUDENTS)
def test_a_loss_that_is_not_finite(world: World, tmp_path, student: str):
    message = stopped(world, tmp_path / "run", 30, 1e36, student=STUDENTS[student])
    assert message.startswith("stages[0].learning_rate: distil diverged at 1e+36: ")
    assert message.endswith("; lower it, add warmup, or set `clip`")
    assert "the loss is nan at step" in message or " holds " in message


@pytest.mark.parametrize("student", STUDENTS)
def test_a_last_step_that_breaks_the_weights_after_its_loss(world: World, tmp_path, student: str):
    """The loss of a step is computed before its weights change: after one step it is finite, and the weights
    are not."""
    message = stopped(world, tmp_path / "run", 1, 1e36, student=STUDENTS[student])
    assert " holds " in message and "at step 1; lower it" in message


def test_weights_are_checked_before_they_compete(world: World, tmp_path):
    message = stopped(
        world, tmp_path / "run", 4, 1e36, student=STUDENTS["static"], select={"suite": "mini", "every": 1}
    )
    assert " holds " in message and "at step 1; lower it" in message
