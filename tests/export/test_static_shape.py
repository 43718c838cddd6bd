"""`export --shape`: bundles whose graphs take one shape, and give what torch gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from edgedistill import files
from edgedistill.errors import UserError
from edgedistill.export import bundle_writer, static_shape
from edgedistill.precisions import STANDARD
from edgedistill.quantization import convert
from edgedistill.runtime import bundle, verify
from edgedistill.students import graph
from tests.conftest import sentences
from tests.export.test_export import by_torch, make_run
from tests.quantization.conftest import MAKE

TEXTS = ["", "the dog", *sentences(5, seed=9), "a child " * 40]
IDS = [np.random.default_rng(0).integers(2, 90, length).tolist() for length in (1, 7, 12)]


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("precision", STANDARD)
def test_every_tensor_has_a_shape(name: str, precision: str):
    model = static_shape.fixed(convert(graph.build(MAKE[name]()), precision, IDS), 16)
    onnx.checker.check_model(model, full_check=True)
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    assert all(each.HasField("dim_value") for value in values for each in value.type.tensor_type.shape.dim)
    assert {value.name for value in values} >= {
        name for node in model.graph.node for name in node.output if name
    }
    assert "Shape" not in {node.op_type for node in model.graph.node}
    assert {each.name for each in model.graph.initializer} <= {
        name for node in model.graph.node for name in node.input
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("static")
    make_run(root / "tiny")
    bundle_writer.export(root / "tiny", ["fp32", "qdq"], root / "x", lambda line: None, "1x16")
    return root / "x"


@pytest.mark.parametrize("precision", ["fp32", "qdq"])
def test_a_fixed_shape_gives_what_torch_gives(folder: Path, precision: str):
    opened = bundle.load(folder, precision)
    expected = by_torch(folder.parent / "tiny", [" ".join(text.split()[:14]) for text in TEXTS])
    rows = opened.encode(TEXTS)
    assert (
        opened.max_tokens == 16 and (rows * expected).sum(1).min() > {"fp32": 0.99999, "qdq": 0.98}[precision]
    )


def test_its_golden_texts_in_another_engine(folder: Path):
    assert verify.verify(folder)["texts"] == 32
    golden, engine = (
        files.read_json(folder / "parity.json"),
        ReferenceEvaluator(str(folder / "onnx/model.onnx")),
    )
    assert max(map(len, golden["ids"])) == 16
    ids = golden["ids"][9]
    columns = [np.pad([row], ((0, 0), (0, 16 - len(ids)))) for row in (ids, [1] * len(ids))]
    rows = engine.run(
        ["sentence_embedding"], dict(zip(["input_ids", "attention_mask"], columns, strict=True))
    )[0]
    assert rows[0] @ golden["vectors"][9] > 0.99999


@pytest.mark.parametrize(
    ("text", "precisions", "fact"),
    [
        ("128", ["fp32"], "not 1xTOKENS"),
        ("0x128", ["fp32"], "not 1xTOKENS"),
        ("2x128", ["fp32"], "not 1xTOKENS"),
        ("1x128", ["fp32", "int8"], "not for int8"),
    ],
)
def test_what_is_no_shape(text: str, precisions: list[str], fact: str):
    with pytest.raises(UserError, match=f"--shape {text}: .*{fact}"):
        static_shape.tokens(text, precisions)


def test_more_tokens_than_the_student_reads(folder: Path, tmp_path):
    with pytest.raises(UserError, match="--shape 1x64: this student reads at most 32 tokens"):
        bundle_writer.export(folder.parent / "tiny", ["fp32"], tmp_path / "x", print, "1x64")
    assert not (tmp_path / "x").exists()
