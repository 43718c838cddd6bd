"""`check`: all problems at once, warnings, and the estimated training time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.planning import cost, training_time
from edgedistill.session import Session
from edgedistill.training.open_recipe import open_recipe
from tests.conftest import World, sentences

CONGEN = {"kind": "congen", "queue": 1000, "alpha": 1}
TOO_WIDE = {"reduce": {"kind": "pca"}, "dims": 64}
TRIPLES = {
    "objective": {"kind": "info_nce"},
    "rows": {"files": ["triples.tsv"], "columns": ["anchor", "entailment", "contradiction"]},
}


def stage(name: str = "distil", **changes: Any) -> dict[str, Any]:
    return {"name": name, "objective": {"kind": "cosine"}, "steps": 12, "batch": 16, "bucket": 4, **changes}


def corpus(held_out: int) -> dict[str, Any]:
    return {"files": ["texts.txt"], "held_out": held_out}


def checked(*specs: recipe.Recipe, data: Path) -> tuple[list[dict[str, Any]], list[str]]:
    lines: list[str] = []
    return cost.costs(list(specs), Session(data=data, log=lines.append)), lines


def test_problems_of_all_parts_and_stages_are_one_error(world: World):
    stages = [stage("a", objective=CONGEN), stage("b"), stage("c", objective={**CONGEN, "queue": 2000})]
    with pytest.raises(UserError) as caught:
        open_recipe(world.spec(targets=TOO_WIDE, stages=stages), Session(data=world.data))
    places = [problem.split(":")[0] for problem in caught.value.problems]
    assert places[:3] == ["targets.dims", "stages[0].objective", "stages[2].objective"]
    assert "a queue of 2,000 texts leaves none of 400 to train on" in caught.value.problems[2]


def test_a_teacher_and_a_corpus_that_are_missing_are_both_reported(world: World):
    changes = {"teacher": {"model": "nowhere"}, "rows": corpus(5000)}
    with pytest.raises(UserError) as caught:
        open_recipe(world.spec(**changes), Session(data=world.data))
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["teacher.model", "rows"]


def test_problems_of_several_recipes_are_one_error_and_nothing_is_measured(world: World, monkeypatch):
    monkeypatch.setattr(cost, "size_and_latency", lambda *_: pytest.fail("measured"))
    good = world.spec(name="good")
    queue = world.spec(name="queue", stages=[stage(objective=CONGEN)])
    held_out = world.spec(name="held", rows=corpus(440))
    with pytest.raises(UserError) as caught:
        checked(good, queue, held_out, data=world.data)
    assert [problem.split(":")[:2] for problem in caught.value.problems] == [
        ["queue", " stages[0].objective"],
        ["held", " rows"],
    ]


@pytest.mark.parametrize(
    ("held_out", "batch", "expected"),
    [
        (40, 16, []),
        (0, 16, ["rows.held_out: no text is held out"]),
        (200, 16, ["rows.held_out: 200 of "]),
        (40, 500, ["stages[0].batch: 500 rows, but only 400 to train on"]),
        (300, 200, ["rows.held_out: 300 of ", "stages[0].batch: 200 rows, but only "]),
    ],
)
def test_what_is_probably_not_meant_is_a_warning(
    world: World, held_out: int, batch: int, expected: list[str]
):
    found = open_recipe(
        world.spec(rows=corpus(held_out), stages=[stage(batch=batch)]), Session(data=world.data)
    ).warnings
    assert len(found) == len(expected)
    assert all(warning.startswith(start) for warning, start in zip(found, expected, strict=True))


def test_the_training_time_is_estimated_and_nothing_is_kept(world: World, tmp_path):
    lines: list[str] = []
    session = Session(data=world.data, log=lines.append, cache_folder=tmp_path / "cache")
    view = {"view": {"kind": "crop"}}
    steps = [
        stage(steps=400, objective={**CONGEN, "queue": 64, "alpha": 0.5}, **view),
        stage("b"),
    ]
    wanted = world.spec(rows=corpus(200), stages=steps)
    before = torch.get_rng_state()
    [found] = cost.costs([wanted], session)
    assert [line for line in lines if line.startswith("warning: ")] == [f"warning: {found['warnings'][0]}"]
    assert found["teacher_texts"] == sum(found["texts"].values())
    assert found["training_samples"] == 400 * 16 * 2 + 12 * 16
    assert set(found["estimated_seconds"]) == {"teacher", "student"}
    assert min(found["estimated_seconds"].values()) > 0
    assert not list((tmp_path / "cache/teachers").glob("*")), "nothing is embedded for good"
    shown = cost.table(found)
    assert "teacher texts to embed" in shown and "training samples" in shown
    assert shown.splitlines()[-1].startswith("training time here")
    assert "passes" not in shown
    assert before.shape == torch.get_rng_state().shape


def test_texts_that_the_student_would_not_read_whole_are_counted(world: World):
    session = Session(data=world.data)
    cost.costs([world.spec(stages=[stage(max_tokens=4)])], session)
    assert 0 < session.reading.texts_cut < session.reading.tokens_cut
    assert "cut at the encoder's limit" in session.reading.line


def test_triples_and_the_teacher_itself_are_estimated(world: World):
    rows = ["anchor\tentailment\tcontradiction", *("\t".join(sentences(3, seed=seed)) for seed in range(60))]
    (world.data / "triples.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    [found], _ = checked(world.spec(stages=[stage(**TRIPLES)]), data=world.data)
    assert found["training_samples"] == 12 * 16 * 3
    assert found["estimated_seconds"]["student"] > 0
    reduced = world.spec(
        student={"kind": "teacher"}, targets={"reduce": {"kind": "pca"}, "dims": 8}, stages=[]
    )
    [found], _ = checked(reduced, data=world.data)
    assert "training_samples" not in found
    assert found["estimated_seconds"]["student"] == 0


def test_pairs_are_estimated(world: World, tmp_path):
    rows = "\n".join(f"{text}\t{text[::-1]}" for text in sentences(80))
    (tmp_path / "en-xx.tsv").write_text(f"en\txx\n{rows}\n", encoding="utf-8")
    table = {"files": ["en-xx.tsv"], "columns": ["en", "xx"], "languages": ["en", "xx"]}
    pairs = {"tables": [table], "held_out": 10}
    both = {"kind": "each_side", "objective": {"kind": "mse"}}
    student = {"kind": "bert", "layers": 1, "width": 32, "heads": 2}
    [found], _ = checked(
        world.spec(rows=pairs, student=student, stages=[stage(objective=both)]), data=tmp_path
    )
    assert found["training_samples"] == 12 * 16 * 2
    assert found["estimated_seconds"]["student"] > 0


def test_the_time_of_fine_tuning_is_not_estimated(world: World):
    rows = [f"{text}\t{number % 2}" for number, text in enumerate(sentences(90))]
    for name, some in {"task.tsv": rows[:60], "task_dev.tsv": rows[60:]}.items():
        (world.data / name).write_text("\n".join(["text\tlabel", *some, ""]), encoding="utf-8")
    task = {"files": ["task.tsv"], "dev": "task_dev.tsv", "columns": ["text"], "label": "label"}
    last = {
        "name": "tune",
        "kind": "finetune",
        "rows": task,
        "steps": 10,
        "batch": 8,
        "learning_rates": [1e-3],
    }
    [found], _ = checked(world.spec(rows=None, stages=[last]), data=world.data)
    assert found["training_samples"] == 80 and "estimated_seconds" not in found
    [found], _ = checked(world.spec(stages=[stage(), last]), data=world.data)
    assert found["estimated_seconds"]["student"] > 0
    assert " ".join(cost.table(found).split()).endswith("), without the fine-tuning")


@pytest.mark.parametrize(
    "student",
    [
        {"kind": "bert", "layers": 64, "width": 16_384, "heads": 2},
        {"kind": "bert", "layers": 1, "width": 16_384, "heads": 2, "max_positions": 1 << 20},
        {"kind": "bilstm", "layers": 8, "width": 16_384, "hidden": 16_384},
    ],
)
def test_a_student_that_no_memory_holds_is_refused_by_its_size_before_it_is_built(
    student: dict[str, Any], world: World
):
    with pytest.raises(
        UserError,
        match=r"^student: [\d,]{13,} parameters take [\d,]{3,} GB to train, and this machine has \d+;",
    ):
        open_recipe(world.spec(student=student, targets=None), Session(data=world.data))


@pytest.mark.parametrize("model", [".", "..", "~"])
def test_a_teacher_that_is_a_folder_of_another_kind(model: str, world: World):
    with pytest.raises(UserError, match=r"teacher\.model|no config\.json|no such"):
        open_recipe(world.spec(teacher={"model": model}), Session(data=world.data))


@pytest.mark.parametrize(
    "student",
    [
        {"kind": "bert", "layers": 64, "width": 16, "heads": 2, "intermediate": 24, "head": "linear"},
        {"kind": "bert", "layers": 2, "width": 1024, "heads": 16, "intermediate": 16_384, "head": "linear"},
        {"kind": "recurrent", "layers": 2, "repeats": 64, "bottleneck": 16},
        {"kind": "bilstm", "width": 1024, "hidden": 2048, "embeddings": {"from": "random"}},
        {"kind": "static", "width": 16_384, "pq_bytes": 16_384, "pq_centroids": 32_768, "head": "linear"},
    ],
    ids=["deep", "wide", "repeated", "bilstm", "static"],
)
def test_a_large_or_deep_student_is_computed_not_measured(student: dict[str, Any], world: World, monkeypatch):
    """Building, converting and training such a student for a moment would take minutes."""
    monkeypatch.delattr(training_time, "_seconds_per_row")
    monkeypatch.delattr(cost, "size_and_latency")
    source = {"weights": "teacher"} if student["kind"] == "recurrent" else {}
    [found], _ = checked(world.spec(student={**student, **source}), data=world.data)
    total = found["parameters"]["total"]
    assert found["p50_ms"] == {} and found["size_bytes"]["fp32"] == 4 * total
    assert "estimated_seconds" not in found and found["training_samples"] == 12 * 16
    assert "not measured" in cost.table(found) and "training time here" not in cost.table(found)
    assert (total > training_time.MOST_PARAMETERS) == (
        student["kind"] not in ("recurrent",) and student.get("layers") != 64
    )
