"""Where int8 loses too much: the products that lose most are found and stay in w8; activations are measured
once for all tries."""

from __future__ import annotations

from typing import Any

import layer_losses
import onnx
import pytest

from edgedistill import quantization
from edgedistill.precisions import PRECISIONS
from edgedistill.quantization import int8, sample_texts
from edgedistill.students import graph
from tests.students.test_graph import make_bert, make_recurrent

REQUIRED = PRECISIONS["int8"].single_cosine


def with_outliers(layers: list[int]) -> onnx.ModelProto:
    """Four layers; in these, one input of the last product is 270 and multiplied by 0: a scale per row wastes
    the bits of all others, one per block only those of its block, which are multiplied by 0 as well.
    """
    student: Any = make_bert(intermediate_size=64, num_hidden_layers=4)
    for layer in (student.model.encoder.layer[at] for at in layers):
        layer.intermediate.dense.bias.data[40] = 270
        layer.output.dense.weight.data[:, 32:] = 0
    return graph.build(student)


@pytest.mark.parametrize(("layers", "in_w8"), [([1, 3], 1), ([0, 2], 1), ([0, 1, 2], 2)])
def test_the_products_that_lose_most_stay_in_w8(ids: list[list[int]], layers: list[int], in_w8: int):
    """As few as it takes."""
    model = with_outliers(layers)
    expected = sample_texts.embeddings(model, ids)
    assert sample_texts.agreement(quantization.convert(model, "int8", ids), expected, ids)[1] < REQUIRED
    made, kept = quantization.within_limit(model, "int8", ids, ids)
    assert sample_texts.agreement(made, expected, ids)[1] >= REQUIRED
    assert len(kept) == in_w8
    assert set(kept) <= {f"model.encoder.layer.{at}.output.dense.weight.T" for at in layers}
    assert [node.op_type for node in made.graph.node].count("MatMulNBits") == in_w8
    assert sample_texts.agreement(_with_w8(model, kept[: in_w8 // 2], ids), expected, ids)[1] < REQUIRED


def _with_w8(model: onnx.ModelProto, kept: list[str], ids: list[list[int]]) -> onnx.ModelProto:
    converter = quantization.converter(model, "int8", ids)
    return quantization.convert(layer_losses.convert_except(converter, model, kept), "w8")


@pytest.mark.parametrize("precision", ["int8", "w4"])
@pytest.mark.parametrize(
    "make", [make_bert, lambda: make_recurrent(bottleneck=24)], ids=["bert", "recurrent"]
)
def test_what_is_measured_once_converts_as_what_is_measured_each_time(
    ids: list[list[int]], make: Any, precision: str
):
    model = graph.build(make())
    converter = quantization.converter(model, precision, ids)
    assert (
        converter(model)
        == quantization.convert(model, precision, ids)
        != quantization.convert(model, precision)
    )
    weights = layer_losses.converted(model, quantization.convert(model, precision))
    for skip in ([weights[2]], weights[1::2], weights[:-1], weights):
        made = layer_losses.convert_except(converter, model, skip)
        assert layer_losses.converted(model, made) == [name for name in weights if name not in skip]


def test_a_products_own_error(ids: list[list[int]]):
    model = with_outliers([1, 3])
    lost = int8.product_errors(model, int8.measure(model, ids), ids)
    assert sorted(lost, key=lambda name: -lost[name])[:2] == [
        "model.encoder.layer.1.output.dense.weight.T",
        "model.encoder.layer.3.output.dense.weight.T",
    ]
    weights = {constant.name for constant in model.graph.initializer if len(constant.dims) == 2}
    assert set(lost) == {node.input[1] for node in model.graph.node if node.op_type == "MatMul"} & weights
    assert 0 < min(lost.values()) < 1e-3 < max(lost.values())
