from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import World
from tests.faults.commands import prepare


@pytest.fixture(scope="session")
def given(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read."""
    return prepare(world, tmp_path_factory.mktemp("faults") / "in")
