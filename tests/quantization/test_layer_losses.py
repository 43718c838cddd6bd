"""What each layer costs: the one that was made bad comes first, and each costs what converting it alone
does."""

from __future__ import annotations

import layer_losses
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgedistill.errors import UserError
from edgedistill.quantization import sample_texts
from edgedistill.run import open_run
from edgedistill.session import QUIET, Session
from edgedistill.students import graph
from tests.export.test_export import make_run
from tests.quantization.test_conversion import converter
from tests.students.test_graph import make_bert


@pytest.fixture(scope="module")
def bert() -> onnx.ModelProto:
    return graph.build(make_bert())


def with_an_outlier(model: onnx.ModelProto, layer: int) -> tuple[onnx.ModelProto, str]:
    """A copy that gives the same embeddings, but one row of a feed-forward's second matrix is huge, and with
    it the scales of the others.

    The activation that this row is multiplied with is always 0.
    """
    copied = onnx.load_from_string(model.SerializeToString())
    found = {each.name: each for each in copied.graph.initializer}
    inner, name = (f"model.encoder.layer.{layer}.{part}.dense" for part in ("intermediate", "output"))
    for part, at, value in (
        (f"{inner}.weight.T", np.s_[:, 5], 0),
        (f"{inner}.bias", 5, 0),
        (f"{name}.weight.T", 5, 30),
    ):
        array = numpy_helper.to_array(found[part]).copy()
        array[at] = value
        found[part].CopyFrom(numpy_helper.from_array(array, found[part].name))
    return copied, f"{name}.weight.T"


@pytest.mark.parametrize("precision", ["w8", "int8", "w4"])
def test_the_layer_made_bad_comes_first(bert: onnx.ModelProto, ids: list[list[int]], precision: str):
    bad, name = with_an_outlier(bert, 1)
    before = layer_losses.costs(bert, converter(precision), ids)[1]
    assert min(before, key=lambda each: before[each]["cosine_mean"]) != name
    whole, alone = layer_losses.costs(bad, converter(precision), ids)
    assert min(alone, key=lambda each: alone[each]["cosine_mean"]) == name
    assert list(alone) == layer_losses.converted(bad, converter(precision)(bad))
    assert all(each["cosine_min"] <= each["cosine_mean"] for each in alone.values())
    mean, least = sample_texts.agreement(converter(precision)(bad), sample_texts.embeddings(bad, ids), ids)
    assert (whole["cosine_mean"], whole["cosine_min"]) == (round(mean, 6), round(least, 6))
    assert whole["saved_bytes"] > 0.8 * sum(each["saved_bytes"] for each in alone.values())
    assert whole["cosine_mean"] < alone[name]["cosine_mean"] + 1e-3


def test_explain_a_run(tmp_path):
    opened, lines = open_run(make_run(tmp_path / "run")), list[str]()
    found = layer_losses.explain(opened, "w4", Session(log=lines.append))
    assert found["texts"] > 300 and found["precision"] == "w4"
    assert (
        found["cosine_mean"] < min(layer["cosine_mean"] for layer in found["layers"]) < 1
    )  # all together lose most
    alone = sum(layer["saved_bytes"] for layer in found["layers"])
    assert 0.7 * found["saved_bytes"] < alone < found["saved_bytes"]  # each needs what all of them share
    shown = layer_losses.table(found)
    assert "all together" in shown and "encoder.layer.0.intermediate.dense " in shown and "MatMul" in shown
    assert sum(layer["share"] for layer in found["layers"]) == pytest.approx(1, abs=1e-3)
    means = [layer["cosine_mean"] for layer in found["layers"]]
    assert means == sorted(means) and all(layer["shape"] for layer in found["layers"])
    assert lines == [
        f"w4: quantizing each layer alone, on {found['texts']} texts; this takes minutes for six layers"
    ]


def test_explain_refuses_what_it_cannot_explain(tmp_path):
    opened = open_run(make_run(tmp_path / "run"))
    with pytest.raises(UserError, match="fp32 converts nothing"):
        layer_losses.explain(opened, "fp32", QUIET)
    with pytest.raises(UserError, match="--precision: no precision 'w3'; choose one"):
        layer_losses.explain(opened, "w3", QUIET)
