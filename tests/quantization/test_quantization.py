"""fp32 graph -> w8, int8: really in 8 bits, close to what it was, and the same whatever else is in the
batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgedistill import quantization
from edgedistill.errors import UserError
from edgedistill.quantization import eight_bits, int8
from edgedistill.students import graph
from edgedistill.students.graph_writer import GraphWriter, finish
from edgedistill.students.pooling import pool_nodes as pool
from tests.students.test_graph import (
    PIECES,
    make_bert,
    make_bilstm,
    make_other,
    make_recurrent,
    make_static,
    run,
    session,
    some_ids,
)

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
    "traced": lambda: make_other("electra", embedding_size=32, num_hidden_layers=1),
}


RANDOM = np.random.default_rng(5)
SAMPLES = [RANDOM.integers(0, PIECES, length).tolist() for length in (1, 2, 5, 10, 20, 30) for _ in range(40)]


@pytest.fixture(scope="module")
def graphs() -> dict[str, onnx.ModelProto]:
    return {name: graph.build(make()) for name, make in MAKE.items()}


def count(model: onnx.ModelProto, op: str) -> int:
    return sum(node.op_type == op for node in model.graph.node)


def floats(model: onnx.ModelProto) -> int:
    """The largest float constant, in numbers."""
    return max(
        int(np.prod(constant.dims))
        for constant in model.graph.initializer
        if constant.data_type == TensorProto.FLOAT
    )


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.float64) * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("precision", ["w8", "int8"])
def test_close_to_fp32_in_a_third_of_the_bytes(
    graphs: dict[str, onnx.ModelProto], name: str, precision: str
) -> None:
    fp32 = graphs[name]
    before = fp32.SerializeToString()
    made = quantization.convert(fp32, precision, SAMPLES)
    inputs = some_ids(8, 20)
    assert cosines(run(made, *inputs), run(fp32, *inputs)).min() > 0.998
    assert not np.array_equal(run(made, *inputs), run(fp32, *inputs))
    assert (
        floats(made) < 1024 < floats(fp32)
    )  # every table and matrix went to 8 bits; scales and norms stayed
    assert [o.name for o in made.graph.output] == [o.name for o in fp32.graph.output]
    assert fp32.SerializeToString() == before


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("precision", ["w8", "int8"])
def test_no_text_sees_its_batch(graphs: dict[str, onnx.ModelProto], name: str, precision: str) -> None:
    made = quantization.convert(graphs[name], precision, SAMPLES)
    ids, mask = some_ids(8, 20)
    alone = np.concatenate([run(made, ids[i : i + 1, : i + 1], mask[i : i + 1, : i + 1]) for i in range(8)])
    assert cosines(alone, run(made, ids, mask)).min() > 0.99999


def test_a_neighbour_with_large_activations_changes_nothing() -> None:
    student = make_bert(head=None)
    student.model.embeddings.word_embeddings.weight.data[7] *= 60
    ids = np.array([[5, 6, 8, 9], [7, 7, 7, 7]])
    for samples in ((), SAMPLES):
        made = quantization.convert(graph.build(student), "int8", samples)
        alone, together = (run(made, ids[:rows], np.ones_like(ids[:rows]))[:1] for rows in (1, 2))
        assert np.abs(alone - together).max() < 1e-6


@pytest.mark.parametrize(
    ("name", "products", "lstms"),
    [
        ("bert", 14, 0),
        ("bert bottleneck", 15, 0),
        ("bert codes", 14, 0),
        ("recurrent", 39, 0),
        ("bilstm", 1, 1),
        ("bilstm of two layers", 1, 2),
        ("static with a head", 1, 0),
    ],
)
def test_the_arithmetic_is_really_in_8_bits(
    graphs: dict[str, onnx.ModelProto], name: str, products: int, lstms: int
) -> None:
    fp32 = graphs[name]
    w8, int8 = (quantization.convert(fp32, precision, SAMPLES) for precision in ("w8", "int8"))
    assert count(w8, "MatMulNBits") == count(int8, "MatMulIntegerToFloat") == products
    assert count(int8, "LSTM") == count(fp32, "LSTM") == count(w8, "LSTM") == lstms
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
    assert [
        node.op_type for node in made.graph.node
    ] == "Mul Gather Gather Cast Mul ReduceSum ReduceL2 Clip Div".split()
    assert len(made.SerializeToString()) < 90 * 40 + 90 * 4 + 1500
    ids, mask = some_ids(8, 20)
    alone = np.concatenate([run(made, ids[i : i + 1, : i + 1], mask[i : i + 1, : i + 1]) for i in range(8)])
    assert np.allclose(alone, run(made, ids, mask), atol=1e-6)


def saturates(weights: np.ndarray) -> bool:
    """Whether uint8 activations times int8 weights (K, N) can leave int16, where AVX2 adds the products of
    rows 2k and 2k + 1."""
    wide = np.pad(weights.astype(int), ((0, len(weights) % 2), (0, 0)))
    ends = [255 * (each[0::2] + each[1::2]) for each in (np.clip(wide, 0, None), np.clip(wide, None, 0))]
    return bool(ends[0].max() >= 2**15 or ends[1].min() < -(2**15))


def test_what_saturates_by_hand() -> None:
    """255 · 128 = 32,640 fits, 255 · 129 does not; weights of two signs, or of two pairs, never meet."""
    for fits in ([64, 64], [127, 1], [-127, -1], [127, -127], [1, 127, 127, 1], [-64, -64, 5]):
        assert not saturates(np.array([fits], np.int8).T), fits
    for leaves in ([65, 64], [-65, -64], [0, 0, 127, 2]):
        assert saturates(np.array([leaves], np.int8).T), leaves


@pytest.mark.parametrize("seed", range(40))
def test_no_weights_are_stored_so_that_they_can_saturate(seed: int) -> None:
    """Of any shape, size, sign and spread; and each is within half a step of what it was."""
    draw = np.random.default_rng(seed)
    shape = draw.integers(1, 40), draw.integers(1, 20)
    weight = draw.standard_t(draw.choice([1, 3, 30]), shape) * 10.0 ** draw.integers(-8, 9)
    weight = np.stack([weight, np.abs(weight), -np.abs(weight)])[draw.integers(3)].astype(np.float32)
    weight[draw.random(weight.shape) < draw.choice([0, 0.5])] = draw.choice(
        [0, np.abs(weight).max()]
    )  # ties at the largest
    values, scale = int8.quantize_weights(weight)
    assert values.dtype == np.int8 and not saturates(values)
    assert (np.abs(values * scale - weight) <= 0.5001 * scale).all()


@pytest.mark.parametrize("name", MAKE)
def test_no_graph_has_int8_weights_that_can_saturate(graphs: dict[str, onnx.ModelProto], name: str) -> None:
    """With channels scaled by what was measured, too; and they use more than 7 bits."""
    made = quantization.convert(graphs[name], "int8", SAMPLES)
    read = {node.input[1] for node in made.graph.node if node.op_type == "MatMulIntegerToFloat"}
    arrays = [numpy_helper.to_array(constant) for constant in made.graph.initializer if constant.name in read]
    assert (
        len(arrays) == len(read) == {"bert": 13}.get(name, len(read))
    )  # the head's serves tokens and their mean
    assert not any(saturates(array) for array in arrays)
    assert not arrays or max(np.abs(array.astype(int)).max() for array in arrays) > 64


def test_int8_weights_by_hand() -> None:
    """Where one weight is far the largest its column has 127 steps; where two neighbours are, their sum
    has."""
    weight = np.array([[1.27, 1.0], [0.0, 1.0], [0.5, 1.0], [-0.01, -1.0]], np.float32)
    values, scale = int8.quantize_weights(weight)
    assert np.allclose(scale, [0.01, 2 / 127])
    assert values.tolist() == [[127, 64], [0, 64], [50, 64], [-1, -64]]


@pytest.mark.parametrize("precision", ["int8", "w4"])
def test_a_graphs_own_names_are_not_taken_for_a_precisions(precision: str) -> None:
    """Writers number their constants, width_24, and quantizers name theirs after sizes: heads of all those
    numbers."""
    plain = graph.build(make_bert(num_hidden_layers=1))
    short = [each.name.rpartition("_")[2] for each in plain.graph.initializer if np.prod(each.dims) < 5]
    ids, mask = some_ids(3, 6)
    for dims in sorted({int(number) for number in short} - {0}):
        fp32 = graph.build(make_bert(head=dims, num_hidden_layers=1))
        found = run(quantization.convert(fp32, precision), ids, mask)
        assert found.shape == (3, dims) and (dims < 16 or cosines(found, run(fp32, ids, mask)).min() > 0.8)


def test_channels_of_one_weight_share_their_scales() -> None:
    """A block of layers that is applied several times has its weights once, also where the ranges of its
    inputs differ."""
    made = quantization.convert(graph.build(make_recurrent(3)), "int8", SAMPLES)
    read = [node.input[1] for node in made.graph.node if node.op_type == "MatMulIntegerToFloat"]
    assert len(read) == 3 * 12 + 2 and len(set(read)) == 12 + 1


def test_int8_measures_channels_where_outliers_are() -> None:
    """One channel of a LayerNorm is a hundred times the others and read by small weights: a scale per row
    would lose the others."""
    random = np.random.default_rng(3)
    large = np.where(np.arange(32) == 5, 100, 1).astype(np.float32)
    writer = GraphWriter()
    rows = writer.add("Gather", writer.constant(random.normal(size=(PIECES, 32)), "table"), "input_ids")
    norm = writer.add("LayerNormalization", rows, writer.constant(large, "scale"), axis=-1)
    product = writer.add(
        "MatMul", norm, writer.constant(random.normal(size=(32, 16)) / large[:, None], "weight")
    )
    fp32 = finish(writer, pool(writer, product, "mean"), SimpleNamespace(dims=16, layers_after_pooling=[]))
    inputs = some_ids(8, 20)
    expected = run(fp32, *inputs)
    by_row, by_channel = (
        cosines(run(quantization.convert(fp32, "int8", samples), *inputs), expected)
        for samples in ((), SAMPLES)
    )
    assert 1 - by_channel.mean() < 0.1 * (1 - by_row.mean())


def test_rows_by_hand() -> None:
    values, scale = eight_bits.quantize_rows(
        np.array([[1.27, -0.635, 0.0], [0, 0, 0], [-254, 2, 127]], np.float32)
    )
    assert values.tolist() == [[127, -64, 0], [0, 0, 0], [-127, 1, 64]]
    assert np.allclose(scale[[0, 2], 0], [0.01, 2])


@pytest.mark.parametrize("inputs", [20, 32, 45])
def test_a_product_in_blocks_is_the_product(inputs: int) -> None:
    """Also where the input's width is no multiple of a block."""
    random = np.random.default_rng(3)
    weight, x = (
        random.normal(size=(inputs, 8)).astype(np.float32),
        random.normal(size=(5, inputs)).astype(np.float32),
    )
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", d])
        for name, d in (("x", inputs), ("y", 8))
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="p")
    plain = helper.make_graph([node], "g", values[:1], values[1:], [numpy_helper.from_array(weight, "w")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = quantization.convert(helper.make_model(plain, opset_imports=opsets, ir_version=8), "w8")
    y = session(made).run(["y"], {"x": x})[0]
    assert np.linalg.norm(y - x @ weight) < 0.02 * np.linalg.norm(
        x @ weight
    )  # 8 bits for numbers of 32: about 0.7%
    packed = (
        numpy_helper.to_array(next(c for c in made.graph.initializer if c.name == "w_w8")).astype(float) - 128
    )
    scale = numpy_helper.to_array(next(c for c in made.graph.initializer if c.name == "w_w8_scale")).reshape(
        8, -1, 1
    )
    back = (packed * scale).reshape(8, -1)[:, :inputs].T
    assert (np.abs(back - weight) <= np.abs(weight).max() / 254 + 1e-6).all()


def test_fp32_is_what_it_was(graphs: dict[str, onnx.ModelProto]) -> None:
    assert quantization.convert(graphs["bert"], "fp32") is graphs["bert"]


def test_an_unknown_precision_names_the_known(graphs: dict[str, onnx.ModelProto]) -> None:
    with pytest.raises(
        UserError,
        match=r"--precision: no precision 'int4'; did you mean 'int8'\? \(fp16, fp32, int8, qdq, w4, w8\)",
    ):
        quantization.convert(graphs["bert"], "int4")
