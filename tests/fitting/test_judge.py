"""The measures: 1 for the teacher itself, near 0 for noise, and 0 for what is not finite; and the verdict."""

from __future__ import annotations

import numpy as np
import pytest

from edgedistill import recipe
from edgedistill.data import corpus
from edgedistill.fitting import judge, queries
from edgedistill.fitting.judge import Judge
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.teacher.encoder import TeacherEncoder
from tests.conftest import World


@pytest.fixture(scope="module")
def judging(world: World) -> Judge:
    spec = world.spec()
    assert spec.rows is not None
    built = corpus.build(spec.rows, Session(data=world.data), 0)
    few = queries.of_answers(
        {"Where is the key?": ["The key is on the table."]}, ["It rains.", "A cat sleeps."]
    )
    return Judge(TeacherEncoder(spec.teacher), built, Session(), {"made": few})


def test_the_teacher_agrees_with_itself(judging: Judge):
    assert judging.teacher["agreement"] > 0.98
    draw = np.random.default_rng(0)
    noise = judging.measures(lambda texts: draw.standard_normal((len(texts), 8)).astype(np.float32))
    assert noise["agreement"] < 0.4 and abs(noise["similarity"]) < 0.2 and noise["search"] < 0.1
    broken = judging.measures(lambda texts: np.full((len(texts), 8), np.nan))
    assert broken["score"] == 0.0 and broken.keys() == noise.keys(), "few made queries judge neither"
    assert "made" not in noise and not judge.is_better(broken, noise, judging.teacher)


def test_a_student_that_knows_english_is_the_better_one(judging: Judge):
    nano = judging.measures(bundle.load("nano"))
    assert nano["similarity"] > 0.6 and nano["search"] > 0.3
    assert judging.teacher["similarity"] < nano["similarity"]
    weak = judge.weaker_teacher(judging.teacher, nano)
    assert weak.startswith("the teacher is worse than the start")
    assert judge.weaker_teacher(nano, judging.teacher) == ""


def test_the_score_has_two_halves():
    measures = {"agreement": 0.4, "made": 0.6, "similarity": 0.8, "search": 0.2}
    assert judge.score(measures) == pytest.approx((0.5 + 0.5) / 2)
    assert judge.score({**measures, "own": 0.8}) == pytest.approx((0.6 + 0.5) / 2)


def test_the_verdict_has_both_numbers():
    before = {"agreement": 0.4, "made": 0.60, "similarity": 0.80, "search": 0.50, "score": 0.6}
    after = {"agreement": 0.5, "made": 0.68, "similarity": 0.791, "search": 0.50, "score": 0.65}
    better = judge.verdict(before, after, before, 1_200)
    gain = "+8.0 nDCG on your texts, −0.9 similarity and +0.0 nDCG on general ones, after"
    assert better == f"better: {gain} 1,200 training steps"
    assert judge.verdict(before, after, before, 1) == f"hardly trained: {gain} 1 training step"
    little = judge.verdict(before, {**after, "made": 0.604}, before, 1)
    assert little.startswith("no measurable change: +0.4 nDCG on your texts")
    assert judge.verdict(after, before, before, 1).startswith(
        "no better than the start, which is exported: −8.0"
    )


def test_what_forgets_general_texts_is_not_better():
    before = {"agreement": 0.4, "made": 0.60, "similarity": 0.80, "search": 0.50, "score": 0.575}
    after = {"agreement": 0.9, "made": 0.70, "similarity": 0.60, "search": 0.40, "score": 0.65}
    general = {"agreement": 1.0, "made": 0.7, "similarity": 0.82, "search": 0.60, "score": 0.78}
    assert not judge.is_better(after, before, general)
    assert judge.is_better(after, before, {**general, "similarity": 0.6, "search": 0.4}), "as its teacher"
    assert not judge.is_better(after, before, {**general, "made": 0.5, "similarity": 0.6, "search": 0.4})
    little = {**after, "similarity": 0.79, "search": 0.49}
    assert judge.is_better(little, before, general), "it finds more of the user's texts"
    assert not judge.is_better({**little, "made": 0.6}, before, general), "only its agreement has grown"
    unlike = {**after, "made": 0.6, "similarity": 0.81, "search": 0.498}
    assert not judge.is_better(unlike, before, general), "search has fallen, whatever the mean"
    assert judge.is_better({**unlike, "search": 0.5}, before, general)
    suites = [
        {"mini": mini, "sts-small": small} for mini, small in ((0.70, 0.88), (0.74, 0.85), (0.71, 0.87))
    ]
    known, worse, better = suites
    assert not judge.is_better({**little, **worse}, {**before, **known}, {**general, **known}), "in one suite"
    assert judge.is_better({**little, **better}, {**before, **known}, {**general, **known})


def test_general_queries_are_trained_on_nowhere(tmp_path):
    for limit, many in ((2_000, True), (40_000, False)):
        spec = recipe.Rows(files=[recipe.DOCUMENTATION], limit=limit)
        built = corpus.build(spec, Session(), 0)
        asked = judge.general_queries(built)
        assert (asked is not None) == many, "not where the documentation itself is learned"
        if asked is not None:
            known = set(built.texts(range(built.training_count)))
            assert len(asked.queries) == judge.QUERIES and not known & set(asked.queries)
