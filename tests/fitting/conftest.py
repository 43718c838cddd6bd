"""A fit of the tiny world, whose trainings end after half an epoch: seconds in place of an hour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from edgedistill import recipe
from edgedistill.fitting import fit, record
from edgedistill.fitting.queries import Pairs
from edgedistill.fitting.record import Budget, FitRequest
from edgedistill.session import Session
from tests.conftest import World, sentences


def request(world: World, **changes: Any) -> FitRequest:
    """The tiny world's request: its teacher, its texts, a budget that some candidates keep to."""
    asked = {
        "teacher": recipe.Teacher(model=str(world.teacher)),
        "texts": (str(world.data / "texts.txt"),),
        "budget": Budget(0.06, 50.0),
    }
    return FitRequest(**{**asked, "minutes": 5.0, **changes})


class Finished(NamedTuple):
    """A finished fit: its folder, its result and its log."""

    folder: Path
    result: dict[str, Any]
    logged: list[str]
    request: FitRequest


def state_of(folder: Path) -> record.State:
    state = record.read(folder)
    assert state is not None
    return state


def answers(folder: Path, count: int = 60) -> Path:
    """A query for each of some texts: its words, the last one first."""
    rows = [{"q": " ".join(reversed(text.split())), "answer": text} for text in sentences(count, seed=5)]
    (folder / "clicks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder / "clicks.jsonl"


@pytest.fixture(scope="session")
def finished(world: World, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """With pairs of queries and texts."""
    root, logged = tmp_path_factory.mktemp("fits"), list[str]()
    folder, asked = root / "fit", request(world, pairs=Pairs(str(answers(root)), "q", "answer"))
    return Finished(folder, fit.fit(asked, folder, Session(log=logged.append)), logged, asked)
