"""int8 products on processors without VNNI: pairs of products clipped to int16, by hand, and in whole bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgedistill import files
from edgedistill.errors import CheckFailed
from edgedistill.quantization import saturation
from edgedistill.runtime import verify
from edgedistill.runtime.manifest import digest
from tests.export.test_export import make_run


def product(weights: Any, op: str = "MatMulInteger", zero: int | None = 128, **options: Any) -> onnx.ModelProto:
    """One product of uint8 activations `a` (…, K) with constant weights (K, N). options: weight_zero, bias, scale."""
    weights = np.asarray(weights, np.int8)
    constants = {"w": weights, "za": np.array(zero or 0, np.uint8), "zw": np.array(options.get("weight_zero", 0), np.int8)}
    inputs = ["a", "w", "za" if zero is not None else "", "zw" if "weight_zero" in options else ""]
    if op == "MatMulIntegerToFloat":
        constants |= {"sa": np.array(0.5, np.float32), "sw": np.asarray(options.get("scale", 0.25), np.float32)}
        inputs = ["a", "w", "sa", "sw", *inputs[2:]]
        if "bias" in options:
            constants["bias"] = np.asarray(options["bias"], np.float32)
            inputs.append("bias")
    kind = TensorProto.INT32 if op == "MatMulInteger" else TensorProto.FLOAT
    node = helper.make_node(op, inputs, ["y"], domain="" if op == "MatMulInteger" else "com.microsoft")
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("a", TensorProto.UINT8, None)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in inputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(model: onnx.ModelProto, activations: Any) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"a": np.asarray(activations, np.uint8)})[0]


def by_numpy(activations: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The products of raw integers, neighbours added in a saturating int16."""
    wide, columns = activations.astype(np.int64), weights.astype(np.int64)
    if len(columns) % 2:
        wide, columns = np.pad(wide, [*[(0, 0)] * (wide.ndim - 1), (0, 1)]), np.pad(columns, [(0, 1), (0, 0)])
    pairs = wide[..., 0::2, None] * columns[0::2] + wide[..., 1::2, None] * columns[1::2]
    return np.clip(pairs, -32768, 32767).sum(-2)


def test_by_hand() -> None:
    """255·127 + 255·127 = 64770 -> 32767, 2·(255·−128) = −65280 -> −32768; 255·64 + 255·64 = 32640 fits."""
    model = saturation.simulate(product([[127, 64], [127, 64], [-128, 1], [-128, 0]], zero=None))
    assert run(model, [[255, 255, 255, 255], [255, 2, 0, 1]]).tolist() == [[32767 - 32768, 32640 + 255], [32639 - 128, 16448]]
    exact = saturation.simulate(product([[127, 64], [127, 64], [-128, 1], [-128, 0]], zero=None), saturating=False)
    assert run(exact, [[255, 255, 255, 255]]).tolist() == [[64770 - 65280, 32640 + 255]]


def test_pairs_are_even_and_odd_neighbours() -> None:
    """Inputs 1 and 2 are no pair: each of their neighbours is zero."""
    assert run(saturation.simulate(product([[0], [127], [127], [0]], zero=None)), [[255] * 4]).tolist() == [[64770]]


def test_the_last_input_of_an_odd_number_stands_alone() -> None:
    assert run(saturation.simulate(product([[127], [127], [127]], zero=None)), [[255] * 3]).tolist() == [[32767 + 32385]]


def test_zero_points_are_taken_off_afterwards() -> None:
    """Raw 255s saturate, though each is 127 above its zero point; 128·254 is then taken off."""
    model = product([[127], [127]])
    assert run(saturation.simulate(model), [[255, 255]]).tolist() == [[32767 - 128 * 254]]
    shifted = product([[127], [127]], weight_zero=3)  # and 3 for every input: (255 − 128)·3 twice
    assert run(saturation.simulate(shifted), [[255, 255]]).tolist() == [[32767 - 128 * 254 - 3 * (2 * 255 - 2 * 128)]]


def test_which_pairs_can_saturate() -> None:
    """255·128 = 32640 fits, 255·129 = 32895 does not; weights of other signs never meet; −128 twice does, −64 twice does not."""
    pairs = [(64, 64), (64, 65), (127, 1), (127, 2), (127, -127), (-128, 0), (-64, -64), (-64, -65), (-128, -128)]
    found = saturation.can_saturate(np.array(pairs, np.int8).T)
    assert found.tolist() == [[False, True, False, True, False, False, False, True, True]]


@pytest.mark.parametrize("shape", [(1, 20), (7, 33), (2, 3, 16)])
def test_random_products(shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    activations, weights = draw.integers(0, 256, shape), draw.integers(-128, 128, (shape[-1], 9))
    expected = by_numpy(activations, weights)
    assert (expected != activations @ weights).any()
    assert (run(saturation.simulate(product(weights, zero=None)), activations) == expected).all()


def test_scales_and_bias() -> None:
    draw = np.random.default_rng(1)
    activations, weights = draw.integers(0, 256, (5, 12)), draw.integers(-128, 128, (12, 4))
    model = product(weights, "MatMulIntegerToFloat", scale=[1, 2, 3, 4], bias=[0.5, 0, -1, 8])
    expected = (by_numpy(activations, weights) - 128 * weights.sum(0)) * 0.5 * [1, 2, 3, 4] + [0.5, 0, -1, 8]
    assert np.allclose(run(saturation.simulate(model), activations), expected, rtol=1e-6)
    exact = run(saturation.simulate(model, saturating=False), activations)
    assert np.allclose(exact, ((activations - 128) @ weights) * 0.5 * [1, 2, 3, 4] + [0.5, 0, -1, 8], rtol=1e-6)


def test_seven_bits_never_saturate() -> None:
    model = product(np.full((8, 3), 64))
    assert saturation.count(model) == (1, 12, 0, {})
    assert [node.op_type for node in saturation.simulate(model).graph.node] == ["MatMulInteger"]
    assert saturation.count(product(np.full((8, 3), 65))) == (1, 12, 12, {})


def test_what_is_not_emulated_is_counted() -> None:
    model = product(np.full((8, 3), 127))
    model.graph.node[0].op_type, model.graph.node[0].domain = "DynamicQuantizeMatMul", "com.microsoft"
    assert saturation.count(model) == (0, 0, 0, {"DynamicQuantizeMatMul": 12})


def with_8_bit_weights(model: onnx.ModelProto, factor: int) -> onnx.ModelProto:
    """Multiply the int8 weights of all products, clipped."""
    names = {node.input[1] for node in model.graph.node if node.op_type in saturation.PRODUCTS}
    for constant in model.graph.initializer:
        if constant.name in names:
            wide = numpy_helper.to_array(constant).astype(np.int32) * factor
            constant.CopyFrom(numpy_helper.from_array(np.clip(wide, -128, 127).astype(np.int8), constant.name))
    return model


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from edgedistill.export import bundle_writer

    root = tmp_path_factory.mktemp("saturation")
    bundle_writer.export(make_run(root / "run"), ["fp32", "int8"], root / "x", lambda line: None)
    return root / "x"


def test_a_bundle_in_seven_bits(bundle: Path) -> None:
    """An int8 graph whose weights cannot saturate gives what it gives here."""
    found = saturation.report(bundle)
    assert list(found["precisions"]) == ["int8"] and found["texts"] == 32
    entry, native = found["precisions"]["int8"], verify.verify(bundle)["precisions"]["int8"]
    assert entry["products"] >= 4 and entry["pairs"] > 1000 and entry["not_emulated"] == {}
    assert entry["candidates"] == 0 and entry["change_max"] == 0
    assert abs(entry["cosine_min"] - native["cosine_min"]) < 1e-5
    assert f"0 of {entry['pairs']:,} pairs of weights can saturate, worst cosine 0.9" in saturation.summary(found)


def test_a_bundle_that_saturates_fails(bundle: Path, tmp_path: Path) -> None:
    """Weights eight times as large, most of them clipped: every pair of one sign can saturate, and the report names the worst text."""
    import shutil

    copy = Path(shutil.copytree(bundle, tmp_path / "x"))
    manifest = files.read_json(copy / "manifest.json")
    name = manifest["precisions"]["int8"]["file"]
    onnx.save(with_8_bit_weights(onnx.load(copy / name), 8), copy / name)
    changed = {**manifest, "files": {**manifest["files"], name: files.sha256_file(copy / name)}}
    files.write_json(copy / "manifest.json", {**changed, "digest": digest(changed)})
    with pytest.raises(CheckFailed) as caught:
        saturation.report(copy)
    assert f"{copy}: text " in str(caught.value) and "without VNNI, int8 must reach 0.9" in str(caught.value)
    entry = caught.value.details["precisions"]["int8"]
    assert entry["candidates"] > 100 and entry["change_max"] > 0.01
