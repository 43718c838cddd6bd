"""fp32 graph -> fp16: half the bytes, float32 in and out, and float32 where sums leave float16."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from edgedistill import graph
from edgedistill.errors import UserError
from edgedistill.quantization import fp16
from edgedistill.runtime.trust.operators import ALLOWED
from tests.graph.test_graph import make_bert, run, session, some_ids
from tests.quantization.test_w4 import MAKE, cosines

SENSITIVE = ("LayerNormalization", "SkipLayerNormalization", "ReduceL2", "ReduceSum", "ReduceMax", "Softmax", "LSTM", "Clip", "Div")


@pytest.fixture(scope="module")
def graphs() -> dict[str, onnx.ModelProto]:
    return {name: graph.build(make()) for name, make in MAKE.items()}


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
def test_the_same_embeddings_in_half_the_bytes(graphs: dict[str, onnx.ModelProto], name: str) -> None:
    fp32 = graphs[name]
    before = fp32.SerializeToString()
    made = fp16.convert(fp32)
    inputs = some_ids(8, 20)
    assert cosines(run(made, *inputs), run(fp32, *inputs)).min() > 0.99999
    assert not np.array_equal(run(made, *inputs), run(fp32, *inputs))
    assert list(made.graph.input) == list(fp32.graph.input)
    assert list(made.graph.output) == list(fp32.graph.output)
    assert {(node.domain, node.op_type) for node in made.graph.node} <= ALLOWED
    sizes = {
        kind: sum(int(np.prod(constant.dims)) for constant in made.graph.initializer if constant.data_type == kind)
        for kind in (TensorProto.FLOAT16, TensorProto.FLOAT)
    }
    assert sizes[TensorProto.FLOAT] < 0.1 * sizes[TensorProto.FLOAT16]
    assert fp32.SerializeToString() == before


@pytest.mark.parametrize("name", MAKE)
def test_products_are_in_float16_and_sums_in_float32(graphs: dict[str, onnx.ModelProto], name: str) -> None:
    made = fp16.convert(graphs[name])
    found, constants = types(made), {constant.name for constant in made.graph.initializer}
    for node in made.graph.node:
        if node.op_type in SENSITIVE:
            assert not any("float16" in found.get(value, "").lower() for value in [*node.input, *node.output]), node.name
        if node.op_type == "MultiHeadAttention" or (node.op_type == "MatMul" and node.input[1] in constants):
            assert found[node.output[0]] == "tensor(float16)", node.name
    assert all(found[output.name] == "tensor(float)" for output in made.graph.output)


@pytest.mark.parametrize("name", MAKE)
def test_one_token_and_rows_of_padding_are_finite(graphs: dict[str, onnx.ModelProto], name: str) -> None:
    made = fp16.convert(graphs[name])
    assert np.isfinite(run(made, np.array([[5]]), np.array([[1]]))).all()
    ids = np.array([[5, 7, 2], [0, 0, 0]])
    together = run(made, ids, np.array([[1, 1, 1], [0, 0, 0]]))
    assert np.isfinite(together).all()
    assert cosines(together[:1], run(made, ids[:1], np.ones((1, 3), np.int64))).min() > 0.99999


def test_a_long_sum_does_not_leave_float16() -> None:
    """2,000 tokens of large values: their sum and its square are far above 65,504, each of them is not."""
    student = MAKE["static"]()
    student.embedding.weight.data *= 2000
    fp32 = graph.build(student)
    ids = np.full((1, 2000), 7)
    ids[0, ::3] = 9
    found = run(fp16.convert(fp32), ids, np.ones_like(ids))
    assert cosines(found, run(fp32, ids, np.ones_like(ids)))[0] > 0.99999


def test_a_weight_that_float16_cannot_hold_is_named() -> None:
    fp32 = graph.build(make_bert())
    weight = next(constant for constant in fp32.graph.initializer if constant.name.startswith("head_weight"))
    array = numpy_helper.to_array(weight).copy()
    array[3, 1] = -7e4
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    with pytest.raises(UserError, match=rf"--precision fp16: {weight.name} holds 7e\+04, float16 ends at 65,504; leave fp16 out"):
        fp16.convert(fp32)
