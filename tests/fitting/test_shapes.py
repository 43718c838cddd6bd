"""The cost before training: exact sizes, latencies of the real graphs, which shapes are measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from edgedistill import bundle_run, recipe
from edgedistill.errors import UserError
from edgedistill.export import bundle_writer
from edgedistill.fitting import fit, plan, shapes
from edgedistill.fitting.plan import Fit
from edgedistill.fitting.record import Budget, Cost
from edgedistill.fitting.shapes import Layers, Shape, Source, Vocabulary
from edgedistill.session import Session
from edgedistill.training import train
from tests.conftest import World
from tests.fitting.conftest import Finished, request, state_of


@pytest.fixture(scope="module")
def planned(finished: Finished) -> Fit:
    return Fit(
        finished.request, finished.folder, state_of(finished.folder), Session(device="cpu"), time.monotonic()
    )


@pytest.mark.parametrize(
    "shape",
    [Shape("bert", 1, 16, 40, 8, "kept 3"), Shape("static", 0, 8, 0, 8, "all")],
    ids=lambda shape: shape.name,
)
def test_sizes_are_those_of_the_bundle(shape: Shape, planned: Fit, tmp_path):
    cost = planned.cost(shape)
    assert isinstance(cost, Cost)
    train.train(recipe.parse(planned.recipe(shape, steps=2), "tiny"), tmp_path / "run")
    found = bundle_writer.export(
        tmp_path / "run", list(cost.size_bytes), tmp_path / "bundle", lambda line: None
    )
    tokenizer = (tmp_path / "bundle" / "tokenizer.json").stat().st_size
    for precision, size in cost.size_bytes.items():
        digits = 64 if precision == "int8" else 0  # its graph names constants by their values
        assert abs(size - found["precisions"][precision]["size_bytes"] - tokenizer) <= digits
    assert all(0 < ms < 100 for ms in cost.p50_ms.values()) and set(cost.p50_ms) == set(cost.size_bytes)


def test_which_precisions_keep_to_a_budget():
    cost = Cost({"int8": 5_100_000, "w8": 4_900_000, "w4": 3_000_000}, {"int8": 0.4, "w8": 0.9, "w4": 1.1})
    assert cost.fitting(Budget(5.0, 1.0)) == ["w8"] and cost.fitting(Budget(6.0, 2.0)) == ["int8", "w4", "w8"]
    assert (cost.best(Budget(5.0, 1.0)), cost.best(Budget(9.0, 0.2))) == ("w8", "int8")
    assert cost.nearest(Budget(2.0, 1.0)) == (pytest.approx(0.5), "w4")
    assert cost.described("w4") == "w4 3 MB, 1.1 ms"


def test_shipped_students_that_know_the_words_are_starts():
    english = shapes.finished_students(["The cat sits on the mat.", "A dog runs after a ball in the park."])
    assert english["nano"].kind == "bert"
    german = ["Die Katze sitzt auf der Matte.", "Ein Hund läuft im Park einem Ball hinterher."]
    assert list(shapes.finished_students(german)) == ["multi"]
    assert not shapes.finished_students(["Η γάτα κάθεται στο χαλάκι.", "Ένας σκύλος τρέχει στο πάρκο."])


def test_a_shipped_student_keeps_its_space_unless_the_teachers_is_asked_for(planned: Fit):
    nano, dims = bundle_run.open_finished("nano", "test"), planned.teacher.dims
    assert dims < 384 == nano.dims
    planned.__dict__["source"] = replace(planned.source, finished={"nano": nano})
    shape = Shape("finished", vocabulary="nano")
    assert shape in shapes.all_shapes(planned.source)
    own = planned.recipe(shape, steps=1)
    assert own["targets"] == {"dims": 384, "reduce": {"kind": "ridge"}}
    assert own["stages"][0]["optimizer"] == "muon" and own["stages"][0]["initial_share"]
    assert planned.opened(shape).student.module.dims == 384
    shared = replace(planned)
    shared.__dict__.update(source=replace(planned.source, own_space=False))
    assert "targets" not in shared.recipe(shape, steps=1)
    assert shared.opened(shape).student.module.dims == dims
    assert shapes.targets(nano.dims, 768)["align"] == "procrustes", "cosines stay as the teacher has them"


SOURCE = Source(
    384,
    128,
    Layers("teacher", 6, 384, 12, 1536, 128, 128),
    {},
    {
        "all": Vocabulary({}, 30_522, 466_000),
        "kept 3": Vocabulary({"trim": {"min_count": 3}}, 12_000, 178_000),
    },
)


def test_the_hand_made_shapes_are_among_the_candidates():
    names = {shape.name for shape in shapes.all_shapes(SOURCE)}
    assert {"bert-4x256x640-t64-kept3", "bert-6x384x1536-t128", "bert-2x128x512-t32-kept3"} <= names
    assert shapes.spread(6, 4) == [0, 2, 4, 5] and shapes.spread(6, 1) == [5]
    shape = Shape("bert", 4, 256, 640, 64, "kept 3")
    student = shapes.section(shape, SOURCE)
    assert (student["layers"], student["pq_bytes"]) == ([0, 2, 4, 5], 64)
    estimate = shapes.estimated_bytes(shape, SOURCE, "int8")
    assert estimate == pytest.approx(12_000 * 64 + 2_359_296 + 256 * 384 + 178_000 + 128 * 256, rel=0.05)


def measured(p50: Callable[[Shape], float]) -> tuple[list[Shape], Callable[[Shape], Cost]]:
    """A measurement by formulas, and what was measured."""
    seen: list[Shape] = []

    def measure(shape: Shape) -> Cost:
        seen.append(shape)
        whole = int(shapes.estimated_bytes(shape, SOURCE, "int8"))
        sizes = {"int8": whole, "w8": int(1.1 * whole), "w4": int(0.8 * whole)}
        return Cost(sizes, dict.fromkeys(sizes, p50(shape)))

    return seen, measure


def test_the_largest_that_fit_are_found_without_measuring_all():
    budget = Budget(5.0, 1.0)
    seen, measure = measured(lambda shape: 0.1 + 0.3 * shapes.products(shape, SOURCE))
    fits = plan.survey(SOURCE, budget, measure)
    assert len(seen) < 30 < len(shapes.all_shapes(SOURCE)) and len(seen) == len(set(seen))
    assert {shape.kind for shape in fits} == {"bert", "static"}
    depths = [shape.layers for shape in fits if shape.kind == "bert"]
    assert len(depths) == len(set(depths)) >= 4, "one of each depth"
    assert all(measure(shape).fitting(budget) for shape in fits)
    assert fits[0].kind == "bert" and fits[-1].kind == "static"


def test_nothing_fits_and_the_nearest_is_named():
    _, measure = measured(lambda shape: 0.05)
    with pytest.raises(UserError, match=r"^budget: nothing fits 0\.1 MB and 0\.01 ms .* --max-mb") as caught:
        plan.survey(SOURCE, Budget(0.1, 0.01), measure)
    size = float(str(caught.value).rpartition("--max-mb ")[2].split()[0])
    assert plan.survey(SOURCE, Budget(size, 0.06), measure), "what was named fits"
    with pytest.raises(UserError, match="no candidate: nothing that this teacher allows can be built"):
        plan.survey(SOURCE, Budget(1, 1), lambda shape: "student.width: too wide")


def test_a_budget_nothing_can_meet(world: World, tmp_path):
    with pytest.raises(UserError, match=r"^budget: nothing fits 0\.001 MB and 50 ms .* --max-mb 0\.0"):
        fit.fit(
            request(world, budget=Budget(0.001, 50.0)),
            tmp_path / "fit",
            Session(cache_folder=tmp_path / "cache"),
        )
    assert not (tmp_path / "cache/teachers").exists(), "refused before a text is embedded"
