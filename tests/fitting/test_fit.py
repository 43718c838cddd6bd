"""The whole line on the tiny world: what it writes, what it says, and what it keeps."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from edgedistill import files, recipe
from edgedistill.errors import UserError
from edgedistill.fitting import fit, judge, plan, record, texts
from edgedistill.fitting.record import Budget
from edgedistill.fitting.shapes import Shape
from edgedistill.runtime import bundle, verify
from edgedistill.session import Session
from tests.conftest import World, make_teacher, sentences
from tests.fitting.conftest import Finished, request, state_of


def test_the_winner_keeps_to_the_budget(finished: Finished):
    won, folder = finished.result["winner"], finished.folder
    verify.verify(str(folder / "bundle"))
    opened = bundle.load(folder / "bundle")
    graph = folder / "bundle" / opened.manifest["precisions"][won["precision"]]["file"]
    size = graph.stat().st_size + (folder / "bundle" / "tokenizer.json").stat().st_size
    assert won["size_mb"] == pytest.approx(size / 1e6) and size <= 60_000
    measured = {each["name"]: each for each in finished.result["candidates"]}
    before = measured[won["candidate"]]["size_mb"]
    assert before == pytest.approx(size / 1e6, abs=1e-4), "exact before training, but for names in int8"
    assert opened.manifest["name"] == "mine" and 0 < won["p50_ms"] < 50


def test_the_best_measured_state_is_exported(finished: Finished):
    result, candidates = finished.result, finished.result["candidates"]
    scores = [each["measures"]["score"] for each in candidates]
    assert 2 <= len(candidates) <= 5 and scores == sorted(scores, reverse=True)
    names = [each.name for each in fit.ranked(state_of(finished.folder))]
    assert result["winner"]["candidate"] == names[0]
    untrained = next(each for each in candidates if each["name"].endswith("-untrained"))
    assert untrained["measures"] == result["start"] and untrained["steps"] == 0
    assert all(each["steps"] > 0 for each in candidates if each is not untrained)
    json.dumps(result)


def test_what_is_no_better_than_the_start_comes_behind_it():
    def candidate(name: str, made: float, general: float, steps: int) -> record.Candidate:
        measures = {"agreement": made, "made": made, "similarity": general, "search": general}
        measures["score"] = judge.score(measures)
        return record.Candidate(
            Shape("int8", "nano"), 4.7, 0.5, name=name, recipe={}, measures=measures, taken=[steps]
        )

    found = [
        candidate("nano", 0.5, 0.8, 0),
        candidate("forgot", 0.9, 0.6, 9),
        candidate("learned", 0.6, 0.8, 9),
    ]
    state = record.State({}, candidates=found, teacher_measures={**found[0].measures, "score": 0.9})
    assert [each.name for each in fit.ranked(state)] == ["learned", "nano", "forgot"]
    state.candidates.pop()
    assert [each.name for each in fit.ranked(state)] == ["nano", "forgot"]
    assert "forgot beside nano: no better than the start, which is exported" in fit.verdict(state, found[0])


def test_its_recipe_has_the_steps_that_were_taken(finished: Finished):
    spec = recipe.read(str(finished.folder / "mine.yaml"))
    assert spec.name == "mine" and {stage.minutes for stage in spec.distilling} == {None}
    assert sum(stage.steps or 0 for stage in spec.distilling) == finished.result["winner"]["steps"]


def test_a_finished_fit_is_left_as_it_is(finished: Finished):
    logged: list[str] = []
    again = fit.fit(finished.request, finished.folder, Session(log=logged.append))
    assert again == finished.result and logged == [f"{finished.folder}: finished already"]
    text = fit.summary(again)
    assert again["winner"]["candidate"] in text and again["verdict"] in text


def test_a_killed_fit_goes_on_with_a_teacher_of_another_kind(world: World, tmp_path, monkeypatch):
    """Of the first token, not of unit length, with prompts; 200 texts of one kind."""
    teacher = make_teacher(tmp_path / "teacher")
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True}
    files.write_json(teacher / "1_Pooling/config.json", pooling)
    modules = files.read_json(teacher / "modules.json")
    files.write_json(teacher / "modules.json", modules[:2])
    prompts = {"query": "the dog ", "document": "a cat "}
    files.write_json(teacher / "config_sentence_transformers.json", {"prompts": prompts})
    (tmp_path / "texts.txt").write_text("\n".join(sentences(200)), encoding="utf-8")
    monkeypatch.setattr(plan, "TRIALS", 1)
    other, own = recipe.Teacher(model=str(teacher)), (str(tmp_path / "texts.txt"),)
    asked, measured = request(world, teacher=other, texts=own), judge.Judge.measures
    calls = list[int]()

    def killed(self: judge.Judge, encoder: object) -> judge.Measures:
        calls.append(1)
        if len(calls) == 2:  # after one candidate
            raise KeyboardInterrupt
        return measured(self, encoder)

    with monkeypatch.context() as patched:
        patched.setattr(judge.Judge, "measures", killed)
        with pytest.raises(KeyboardInterrupt):
            fit.fit(asked, tmp_path / "fit", Session())
    first, under_way = state_of(tmp_path / "fit").candidates
    assert first.done and not under_way.done
    found = fit.fit(asked, tmp_path / "fit", Session(), resume=True)
    names = [each["name"] for each in found["candidates"]]
    assert len(names) == len(set(names)) == 2 and first.name in names
    state = state_of(tmp_path / "fit")
    assert state.candidates[0] == first
    assert found["start"]["agreement"] > 0.9, "its own layers, before any training"
    assert state.corpus is not None and state.corpus["documentation_texts"] == texts.LEAST_GENERAL
    start = next(each for each in state.candidates if not each.steps)
    assert start.recipe["student"]["pooling"] == "cls"


def test_a_teacher_that_is_worse_than_a_shipped_student(world: World, tmp_path, monkeypatch):
    """The tiny teacher knows no English."""
    monkeypatch.setattr(plan, "TRIALS", 1)
    logged: list[str] = []
    asked = request(world, budget=Budget(2.0, 50.0))
    found = fit.fit(asked, tmp_path / "fit", Session(log=logged.append))
    assert {each["name"] for each in found["candidates"]} == {"micro", "from-micro"}
    assert found["start"] == next(each["measures"] for each in found["candidates"] if not each["steps"])
    assert any(line.startswith("weak: the teacher is worse than the start") for line in logged)
    kept, micro = (bundle.load(each).encode(sentences(9)) for each in (tmp_path / "fit/bundle", "micro"))
    assert np.min(np.sum(kept * micro, 1)) > 0.9, "in its own space"


def test_other_settings_are_refused(finished: Finished):
    with pytest.raises(UserError, match="a fit with other settings .seed was 0, is now 1"):
        fit.fit(replace(finished.request, seed=1), finished.folder, Session())


def test_folders_that_are_no_fit(world: World, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="mine: exists already and is not a fit"):
        fit.fit(request(world), tmp_path / "mine", Session())
    with pytest.raises(UserError, match="new: nothing to resume; leave --resume out"):
        fit.fit(request(world), tmp_path / "new", Session(), resume=True)
    (tmp_path / "begun").mkdir()
    held = files.held(tmp_path / "begun", "works on this fit")
    with held, pytest.raises(UserError, match="begun: another process works on this fit; wait for that"):
        fit.fit(request(world), tmp_path / "begun", Session())
    record.State(request(world).settings()).write(tmp_path / "begun")
    with pytest.raises(UserError, match="begun: an unfinished fit; continue it with --resume, or delete it"):
        fit.fit(request(world), tmp_path / "begun", Session())
