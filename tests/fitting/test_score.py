"""The score: 1 for the teacher itself, near 0 for noise, and 0 for what is not finite."""

from __future__ import annotations

import numpy as np
import pytest

from edgedistill import recipe
from edgedistill.data import corpus
from edgedistill.fitting.score import Judge
from edgedistill.session import Session
from edgedistill.teacher.encoder import TeacherEncoder
from tests.conftest import World


def test_the_teacher_agrees_with_itself(world: World) -> None:
    spec = recipe.parse(world.recipe(), "tiny")
    assert isinstance(spec.corpus, recipe.Files)
    built = corpus.build(spec.corpus, Session(data=world.data), 0)
    teacher = TeacherEncoder(spec.teacher)
    judge = Judge(teacher, built, Session())
    assert len(judge.texts) == 40
    itself = judge.score(teacher.embed)
    assert itself["neighbours"] > 0.98 and itself["cosines"] > 0.999
    assert itself["agreement"] == pytest.approx((itself["neighbours"] + itself["cosines"]) / 2, abs=1e-5)
    assert itself["score"] == itself["agreement"]
    draw = np.random.default_rng(0)
    noise = judge.score(lambda texts: draw.standard_normal((len(texts), 8)).astype(np.float32))
    assert noise["neighbours"] < 0.5 and abs(noise["cosines"]) < 0.3 and noise["agreement"] < 0.4
    assert judge.score(lambda texts: np.full((len(texts), 8), np.nan))["score"] == 0.0
