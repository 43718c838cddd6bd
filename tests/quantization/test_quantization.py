"""fp32 graph -> w8, int8: really in 8 bits, close to what it was, and w8 blind to the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgedistill import graph, quantization
from edgedistill.errors import UserError
from edgedistill.quantization import embedding_tables
from tests.graph.test_graph import make_bert, make_bilstm, make_other, make_recurrent, make_static, run, session, some_ids

MAKE: dict[str, Any] = {
    "bert": make_bert,
    "bert bottleneck": lambda: make_bert(bottleneck=24),
    "bert codes": lambda: make_bert(codes=16),
    "static codes": lambda: make_static(codes=8),
    "recurrent": lambda: make_recurrent(bottleneck=24),
    "bilstm": make_bilstm,
    "bilstm of two layers": lambda: make_bilstm("max", layers=2),
    "static": make_static,
    "static with a head": lambda: make_static(48),
    "traced": lambda: make_other("xlm-roberta", hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48),
}


@pytest.fixture(scope="module")
def graphs() -> dict[str, onnx.ModelProto]:
    return {name: graph.build(make()) for name, make in MAKE.items()}


def count(model: onnx.ModelProto, op: str) -> int:
    return sum(node.op_type == op for node in model.graph.node)


def floats(model: onnx.ModelProto) -> int:
    """The largest float constant, in numbers."""
    return max(int(np.prod(constant.dims)) for constant in model.graph.initializer if constant.data_type == TensorProto.FLOAT)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.float64) * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("precision", ["w8", "int8"])
def test_close_to_fp32_in_a_third_of_the_bytes(graphs: dict[str, onnx.ModelProto], name: str, precision: str) -> None:
    fp32 = graphs[name]
    before = fp32.SerializeToString()
    made = quantization.convert(fp32, precision)
    inputs = some_ids(8, 20)
    assert cosines(run(made, *inputs), run(fp32, *inputs)).min() > 0.998
    assert not np.array_equal(run(made, *inputs), run(fp32, *inputs))
    assert floats(made) < 1024 < floats(fp32)  # every table and matrix went to 8 bits; scales and norms stayed
    assert [o.name for o in made.graph.output] == [o.name for o in fp32.graph.output]
    assert fp32.SerializeToString() == before


@pytest.mark.parametrize("name", MAKE)
def test_w8_does_not_see_the_batch(graphs: dict[str, onnx.ModelProto], name: str) -> None:
    made = quantization.convert(graphs[name], "w8")
    ids, mask = some_ids(8, 20)
    alone = np.concatenate([run(made, ids[i : i + 1, : i + 1], mask[i : i + 1, : i + 1]) for i in range(8)])
    assert cosines(alone, run(made, ids, mask)).min() > 0.99999


def test_int8_sees_the_batch() -> None:
    """Why drift is measured: a neighbour with larger activations changes a text's vector."""
    student = make_bert(head=None)
    student.model.embeddings.word_embeddings.weight.data[7] *= 60
    made = quantization.convert(graph.build(student), "int8")
    ids = np.array([[5, 6, 8, 9], [7, 7, 7, 7]])
    alone, together = (run(made, ids[:rows], np.ones_like(ids[:rows]))[:1] for rows in (1, 2))
    assert 0.9 < cosines(alone, together)[0] < 0.99999


@pytest.mark.parametrize(
    ("name", "products", "lstms"),
    [
        ("bert", 9, 0),
        ("bert bottleneck", 10, 0),
        ("bert codes", 9, 0),
        ("recurrent", 26, 0),
        ("bilstm", 1, 1),
        ("bilstm of two layers", 1, 2),
        ("static with a head", 1, 0),
    ],
)
def test_the_arithmetic_is_really_in_8_bits(graphs: dict[str, onnx.ModelProto], name: str, products: int, lstms: int) -> None:
    fp32 = graphs[name]
    w8, int8 = (quantization.convert(fp32, precision) for precision in ("w8", "int8"))
    assert count(w8, "MatMulNBits") == count(int8, "MatMulInteger") == products
    assert count(int8, "DynamicQuantizeLSTM") == count(fp32, "LSTM") == count(w8, "LSTM") == lstms
    assert count(int8, "LSTM") == 0
    assert count(int8, "DynamicQuantizeLinear") > 0
    blocks = next(node for node in w8.graph.node if node.op_type == "MatMulNBits")
    assert {a.name: a.i for a in blocks.attribute if a.name in ("bits", "block_size", "accuracy_level")} == {
        "bits": 8,
        "block_size": 32,
        "accuracy_level": 4,
    }


@pytest.mark.parametrize("precision", ["w8", "int8"])
def test_a_static_table_is_the_same_rows_in_both(graphs: dict[str, onnx.ModelProto], precision: str) -> None:
    """Nothing but the table is there to quantize; no activation is, so neither sees the batch."""
    made = quantization.convert(graphs["static"], precision)
    assert [node.op_type for node in made.graph.node] == "Mul Gather Gather Cast Mul ReduceSum ReduceL2 Clip Div".split()
    assert len(made.SerializeToString()) < 90 * 40 + 90 * 4 + 1500
    ids, mask = some_ids(8, 20)
    alone = np.concatenate([run(made, ids[i : i + 1, : i + 1], mask[i : i + 1, : i + 1]) for i in range(8)])
    assert np.allclose(alone, run(made, ids, mask), atol=1e-6)


def test_int8_weights_leave_a_bit_for_the_sum(graphs: dict[str, onnx.ModelProto]) -> None:
    made = quantization.convert(graphs["bert"], "int8")
    weights = {node.input[1] for node in made.graph.node if node.op_type == "MatMulInteger"}
    arrays = [numpy_helper.to_array(constant) for constant in made.graph.initializer if constant.name in weights]
    assert len(arrays) == 9
    assert all(array.dtype == np.int8 and 32 < np.abs(array.astype(int)).max() <= 64 for array in arrays)


def test_rows_by_hand() -> None:
    values, scale = embedding_tables.quantize_rows(np.array([[1.27, -0.635, 0.0], [0, 0, 0], [-254, 2, 127]], np.float32))
    assert values.tolist() == [[127, -64, 0], [0, 0, 0], [-127, 1, 64]]
    assert np.allclose(scale[[0, 2], 0], [0.01, 2])


@pytest.mark.parametrize("inputs", [20, 32, 45])
def test_a_product_in_blocks_is_the_product(inputs: int) -> None:
    """Also where the input's width is no multiple of a block."""
    random = np.random.default_rng(3)
    weight, x = random.normal(size=(inputs, 8)).astype(np.float32), random.normal(size=(5, inputs)).astype(np.float32)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", d]) for name, d in (("x", inputs), ("y", 8))]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="p")
    plain = helper.make_graph([node], "g", values[:1], values[1:], [numpy_helper.from_array(weight, "w")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = quantization.convert(helper.make_model(plain, opset_imports=opsets, ir_version=8), "w8")
    y = session(made).run(["y"], {"x": x})[0]
    assert np.linalg.norm(y - x @ weight) < 0.02 * np.linalg.norm(x @ weight)  # 8 bits for numbers of 32: about 0.7%
    packed = numpy_helper.to_array(next(c for c in made.graph.initializer if c.name == "w_w8")).astype(float) - 128
    scale = numpy_helper.to_array(next(c for c in made.graph.initializer if c.name == "w_w8_scale")).reshape(8, -1, 1)
    back = (packed * scale).reshape(8, -1)[:, :inputs].T
    assert (np.abs(back - weight) <= np.abs(weight).max() / 254 + 1e-6).all()


def test_fp32_is_what_it_was(graphs: dict[str, onnx.ModelProto]) -> None:
    assert quantization.convert(graphs["bert"], "fp32") is graphs["bert"]


def test_an_unknown_precision_names_the_known(graphs: dict[str, onnx.ModelProto]) -> None:
    with pytest.raises(UserError, match=r"--precision: no precision 'int4'; did you mean 'int8'\? \(fp32, int8, w8\)"):
        quantization.convert(graphs["bert"], "int4")


def test_what_the_quantizer_skips_is_not_shipped(graphs: dict[str, onnx.ModelProto]) -> None:
    """An LSTM whose weights are not constants stays fp32 without a word; we say it."""
    hidden = onnx.load_from_string(graphs["bilstm"].SerializeToString())
    at, lstm = next((i, node) for i, node in enumerate(hidden.graph.node) if node.op_type == "LSTM")
    weights = lstm.input[2]
    lstm.input[2] = "turned"
    hidden.graph.node.insert(at, helper.make_node("Identity", [weights], ["turned"]))
    with pytest.raises(RuntimeError, match="1 nodes should have become DynamicQuantizeLSTM, 0 did"):
        quantization.convert(hidden, "int8")
