"""An objective in one file, with a column of scores of its own: it is checked and trained like those that
ship."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import Field
from torch import Tensor, nn

from edgedistill import recipe, run
from edgedistill.errors import UserError
from edgedistill.objectives import Targets, composition
from edgedistill.objectives.ranking import cosines
from edgedistill.planning import cost
from edgedistill.session import Session
from edgedistill.training import train
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from tests.conftest import World, added_kinds, sentences


class Judged(recipe.Loss):
    """Match the judged similarity of two texts by the cosine of their embeddings."""

    columns = (0, ...)
    teacher = "scores"
    negatives = "row"
    coordinates = False
    kind: Literal["judged"]
    highest: float = Field(5.0, gt=0, description="The score of texts that mean the same.")


def judged(spec: Judged, targets: Any) -> nn.Module:
    """Mean over i of (cos(q_i, d_p(i)) − s_i / highest)²."""

    def loss(queries: Tensor, documents: Tensor, of: Targets) -> Tensor:
        at = of.positives[:, None]
        errors = cosines(queries, documents).gather(1, at) - of.scores.gather(1, at) / spec.highest
        return errors.square().mean()

    return composition.of_documents(loss)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(composition.KINDS, "judged", judged)
    with added_kinds(Judged):
        yield


@pytest.mark.usefixtures("registered")
def test_an_objective_of_ones_own_column(world: World, tmp_path):
    texts = sentences(120, seed=9)
    pairs = [(one, texts[(number + 1) % 120], number % 6) for number, one in enumerate(texts)]
    with (tmp_path / "judged.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("one", "other", "similarity"), *pairs])
    table = {"files": [str(tmp_path / "judged.csv")], "columns": ["one", "other"]}
    stage = {
        "name": "judged",
        "objective": {"kind": "judged"},
        "steps": 60,
        "batch": 24,
        "learning_rate": 5e-3,
    }
    scored = {**table, "scores": ["similarity"]}
    spec = world.spec(stages=[{**stage, "rows": scored}])
    session = Session(data=world.data, log=lambda line: None)
    assert cost.costs([spec], session)[0]["parameters"]["total"] > 0
    train.train(spec, tmp_path / "run", session)
    trained = run.open_run(tmp_path / "run")
    rows = PreparedStudent.of(trained).embed(texts)
    found = (rows * np.roll(rows, -1, axis=0)).sum(1)
    wanted = np.array([similarity for _, _, similarity in pairs])
    assert np.corrcoef(found, wanted)[0, 1] > 0.5
    with pytest.raises(UserError, match="judged ranks the documents of queries; give the stage `rows`"):
        recipe.parse(world.recipe(stages=[stage]), "judged.yaml")
