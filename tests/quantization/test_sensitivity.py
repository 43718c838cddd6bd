"""What each layer costs: the one that was made bad comes first; skipped weights stay what they are, in every
precision."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgedistill import quantization
from edgedistill.errors import UserError
from edgedistill.export import explanation
from edgedistill.export.parity import reader
from edgedistill.precisions import PRECISIONS
from edgedistill.quantization import sensitivity
from edgedistill.quantization.sample_texts import samples, sentences, suite_sentences
from edgedistill.quantization.sensitivity import layer_names
from edgedistill.quantization.skipping import convert_except
from edgedistill.run import open_run
from edgedistill.session import QUIET, Session, rate
from edgedistill.students import graph
from tests.export.test_export import make_run
from tests.students.test_graph import make_bert, make_bilstm, make_other, make_static, run, some_ids

CONVERTED = [precision for precision in PRECISIONS if precision != "fp32"]
EIGHT_BITS = ["w8", "int8"]


@pytest.fixture(scope="module")
def bert() -> onnx.ModelProto:
    return graph.build(make_bert())


@pytest.fixture(scope="module")
def ids() -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(2, 90, length).tolist() for length in random.integers(1, 20, 24)]


def converter(precision: str) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    return lambda model: quantization.convert(model, precision)


def constant(model: onnx.ModelProto, label: str) -> str:
    return next(name for name, found in layer_names(model).items() if found == label)


def values(model: onnx.ModelProto, name: str) -> np.ndarray:
    return numpy_helper.to_array(next(each for each in model.graph.initializer if each.name == name))


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


@pytest.mark.parametrize("precision", CONVERTED)
def test_skipped_weights_stay_float32(bert: onnx.ModelProto, precision: str) -> None:
    converted = sensitivity.convertible(bert, precision)
    skip = [constant(bert, "layer 1 · feed-forward in"), constant(bert, "token embeddings")]
    assert set(skip) < set(converted)
    before = bert.SerializeToString()
    made = convert_except(converter(precision), bert, skip)
    kept = {each.name for each in made.graph.initializer}
    assert set(skip) <= kept and not (set(converted) - set(skip)) & kept
    assert all(np.array_equal(values(made, name), values(bert, name)) for name in skip)
    assert not any(node.op_type == "Identity" for node in made.graph.node)
    inputs = some_ids(8, 20)
    assert np.isfinite(run(made, *inputs)).all()
    assert bert.SerializeToString() == before


@pytest.mark.parametrize("precision", CONVERTED)
def test_to_skip_everything_is_fp32(bert: onnx.ModelProto, precision: str) -> None:
    made = convert_except(converter(precision), bert, sensitivity.convertible(bert, precision))
    inputs = some_ids(8, 20)
    assert np.allclose(run(made, *inputs), run(bert, *inputs), atol=1e-5 if precision != "fp16" else 1e-3)


def test_what_one_precision_skips_another_converts(bert: onnx.ModelProto) -> None:
    """The few worst products of an int8 graph in w8."""
    name = constant(bert, "layer 0 · feed-forward out")
    made = converter("w8")(convert_except(converter("int8"), bert, [name]))
    assert [node.op_type for node in made.graph.node].count("MatMulNBits") == 1
    assert name not in {each.name for each in made.graph.initializer}


def test_an_lstm_is_skipped_whole() -> None:
    model = graph.build(make_bilstm())
    lstm = next(node for node in model.graph.node if node.op_type == "LSTM")
    assert lstm.input[2] not in sensitivity.convertible(model, "w4")
    made = convert_except(converter("w4"), model, [lstm.input[1]])
    assert next(node for node in made.graph.node if node.op_type == "LSTM").input[1:3] == lstm.input[1:3]


def test_a_name_that_is_no_constant_is_an_error(bert: onnx.ModelProto) -> None:
    with pytest.raises(KeyError, match="no constants of this graph: absent, gone"):
        convert_except(converter("w8"), bert, ["gone", "absent"])


@pytest.mark.parametrize("precision", [*EIGHT_BITS, "w4"])
def test_the_layer_made_bad_comes_first(bert: onnx.ModelProto, ids: list[list[int]], precision: str) -> None:
    bad, name = with_an_outlier(bert, 1)
    assert name not in (each.name for each in sensitivity.costs(bert, precision, ids).layers[:1])
    whole, ranked = sensitivity.costs(bad, precision, ids)
    assert (
        ranked[0].name == name
        and ranked[0].label == "layer 1 · feed-forward out"
        and ranked[0].operator == "MatMul"
    )
    assert ranked[0].shape == values(bad, name).shape
    assert {each.name for each in ranked} == set(sensitivity.convertible(bad, precision))
    assert sum(each.share for each in ranked) == pytest.approx(1)
    assert [each.cosine_mean for each in ranked] == sorted(each.cosine_mean for each in ranked)
    assert all(each.cosine_min <= each.cosine_mean for each in ranked)
    assert (whole.cosine_mean, whole.cosine_min) == sensitivity.agreement(
        converter(precision)(bad), sensitivity.embeddings(bad, ids), ids
    )
    assert (
        whole.saved_bytes > 0.8 * sum(each.saved_bytes for each in ranked)
        and whole.cosine_mean < ranked[0].cosine_mean + 1e-3
    )


def test_a_layers_cost_is_that_of_converting_it_alone(bert: onnx.ModelProto, ids: list[list[int]]) -> None:
    name = constant(bert, "layer 0 · attention v")
    (layer,) = sensitivity.costs(bert, "w4", ids, names=[name]).layers
    others = [each for each in sensitivity.convertible(bert, "w4") if each != name]
    made = convert_except(converter("w4"), bert, others)
    rows = [
        [run(model, np.array([row]), np.ones((1, len(row)), np.int64))[0] for row in ids]
        for model in (made, bert)
    ]
    mean, least = sensitivity.cosines(*(np.array(each, np.float64) for each in rows))
    assert (layer.cosine_mean, layer.cosine_min) == pytest.approx((mean, least), abs=1e-6)
    assert 0.9 < layer.cosine_min < 0.9999
    assert layer.saved_bytes == bert.ByteSize() - made.ByteSize() > 1000
    assert layer.share == 1


def test_a_converter_of_ones_own_is_ranked(bert: onnx.ModelProto, ids: list[list[int]]) -> None:
    name = constant(bert, "head")
    assert sensitivity.costs(bert, converter("w4"), ids, names=[name]) == sensitivity.costs(
        bert, "w4", ids, names=[name]
    )


def test_names_for_people() -> None:
    assert {
        "token embeddings",
        "position embeddings",
        "head",
        "layer 1 · attention out",
        "layer 0 · attention q",
    } <= set(layer_names(graph.build(make_bert())).values())
    assert {"token embeddings", "LSTM layer 0", "LSTM layer 1"} <= set(
        layer_names(graph.build(make_bilstm(layers=2))).values()
    )
    assert set(layer_names(graph.build(make_static())).values()) == {"token embeddings"}
    traced = make_other("electra", embedding_size=32, num_hidden_layers=1)
    found = set(layer_names(graph.build(traced)).values())
    assert {
        "layer 0 · attention q",
        "layer 0 · attention out",
        "layer 0 · feed-forward in",
        "layer 0 · feed-forward out",
    } <= found


def test_cosines_by_hand() -> None:
    found = np.array([[1.0, 0], [1, 1], [0, 0]])
    expected = np.array([[2.0, 0], [0, 3], [0, 0]])
    mean, least = sensitivity.cosines(found, expected)
    assert (mean, least) == pytest.approx(((1 + 0.5**0.5 + 1) / 3, 0.5**0.5))


def test_explain_a_run(tmp_path: Path) -> None:
    opened, lines = open_run(make_run(tmp_path / "run")), list[str]()
    found = explanation.explain(opened, "w4", Session(log=lines.append))
    assert found["texts"] > 300 and found["precision"] == "w4"
    assert (
        found["cosine_mean"] < min(layer["cosine_mean"] for layer in found["layers"]) < 1
    )  # all together lose most
    assert found["saved_bytes"] == pytest.approx(
        sum(layer["saved_bytes"] for layer in found["layers"]), rel=0.05
    )
    shown = explanation.table(found)
    assert "all together" in shown and "layer 0 · feed-forward in" in shown and "MatMul" in shown
    assert shown.index(found["layers"][0]["label"]) < shown.index(found["layers"][-1]["label"])
    assert lines == [
        f"w4: quantizing each layer alone, on {found['texts']} texts; this takes minutes for six layers"
    ]


def test_explain_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    opened = open_run(make_run(tmp_path / "run", "static"))
    layers = len(explanation.explain(opened, "int8", Session())["layers"])
    assert capsys.readouterr().err == ""
    explanation.explain(opened, "int8", Session(progress=True))
    shown = capsys.readouterr().err
    assert "quantizing" in shown and f"{layers}/{layers}" in shown and re.search(r"\d layers/(s|min)", shown)


@pytest.mark.parametrize(
    ("done", "seconds", "shown"), [(4096, 2, "2,048 texts/s"), (1, 1, "1 texts/s"), (1, 40, "1.5 texts/min")]
)
def test_the_rate_of_a_progress_bar(done: int, seconds: float, shown: str) -> None:
    assert rate(done, seconds, "texts") == shown


def test_explain_refuses_what_it_cannot_explain(tmp_path: Path) -> None:
    opened = open_run(make_run(tmp_path / "run"))
    with pytest.raises(UserError, match="--precision: fp32 converts nothing"):
        explanation.explain(opened, "fp32", QUIET)
    with pytest.raises(UserError, match="--precision: no precision 'w3'; choose one"):
        explanation.explain(opened, "w3", QUIET)


def test_sample_texts(tmp_path: Path) -> None:
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
