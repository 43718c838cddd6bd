"""fp32 graph -> fp16: half the bytes, float32 in and out, and float32 where sums leave float16."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

from edgedistill.quantization import convert, fp16, sample_texts
from edgedistill.students import graph
from tests.quantization.conftest import MAKE, cosines, product_alone
from tests.students.test_graph import PIECES, make_bert, run, session, some_ids


def converted(model: onnx.ModelProto, samples: Any = ()) -> onnx.ModelProto:
    return convert(model, "fp16", samples)


SENSITIVE = (
    "LayerNormalization",
    "SkipLayerNormalization",
    "ReduceL2",
    "ReduceSum",
    "ReduceMax",
    "LSTM",
    "Clip",
    "Div",
)


def types(model: onnx.ModelProto) -> dict[str, str]:
    """The type of every value, by onnxruntime."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    names = {name for node in model.graph.node for name in node.output if name}
    watched.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in sorted(names))
    found = {value.name: value.type for value in session(watched).get_outputs()}
    return found | {each.name: TensorProto.DataType.Name(each.data_type) for each in model.graph.initializer}


@pytest.mark.parametrize("name", MAKE)
def test_products_are_in_float16_and_sums_in_float32(graphs: dict[str, onnx.ModelProto], name: str):
    made = converted(graphs[name])
    found, constants = types(made), {constant.name for constant in made.graph.initializer}
    for node in made.graph.node:
        if node.op_type in SENSITIVE:
            assert not any(
                "float16" in found.get(value, "").lower() for value in [*node.input, *node.output]
            ), node.name
        if node.op_type == "MatMul" and node.input[1] in constants:
            assert found[node.output[0]] == "tensor(float16)", node.name
    assert all(found[output.name] == "tensor(float)" for output in made.graph.output)


def test_a_long_sum_does_not_leave_float16():
    """2,000 tokens of large values: their sum and its square are far above 65,504, each of them is not."""
    student = MAKE["static"]()
    student.embedding.weight.data *= 2000
    fp32 = graph.build(student)
    ids = np.full((1, 2000), 7)
    ids[0, ::3] = 9
    found = run(converted(fp32), ids, np.ones_like(ids))
    assert cosines(found, run(fp32, ids, np.ones_like(ids)))[0] > 0.99999


def with_constant(model: onnx.ModelProto, start: str, change: Any) -> onnx.ModelProto:
    """A copy whose constant of that name's start was changed in place."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    constant = next(each for each in copied.graph.initializer if each.name.startswith(start))
    array = numpy_helper.to_array(constant).copy()
    change(array)
    constant.CopyFrom(numpy_helper.from_array(array, constant.name))
    return copied


def every_token(model: onnx.ModelProto) -> np.ndarray:
    """The embeddings of a text of each token alone, and of all tokens in pairs."""
    ids = np.stack([np.arange(PIECES), np.arange(PIECES)[::-1]], 1)
    return np.concatenate([run(model, part, np.ones_like(part)) for part in (ids[:, :1], ids)])


def reaches(largest: float) -> Any:
    """A BERT whose first feed-forward layer gives that value for one neuron on every text, which the next
    product reads at 1e-5."""
    student = make_bert(head=None)
    first = student.model.encoder.layer[0]
    first.attention.output.LayerNorm.bias.data[0] = 30
    first.attention.output.LayerNorm.weight.data[0] = 0
    first.intermediate.dense.weight.data[:, 0] = 0
    first.intermediate.dense.weight.data[5] = 0
    first.intermediate.dense.weight.data[5, 0] = largest / 30
    first.intermediate.dense.bias.data[5] = 0
    first.output.dense.weight.data[:, 5] = (
        torch.randn(32, generator=torch.Generator().manual_seed(0)) / largest
    )
    return student


@pytest.mark.parametrize("largest", [95_622, 40_000, 1e6, 1e9])
def test_an_activation_beyond_float16_stays_in_float32(largest: float):
    fp32, inputs = graph.build(reaches(largest)), some_ids(8, 20)
    samples = inputs[0][:4].tolist()
    blind, made = converted(fp32), converted(fp32, samples)
    expected = run(fp32, *inputs)
    assert (
        not cosines(run(fp16.simulated(blind), *inputs), expected).min() > 0.9999
    )  # infinite, NaN or lost: what a device gives
    assert cosines(run(fp16.simulated(made), *inputs), expected).min() > 0.9999
    found = types(made)
    products = {node.output[0]: found[node.output[0]] for node in made.graph.node if node.op_type == "MatMul"}
    assert (
        sum(kind == "tensor(float)" for kind in products.values()) == 3
    )  # this layer's two, and the mean of tokens
    rounded = fp16.simulated(made)
    names = {name for name in types(rounded) if name.endswith("_rounded")}
    assert len(names) > 20
    for _, values in sample_texts.values_of(rounded, sorted(names), inputs[0].tolist()):
        assert all(np.isfinite(value).all() for value in values.values())


@pytest.mark.parametrize("value", [7e4, -7e4, 5e4, 1e9])
@pytest.mark.parametrize(
    "place",
    [
        "model.embeddings.word_embeddings.weight",
        "model.embeddings.position_embeddings.weight",
        "model.encoder.layer.0.attention.self.query.weight",
        "model.encoder.layer.1.output.dense.weight",
        "head.weight",
    ],
)
def test_a_weight_that_float16_cannot_hold_stays_in_float32(place: str, value: float):
    """In a row that no sample meets, too."""

    def change(array: np.ndarray):
        array[7, 3] = value

    fp32 = with_constant(graph.build(make_bert()), place, change)
    made = converted(fp32, [[1, 2, 3], [4, 5]])
    assert cosines(every_token(fp16.simulated(made)), every_token(fp32)).min() > 0.9995


@pytest.mark.parametrize("factor", [1e-5, 1e-8, 1e-12])
def test_a_weight_that_float16_flushes_to_zero_stays_in_float32(factor: float):
    def change(array: np.ndarray):
        array *= factor

    fp32 = with_constant(graph.build(make_bert(tanh=False)), "head.weight", change)
    fp32 = with_constant(fp32, "head.bias", change)
    made = converted(fp32)
    assert cosines(every_token(fp16.simulated(made)), every_token(fp32)).min() > 0.9999
    assert (
        len(
            [
                each
                for each in made.graph.initializer
                if each.name.startswith("head.weight") and each.data_type == TensorProto.FLOAT
            ]
        )
        == 1
    )


def test_the_simulation_against_numpys_float16():
    """x·W rounded to float16: numpy's own arithmetic; above 65,504 infinite, small weights zero."""
    random = np.random.default_rng(0)
    weight = random.normal(0, 1, (6, 5)).astype(np.float32)
    weight[0, 0], weight[:, 4] = 1e-6, 6e4
    x = random.normal(0, 1, (8, 6)).astype(np.float32)
    x[0] = 1
    model = product_alone(weight)
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
    model.graph.node[0].input[0] = "computed"
    model.graph.node.insert(0, onnx.helper.make_node("Mul", ["x", "one"], ["computed"]))
    simulated = fp16.simulated(converted(model))
    found = session(simulated).run(None, {"x": x})[0]
    halved = np.where(np.abs(weight) < 2.0**-14, 0, weight.astype(np.float16).astype(np.float32))
    with np.errstate(over="ignore"):
        expected = (x.astype(np.float16).astype(np.float32) @ halved).astype(np.float16)
    assert np.isinf(expected).any() and np.isfinite(expected).any()
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
    np.testing.assert_allclose(found, expected.astype(np.float32), rtol=1e-3)
