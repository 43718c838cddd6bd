"""A run that is cut and resumed ends with the bytes of one that is not."""

from __future__ import annotations

from typing import Any

import pytest

from edgedistill import resolve
from edgedistill.training import checkpoint, train
from edgedistill.training.initial_student import initial_weights
from edgedistill.training.stage_in_progress import StageInProgress
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


def cut_at(monkeypatch: pytest.MonkeyPatch, *steps: int):
    """Let training be cut after these steps of a stage, each with its checkpoint."""
    follow = StageInProgress.follow
    left = list(steps)

    def cut(self: StageInProgress, loss: float):
        follow(self, loss)
        if left and self.step == left[0]:
            left.pop(0)
            raise InterruptedError

    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(StageInProgress, "follow", cut)


@pytest.mark.parametrize("student", STUDENTS.values(), ids=STUDENTS)
def test_cut_and_resumed(student: dict[str, Any], world: World, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEDISTILL_DATA", str(world.data))
    stage = {"name": "distil", "objective": OBJECTIVE, "steps": 9, "batch": 16, "bucket": 4}
    stage |= {"initial_share": 0.25, "rehearsal": 0.5}  # of the weights before the first step
    corpus = {"files": [str(world.data / "texts.txt")], "held_out": 40}
    spec = world.spec(student=student, stages=[stage], rows=corpus)
    train.train(spec, tmp_path / "once")
    fitted: list[bool] = []
    build = initial_weights.build

    def noted(*arguments: Any, **options: Any) -> Any:
        fitted.append(options["fitted"])
        return build(*arguments, **options)

    monkeypatch.setattr(initial_weights, "build", noted)
    cut_at(monkeypatch, 2, 5)
    cut = tmp_path / "cut"
    for number in range(2):
        with pytest.raises(InterruptedError):
            train.train(spec, cut, resume=number > 0)
        assert not cut.exists() and resolve.unfinished_run(cut).exists()
    info = train.train(spec, cut, resume=True)
    assert info["stages"][0]["steps"] == 9
    once, resumed = (tmp_path / name / "student.safetensors" for name in ("once", "cut"))
    assert once.read_bytes() == resumed.read_bytes()
    assert fitted == [True, False, False]  # what a checkpoint replaces is not fitted again
