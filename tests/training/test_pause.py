"""A run that pauses and is resumed ends with the bytes of one that does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edgedistill import recipe, resolve
from edgedistill.training import train
from edgedistill.training.initial_student import initial_weights
from edgedistill.training.stage_in_progress import Paused
from tests.conftest import World

STUDENTS: dict[str, dict[str, Any]] = {
    "narrow": {
        "kind": "bert",
        "weights": "teacher",
        "layers": [1],
        "width": 16,
        "pq_bytes": 8,
        "head": "linear",
        "trim": {},
        "embeddings": {"from": "teacher", "weighting": "frequency"},
    },
    "static": {"kind": "static", "width": 8, "trim": {}, "head": "linear"},
    "bilstm": {"kind": "bilstm", "width": 16, "hidden": 8, "readout": "max", "head": "linear"},
}


OBJECTIVE = {
    "kind": "sum",
    "terms": [
        {"weight": 1, "objective": {"kind": "cosine"}},
        {"weight": 1, "objective": {"kind": "ckd", "queue": 32}},
    ],
}


@pytest.mark.parametrize("student", STUDENTS.values(), ids=STUDENTS)
def test_paused_and_resumed(student: dict[str, Any], world: World, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEDISTILL_DATA", str(world.data))
    stage = {"name": "distil", "objective": OBJECTIVE, "steps": 9, "batch": 16, "bucket": 4}
    corpus = {"files": [str(world.data / "texts.txt")], "held_out": 40}
    spec = recipe.parse(world.recipe(student=student, stages=[stage], rows=corpus), "tiny")
    train.train(spec, tmp_path / "once")
    fitted: list[bool] = []
    build = initial_weights.build

    def noted(*arguments: Any, **options: Any) -> Any:
        fitted.append(options["fitted"])
        return build(*arguments, **options)

    monkeypatch.setattr(initial_weights, "build", noted)
    paused = tmp_path / "paused"
    weights = []
    for number, step in enumerate((2, 2, 5)):
        with pytest.raises(Paused) as caught:
            train.train(spec, paused, resume=number > 0, pause_at=step)
        assert not paused.exists() and resolve.unfinished_run(paused).exists()
        weights.append(
            {name: value.clone() for name, value in caught.value.student.module.state_dict().items()}
        )
    assert all(
        torch.equal(value, weights[1][name]) for name, value in weights[0].items()
    )  # paused there already
    assert not all(torch.equal(value, weights[2][name]) for name, value in weights[0].items())
    info = train.train(spec, paused, resume=True, pause_at=9)
    assert info["stages"][0]["steps"] == 9
    assert (paused / "student.safetensors").read_bytes() == (
        tmp_path / "once" / "student.safetensors"
    ).read_bytes()
    assert fitted == [True, False, False, False]  # what a checkpoint replaces is not fitted again
