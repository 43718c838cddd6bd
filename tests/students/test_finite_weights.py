"""Weights that are not finite, or whose squares are not: refused where a run, a model folder or a bundle is
opened, by tensor and row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import load_file, save_file
from torch import nn

from edgedistill import bundle_run, recipe, run
from edgedistill.errors import CheckFailed, UserError
from edgedistill.export import bundle_writer
from edgedistill.runtime import bundle
from edgedistill.students import finite_weights
from edgedistill.teacher.encoder import TeacherEncoder
from tests.conftest import World
from tests.export.test_export import make_run, quiet, refused
from tests.runtime.test_trust import replace_graph

WHERE: dict[
    str, tuple[str, str, str]
] = {  # the student's kind, the tensor, what the error says behind the value
    "a token's row": ("bert", "model.embeddings.word_embeddings.weight", " in row 3"),
    "a position": ("bert", "model.embeddings.position_embeddings.weight", " in row 3"),
    "a norm": ("bert", "model.encoder.layer.1.output.LayerNorm.weight", ""),
    "a bias": ("bert", "model.encoder.layer.0.attention.self.query.bias", ""),
    "the head": ("bert", "head.weight", " in row 3"),
    "a static table": ("static", "embedding.weight", " in row 3"),
    "an LSTM": ("bilstm", "lstm.weight_hh_l0_reverse", " in row 3"),
}
VALUES = (float("nan"), float("inf"), float("-inf"), 1e30)


def breaking(name: str, value: float) -> Callable[[nn.Module], None]:
    def change(module: nn.Module):
        tensor = dict(module.named_parameters())[name].data
        tensor[(3, 2)[: tensor.ndim]] = value

    return change


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("where", WHERE)
def test_a_run_with_such_a_weight_does_not_open(tmp_path, where: str, value: float):
    kind, name, row = WHERE[where]
    opened = run.open_run(make_run(tmp_path / "broken", kind, breaking(name, value)))
    with pytest.raises(UserError) as caught:
        opened.student()
    start = (
        f"{opened.folder}/student.safetensors: {name} holds {value:.3g}{row}, so embeddings would not be "
        "finite; "
    )
    assert str(caught.value).startswith(start)


def test_a_tokenizer_without_special_tokens_is_named(tmp_path):
    source = make_run(tmp_path / "runs" / "bare")
    place = source / "tokenizer" / "tokenizer.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"post_processor": None}))
    message = refused(tmp_path, source, ["fp32"], UserError)
    assert message.startswith("tokenizer: adds no special tokens to a text, so an empty text has no tokens")


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
@pytest.mark.parametrize("value", VALUES[:2])
def test_a_model_folder(world: World, tmp_path, value: float, suffix: str):
    folder = shutil.copytree(world.teacher, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][7] = value
    if suffix == "safetensors":
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        (folder / "model.safetensors").unlink()
        torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=rf"model: embeddings.word_embeddings.weight holds {value} in row 7"):
        TeacherEncoder(recipe.Teacher(model=str(folder)))


def test_a_bundle_with_a_row_that_no_golden_text_meets(tmp_path):
    out = tmp_path / "b"
    bundle_writer.export(make_run(tmp_path / "good"), ["fp32"], out, quiet)

    def change(model: onnx.ModelProto):
        name = "model.embeddings.word_embeddings.weight"
        table = next(each for each in model.graph.initializer if each.name.startswith(name))
        array = numpy_helper.to_array(table).copy()
        array[9] = float("nan")
        table.CopyFrom(numpy_helper.from_array(array, table.name))

    replace_graph(out, change)
    opened = bundle.load(out)
    assert opened.encode_ids([np.array([2, 8, 3])]).shape[0] == 1
    with pytest.raises(CheckFailed, match="not finite"):
        opened.encode_ids([np.array([2, 9, 3])])
    with pytest.raises((UserError, CheckFailed), match="row 9"):
        bundle_run.open_finished(str(out), "student.weights").student()


def test_buffers_may_mask():
    def problem(parameter: torch.Tensor | None = None, **buffers: torch.Tensor) -> str | None:
        module = torch.nn.Module()
        if parameter is not None:
            module.mask = torch.nn.Parameter(parameter)
        for name, tensor in buffers.items():
            module.register_buffer(name, tensor)
        return finite_weights.problem(module)

    mask = torch.full((4, 4), float("-inf")).triu(1)
    assert problem(mask=mask) is None
    assert problem(mask) == "mask holds -inf in row 0"
    assert problem(mask=mask * 0) == "mask holds nan in row 0"
    assert problem(ids=torch.arange(3), none=torch.zeros(0, 3), halved=torch.ones(2).half()) is None


@pytest.mark.parametrize(
    ("change", "says"), [(1e15, "has no finite embedding in torch either"), (0, "only zeros in torch too")]
)
def test_values_that_overflow_inside_or_vanish_are_not_the_graphs_fault(tmp_path, change: float, says: str):
    """Each weight's square is a float32, but not the product of three layers."""

    def scaled(student: Any):
        parts = [
            student.model.encoder.layer[1].intermediate.dense,
            student.model.encoder.layer[1].output.dense,
        ]
        for part in parts if change else [student.head]:
            for parameter in part.parameters():
                parameter.data *= change

    source = make_run(tmp_path / "runs" / "x", change=scaled)
    message = refused(tmp_path, source, ["fp32", "fp16"], CheckFailed)
    assert message.startswith('text 1 of 32 ("") has ') and says in message and "--precision" not in message
