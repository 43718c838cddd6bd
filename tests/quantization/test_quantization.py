"""fp32 graph -> w8, int8: really in 8 bits, close to what it was, and the same whatever else is in the
batch."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgedistill import quantization
from edgedistill.errors import UserError
from edgedistill.quantization import int8
from edgedistill.runtime.graph_weights import GraphWeights
from edgedistill.runtime.trust.graph_check import ALLOWED
from edgedistill.students import graph
from edgedistill.students.graph_writer import GraphWriter, finish
from edgedistill.students.pooling import pool_nodes as pool
from tests.quantization.conftest import MAKE, SAMPLES, cosines, product_alone
from tests.students.test_graph import (
    PIECES,
    make_bert,
    make_recurrent,
    run,
    session,
    some_ids,
)


def test_a_neighbour_with_large_activations_changes_nothing():
    student = make_bert(head=None)
    student.model.embeddings.word_embeddings.weight.data[7] *= 60
    ids = np.array([[5, 6, 8, 9], [7, 7, 7, 7]])
    for samples in ((), SAMPLES):
        made = quantization.convert(graph.build(student), "int8", samples)
        alone, together = (run(made, ids[:rows], np.ones_like(ids[:rows]))[:1] for rows in (1, 2))
        assert np.abs(alone - together).max() < 1e-6


def saturates(weights: np.ndarray) -> bool:
    """Whether uint8 activations times int8 weights (K, N) can leave int16, where AVX2 adds the products of
    rows 2k and 2k + 1."""
    wide = np.pad(weights.astype(int), ((0, len(weights) % 2), (0, 0)))
    ends = [255 * (each[0::2] + each[1::2]) for each in (np.clip(wide, 0, None), np.clip(wide, None, 0))]
    return bool(ends[0].max() >= 2**15 or ends[1].min() < -(2**15))


@pytest.mark.parametrize("seed", range(40))
def test_no_weights_are_stored_so_that_they_can_saturate(seed: int):
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
def test_no_graph_has_int8_weights_that_can_saturate(graphs: dict[str, onnx.ModelProto], name: str):
    """With channels scaled by what was measured, too; and they use more than 7 bits."""
    made = quantization.convert(graphs[name], "int8", SAMPLES)
    read = {node.input[1] for node in made.graph.node if node.op_type == "MatMulIntegerToFloat"}
    arrays = [numpy_helper.to_array(constant) for constant in made.graph.initializer if constant.name in read]
    assert (
        len(arrays) == len(read) == {"bert": 13}.get(name, len(read))
    )  # the head's serves tokens and their mean
    assert not any(saturates(array) for array in arrays)
    assert not arrays or max(np.abs(array.astype(int)).max() for array in arrays) > 64


def test_int8_weights_by_hand():
    """Where one weight is far the largest its column has 127 steps; where two neighbours are, their sum
    has."""
    weight = np.array([[1.27, 1.0], [0.0, 1.0], [0.5, 1.0], [-0.01, -1.0]], np.float32)
    values, scale = int8.quantize_weights(weight)
    assert np.allclose(scale, [0.01, 2 / 127])
    assert values.tolist() == [[127, 64], [0, 64], [50, 64], [-1, -64]]


@pytest.mark.parametrize("precision", ["int8", "w4"])
def test_a_graphs_own_names_are_not_taken_for_a_precisions(precision: str):
    """Writers number their constants, width_24, and quantizers name theirs after sizes: heads of all those
    numbers."""
    plain = graph.build(make_bert(num_hidden_layers=1))
    short = [each.name.rpartition("_")[2] for each in plain.graph.initializer if np.prod(each.dims) < 5]
    ids, mask = some_ids(3, 6)
    for dims in sorted({int(number) for number in short} - {0}):
        fp32 = graph.build(make_bert(head=dims, num_hidden_layers=1))
        found = run(quantization.convert(fp32, precision), ids, mask)
        assert found.shape == (3, dims) and (dims < 16 or cosines(found, run(fp32, ids, mask)).min() > 0.8)


def test_channels_of_one_weight_share_their_scales():
    """A block of layers that is applied several times has its weights once, also where the ranges of its
    inputs differ."""
    made = quantization.convert(graph.build(make_recurrent(3)), "int8", SAMPLES)
    read = [node.input[1] for node in made.graph.node if node.op_type == "MatMulIntegerToFloat"]
    assert len(read) == 3 * 12 + 2 and len(set(read)) == 12 + 1


def test_int8_measures_channels_where_outliers_are():
    """One channel of a LayerNorm is a hundred times the others and read by small weights: a scale per row
    would lose the others. The core reads those scales, which w4 stores in float16."""
    random = np.random.default_rng(3)
    large = np.where(np.arange(160) == 5, 100, 1).astype(np.float32)
    weight = random.normal(size=(160, 16)).astype(np.float32) / large[:, None]
    writer = GraphWriter()
    rows = writer.add("Gather", writer.constant(random.normal(size=(PIECES, 160)), "table"), "input_ids")
    norm = writer.add("LayerNormalization", rows, writer.constant(large, "scale"), axis=-1)
    name = writer.constant(weight, "weight")
    product = writer.add("MatMul", norm, name)
    fp32 = finish(writer, pool(writer, product, "mean"), SimpleNamespace(dims=16, layers_after_pooling=[]))
    inputs = some_ids(8, 20)
    expected = run(fp32, *inputs)
    by_row, by_channel = (
        cosines(run(quantization.convert(fp32, "int8", samples), *inputs), expected)
        for samples in ((), SAMPLES)
    )
    assert 1 - by_channel.mean() < 0.1 * (1 - by_row.mean())
    stored = [quantization.convert(fp32, each, SAMPLES).SerializeToString() for each in ("int8", "w4")]
    of_int8, of_w4 = (GraphWeights(each, "here") for each in stored)
    factors = of_int8.factors(of_int8.product(name))
    assert np.ptp(factors) > 0.1 and np.allclose(factors, of_w4.factors(of_w4.product(name)), rtol=1e-3)


def test_an_unknown_precision_names_the_known(graphs: dict[str, onnx.ModelProto]):
    with pytest.raises(UserError, match="--precision: .*'int4'.*'int8'"):
        quantization.convert(graphs["bert"], "int4")


KEPT = {"fp16": (0.99999, 0.65), "w8": (0.998, 0.5), "int8": (0.995, 0.5), "w4": (0.96, 0.45)}


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("precision", KEPT)
def test_close_to_fp32_in_fewer_bytes_whatever_else_is_in_the_batch(
    graphs: dict[str, onnx.ModelProto], name: str, precision: str
):
    fp32, (ids, mask) = graphs[name], some_ids(8, 20)
    before = fp32.SerializeToString()
    made = quantization.convert(fp32, precision, SAMPLES[::2])
    assert quantization.convert(fp32, precision, SAMPLES[::2]).SerializeToString() == made.SerializeToString()
    together, expected = run(made, ids, mask), run(fp32, ids, mask)
    assert cosines(together, expected).min() > KEPT[precision][0]
    assert not np.array_equal(together, expected)
    assert list(made.graph.input) == list(fp32.graph.input)
    assert list(made.graph.output) == list(fp32.graph.output)
    assert {(node.domain, node.op_type) for node in made.graph.node} <= ALLOWED
    assert weights_bytes(made) < KEPT[precision][1] * weights_bytes(fp32)
    assert fp32.SerializeToString() == before
    alone = np.concatenate([run(made, ids[i : i + 1, : i + 1], mask[i : i + 1, : i + 1]) for i in range(8)])
    assert cosines(alone, together).min() > 0.99999
    nothing = run(made, ids[:2, :3], np.array([[1, 1, 1], [0, 0, 0]]))  # a row of padding alone
    assert np.isfinite(nothing).all()
    assert cosines(nothing[:1], run(made, ids[:1, :3], np.ones((1, 3), np.int64))).min() > 0.99999


def weights_bytes(model: onnx.ModelProto) -> int:
    return sum(len(constant.raw_data) for constant in model.graph.initializer)


@pytest.mark.parametrize(
    ("name", "products", "lstms"),
    [("bert", 14, 0), ("recurrent", 39, 0), ("bilstm of two layers", 1, 2), ("static with a head", 1, 0)],
)
def test_the_arithmetic_is_really_in_few_bits(
    graphs: dict[str, onnx.ModelProto], name: str, products: int, lstms: int
):
    for precision, operator in (
        ("w8", "MatMulNBits"),
        ("w4", "MatMulIntegerToFloat"),
        ("int8", "MatMulIntegerToFloat"),
    ):
        nodes = quantization.convert(graphs[name], precision, SAMPLES).graph.node
        kinds = [node.op_type for node in nodes]
        assert (kinds.count(operator), kinds.count("LSTM")) == (products, lstms)
        blocks = [
            {each.name: each.i for each in node.attribute} for node in nodes if operator == node.op_type
        ]
        if operator == "MatMulNBits":
            assert (blocks[0]["bits"], blocks[0]["block_size"]) == (int(precision[1]), 32)


@pytest.mark.parametrize("inputs", [20, 32, 45])
@pytest.mark.parametrize(("precision", "lost"), [("w8", 0.02), ("w4", 0.15)])
def test_a_product_in_groups_is_the_product(precision: str, lost: float, inputs: int):
    """Also where the input's width is no multiple of a block."""
    random = np.random.default_rng(3)
    weight = random.normal(size=(inputs, 8)).astype(np.float32)
    x = random.normal(size=(5, inputs)).astype(np.float32)
    y = session(quantization.convert(product_alone(weight), precision)).run(["y"], {"x": x})[0]
    assert 0.1 * lost < np.linalg.norm(y - x @ weight) / np.linalg.norm(x @ weight) < lost
