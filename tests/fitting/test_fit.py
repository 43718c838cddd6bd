"""The whole line on the tiny world: what it writes, what it says, and that its recipe gives the same
bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from edgedistill import files, recipe
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring, teacher_agreement
from edgedistill.fitting import fit, record
from edgedistill.runtime import bundle, verify
from edgedistill.session import Session
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training import train
from tests.conftest import World
from tests.fitting.conftest import PACE, Finished, request, state_of


def test_the_winner_keeps_to_the_budget(finished: Finished) -> None:
    won, folder = finished.result["winner"], finished.folder
    verify.verify(str(folder / "bundle"))
    opened = bundle.load(folder / "bundle")
    graph = folder / "bundle" / opened.manifest["precisions"][won["precision"]]["file"]
    size = graph.stat().st_size + (folder / "bundle" / "tokenizer.json").stat().st_size
    assert won["size_mb"] == pytest.approx(size / 1e6) and size <= 50_000
    raced = {each["name"]: each for each in finished.result["candidates"]}
    assert raced[won["candidate"]]["size_mb"] == pytest.approx(size / 1e6)  # exact before training
    assert opened.manifest["name"] == "mine"
    assert 0 < won["p50_ms"] < 50 and won["suite"] == "sts-small" and won["kept"] > 0.5
    small = scoring.suite("sts-small")
    teacher = TeacherEncoder(finished.request.teacher)
    shares = [float(scoring.evaluate(small, encode)["average"]) for encode in (opened.encode, teacher.embed)]
    assert won["kept"] == pytest.approx(shares[0] / shares[1], rel=0.02)  # the teacher was in int8


def test_the_score_is_the_agreement_with_the_teacher(finished: Finished, world: World) -> None:
    corpus = state_of(finished.folder).corpus
    assert corpus is not None
    held_out = fit.texts.build(corpus, Session(), 0)
    found = held_out.texts(held_out.held_out)
    teacher = TeacherEncoder(finished.request.teacher)
    opened = bundle.load(finished.folder / "bundle")
    agreement = teacher_agreement.agreement(opened.encode(found), teacher.embed(found))
    score = finished.result["winner"]["score"]
    assert score["neighbours"] == pytest.approx(agreement["top10_overlap"], abs=0.01)
    assert score["cosines"] == pytest.approx(agreement["spearman"], abs=0.005)
    assert score["score"] == pytest.approx((score["neighbours"] + score["cosines"]) / 2, abs=1e-4)
    assert score["score"] > 0.7


def test_its_recipe_gives_the_same_bytes(finished: Finished, tmp_path: Path) -> None:
    """Trained rung by rung in the race, at once here."""
    spec = recipe.read(str(finished.folder / "mine.yaml"))
    assert spec.name == "mine"
    assert len(state_of(finished.folder).finalists[0].scores) == 3, "it was not trained in rungs"
    train.train(spec, tmp_path / "again")
    assert (tmp_path / "again/student.safetensors").read_bytes() == (
        finished.folder / "run/student.safetensors"
    ).read_bytes()


def test_everyone_that_fell_is_told_why(finished: Finished) -> None:
    candidates = finished.result["candidates"]
    assert len(candidates) == finished.result["schedule"]["counts"][0] >= 2
    fates = [each["fate"] for each in candidates]
    fell = [fate for fate in fates if fate.startswith("fell at rung 2 of 3, after ")]
    assert fell and all("place" in fate for fate in fell)
    assert {fate for fate in fates if fate not in fell} == {"trained to the end"}
    assert finished.result["not_raced"] and all(" MB" in each["why"] for each in finished.result["not_raced"])
    scores = [each["score"] for each in candidates]
    assert scores == sorted(scores, reverse=True) and candidates[0]["on_front"]
    for each in candidates:
        assert [line for line in finished.logged if line.startswith(f"{each['name']}: rung 2 of 3, ")]
        assert (f"{each['name']}: {each['fate']}" in finished.logged) == each["fate"].startswith("fell")
    page = (finished.folder / "fit.html").read_text(encoding="utf-8")
    assert all(each["name"] in page and each["fate"] in page for each in candidates)
    assert not re.search(r"https?://(?!www.w3.org/2000/svg)", page)
    assert "pq_bytes" in page and str(finished.folder / "mine.yaml") == finished.result["recipe"]
    json.dumps(finished.result)


def test_a_finished_fit_is_left_as_it_is(finished: Finished) -> None:
    logged: list[str] = []
    again = fit.fit(finished.request, finished.folder, Session(log=logged.append), pace=PACE)
    assert again == finished.result and logged == [f"{finished.folder}: finished already"]
    text = fit.summary(again)
    assert again["winner"]["candidate"] in text and "edgedistill train" in text


def test_other_settings_are_refused(finished: Finished, world: World) -> None:
    for changes, fact in (
        ({"seed": 1}, "seed was 0, is now 1"),
        ({"column": "body"}, "column was 'text', is now 'body'"),
    ):
        with pytest.raises(UserError) as caught:
            fit.fit(request(world, **changes), finished.folder, Session(), pace=PACE)
        assert (
            str(caught.value)
            == f"{finished.folder}: a fit with other settings ({fact}); give another --out, or delete it"
        )


def test_folders_that_are_no_fit(world: World, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="mine: exists already and is not a fit"):
        fit.fit(request(world), tmp_path / "mine", Session())
    with pytest.raises(UserError, match="new: nothing to resume; leave --resume out"):
        fit.fit(request(world), tmp_path / "new", Session(), resume=True)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / files.LOCK).touch()  # what a kill leaves before anything is found
    with pytest.raises(UserError, match="begun: nothing to resume; leave --resume out"):
        fit.fit(request(world), tmp_path / "begun", Session(), resume=True)
    held = files.held(tmp_path / "begun", "works on this fit")
    with held, pytest.raises(UserError, match="begun: another process works on this fit; wait for that"):
        fit.fit(request(world), tmp_path / "begun", Session())
    record.State(request(world).settings()).write(tmp_path / "begun")
    with pytest.raises(UserError, match="begun: an unfinished fit; continue it with --resume, or delete it"):
        fit.fit(request(world), tmp_path / "begun", Session())
    held = files.held(tmp_path / "begun", "works on this fit")
    with held, pytest.raises(UserError, match="begun: another process works on this fit; wait for that"):
        fit.fit(request(world), tmp_path / "begun", Session(), resume=True)
    assert not (tmp_path / "begun" / files.LOCK).exists()
