"""Graphs for engines other than onnxruntime: operators of ONNX alone, and `qdq`."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from edgedistill.precisions import STANDARD
from edgedistill.quantization import convert
from edgedistill.quantization.sample_texts import cosines, embeddings
from edgedistill.students import graph
from tests.quantization.conftest import MAKE

RANDOM = np.random.default_rng(0)
IDS = [RANDOM.integers(2, 90, length).tolist() for length in (1, 3, 7, 12, 19)]


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("precision", STANDARD)
def test_only_operators_of_onnx(name: str, precision: str):
    model = convert(graph.build(MAKE[name]()), precision, IDS)
    assert {opset.domain for opset in model.opset_import} == {""}
    assert {node.domain for node in model.graph.node} == {""}
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("precision", STANDARD)
def test_another_engine_gives_the_same(precision: str):
    model = convert(graph.build(MAKE["bert"]()), precision, IDS)
    engine, expected = ReferenceEvaluator(model), embeddings(model, IDS)
    rows = [
        engine.run(
            ["sentence_embedding"],
            {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)},
        )
        for ids in IDS
    ]
    assert cosines(np.concatenate([row[0] for row in rows]), expected)[1] > 0.9999


@pytest.mark.parametrize("name", MAKE)
def test_qdq_computes_what_int8_computes(name: str):
    fp32 = graph.build(MAKE[name]())
    qdq, int8 = (embeddings(convert(fp32, precision, IDS), IDS) for precision in ("qdq", "int8"))
    assert cosines(qdq, int8)[1] > 0.9999
    assert cosines(qdq, embeddings(fp32, IDS))[1] > 0.98
