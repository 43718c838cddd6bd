"""Skipped weights stay what they are, in every precision; what graphs are measured on."""

from __future__ import annotations

from collections.abc import Callable

import layer_losses
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgedistill import quantization
from edgedistill.export.parity import reader
from edgedistill.precisions import PRECISIONS
from edgedistill.quantization.sample_texts import samples, sentences, suite_sentences
from edgedistill.run import open_run
from edgedistill.students import graph
from tests.export.test_export import make_run
from tests.students.test_graph import make_bert, make_bilstm, run, some_ids

CONVERTED = [precision for precision in PRECISIONS if precision != "fp32"]


@pytest.fixture(scope="module")
def bert() -> onnx.ModelProto:
    return graph.build(make_bert())


def converter(precision: str) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    return lambda model: quantization.convert(model, precision)


def values(model: onnx.ModelProto, name: str) -> np.ndarray:
    return numpy_helper.to_array(next(each for each in model.graph.initializer if each.name == name))


@pytest.mark.parametrize("precision", CONVERTED)
def test_skipped_weights_stay_float32(bert: onnx.ModelProto, precision: str):
    weights = layer_losses.converted(bert, converter(precision)(bert))
    skip = ["model.encoder.layer.1.intermediate.dense.weight.T", "model.embeddings.word_embeddings.weight"]
    assert set(skip) < set(weights)
    before = bert.SerializeToString()
    made = layer_losses.convert_except(converter(precision), bert, skip)
    kept = {each.name for each in made.graph.initializer}
    assert set(skip) <= kept and not (set(weights) - set(skip)) & kept
    assert all(np.array_equal(values(made, name), values(bert, name)) for name in skip)
    assert not any(node.op_type == "Identity" for node in made.graph.node)
    inputs = some_ids(8, 20)
    assert np.isfinite(run(made, *inputs)).all()
    assert bert.SerializeToString() == before


def test_what_one_precision_skips_another_converts(bert: onnx.ModelProto):
    """The few worst products of an int8 graph in w8."""
    name = "model.encoder.layer.0.output.dense.weight.T"
    made = converter("w8")(layer_losses.convert_except(converter("int8"), bert, [name]))
    assert [node.op_type for node in made.graph.node].count("MatMulNBits") == 1
    assert name not in {each.name for each in made.graph.initializer}


def test_an_lstm_is_skipped_whole():
    model = graph.build(make_bilstm())
    lstm = next(node for node in model.graph.node if node.op_type == "LSTM")
    assert lstm.input[2] not in layer_losses.converted(model, converter("w4")(model))
    made = layer_losses.convert_except(converter("w4"), model, [lstm.input[1]])
    assert next(node for node in made.graph.node if node.op_type == "LSTM").input[1:3] == lstm.input[1:3]


def test_a_name_that_is_no_constant_is_an_error(bert: onnx.ModelProto):
    with pytest.raises(KeyError, match="no constants of this graph: absent, gone"):
        layer_losses.convert_except(converter("w8"), bert, ["gone", "absent"])


def test_sample_texts(tmp_path):
    """Nothing that a result is measured on is among the texts that activations are measured on."""
    assert (
        len(sentences()) > 100
        and len(suite_sentences()) > 500
        and not set(sentences()) & set(suite_sentences())
    )
    opened = open_run(make_run(tmp_path / "run"))
    rows = reader(opened).token_ids([*sentences()[:5], "word " * 500])
    assert len(rows) == 6 and len(rows[5]) == opened.max_tokens and all(rows)
    drawn = samples(reader(opened), [[2, 3]])
    assert drawn == samples(reader(opened), [[2, 3]]) and [2, 3] in drawn
    assert min(map(len, drawn)) > 0 and max(map(len, drawn)) <= opened.max_tokens
    assert len({token for row in drawn for token in row}) > 0.9 * len(opened.tokenizer())
