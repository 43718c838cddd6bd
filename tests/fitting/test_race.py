"""The race: who falls and why, what a killed one leaves, how many fit into the minutes."""

from __future__ import annotations

import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from edgedistill import recipe
from edgedistill.errors import DiskFull, UserError
from edgedistill.fitting import fit, pace, race, record
from edgedistill.fitting.candidates import Choice
from edgedistill.fitting.cost import Budget, Cost
from edgedistill.fitting.pace import Pace, Schedule
from edgedistill.fitting.plan import Fit
from edgedistill.fitting.record import Candidate
from edgedistill.runtime import bundle
from edgedistill.session import Session
from tests.conftest import World
from tests.fitting.conftest import PACE, Finished, killed, request, state_of

COST = Cost({"int8": 4_400_000, "w8": 4_500_000, "w4": 4_000_000}, {"int8": 1.0, "w8": 1.0, "w4": 1.0})


def raced(rungs: list[tuple[str, list[float]]], first_rung: int) -> tuple[list[str], list[int]]:
    """Candidates (kind, scores at the rungs) that raced one after another: why each fell, and the last rung
    that it reached."""
    found: list[Candidate] = []
    for kind, values in rungs:
        candidate = Candidate("x", kind, {"stages": [{"steps": 160}]}, COST, "int8")
        found.append(candidate)
        for rung, value in enumerate(values):
            if candidate.is_racing:
                candidate.scores.append({"score": value, "step": 10 * 4**rung, "steps": 160})
                if rung >= first_rung and candidate.is_racing:
                    candidate.fell = race.why_it_falls(found, candidate)
    return [each.fell for each in found], [len(each.scores) - 1 for each in found]


def test_the_best_so_far_go_on() -> None:
    _, reached = raced(
        [
            ("bert", [0.5, 0.6, 0.7]),
            ("bert", [0.4, 0, 0]),
            ("bert", [0.6, 0.65, 0.7]),
            ("bert", [0.7, 0.8, 0.9]),
        ],
        0,
    )
    assert reached == [2, 0, 2, 2]  # at the second rung, 0.70, 0.70 and 0.90 are expected


def test_a_quarter_goes_on_where_many_came() -> None:
    worse = [("bert", [0.4, 0, 0])] * 6
    _, reached = raced([("bert", [0.5, 0.6, 0.7]), *worse, ("bert", [0.45, 0.5, 0])], 0)
    assert reached == [2, *[0] * 6, 1]  # the last is the second of eight


def test_at_the_first_rung_kinds_are_not_compared() -> None:
    why, reached = raced(
        [("static", [0.9, 0.91, 0.92]), ("bert", [0.5, 0.75, 0.95]), ("static", [0.8, 0, 0])], 0
    )
    assert reached == [2, 2, 0]
    assert (
        why[2]
        == "at rung 1 of 3, after 10 of 160 steps: 0.800, place 2 of 2 of kind static that came so far; the "
        "best has 0.900"
    )


def test_at_the_second_rung_what_still_grows_is_preferred() -> None:
    why, reached = raced([("bert", [0.5, 0.65, 0.8]), ("static", [0.7, 0.71, 0.72])], 1)
    assert reached == [2, 1]
    assert why[1] == (
        "at rung 2 of 3, after 40 of 160 steps: 0.710, 0.720 to be expected at the end, place 2 of 2 that "
        "came so far; the best has 0.800"
    )
    scores = [{"score": value} for value in (0.5, 0.65, 0.7)]
    assert [race.expected_score(scores[:rung]) for rung in (1, 2, 3)] == [0.5, pytest.approx(0.8), 0.7]


def test_the_minutes_decide_how_many_race() -> None:
    rich = pace.schedule(30, 60, 3_000, 21, 0.2)
    assert (rich.counts, pace.first_rung(rich.counts), rich.enough) == ([16, 6, 2], 0, None)
    # 16 setups and 8 times resumed; 16 times 1/16, 6 times 3/16, twice 3/4
    assert rich.seconds == pytest.approx((0.9 * 3_000 - 16 * 21 - 8 * 7) / (1 + 6 * 3 / 16 + 2 * 3 / 4))
    assert (rich.candidates(60), rich.candidates(90)) == (16, 24)
    assert pace.schedule(5, 60, 3_000, 21, 0.2).counts == [4, 4, 2]  # no more keep to the budget
    assert pace.schedule(1, 60, 3_000, 21, 0.2).counts == [1, 1, 1]
    poor = pace.schedule(30, 60, 220, 6, 0.2)
    assert (
        pace.first_rung(poor.counts) == 1
        and poor.counts[0] < 6
        and poor.seconds / 4 >= Pace().shortest_rung_s
    )


def test_fewer_race_where_they_would_hardly_learn() -> None:
    """Of a candidate's whole training 200 steps are the least; a race of fewer candidates has time for
    them."""
    slow = pace.schedule(30, 60, 3_000, 21, 4.0)
    assert slow.counts == [8, 4, 2] and slow.seconds >= 800 and slow.enough is None
    assert pace.schedule(30, 60, 3_000, 21, 0.2).seconds < 800
    one = pace.schedule(30, 6, 200, 21, 4.0)
    assert one.counts == [1, 1, 1] and one.seconds == pytest.approx(0.9 * 200 - 21 * 5 / 3)
    # 800 s of training and its setups, of which 200 s are there; .65 of what is added is for training
    assert one.enough == math.ceil(6 + ((800 + 35) / 0.9 - 200) / 60 / 0.65)
    left = 200 + 60 * 0.65 * (one.enough - 6)
    assert pace.schedule(30, one.enough, left, 21, 4.0).enough is None


def test_minutes_too_few_for_one_candidate() -> None:
    with pytest.raises(UserError) as caught:
        pace.schedule(10, 2, 50, 30, 0.2)
    assert str(caught.value) == (
        "--minutes 2: too few: 50 s are left for training, and one candidate needs 72 s; give --minutes 3"
    )
    assert pace.schedule(10, 3, 50 + 60 * 0.65, 30, 0.2).counts == [1, 1, 1]


def test_steps_follow_the_time_and_the_texts() -> None:
    schedule = Schedule([4, 4, 2], 160.0, 60)
    assert pace.steps(schedule, 0.5, 100, Pace()) == 320
    assert pace.steps(schedule, 0.001, 100, Pace(most_epochs=3)) == 300  # more passes bring nothing
    assert pace.steps(schedule, 1_000, 100, Pace()) == 3  # a step a rung at least
    assert [pace.rung_steps(101, rung) for rung in range(3)] == [7, 26, 101]


def test_a_full_disk(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    folder, more = shutil.copytree(finished.folder, tmp_path / "fit"), replace(finished.request, minutes=6.3)
    monkeypatch.setattr(race.train, "train", full)
    with pytest.raises(DiskFull) as caught:
        fit.fit(more, folder, Session(), resume=True, pace=PACE)
    assert (
        str(caught.value)
        == f"{folder} was not written: no space left on the device; free some space, or choose another place"
    )
    assert state_of(folder).candidates[-1].is_racing  # it is not the candidate's fault


def test_a_candidate_that_cannot_be_trained_falls(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UserError("corpus: gone; add texts")

    monkeypatch.setattr(race.train, "train", refuse)
    with pytest.raises(
        UserError, match="no candidate was trained to the end: .* in training: corpus: gone; add texts"
    ):
        fit.fit(request(world), tmp_path / "fit", Session(), pace=PACE)


def test_killed_and_resumed(finished: Finished, world: World, tmp_path: Path) -> None:
    """kill -9 while it plans and while it chooses: the winner is that of the fit that was killed within a
    rung.

    That its bytes are those of a student that is trained at once is tested with its recipe.
    """
    assert len(finished.killed.candidates) == len(finished.result["candidates"])
    assert finished.killed.candidates[0].scores == [], "it was killed too late"
    assert not any("shapes; measuring" in line for line in finished.logged), "it was planned twice"
    for moment in ("vocabularies/*", "run/recipe.yaml"):
        killed(request(world), tmp_path / "fit", moment)
    done = fit.fit(request(world), tmp_path / "fit", Session(), resume=True, pace=PACE)
    assert [each["name"] for each in done["candidates"]] == [
        each["name"] for each in finished.result["candidates"]
    ]
    assert done["winner"]["candidate"] == finished.result["winner"]["candidate"]
    weights = [
        (folder / "run/student.safetensors").read_bytes() for folder in (tmp_path / "fit", finished.folder)
    ]
    assert weights[0] == weights[1]


def test_only_with_resume(finished: Finished, tmp_path: Path) -> None:
    shutil.copytree(finished.folder, tmp_path / "fit")
    (tmp_path / "fit" / record.RESULT).unlink()
    with pytest.raises(UserError, match="fit: an unfinished fit; continue it with --resume, or delete it"):
        fit.fit(finished.request, tmp_path / "fit", Session(), pace=PACE)


def test_more_minutes_bring_further_candidates(finished: Finished, tmp_path: Path) -> None:
    folder, more = shutil.copytree(finished.folder, tmp_path / "fit"), replace(finished.request, minutes=6.3)
    done = fit.fit(more, folder, Session(), resume=True, pace=PACE)
    before = {each["name"]: each["score"] for each in finished.result["candidates"]}
    now = {each["name"]: each["score"] for each in done["candidates"]}
    assert len(now) == len(before) + 1 and {name: now[name] for name in before} == before
    added = state_of(folder).candidates[-1]
    assert added.precision in added.cost.fitting(more.budget) and added.scores
    assert done["winner"]["score"]["score"] >= finished.result["winner"]["score"]["score"] - 1e-4
    with pytest.raises(UserError, match=r"a fit with other settings \(minutes was 6.3, is now 5.0\)"):
        fit.fit(finished.request, folder, Session(), pace=PACE)


def test_minutes_that_were_too_few_are_made_up_for(finished: Finished, tmp_path: Path) -> None:
    """With more minutes, a fit without time to learn is planned and raced again, and not gone on with."""
    folder, more = shutil.copytree(finished.folder, tmp_path / "fit"), replace(finished.request, minutes=6.3)
    state, logged = state_of(folder), list[str]()
    assert state.schedule is not None
    state.schedule = replace(state.schedule, enough=6)
    state.write(folder)
    weak = fit.summary({**finished.result, "schedule": asdict(state.schedule)})
    assert weak.endswith("too few to learn in; it is planned and raced again with --resume --minutes 6")
    done = fit.fit(more, folder, Session(log=logged.append), resume=True, pace=PACE)
    assert logged[0] == f"{folder}: its minutes were too few to learn in; planning and racing again"
    assert [line for line in logged if "shapes; measuring" in line]
    assert done["schedule"]["minutes"] == 6.3 and done["schedule"]["enough"] is None
    assert len(done["candidates"]) == done["schedule"]["counts"][0] and "weak: its" not in fit.summary(done)


def beside_the_shipped(finished: Finished, folder: Path) -> Fit:
    """A fit of the shipped students' teacher that is planned: nano keeps to its budget."""
    taught = recipe.Teacher(model="packaged:all-MiniLM-L6-v2")
    asked = replace(finished.request, teacher=taught, budget=Budget(5.0, 1_000.0))
    choices = [Choice("finished", vocabulary=name) for name in ("nano", "multi")]
    state = record.State(
        asked.settings(),
        taught.model_dump(mode="json", exclude_defaults=True),
        {"facts": [], "weak": []},
        {"texts": list(asked.texts), "held_out": 40},
        [(choices[0], COST), (choices[1], "too large")],
        True,
        300.0,
        Schedule([1, 1, 1], 60.0, 5.0),
    )
    folder.mkdir()
    return Fit(asked, folder, state, Session(), PACE)


def test_a_shipped_student_stands_as_it_is(finished: Finished, tmp_path: Path) -> None:
    at_work = beside_the_shipped(finished, tmp_path / "fit")
    for _ in range(2):  # it is scored once
        race.enter_shipped(at_work)
        [found] = record.standings(at_work.state.candidates)
    assert (found["name"], found["fate"], found["steps"]) == ("nano", "as it ships", 0)
    itself = at_work.judge.score(bundle.load("nano").encode)
    assert found["score"] == pytest.approx(itself["score"], abs=0.02) and found["score"] > 0.5


@pytest.mark.slow
def test_a_shipped_student_wins(finished: Finished, tmp_path: Path) -> None:
    at_work = beside_the_shipped(finished, tmp_path / "fit")
    race.enter_shipped(at_work)
    won = fit.choose(at_work)
    assert (won["candidate"], won["precision"], won["steps"]) == ("nano", "int8", 0)
    shipped, made = bundle.load("nano"), bundle.load(tmp_path / "fit/bundle")
    texts = at_work.judge.texts[:9]
    assert (shipped.encode(texts) * made.encode(texts)).sum(1).min() > 0.995
