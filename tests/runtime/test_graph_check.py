"""What is refused in an ONNX file before onnxruntime opens it, and what every student's graph passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgedistill import precisions, quantization
from edgedistill.classification import classifier
from edgedistill.errors import CheckFailed
from edgedistill.runtime.trust import GET_AGAIN, graph_check, onnx_reader
from edgedistill.students import graph
from tests.students.test_graph import make_bert, make_bilstm, make_other, make_recurrent, make_static

MANIFEST = {"dims": [4], "output": "sentence_embedding"}
SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
EVERY_KIND: dict[str, Callable[[], Any]] = {
    "bert": make_bert,
    "bert last": lambda: make_bert("last"),
    "bert max, codes": lambda: make_bert("max", codes=8),
    "bert weighted_mean": lambda: make_bert("weighted_mean"),
    "bert relu": lambda: make_bert(hidden_act="relu"),
    "recurrent": make_recurrent,
    "bilstm": make_bilstm,
    "static": make_static,
    "static codes": lambda: make_static(12, codes=40, pad=3),
    "distilbert": lambda: make_other("distilbert", dim=32, n_layers=1, n_heads=4),
    "roberta": lambda: make_other("roberta", **SIZES),
    "xlm-roberta": lambda: make_other("xlm-roberta", **SIZES),
    "mpnet": lambda: make_other("mpnet", **SIZES),
    "albert": lambda: make_other("albert", embedding_size=16, **SIZES),
    "modernbert": lambda: make_other("modernbert", **SIZES),
}


def tiny(*nodes: onnx.NodeProto, constants: list[TensorProto] | None = None) -> onnx.ModelProto:
    """ids -> an embedding of 4 dimensions from a table, in two nodes, and those given before them."""
    both = ["batch", "sequence"]
    table = numpy_helper.from_array(np.ones((10, 4), np.float32), "table")
    axis = numpy_helper.from_array(np.array([1]), "axis")
    made = [
        *nodes,
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("ReduceSum", ["rows", "axis"], ["sentence_embedding"], keepdims=0),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, both)
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", 4])]
    made_graph = helper.make_graph(made, "tiny", inputs, outputs, [table, axis, *(constants or [])])
    return helper.make_model(made_graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(
    folder: Path, model: onnx.ModelProto | bytes, manifest: dict[str, Any] = MANIFEST
) -> graph_check.GraphSummary:
    path = folder / "x.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    graph_check.check(path, manifest, 0)
    return graph_check.read(path)


def problems(folder: Path, model: onnx.ModelProto | bytes, manifest: dict[str, Any] = MANIFEST) -> list[str]:
    with pytest.raises(CheckFailed) as caught:
        check(folder, model, manifest)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{folder / 'x.onnx'}: ") for line in lines)
    return [line.removeprefix(f"{folder / 'x.onnx'}: ") for line in lines]


def test_a_summary_is_what_onnx_reads(tmp_path: Path) -> None:
    model = graph.build(make_bert())
    path = tmp_path / "x.onnx"
    onnx.save(model, path)
    found = graph_check.read(path)
    assert found.operators == sorted(
        {f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in model.graph.node}
    )
    assert "com.microsoft.MultiHeadAttention" in found.operators
    assert found.inputs == {
        name: (TensorProto.INT64, [None, None]) for name in ("input_ids", "attention_mask")
    }
    assert found.outputs["sentence_embedding"] == (TensorProto.FLOAT, [None, 12])


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_student_in_every_precision_passes(kind: str, tmp_path: Path) -> None:
    model = graph.build(EVERY_KIND[kind]())
    dims = model.graph.output[0].type.tensor_type.shape.dim[1].dim_value
    for precision in precisions.PRECISIONS:
        check(tmp_path, quantization.convert(model, precision), {**MANIFEST, "dims": [dims or 12]})


@pytest.mark.parametrize("pair", [False, True])
def test_a_classifier_passes(pair: bool, tmp_path: Path) -> None:
    model = classifier.write(classifier.Classifier(make_bilstm(), 12, 3, pair, 16).eval(), 0)
    names = ["input_ids", "attention_mask", "input_ids_2", "attention_mask_2"][: 4 if pair else 2]
    manifest = {"dims": [12], "labels": ["a", "b", "c"], "output": "logits", "inputs": names}
    for precision in precisions.PRECISIONS:
        assert list(check(tmp_path, quantization.convert(model, precision), manifest).inputs) == names
    assert (
        "no output 'logits' that is float32 (batch, 2)"
        in problems(tmp_path, model, {**manifest, "labels": ["a", "b"]})[0]
    )


def test_an_operator_that_is_not_allowed(tmp_path: Path) -> None:
    model = tiny(
        helper.make_node(
            "EPContext", ["input_ids"], ["a"], domain="com.microsoft", ep_cache_context="/etc/passwd"
        ),
        helper.make_node("Anything", ["a"], ["b"], domain="mine"),
        helper.make_node("NonMaxSuppression", ["a"], ["c"]),
    )
    assert problems(tmp_path, model) == [
        "operators that a bundle may not use: 'NonMaxSuppression', 'com.microsoft.EPContext', "
        "'mine.Anything'; "
        "a newer edgedistill may know them; otherwise this is no bundle to open"
    ]


def test_graphs_inside_nodes_and_functions(tmp_path: Path) -> None:
    """A loop need not end, and a function gives an operator's name another meaning."""
    inner = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "inner", [], [])
    model = tiny(helper.make_node("If", ["c"], ["d"], then_branch=inner, else_branch=inner))
    model.functions.append(
        helper.make_function("", "Gather", ["a"], ["b"], [], [helper.make_opsetid("", 17)])
    )
    found = problems(tmp_path, model)
    assert ["has g, which no bundle needs" in line for line in found] == [True, True, False, False]
    assert "has functions, which no bundle needs" in found[2]
    assert found[3].startswith("operators that a bundle may not use: 'If'")


@pytest.mark.parametrize("place", ["initializer", "attribute"])
def test_external_data(tmp_path: Path, place: str) -> None:
    outside = numpy_helper.from_array(np.ones(4, np.float32), "outside")
    outside.ClearField("raw_data")
    outside.data_location = TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="../../secret")
    if place == "initializer":
        model = tiny(constants=[outside])
    else:
        model = tiny(helper.make_node("Constant", [], ["e"], value=outside))
    assert problems(tmp_path, model) == [f"tensor 'outside' has its data in another file; {GET_AGAIN}"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.dims.insert(0, 2**40), "16 bytes of data where its dimensions need 17592186044416"),
        (lambda t: t.dims.__setitem__(0, -1), "dimensions [18446744073709551615]"),
        (lambda t: t.dims.extend([1] * 9), "dimensions [4, 1, 1, 1, 1, 1, 1, 1]"),
        (lambda t: setattr(t, "raw_data", t.raw_data[:-1]), "15 bytes of data where its dimensions need 16"),
        (lambda t: t.float_data.append(1), "16 bytes of data where its dimensions need 16"),
        (lambda t: setattr(t, "data_type", TensorProto.STRING), "elements of type 8, which no bundle needs"),
        (lambda t: setattr(t, "data_type", 99), "elements of type 99, which no bundle needs"),
        (
            lambda t: setattr(t, "data_type", TensorProto.DOUBLE),
            "16 bytes of data where its dimensions need 32",
        ),
    ],
)
def test_a_tensor_of_another_size_than_it_claims(
    tmp_path: Path, change: Callable[[Any], None], problem: str
) -> None:
    tensor = numpy_helper.from_array(np.ones(4, np.float32), "t")
    change(tensor)
    assert problems(tmp_path, tiny(constants=[tensor])) == [f"tensor 't': {problem}; copy the bundle again"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "kind", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16]
)
def test_numbers_that_are_not_finite(tmp_path: Path, kind: int, value: float) -> None:
    def tensor(dims: list[int], values: list[float]) -> TensorProto:
        return numpy_helper.from_array(
            np.array(values).reshape(dims).astype(helper.tensor_dtype_to_np_dtype(kind)), "t"
        )

    largest = 3e4 if kind == TensorProto.FLOAT16 else 3e38
    check(tmp_path, tiny(constants=[tensor([2, 2], [largest, -largest, 0, -0.0]), tensor([0, 3], [])]))
    found = problems(tmp_path, tiny(constants=[tensor([3, 2], [0, 1, 2, 3, value, 5])]))
    assert found[0].startswith("tensor 't' holds NaN or infinity in row 2; ")
    if value == -np.inf:  # a mask
        check(tmp_path, tiny(constants=[tensor([], [value])]))
    else:
        assert problems(tmp_path, tiny(constants=[tensor([1], [value])]))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TensorProto.FLOAT, [1.5, 2, 3]),
        (TensorProto.INT64, [-1, 2**40, 0]),
        (TensorProto.INT8, [-1, 2, 3]),
        (TensorProto.BOOL, [True, False, True]),
        (TensorProto.DOUBLE, [1.0, 2, 3]),
        (TensorProto.UINT64, [1, 2**63, 3]),
        (TensorProto.FLOAT16, [1.0, 2, 3]),
    ],
)
def test_elements_outside_raw_data_are_counted(tmp_path: Path, kind: int, values: list[Any]) -> None:
    """protobuf packs them, and numbers of one to ten bytes among them."""
    tensor = helper.make_tensor("t", kind, [3], values)
    assert not tensor.HasField("raw_data")
    check(tmp_path, tiny(constants=[tensor]))
    tensor.dims[0] = 4
    assert problems(tmp_path, tiny(constants=[tensor])) == [
        "tensor 't': 3 elements of data where its dimensions need 4; copy the bundle again"
    ]


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (
            {"dims": [5]},
            f"it has no output 'sentence_embedding' that is float32 (batch, 5); {GET_AGAIN}",
        ),
        (
            {"labels": ["a"], "output": "logits"},
            f"it has no output 'logits' that is float32 (batch, 1); {GET_AGAIN}",
        ),
        (
            {"inputs": ["input_ids"]},
            "its inputs ('attention_mask', 'input_ids') are not input_ids, int64 (batch, sequence); "
            f"{GET_AGAIN}",
        ),
    ],
)
def test_another_interface_than_the_manifest_has(
    tmp_path: Path, manifest: dict[str, Any], problem: str
) -> None:
    assert problems(tmp_path, tiny(), {**MANIFEST, **manifest}) == [problem]


@pytest.mark.parametrize(
    ("sizes", "attributes"),
    [
        ([4, 4, 3], {"kernel_shape": [3], "strides": [2], "dilations": [2], "pads": [2, 0], "group": 1}),
        ([4, 4, 3, 1], {}),
    ],
)
def test_a_convolution_passes(tmp_path: Path, sizes: list[int], attributes: dict[str, Any]) -> None:
    kernel = numpy_helper.from_array(np.ones(sizes, np.float32), "kernel")
    check(
        tmp_path,
        tiny(helper.make_node("Conv", ["attention_mask", "kernel"], ["y"], **attributes), constants=[kernel]),
    )


@pytest.mark.parametrize(
    ("sizes", "attributes"),
    [
        (
            [4, 4, 0],
            {},
        ),  # with a shape that is known only at run time, onnxruntime does not come back from this one
        ([4, 0, 3], {}),
        ([4, 4], {}),
        ([4, 4, 3], {"strides": [0]}),
        ([4, 4, 3], {"strides": [1, 1]}),
        ([4, 4, 3], {"dilations": [2**62]}),
        ([4, 4, 3], {"dilations": [-1]}),
        ([4, 4, 3], {"pads": [1]}),
        ([4, 4, 3], {"pads": [-3, 3]}),
        ([4, 4, 3], {"pads": [2**40, 0]}),
        ([4, 4, 3], {"kernel_shape": [3, 3]}),
        ([4, 4, 3], {"group": 0}),
        ([4, 4, 3], {"group": -1}),
        ([4, 4, 3], {"group": 5}),
    ],
)
def test_a_convolution_of_odd_sizes(tmp_path: Path, sizes: list[int], attributes: dict[str, Any]) -> None:
    kernel = numpy_helper.from_array(np.ones(sizes, np.float32), "kernel")
    found = problems(
        tmp_path,
        tiny(helper.make_node("Conv", ["attention_mask", "kernel"], ["y"], **attributes), constants=[kernel]),
    )
    fact = (
        "Conv without a constant kernel, or with sizes that are not between 1 and 4096, which may never end"
    )
    assert found == [f"{fact}; {GET_AGAIN}"]


def test_inputs_of_another_type(tmp_path: Path) -> None:
    model = tiny()
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    assert problems(tmp_path, model) == [
        "its inputs ('attention_mask', 'input_ids') are not input_ids, attention_mask, int64 (batch, "
        f"sequence); {GET_AGAIN}"
    ]


def test_a_field_twice_is_read_in_two_ways(tmp_path: Path) -> None:
    """protobuf merges the messages and takes the last string; another reader takes the first. Neither is what
    an exporter writes."""
    model = tiny().SerializeToString()
    assert (
        "graph of a model occurs twice"
        in problems(tmp_path, model + onnx.ModelProto(graph=tiny().graph).SerializeToString())[0]
    )
    assert (
        "ir_version of a model occurs twice"
        in problems(tmp_path, model + onnx.ModelProto(ir_version=9).SerializeToString())[0]
    )


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x00", "field 0 of a model"),
        (b"\xff" * 40, "a number without an end"),
        (b"\x3a\xff\xff\xff\xff\x07abc", "2147483647 bytes where 3 are left"),
        (b"ORTM and so on", "field 9 of a model"),
        (b"\x08\x08", "no graph, or no opset"),
        (b"\x0a\x00", "ir_version of a model has wire type 2"),
    ],
)
def test_bytes_that_are_no_graph(tmp_path: Path, data: bytes, problem: str) -> None:
    (found,) = problems(tmp_path, data)
    assert (
        found.startswith("not a readable ONNX graph (")
        and problem in found
        and found.endswith("; copy the bundle again")
    )


def test_an_empty_file(tmp_path: Path) -> None:
    assert problems(tmp_path, b"") == ["empty; copy the bundle again"]


def test_a_graph_of_too_many_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_check, "MOST_NODES", 10)
    absolute = helper.make_node("Abs", ["input_ids"], ["a"])
    check(tmp_path, tiny(*[absolute] * 8))
    assert "12 nodes and 2 tensors; 10 of each at most" in problems(tmp_path, tiny(*[absolute] * 10))[0]
    monkeypatch.undo()
    tensor = TensorProto(dims=[1] * onnx_reader.MOST_FIELDS)
    started = time.process_time()
    assert "more than 200,000 fields" in problems(tmp_path, tiny(constants=[tensor]))[0]
    assert time.process_time() - started < 10


def test_a_large_graph_is_checked_in_no_time(tmp_path: Path) -> None:
    """Its 90 MB are not read: the check costs what its nodes cost."""
    model = graph.build(make_bert(num_hidden_layers=6))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((90_000, 250), np.float32), "table"))
    path = tmp_path / "x.onnx"
    onnx.save(model, path)
    assert path.stat().st_size > 90_000_000
    started = time.process_time()
    graph_check.read(path)
    assert time.process_time() - started < 0.2, "about 0.005 on an idle machine"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return graph.build(make_bert(num_hidden_layers=1)).SerializeToString()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs") / "x.onnx"


def accepted_or_refused(path: Path, data: bytes) -> bool:
    """Whether a file is accepted; any other error than CheckFailed fails the test, as does more than a
    second."""
    path.write_bytes(data)
    started, refusal = time.process_time(), ""
    try:
        graph_check.check(path, {**MANIFEST, "dims": [12]}, 0)
    except CheckFailed as error:
        refusal = str(error)
    assert time.process_time() - started < 1
    assert not refusal or refusal.startswith(f"{path}: ")
    return not refusal


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=400))
@example(b"")
def test_random_bytes(path: Path, data: bytes) -> None:
    assert not accepted_or_refused(path, data)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.floats(0, 1, exclude_max=True, allow_subnormal=False))
def test_a_graph_cut_short(path: Path, real: bytes, share: float) -> None:
    assert accepted_or_refused(path, real)
    assert not accepted_or_refused(path, real[: int(len(real) * share)])


@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True, allow_subnormal=False), st.integers(0, 255)),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_a_graph_with_bytes_changed(
    path: Path, real: bytes, changes: list[tuple[float, int]], structure: bool
) -> None:
    """Accepted where it still is a graph, as when a weight changed. structure: only bytes of nodes, which
    come first."""
    data, length = bytearray(real), min(len(real), 3000) if structure else len(real)
    for share, value in changes:
        data[int(length * share)] = value
    accepted_or_refused(path, bytes(data))
