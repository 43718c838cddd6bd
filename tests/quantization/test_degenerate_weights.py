"""Weights at the ends of what float32 and a precision's scales hold: dequantized by numpy within half a step,
or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from edgedistill.errors import CheckFailed
from edgedistill.quantization import convert, graph_editor, w4
from edgedistill.quantization.eight_bits import quantize_rows
from edgedistill.runtime.graph_weights import GraphWeights
from edgedistill.students import graph
from tests.quantization.conftest import cosines, product_alone
from tests.students.test_graph import make_bert, make_bilstm, make_other, make_static, run, some_ids


def array(kind: str) -> np.ndarray:
    """(64, 96) float32."""
    found = np.random.default_rng(0).normal(0, 0.1, (64, 96)).astype(np.float32)
    if kind == "zeros":
        return found * 0
    if kind == "zero rows and columns":
        found[5], found[:, 7] = 0, 0
    if kind == "constant":
        found[:] = -0.3
    if kind == "a row of 1e16":
        found[5] = 1e16
    if kind == "an outlier":
        found[5, 7] = 7e4
    if kind == "a denormal row":
        found[5] = 1e-40
    if kind == "all of 1e-30":
        found *= 1e-29
    return found


KINDS = (
    "normal",
    "zeros",
    "zero rows and columns",
    "constant",
    "a row of 1e16",
    "an outlier",
    "a denormal row",
    "all of 1e-30",
)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_8_bits(kind: str):
    table = array(kind)
    values, scale = quantize_rows(table)
    assert np.isfinite(scale).all() and (scale > 0).all()
    error = np.abs(values.astype(np.float64) * scale - table)
    assert (error <= scale * 0.5001).all()
    assert (
        scale <= np.maximum(np.abs(table).max(1, keepdims=True) / 127 * 1.0001, 1e-14)
    ).all()  # no coarser than the row asks for


@pytest.mark.parametrize("kind", KINDS)
def test_groups_in_4_bits(kind: str):
    weight = array(kind)
    if kind in ("a row of 1e16", "all of 1e-30"):
        end = r"1e\+16" if kind == "a row of 1e16" else r"\d\.\d+e-30"
        with pytest.raises(
            CheckFailed,
            match=rf"the largest number of w is {end}, and the float16 scales of w4 reach from 8e-06 to "
            r"524,032",
        ):
            convert(product_alone(weight), "w4")
        return
    values, scale = w4.quantize_groups(weight)
    restored = (w4.in_groups(values) * scale[..., None].astype(np.float64)).reshape(weight.shape)
    error, norm = np.linalg.norm(restored - weight, axis=1), np.linalg.norm(weight, axis=1)
    assert np.isfinite(restored).all()
    assert (error <= np.maximum(0.12 * norm, 1e-6)).all()


@pytest.mark.parametrize("precision", ["w8", "int8", "w4", "fp16"])
def test_small_constants_are_not_rounded_away(precision: str):
    """Biases and tables whose largest number is below float16's smallest normal one."""
    student = make_bert(hidden_size=128, intermediate_size=256)
    for name, parameter in student.named_parameters():
        if name.endswith("bias") or "position" in name or "token_type" in name:
            parameter.data *= 1e-9
    fp32, inputs = graph.build(student), some_ids(6, 12)
    made = convert(fp32, precision)
    assert cosines(run(made, *inputs), run(fp32, *inputs)).min() > (0.8 if precision == "w4" else 0.99)
    kept = GraphWeights(made.SerializeToString(), "x").constants()
    for constant in fp32.graph.initializer:
        if (
            len(constant.dims) == 1 and constant.dims[0] >= 128 and precision != "fp16"
        ):  # there it is lost in the sum, whatever it is
            np.testing.assert_allclose(kept[constant.name], numpy_helper.to_array(constant), rtol=1e-2)


@pytest.mark.parametrize("precision", ["w8", "int8", "qdq"])
def test_what_a_precision_leaves_in_float32(precision: str):
    """Convolutions are no products that converters know."""
    squeezed = {f"{part}_groups": 1 for part in ("q", "k", "v", "post_attention", "intermediate", "output")}
    model = graph.build(make_other("squeezebert", embedding_size=32, num_hidden_layers=1, **squeezed))
    left, share = graph_editor.left_in_float32(model, convert(model, precision))
    kernels = {node.input[1] for node in model.graph.node if node.op_type == "Conv"}
    assert len(kernels) == 6 and kernels <= set(left) and 0.1 < share < 0.9  # tables are converted
    assert graph_editor.left_in_float32(model, model)[1] == 1
    for make in (make_bert, make_bilstm, make_static, lambda: make_static(24)):
        whole = graph.build(make())
        assert graph_editor.left_in_float32(whole, convert(whole, precision))[1] < 0.05
