"""fp32 graph -> w4: half a byte per weight, values by hand, blind to the batch, and better with samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgedistill.quantization import convert, w4
from edgedistill.runtime.batching import pad
from edgedistill.students import graph
from tests.quantization.conftest import arrays, cosines
from tests.students.test_graph import (
    make_bert,
    run,
)


def converted(model: onnx.ModelProto, samples: Any = ()) -> onnx.ModelProto:
    return convert(model, "w4", samples)


@pytest.mark.parametrize(
    ("codes", "bottleneck", "bound"),
    [
        (None, None, 0.59),
        (None, 64, 0.61),
        (64, None, 0.62),  # apart from its PQ codes, which stay bytes
    ],
)
def test_bytes_per_parameter(codes: int | None, bottleneck: int | None, bound: float):
    """Students of nano's shape: four layers, 256 wide, with their whole file counted, names and nodes too."""
    shape = {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "intermediate_size": 640,
        "max_position_embeddings": 128,
    }
    fp32 = graph.build(make_bert(codes=codes, bottleneck=bottleneck, head=384, vocab_size=8000, **shape))
    parameters = sum(array.size for array in arrays(fp32).values())
    made, left = converted(fp32), 8000 * (codes or 0)
    assert 0.5 < (made.ByteSize() - left) / (parameters - left) < bound


def test_an_lstm_is_stored_in_8_bits_and_restored_once(graphs: dict[str, onnx.ModelProto], tmp_path):
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "opened.onnx")
    options.log_severity_level = 3
    made = converted(graphs["bilstm"])
    ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    opened = onnx.load(tmp_path / "opened.onnx").graph.node
    weights = [name for name, array in arrays(made).items() if array.dtype == np.int8 and array.ndim == 3]
    assert len(weights) == 2  # of inputs, and recurrent
    assert not any(name in node.input for node in opened for name in weights)
    assert [node.op_type for node in opened].count("LSTM") == 1


def test_a_group_by_hand():
    """Multiples of −0.5 from −8 to 7 are exact with the scale −0.5 and with no other; the sign is free."""
    exact = np.array([*range(-8, 8), *range(-8, 8)], np.float32) * np.float32(-0.5)
    values, scale = w4.quantize_groups(exact[None])
    assert scale.tolist() == [[-0.5]]
    assert values.tolist() == [[*range(-8, 8), *range(-8, 8)]]
    assert w4.packed(values, 8)[0, :8].tolist() == [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
    assert w4.packed(np.array([3, -1, -8], np.int8)).tolist() == [0xF3, 0x08]


def test_the_scale_clips_where_that_is_better():
    """The best of the candidates is better than the scale that reaches the largest number, by a tenth and
    more on normal weights."""
    groups = np.random.default_rng(0).normal(size=(500, 32)).astype(np.float32)
    values, scale = w4.quantize_groups(groups)
    error = ((values * scale.astype(np.float32) - groups) ** 2).sum()
    largest = np.abs(groups).max(1, keepdims=True) / 7
    assert error < 0.9 * ((np.rint(groups / largest) * largest - groups) ** 2).sum()


def test_error_feedback_lowers_the_error_of_the_product():
    """Correlated inputs: each error can be made up for by other inputs, which rounding to the nearest does
    not know of."""
    random = np.random.default_rng(1)
    x = (
        random.normal(size=(400, 6)) @ random.normal(size=(6, 64)) + 0.1 * random.normal(size=(400, 64))
    ).astype(np.float32)
    weight = random.normal(size=(64, 16)).astype(np.float32)
    values, scale = w4.quantize_with_feedback(weight, x.T @ x / len(x))
    nearest, nearest_scale = w4.quantize_groups(weight.T)
    assert values.dtype == np.int8 and scale.dtype == np.float16 and scale.shape == nearest_scale.shape
    assert values.min() >= -8 and values.max() <= 7

    def error(values: np.ndarray, scale: np.ndarray) -> float:
        return float(((x @ ((values * np.repeat(scale.astype(np.float32), 32, 1)).T - weight)) ** 2).sum())

    assert error(values, scale) < 0.6 * error(nearest, nearest_scale)


@pytest.mark.parametrize("name", ["bert", "recurrent", "bilstm", "traced"])
def test_samples_are_used_and_give_the_same_bytes_again(graphs: dict[str, onnx.ModelProto], name: str):
    random = np.random.default_rng(4)
    samples = [random.integers(2, 90, length).tolist() for length in random.integers(1, 12, 60)]
    plain, made = converted(graphs[name]), converted(graphs[name], samples)
    assert (
        made.SerializeToString()
        == converted(graphs[name], samples).SerializeToString()
        != plain.SerializeToString()
    )
    expected, found, before = (
        run(each, *pad([np.array(row) for row in samples], 1)) for each in (graphs[name], made, plain)
    )
    assert cosines(found, expected).mean() > cosines(before, expected).mean()


def test_second_moments_by_hand():
    """Of a table looked up by id: the inputs of a product are its rows, those of the samples and those of
    random ids."""
    table, weight = np.eye(3, 40, dtype=np.float32), np.ones((40, 2), np.float32)
    sizes = [("input_ids", ["b", "t"]), ("attention_mask", ["b", "t"])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in sizes]
    nodes = [
        helper.make_node("Gather", ["t", "input_ids"], ["x"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "t", 2])
    constants = [numpy_helper.from_array(table, "t"), numpy_helper.from_array(weight, "w")]
    plain = helper.make_model(
        helper.make_graph(nodes, "g", inputs, [y], constants),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    moments = w4.second_moments(plain, [[0, 0, 0], [0], [2, 2, 2, 2]])
    assert moments.keys() == {"w"}
    diagonal = np.diag(moments["w"])
    assert diagonal.sum() == pytest.approx(1) and not diagonal[3:].any()
    assert diagonal[0] > 0.75 * 0.5 and diagonal[2] > 0.75 * 0.5
    assert np.array_equal(moments["w"], np.diag(diagonal))  # no row has two channels
