"""Several processes and killed ones: claims, turns, a torn journal, a full disk, kill -9 and --resume."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgedistill import files
from edgedistill.errors import DiskFull, UserError
from edgedistill.fitting import fit, plan, processes, race, sampler, storage, trials, worker
from edgedistill.fitting.candidates import Choice
from edgedistill.fitting.pace import Pace
from edgedistill.fitting.student_cost import Cost
from edgedistill.session import Session
from tests.conftest import World
from tests.fitting.conftest import CONDUCT, Finished, request

AXES = {"kind": ["bert", "static"], "layers": [0, 4]}
FACTS = {"name": "a", "recipe": {"stages": [{"steps": 9}]}, "precision": "int8", "cost": {}, "goal": 0}


def test_what_one_process_writes_another_reads(tmp_path: Path) -> None:
    one, other = storage.Storage(tmp_path), storage.Storage(tmp_path)
    one.agree({"minutes": 1, "budget": {"max_mb": 5}})
    with one.turn():
        first = one.add({"kind": "bert", "layers": 4}, AXES, FACTS)
        second = one.add({"kind": "static", "layers": 0}, AXES, {**FACTS, "name": "b"})
    one.report(first, 0, {"score": 0.5, "step": 3})
    other.report(first, 1, {"score": 0.6, "step": 9})
    other.fall(second, "at rung 1")
    found = one.entries()
    assert [(each.name, each.state, each.fell, each.last_score) for each in found] == [
        ("a", "running", None, 0.6),
        ("b", "pruned", "at rung 1", None),
    ]
    assert found[0].scores == {0: {"score": 0.5, "step": 3}, 1: {"score": 0.6, "step": 9}} and found[0].params["layers"] == 4
    other.complete(first, 0.6)
    assert [each.state for each in one.entries()] == ["complete", "pruned"]
    assert one.study.best_value == 0.6
    with pytest.raises(UserError, match="minutes was 1, is now 2"):
        other.agree({"minutes": 2, "budget": {"max_mb": 5}})


def test_a_line_that_was_torn_is_dropped(tmp_path: Path) -> None:
    storage.Storage(tmp_path).set("before", 1)
    with (tmp_path / storage.JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 8, "wor')
    opened = storage.Storage(tmp_path)
    opened.set("after", 2)
    assert (storage.Storage(tmp_path).get("before"), opened.get("after")) == (1, 2)


def test_who_is_alive(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with processes.Presence(tmp_path) as presence:
        assert presence.alive(presence.name) and not presence.alive(None) and not presence.alive("nobody")
        far = tmp_path / "processes" / "far.json"
        for name, host, pid, born in (
            ("dead", processes.HERE, ended.pid, "1"),
            ("reborn", processes.HERE, os.getpid(), "1"),
            ("far", "x", 1, ""),
        ):
            files.write_json(tmp_path / "processes" / f"{name}.json", {"host": host, "pid": pid, "born": born, "doing": ""})
        assert not presence.alive("dead") and not presence.alive("reborn") and presence.alive("far")
        assert {each["host"] for each in presence.all()} == {processes.HERE, "x"}
        os.utime(far, (time.time() - 2 * processes.SILENT_S,) * 2)
        assert not presence.alive("far")
    assert not processes.any_alive(tmp_path)


def test_a_full_disk(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trials.train, "train", full)
    with pytest.raises(DiskFull) as caught:
        fit.fit(request(world), tmp_path / "fit", Session(), CONDUCT)
    assert str(caught.value) == (
        f"{tmp_path / 'fit'} was not written: no space left on the device; free some space, or choose another place"
    )
    assert [each.fell for each in storage.Storage(tmp_path / "fit").entries()] == [None] * 4  # it is not the candidates' fault


def test_a_candidate_that_cannot_be_trained_falls(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UserError("corpus: gone; add texts")

    monkeypatch.setattr(trials.train, "train", refuse)
    with pytest.raises(UserError, match="no candidate was trained to the end: .* in training: corpus: gone; add texts"):
        fit.fit(request(world), tmp_path / "fit", Session(), CONDUCT)


def test_killed_and_resumed(finished: Finished) -> None:
    """kill -9 within a rung; that the winner has the bytes of one that was never killed is tested with its recipe."""
    claimed = [each for each in finished.killed if each.worker is not None]
    assert len(claimed) == 1 and claimed[0].scores == {}
    assert not any("shapes; measuring" in line for line in finished.logged), "it was planned twice"
    now = {each.name: each for each in storage.Storage(finished.folder).entries()}
    assert {each.name: each.recipe for each in finished.killed} == {name: each.recipe for name, each in now.items()}
    assert now[claimed[0].name].scores[0]["score"] > 0


def test_only_with_resume(finished: Finished, tmp_path: Path) -> None:
    shutil.copytree(finished.folder, tmp_path / "fit")
    (tmp_path / "fit" / storage.RESULT).unlink()
    with pytest.raises(UserError, match="fit: an unfinished fit; continue it with --resume, or delete it"):
        fit.fit(finished.request, tmp_path / "fit", Session(), CONDUCT)


def again(finished: Finished, folder: Path) -> plan.Fit:
    """A copy of the finished fit, opened."""
    if not folder.exists():
        shutil.copytree(finished.folder, folder)
    opened = storage.Storage(folder)
    return plan.Fit(finished.request, folder, opened, Session(), CONDUCT.pace, 1, plan.open_teacher(finished.request, opened, Session()))


def test_two_processes_take_different_candidates(finished: Finished, tmp_path: Path) -> None:
    here, there = again(finished, tmp_path / "fit"), again(finished, tmp_path / "fit")
    entries = here.storage.entries()
    with here.storage.turn():
        for each in entries[:2]:
            facts = {"name": f"again-{each.number}", "recipe": each.recipe, "precision": each.precision, "cost": each.cost, "goal": 0}
            here.storage.add(each.params, {name: [value] for name, value in each.params.items()}, facts)
    with processes.Presence(tmp_path / "fit") as one, processes.Presence(tmp_path / "fit") as other:
        steps = [worker._take(here, one), worker._take(there, other)]
        assert [step.entry.name for step in steps if isinstance(step, race.Train)] == ["again-0", "again-1"]
        assert worker._take(there, other) == race.Wait()
    with processes.Presence(tmp_path / "fit") as third:  # the others are gone
        assert isinstance(worker._take(there, third), race.Train)


def test_the_sampler_proposes_what_keeps_to_the_budget(finished: Finished, tmp_path: Path) -> None:
    at_work = again(finished, tmp_path / "fit")
    before = at_work.storage.entries()
    worker._propose(at_work)
    after = at_work.storage.entries()
    assert len(after) == len(before) + 1 and after[-1].name not in {each.name for each in before}
    cost = Cost(**after[-1].cost)
    assert after[-1].precision in cost.fitting(finished.request.budget) and after[-1].racing and after[-1].goal == 0
    choices = [Choice("static", width=width) for width in (8, 16, 32)]
    assert sampler.propose([], choices, [choices[1]], seed=0) == choices[1]
    assert sampler.propose([], choices, [], seed=0) is None


@pytest.mark.slow
def test_a_second_process_joins(world: World, tmp_path: Path) -> None:
    """`fit` starts it; both train candidates, and the result is one."""
    conduct = fit.Conduct(pace=Pace(**{**CONDUCT.pace.__dict__, "most_epochs": 600}), workers=2)
    done = fit.fit(request(world, minutes=2), tmp_path / "fit", Session(), conduct)
    assert (tmp_path / "fit/processes/worker-1.log").read_text() == ""
    assert len(done["candidates"]) == done["schedule"]["counts"][0]
    journal = (tmp_path / "fit" / storage.JOURNAL).read_text(encoding="utf-8")
    assert len(set(re.findall(rf'"worker":"({re.escape(processes.HERE)}-\d+)-', journal))) == 2
    assert not processes.any_alive(tmp_path / "fit")
