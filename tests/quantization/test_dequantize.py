"""converted graph -> the constants it was converted from; and, through them, the student again."""

from __future__ import annotations

from typing import Any

import layer_losses
import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from edgedistill.precisions import PRECISIONS
from edgedistill.quantization import convert, converter, w8
from edgedistill.runtime.graph_weights import GraphWeights
from edgedistill.students import graph, kinds
from tests.students.test_graph import run, spread

TOKENS = 1_500  # enough for tables, and for the scales of their rows, to be stored in few bits
CONFIG = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 42,
    "pad_token_id": 0,
}
BERT = {
    "kind": "bert",
    "config": {**CONFIG, "vocab_size": TOKENS, "num_hidden_layers": 2},
    "bottleneck": None,
    "pq_bytes": None,
    "pooling": "mean",
    "head": {"dims": 24, "bias": True},
    "tanh": False,
}
RECURRENT = {**BERT, "kind": "recurrent", "repeats": 3, "position_ids": "pad", "pad": 1}
TABLE = {
    "vocabulary_size": TOKENS,
    "pad": 0,
    "width": 40,
    "pq_bytes": None,
    "head": {"dims": 24, "bias": False},
}
BILSTM = {
    **TABLE,
    "kind": "bilstm",
    "hidden": 24,
    "layers": 2,
    "readout": "max",
    "dropout": 0.0,
    "tanh": True,
}
STATIC = {**TABLE, "kind": "static", "head": None, "tanh": False}
SHAPES: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "bert codes, no head": {**BERT, "pq_bytes": 8, "head": None},
    "bert codes of two bytes": {**BERT, "pq_bytes": 8, "pq_centroids": 1000},
    "bert bottleneck": {**BERT, "bottleneck": 8},
    "bert tanh of its pooler": {**BERT, "pooling": "cls_pooler", "tanh": True},
    "bert of no layers": {**BERT, "config": {**BERT["config"], "num_hidden_layers": 0}},  # type: ignore[dict-item]
    "bert counting from padding": {**BERT, "position_ids": "pad", "pad": 1},
    "recurrent": RECURRENT,
    "recurrent once": {**RECURRENT, "repeats": 1},
    "recurrent, one layer": {
        **RECURRENT,
        "position_ids": "zero",
        "pq_bytes": 8,
        "config": {**BERT["config"], "num_hidden_layers": 1},
    },  # type: ignore[dict-item]
    "bilstm": BILSTM,
    "bilstm codes": {**BILSTM, "pq_bytes": 10, "layers": 1, "readout": "last"},
    "static": STATIC,
    "static codes": {**STATIC, "pq_bytes": 8},
    "static head": {**STATIC, "head": {"dims": 24, "bias": True}},
}
RANDOM = np.random.default_rng(0)
SAMPLES = [RANDOM.integers(2, TOKENS, 20).tolist() for _ in range(8)]
IDS, MASK = (
    RANDOM.integers(2, TOKENS, (12, 20)),
    (np.arange(20) < np.linspace(8, 20, 12)[:, None]).astype(np.int64),
)


def make(shape: dict[str, Any], weights: dict[str, torch.Tensor] | None = None) -> Any:
    module: Any = kinds.KINDS[shape["kind"]].build(shape)
    if weights is not None:
        module.load_state_dict(weights)
    if weights is not None:
        return module.eval()
    spread(module)
    if shape["kind"] == "static" and not shape["pq_bytes"]:
        module.embedding.weight.data[0] = 0  # the padding token's
        if module.head is not None:
            module.head.bias.data *= 0.01  # it would be most of the embedding of a mean of random rows
    return module


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return GraphWeights(model.SerializeToString(), "x").constants()


def embed(module: Any) -> np.ndarray:
    with torch.inference_mode():
        rows = module(torch.from_numpy(IDS), torch.from_numpy(MASK))
    return np.asarray(torch.nn.functional.normalize(rows, dim=-1).numpy())


@pytest.mark.parametrize("name", SHAPES)
def test_the_student_comes_back_in_every_precision(name: str):
    shape = SHAPES[name]
    student = make(shape)
    written = graph.build(student)
    for precision in PRECISIONS:
        model = convert(written, precision, SAMPLES)
        again = make(shape, graph.read_back(constants(model), shape, "x"))
        exact = precision in ("fp32", "fp16")
        cosines = (run(model, IDS, MASK) * embed(again)).sum(1)
        assert (
            cosines.min() > 0.99999 if exact else cosines.mean() > 0.999
        )  # graphs quantize activations too, the student does not
        if precision != "w4":
            cosines = (embed(student) * embed(again)).sum(1)
            assert cosines.min() > 0.99999 if exact else cosines.mean() > 0.999
    rows = embed(again)
    assert (rows @ rows.T)[~np.eye(len(rows), dtype=bool)].max() < 0.999  # texts differ


def test_every_constant_is_as_near_as_its_bits_allow():
    written = graph.build(make(BERT))
    before = {each.name: numpy_helper.to_array(each) for each in written.graph.initializer}
    for precision, least in (("fp16", 1e-3), ("w8", 1e-2), ("int8", 2e-2), ("w4", 0.12)):
        found = constants(convert(written, precision))
        for name, array in before.items():
            assert found[name].shape == array.shape and found[name].dtype == array.dtype
            lost = np.linalg.norm((found[name] - array).astype(np.float64)) / max(
                np.linalg.norm(array.astype(np.float64)), 1e-9
            )
            assert lost < least, (precision, name)
        assert not np.array_equal(
            found["model.embeddings.word_embeddings.weight"],
            before["model.embeddings.word_embeddings.weight"],
        )


def test_products_that_stayed_in_w8_and_scales_in_8_bits():
    """int8 with w8, as an export writes it: its w8 conversion finds the scales of the int8 table, and stores
    those in 8 bits too."""
    written = graph.build(make(BERT))
    name = next(
        each.name
        for each in written.graph.initializer
        if each.name.startswith("model.encoder.layer.1.intermediate.dense.weight")
    )
    mixed = w8.convert(layer_losses.convert_except(converter(written, "int8", SAMPLES), written, [name]))
    assert {"MatMulNBits", "MatMulIntegerToFloat"} <= {node.op_type for node in mixed.graph.node}
    assert any(each.name.endswith("_scale_int8") for each in mixed.graph.initializer)
    again = make(BERT, graph.read_back(constants(mixed), BERT, "x"))
    assert (run(mixed, IDS, MASK) * embed(again)).sum(1).min() > 0.999


def test_blocks_of_another_size_than_claimed():
    model = convert(graph.build(make(BERT)), "w8")
    node = next(each for each in model.graph.node if each.op_type == "MatMulNBits")
    scales: onnx.TensorProto = next(each for each in model.graph.initializer if each.name == node.input[2])
    scales.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scales)[:-1], scales.name))
    with pytest.raises(ValueError):
        constants(model)
