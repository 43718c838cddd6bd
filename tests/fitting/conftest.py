"""A fit of the tiny world by steps: seconds in place of an hour."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from edgedistill import recipe
from edgedistill.fitting import fit, record
from edgedistill.fitting.record import Budget, FitRequest
from edgedistill.session import Session
from tests.conftest import World


def request(world: World, **changes: Any) -> FitRequest:
    """The tiny world's request: its teacher, its texts, a budget that some candidates keep to."""
    asked = {
        "teacher": recipe.Teacher(model=str(world.teacher)),
        "texts": (str(world.data / "texts.txt"),),
        "budget": Budget(0.05, 50.0),
        "steps": 60,
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


@pytest.fixture(scope="package")
def finished(world: World, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder, logged, asked = tmp_path_factory.mktemp("fits") / "fit", list[str](), request(world)
    return Finished(folder, fit.fit(asked, folder, Session(log=logged.append)), logged, asked)
