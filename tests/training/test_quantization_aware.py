"""Quantization-aware distillation on the tiny world: better where it is meant to be, and a run like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from edgedistill import graph, recipe, run
from edgedistill.errors import UserError
from edgedistill.files import sha256_file
from edgedistill.quantization import int8, w4
from edgedistill.session import Session
from edgedistill.students.fake_quantization import FakeQuantization
from edgedistill.teacher import encoder
from edgedistill.training import checkpoint, student_embeddings, train
from edgedistill.training.checkpoint_selection import Selection
from edgedistill.training.loop import Loop
from tests.conftest import World, sentences
from tests.graph.test_graph import session
from tests.training.test_train import suite_of

BERT = {"kind": "bert", "layers": 1, "width": 16, "heads": 2, "head": "linear", "dropout": 0.1}
DISTIL = {"name": "distil", "objective": {"kind": "cosine"}, "steps": 12, "batch": 16, "bucket": 4, "dtype": "fp32"}
QUANTIZE = {**DISTIL, "name": "quantize", "quantize": "w4", "learning_rate": 1e-3}


def go(world: World, out: Path, lines: list[str] | None = None, resume: bool = False, **changes: Any) -> dict[str, Any]:
    spec = recipe.parse(world.recipe(**changes), "test")
    return train.train(spec, out, Session(data=world.data, log=[].append if lines is None else lines.append), resume=resume)


@pytest.mark.parametrize("precision", ["w4", "int8"])
def test_the_exported_graph_is_closer_to_the_teacher(world: World, tmp_path: Path, precision: str) -> None:
    """The teacher's own layers, the same steps once in full precision and once quantized, then exported."""
    texts = sentences(60, seed=9)
    targets = encoder.TeacherEncoder(recipe.Teacher(model=str(world.teacher))).embed(texts)
    convert = {"w4": w4.convert, "int8": int8.convert}[precision]

    def distance(quantize: str | None) -> float:
        stage = {**DISTIL, "steps": 60, "batch": 32, "learning_rate": 3e-4, "quantize": quantize}
        out = tmp_path / str(quantize)
        go(world, out, stages=[stage], student={"kind": "bert", "weights": "teacher"})
        opened = run.open_run(out)
        tokens = opened.tokenizer()(texts, padding=True, return_tensors="np")
        inputs = {name: tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
        found = session(convert(graph.build(opened.student()))).run(["sentence_embedding"], inputs)[0]
        return float(1 - (found * targets).sum(1).mean())

    quantized, plain = distance(precision), distance(None)
    assert quantized < 0.4 * plain


STUDENTS = {
    "bert": BERT,
    "recurrent": {"kind": "recurrent", "layers": 1, "bottleneck": 8, "trim": {}, "head": "linear", "dropout": 0.1},
    "codes": {"kind": "bert", "weights": "teacher", "layers": 1, "pq_bytes": 8, "head": "linear", "dropout": 0.1},
    "static": {"kind": "static", "width": 12, "head": "linear"},
    "bilstm": {"kind": "bilstm", "width": 12, "hidden": 8},
}


class Stopped(Exception):
    """Stands in for a killed process."""


@pytest.mark.parametrize("name", STUDENTS)
def test_stopped_and_resumed_gives_the_same_bytes(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """And each stage's checkpoint, and the run, hold the same tensors as without `quantize`."""
    changes = {
        "student": STUDENTS[name],
        "stages": [DISTIL, {**QUANTIZE, "ema": 0.9}],
        "select": {"suite": suite_of(world), "every": 5},
    }
    info = go(world, tmp_path / "whole", **changes)
    assert info["stages"][1] == {"name": "quantize", "steps": 12, "texts": 192, "quantize": "w4"}
    assert "quantize" not in info["stages"][0]
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    step = Loop.train_step

    def stops(self: Loop) -> float:
        if self.number == 1 and self.step == 7:
            raise Stopped
        return step(self)

    monkeypatch.setattr(Loop, "train_step", stops)
    with pytest.raises(Stopped):
        go(world, tmp_path / "cut", **changes)
    saved = checkpoint.newest(tmp_path / "cut.partial" / "checkpoints")
    assert saved is not None and (saved.state["stage"], saved.state["step"]) == (1, 7)
    monkeypatch.setattr(Loop, "train_step", step)
    go(world, tmp_path / "cut", resume=True, **changes)
    assert sha256_file(tmp_path / "cut/student.safetensors") == sha256_file(tmp_path / "whole/student.safetensors")

    go(world, tmp_path / "plain", **{**changes, "stages": [DISTIL, {**QUANTIZE, "quantize": None, "ema": 0.9}]})
    plain, quantized = (load_file(tmp_path / each / "student.safetensors") for each in ("plain", "whole"))
    assert {key: value.shape for key, value in plain.items()} == {key: value.shape for key, value in quantized.items()}
    assert set(saved.tensors["average"]) == set(plain)
    assert {key for key in saved.tensors["module"] if key.startswith("student.")} == {f"student.{key}" for key in plain}
    assert any(not torch.equal(plain[key], quantized[key]) for key in plain)


def test_what_is_selected_is_scored_in_the_precision(world: World, tmp_path: Path) -> None:
    """The record's last score is that of the rounded weights, not of the weights themselves; the log says so."""
    lines: list[str] = []
    stage = {**QUANTIZE, "learning_rate": 1e-2, "steps": 20}
    select = {"suite": suite_of(world), "every": 20}
    info = go(world, tmp_path / "a", lines, stages=[stage], select=select)
    assert "quantize: trains and scores the student as w4 computes it" in lines
    assert any("step 20 of 20, mean loss" in line and f"{info['selected']['score']:.4f} in w4" in line for line in lines)
    opened = run.open_run(tmp_path / "a")
    student = opened.student()

    def score() -> float:
        return float(selection.measure(student, "again", 1))

    spec = recipe.parse(world.recipe(stages=[stage], select=select), "test")
    assert spec.select is not None
    selection = Selection(spec.select, opened_as_prepared(opened), world.data, tmp_path)
    plain = score()
    FakeQuantization(student, "w4")
    assert score() == pytest.approx(info["selected"]["score"], abs=1e-6)
    assert plain != pytest.approx(info["selected"]["score"], abs=1e-4)


def opened_as_prepared(opened: run.Run) -> Any:
    from edgedistill.training.initial_student.prepared_student import PreparedStudent

    return PreparedStudent(opened.student(), opened.shape, opened.tokenizer())


def test_a_finished_run_can_be_quantized(world: World, tmp_path: Path) -> None:
    """A recipe that starts from a run, with one stage: its weights before the first step are the run's, PQ codes included."""
    first = {**STUDENTS["codes"], "dropout": 0.0}
    go(world, tmp_path / "run", student=first, stages=[DISTIL])
    again = {**first, "weights": str(tmp_path / "run"), "tokenizer": str(tmp_path / "run")}
    del again["layers"]
    go(world, tmp_path / "same", student=again, stages=[{**QUANTIZE, "steps": 1, "learning_rate": 1e-12}])
    one, other = (run.open_run(tmp_path / name) for name in ("run", "same"))
    texts = sentences(8, seed=5)
    a, b = (student_embeddings.embed(each.student(), each.tokenizer(), texts, 48) for each in (one, other))
    assert np.abs(a - b).max() < 1e-5


EMBEDDINGS = {"match": {"of": "assistant", "layer": "embeddings"}, "objective": {"kind": "each_side", "objective": {"kind": "mse"}}}


@pytest.mark.parametrize(
    ("stages", "error"),
    [
        ([{**QUANTIZE, "quantize": "fp32"}], "stages[0].quantize: input should be 'int8', 'w8' or 'w4', not 'fp32'"),
        ([{**DISTIL, "qat": "int8"}], "stages[0].qat: no key 'qat'; did you mean 'quantize'?"),
        (
            [QUANTIZE, DISTIL],
            "stages[0].quantize: stages[1] goes on in full precision, and what is learned for w4 is lost; quantize it too, or put it first",
        ),
        (
            [QUANTIZE, {"kind": "finetune", "task": {"train": ["a"], "dev": "b", "texts": ["t"], "label": "l"}}],
            "is lost; leave quantize out",
        ),
        (
            [{**QUANTIZE, **EMBEDDINGS}],
            "stages[0]: `quantize` trains the whole student, `match.layer: embeddings` only its embedding layer; leave one out",
        ),
    ],
)
def test_what_a_recipe_is_refused_for(world: World, stages: list[dict[str, Any]], error: str) -> None:
    with pytest.raises(UserError) as caught:
        recipe.parse(world.recipe(stages=stages), "x.yaml")
    assert error in "\n".join(caught.value.problems)


def test_two_precisions_in_a_row_are_allowed(world: World) -> None:
    recipe.parse(world.recipe(stages=[DISTIL, {**QUANTIZE, "name": "first", "quantize": "w8"}, QUANTIZE]), "x.yaml")


@pytest.mark.parametrize(
    "student",
    [
        {"kind": "bert", "layers": 1, "width": 16, "heads": 2, "head": "linear", "activation": "relu"},
        {"kind": "bert", "weights": "teacher", "layers": [1], "activation": "relu"},
        {"kind": "bert", "weights": "teacher", "layers": 2, "width": 16, "activation": "relu", "head": "linear"},
        {"kind": "recurrent", "layers": 1, "activation": "relu"},
    ],
    ids=["random", "layers of the teacher", "projected", "recurrent"],
)
def test_a_student_with_relu_trains_and_is_written_with_it(world: World, tmp_path: Path, student: dict[str, Any]) -> None:
    """The teacher has gelu: without the key the student has it too, with it Relu takes its place in the graph."""

    def operators(activation: str | None) -> set[str]:
        out = tmp_path / str(activation)
        go(world, out, student={**student, "activation": activation}, stages=[DISTIL])
        opened = run.open_run(out)
        assert opened.student().model.config.hidden_act == (activation or "gelu")
        return {node.op_type for node in graph.build(opened.student()).graph.node}

    assert "Relu" in operators("relu")
    assert "Relu" not in operators(None)
