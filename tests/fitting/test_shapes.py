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
from edgedistill.fitting.record import Budget, Costed
from edgedistill.fitting.shapes import Layers, Shape, Source
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
    [Shape("int8", layers=1, table=8, tokens=150), Shape("w4", table=8, tokens=200)],
    ids=lambda shape: shape.name,
)
def test_sizes_are_those_of_the_bundle(shape: Shape, planned: Fit, tmp_path):
    costed = planned.cost(shape)
    assert costed is not None
    train.train(recipe.parse(planned.recipe(shape, 0), "tiny"), tmp_path / "run")
    exported = bundle_writer.export(
        tmp_path / "run", [shape.precision], tmp_path / "bundle", lambda line: None
    )
    tokenizer = (tmp_path / "bundle" / "tokenizer.json").stat().st_size
    size = exported["precisions"][shape.precision]["size_bytes"] + tokenizer
    digits = 64 if shape.precision == "int8" else 0  # its graph names constants by their values
    assert abs(1e6 * costed.size_mb - size) <= digits and 0 < costed.p50_ms < 100


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
    shape = Shape("int8", "nano")
    assert [shape, replace(shape, precision="w4")] in shapes.families(planned.source)
    own = planned.recipe(shape, 1.0)
    assert own["targets"] == {"dims": 384, "reduce": {"kind": "ridge"}}
    assert own["stages"][0]["optimizer"] == "muon" and own["stages"][0]["initial_share"]
    shared = replace(planned)
    shared.__dict__.update(source=replace(planned.source, own_space=False))
    assert "targets" not in shared.recipe(shape, 1.0)
    assert shared.cost(shape).size_mb < planned.cost(shape).size_mb, "with a head of 32 dimensions"
    assert shapes.targets(nano.dims, 768)["align"] == "procrustes", "cosines stay as the teacher has them"


SOURCE = Source(384, 128, Layers("teacher", 6, 384, 1536, 128, 128, "mean"), 30_522, 15.3, 12_000)


def test_the_shapes_of_an_encoder_and_their_sizes():
    whole, *fewer, static = shapes.families(SOURCE)
    assert whole[0] == Shape("int8", layers=6, table=192, tokens=30_522) and whole[-1].tokens < 4_200
    assert [family[0].layers for family in fewer] == [4, 3, 2, 1] and static[0].name == "static-t256-12000"
    for family in fewer:
        assert family[0].tokens == 12_000 and 6_000 <= family[-1].tokens < 6_500
    assert shapes.spread(6, 4) == [0, 2, 4, 5] and shapes.spread(6, 1) == [5]
    shape = Shape("int8", layers=4, table=64, tokens=12_000)
    student = shapes.section(shape, SOURCE)
    assert (student["layers"], student["pq_bytes"], student["trim"]["tokens"]) == ([0, 2, 4, 5], 64, 12_000)
    layers = 1.02 * (4 * 1_769_472 + 384 * 384)
    size = 1e6 * shapes.estimated_mb(shape, SOURCE)
    assert size == pytest.approx(layers + 12_000 * (64 + 15.3) + 384 * 512, rel=0.05)


def test_most_layers_learn_like_all_of_them():
    assert SOURCE.layers is not None
    twelve = replace(SOURCE, layers=replace(SOURCE.layers, depth=12))
    stages = [shapes.stage(Shape("w4", layers=count), twelve, 20_000) for count in (12, 10, 8)]
    assert [stage["optimizer"] for stage in stages] == ["adamw", "adamw", "muon"]


def measured(p50: Callable[[Shape], float]) -> tuple[list[Shape], Callable[[Shape], Costed]]:
    """A measurement by formulas, and what was measured."""
    seen: list[Shape] = []

    def measure(shape: Shape) -> Costed:
        seen.append(shape)
        return Costed(shape, 1.1 * shapes.estimated_mb(shape, SOURCE), p50(shape))

    return seen, measure


def test_the_largest_that_fit_are_found_without_measuring_all():
    budget = Budget(5.0, 1.0)
    seen, measure = measured(lambda shape: 0.1 + 0.25 * shape.layers)
    fits = plan.survey(SOURCE, budget, measure)
    assert len(seen) < 20 and len(seen) == len(set(seen))
    assert [costed.shape.layers for costed in fits] == [3, 2, 1], "one of each depth, the deepest first"
    assert all(costed.excess(budget) <= 0 for costed in fits)
    assert [costed.shape.precision for costed in fits] == ["w4", "w4", "int8"]
    assert plan.survey(SOURCE, Budget(1.5, 1.0), measure)[-1].shape.kind == "static"


def test_nothing_fits_and_the_nearest_is_named():
    _, measure = measured(lambda shape: 0.05)
    with pytest.raises(UserError, match=r"^budget: nothing fits 0\.1 MB and 0\.01 ms; .* --max-mb") as caught:
        plan.survey(SOURCE, Budget(0.1, 0.01), measure)
    size = float(str(caught.value).rpartition("--max-mb ")[2].split()[0])
    assert plan.survey(SOURCE, Budget(size, 0.06), measure), "what was named fits"
    with pytest.raises(UserError, match="no candidate: nothing that this teacher allows can be built"):
        plan.survey(SOURCE, Budget(1, 1), lambda shape: None)


def test_a_budget_nothing_can_meet(world: World, tmp_path):
    with pytest.raises(UserError, match=r"^budget: nothing fits 0\.001 MB and 50 ms; .* --max-mb 0\.0"):
        fit.fit(
            request(world, budget=Budget(0.001, 50.0)),
            tmp_path / "fit",
            Session(cache_folder=tmp_path / "cache"),
        )
    assert not (tmp_path / "cache/teachers").exists(), "refused before a text is embedded"
