"""A kind of student in one file, down the whole line: check, train, export in every precision, load, verify,
and back from its bundle."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx
import pytest
from pydantic import Field
from torch import Tensor, nn

from edgedistill import bundle_run, run
from edgedistill.errors import UserError
from edgedistill.export import bundle_writer
from edgedistill.planning import cost
from edgedistill.recipe import experiment, students
from edgedistill.recipe import reading as recipe_reading
from edgedistill.runtime import bundle, verify
from edgedistill.session import Session
from edgedistill.students import embedding_tables, head, kinds
from edgedistill.students.head import Headed
from edgedistill.students.kind import Kind, Size, Start, TableShape, build_to_train, table_shape
from edgedistill.students.pooling import pool
from edgedistill.training import train
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from tests.conftest import World, sentences


class Conv(students.BiLSTM):
    """Token embeddings, a convolution over three of them, their mean, and a head."""

    kind: Literal["conv"]  # type: ignore[assignment]
    channels: int = Field(24, ge=1, description="Output channels of the convolution.")


class ConvShape(TableShape):
    """A convolutional student's shape."""

    kind: Literal["conv"]
    channels: Size


class ConvStudent(Headed):
    """`forward(input_ids, attention_mask) -> (B, d)`."""

    def __init__(self, embedding: Any, channels: int, head: nn.Linear | None, tanh: bool):
        super().__init__()
        self.embedding, self.head, self.tanh, self.pooled_dims = embedding, head, tanh, channels
        self.conv = nn.Conv1d(embedding.embedding_dim, channels, 3, padding=1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        tokens = self.embedding(input_ids) * attention_mask.unsqueeze(
            -1
        )  # padding is what the convolution's own padding is
        states = self.conv(tokens.transpose(1, 2)).relu().transpose(1, 2)
        return self.through_head(pool(states, attention_mask, "mean"), input_ids, attention_mask)


def build(shape: dict[str, Any]) -> ConvStudent:
    embedding = embedding_tables.build(shape, shape["vocabulary_size"], shape["width"], shape["pad"])
    return ConvStudent(embedding, shape["channels"], head.build(shape, shape["channels"]), shape["tanh"])


def initial(spec: Conv, start: Start) -> tuple[ConvStudent, dict[str, Any]]:
    shape = {**table_shape(spec, start.vocabulary_size, start.pad_id, start.dims), "channels": spec.channels}
    student: ConvStudent = build_to_train(build, shape)
    if start.embeddings is not None:
        embedding_tables.initialize(student.embedding, start.embeddings, start.token_weights)
    return student, shape


KIND = Kind(ConvShape, initial, build)


class ConvRecipe(experiment.Recipe):
    """A recipe whose student is of this kind."""

    student: Conv  # type: ignore[assignment]


@pytest.fixture
def registered(monkeypatch):
    """What a line in `kinds.KINDS` and one in the recipe's `Student` do for a shipped kind."""
    monkeypatch.setitem(kinds.KINDS, "conv", KIND)
    monkeypatch.setattr(recipe_reading, "Recipe", ConvRecipe)


TEXTS = sentences(30, seed=4)


@pytest.mark.usefixtures("registered")
def test_down_the_whole_line(world: World, tmp_path):
    """Its graph is traced: a Conv, which precisions store as it is, and the products that they quantize."""
    student = {"kind": "conv", "width": 32, "channels": 32, "head": "linear"}
    spec = world.spec(student=student)
    session = Session(data=world.data, log=lambda line: None)
    assert cost.costs([spec], session)[0]["parameters"]["encoder"] == 32 * 32 * 3 + 32
    train.train(spec, tmp_path / "run", session)
    trained = run.open_run(tmp_path / "run")
    expected = PreparedStudent.of(trained).embed(TEXTS)
    assert (expected @ expected.T)[~np.eye(len(expected), dtype=bool)].min() < 0.99
    bundle_writer.export(tmp_path / "run", ["fp32", "w8", "int8"], tmp_path / "x", lambda line: None)
    for precision, product in (("fp32", "MatMul"), ("w8", "MatMulNBits"), ("int8", "MatMulIntegerToFloat")):
        opened = bundle.load(tmp_path / "x", precision)
        assert (opened.encode(TEXTS) * expected).sum(1).min() > (0.99999 if precision == "fp32" else 0.99)
        graph = onnx.load(tmp_path / "x" / opened.manifest["precisions"][precision]["file"]).graph
        operators = [node.op_type for node in graph.node]
        assert "Conv" in operators and product in operators
    verify.verify(str(tmp_path / "x"))
    again = bundle_run.open_finished(str(tmp_path / "x"), "student.weights")
    with pytest.raises(UserError, match="its weights cannot be read back; give the run it was exported from"):
        again.student()
