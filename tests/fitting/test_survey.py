"""The cost before training: exact sizes, latencies of the real graphs, what is estimated, what is never
trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.export import bundle_writer
from edgedistill.fitting import candidates, cost, fit, starts
from edgedistill.fitting.candidates import Choice, FinishedStudent, StartingPoint, Vocabulary
from edgedistill.fitting.cost import Budget, Cost
from edgedistill.fitting.plan import Fit
from edgedistill.session import Session
from edgedistill.training import train
from tests.conftest import World
from tests.fitting.conftest import PACE, Finished, request, state_of


@pytest.fixture(scope="module")
def planned(finished: Finished) -> Fit:
    return Fit(finished.request, finished.folder, state_of(finished.folder), Session(), PACE)


BIG = Budget(100.0, 1_000.0)


@pytest.mark.parametrize(
    "choice",
    [
        Choice("bert", 1, 16, 40, 8, "kept 3"),
        Choice("bert", 2, 32, 64, 8, "all"),
        Choice("static", 0, 8, 0, 8, "all"),
    ],
    ids=lambda choice: choice.name,
)
def test_sizes_are_those_of_the_bundle(choice: Choice, planned: Fit, world: World, tmp_path: Path) -> None:
    cost = planned.cost(choice)
    student = candidates.section(choice, planned.start, planned.vocabularies)
    stage = candidates.stage(choice, planned.start, 400) | {"steps": 2}
    corpus = {"texts": [str(world.data / "texts.txt")], "held_out": 44, "paragraphs": {"texts": 154}}
    trained = recipe.parse(world.recipe(student=student, stages=[stage], corpus=corpus), "tiny")
    train.train(trained, tmp_path / "run")
    found = bundle_writer.export(
        tmp_path / "run", list(cost.size_bytes), tmp_path / "bundle", lambda line: None
    )
    tokenizer = (tmp_path / "bundle" / "tokenizer.json").stat().st_size
    for precision, size in cost.size_bytes.items():
        digits = 64 if precision == "int8" else 0  # its graph names constants by their values
        assert abs(size - found["precisions"][precision]["size_bytes"] - tokenizer) <= digits
    assert all(0 < ms < 100 for ms in cost.p50_ms.values()) and set(cost.p50_ms) == set(cost.size_bytes)


def test_which_precisions_keep_to_a_budget() -> None:
    cost = Cost({"int8": 5_100_000, "w8": 4_900_000, "w4": 3_000_000}, {"int8": 0.4, "w8": 0.9, "w4": 1.1})
    assert cost.fitting(Budget(5.0, 1.0)) == ["w8"] and cost.fitting(Budget(6.0, 2.0)) == ["int8", "w8", "w4"]
    assert (cost.best(Budget(5.0, 1.0)), cost.best(Budget(9.0, 0.2))) == ("w8", "int8")
    assert cost.nearest(Budget(2.0, 1.0)) == (pytest.approx(0.5), "w4") and cost.nearest(
        Budget(9.0, 0.2)
    ) == (pytest.approx(1.0), "int8")
    assert cost.described("w4") == "w4 3 MB, 1.1 ms"


def test_shipped_students_that_know_the_words_are_starts() -> None:
    found = {
        each.name: each
        for each in starts._finished_students(
            ["The cat sits on the mat.", "A dog runs after a ball in the park."]
        )
    }
    assert found["nano"].kind == "bert" and 3e6 < found["nano"].size_bytes < 5e6
    german = starts._finished_students(
        ["Die Katze sitzt auf der Matte.", "Ein Hund läuft im Park einem Ball hinterher."]
    )
    assert [each.name for each in german] == ["multi"]
    assert not starts._finished_students(
        ["Η γάτα κάθεται στο χαλάκι.", "Ένας σκύλος τρέχει πίσω από μια μπάλα στο πάρκο."]
    )


def test_a_shipped_student_of_another_teacher_is_measured_with_a_new_head(planned: Fit) -> None:
    dims = planned.teacher.dims
    assert dims != 384
    start = replace(planned.start, finished=(FinishedStudent("nano", "bert", 4_300_000),))
    choice = Choice("finished", vocabulary="nano")
    assert choice in candidates.choices(start, {})
    student = planned.opened(choice).student
    assert student.module.dims == dims
    assert candidates.stage(choice, start, 10_000)["optimizer"] == "muon"
    table = replace(start, finished=(FinishedStudent("nano", "static", 1_000_000),))
    assert "optimizer" not in candidates.stage(choice, table, 10_000), "a static student has no layers"


START = StartingPoint("teacher", "teacher", 6, 384, 12, 1536, 128, 128, 384, True)
VOCABULARIES = {
    "all": Vocabulary({}, 30_522, 466_000),
    "kept 3": Vocabulary({"trim": {"min_count": 3}}, 12_000, 178_000),
}


def test_the_hand_made_shapes_are_among_the_candidates() -> None:
    found = {choice.name for choice in candidates.choices(START, VOCABULARIES)}
    assert {"bert-4x256x640-t64-kept3", "bert-6x384x1536-t128", "bert-2x128x512-t32-kept3"} <= found
    assert (
        candidates.spread(6, 4) == [0, 2, 4, 5]
        and candidates.spread(6, 1) == [5]
        and candidates.spread(12, 12) == list(range(12))
    )
    choice = Choice("bert", 4, 256, 640, 64, "kept 3")
    student = candidates.section(choice, START, VOCABULARIES)
    spec = recipe.parse(
        {
            "name": "x",
            "teacher": {"model": "m"},
            "corpus": {"texts": ["x"]},
            "student": student,
            "stages": [],
        },
        "x",
    )
    assert isinstance(spec.student, recipe.Bert) and (spec.student.layers, spec.student.pq_bytes) == (
        [0, 2, 4, 5],
        64,
    )
    estimate = candidates.estimated_bytes(choice, START, VOCABULARIES, "int8")
    assert estimate == pytest.approx(12_000 * 64 + 2_359_296 + 256 * 384 + 178_000 + 128 * 256, rel=0.05)


def measured(
    size: Callable[[Choice], float], p50: Callable[[Choice], float]
) -> tuple[list[str], Callable[[Choice], Cost]]:
    """A measurement by formulas, and the names that were measured."""
    names: list[str] = []

    def measure(choice: Choice) -> Cost:
        names.append(choice.name)
        bytes_ = int(size(choice))
        sizes = {"int8": bytes_, "w8": int(1.1 * bytes_), "w4": int(0.8 * bytes_)}
        return Cost(sizes, dict.fromkeys(sizes, p50(choice)))

    return names, measure


def the_survey(budget: Budget, measure: Callable[[Choice], Cost]) -> cost.Survey:
    return cost.Survey(START, VOCABULARIES, budget, measure)


def exact(choice: Choice) -> float:
    return candidates.estimated_bytes(choice, START, VOCABULARIES, "int8")


def test_the_largest_that_fit_are_found_without_measuring_all() -> None:
    budget = Budget(5.0, 1.0)
    names, measure = measured(exact, lambda choice: 0.1 + 0.3 * candidates.products(choice, START))
    found = the_survey(budget, measure)
    found.run(12, 60)
    assert len(names) < 60 < len(found.choices) and len(names) == len(set(names))
    assert len(found.fitting) == 12
    assert {choice.kind for choice in found.fitting} >= {"bert", "static"}
    assert len({choice.layers for choice in found.fitting if choice.kind == "bert"}) >= 4
    for choice in found.fitting:
        assert (
            min(found.costs[choice].p50_ms.values()) <= 1.0
            and min(found.costs[choice].size_bytes.values()) <= 5e6
        )
    smaller = Choice("bert", 1, 128, 192, 16, "kept 3")
    assert smaller not in found.likely()  # a larger one fits
    before = list(found.fitting)
    found.run(12, 60)
    assert found.fitting == before  # nothing is measured twice


def test_nothing_fits_and_the_nearest_is_named() -> None:
    _, measure = measured(exact, lambda choice: 0.05)
    with pytest.raises(UserError) as caught:
        the_survey(Budget(0.1, 0.01), measure).run(12, 60)
    message = str(caught.value)
    assert message.startswith("budget: nothing fits 0.1 MB and 0.01 ms (") and "the nearest is " in message
    size = float(message.rpartition("--max-mb ")[2].split()[0])
    assert f"; give --max-mb {size:g} --max-p50-ms 0.053" in message
    name = message.rpartition("the nearest is ")[2].split(":")[0]
    found = the_survey(Budget(size, 0.05), measure)
    found.run(1, 60)
    assert found.fitting, f"{name} was said to fit"


def test_no_candidates(world: World) -> None:
    def impossible(choice: Choice) -> Cost:
        raise UserError("student.width: too wide; give less")

    with pytest.raises(
        UserError, match="no candidate: nothing that this teacher allows can be built; give another teacher"
    ):
        cost.Survey(START, {}, BIG, impossible)
    with pytest.raises(
        UserError,
        match="no candidate: none can be built for this teacher: student.width: too wide; give less;",
    ):
        the_survey(BIG, impossible).run(3, 60)


def test_a_budget_nothing_can_meet(world: World, tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"budget: nothing fits 0\.001 MB and 50 ms \(\d+ candidates measured\); the nearest is .* "
        r"--max-mb 0\.0",
    ):
        fit.fit(
            request(world, budget=Budget(0.001, 50.0)),
            tmp_path / "fit",
            Session(cache_folder=tmp_path / "cache"),
            pace=PACE,
        )
    assert not (tmp_path / "cache/teachers").exists(), "refused before a text is embedded"
