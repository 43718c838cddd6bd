"""A graph in any precision -> the constants of the float32 graph that it was converted from, as exact as the
precision keeps them.

Converters name what they store after the constant it stands for (`table` -> `table_int8`, `table_scale`), and
these names are read here. Attention's values may keep channel factors that the next product's weight makes up
for: that changes nothing that the graph computes.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from edgedistill.errors import CheckFailed
from edgedistill.quantization import int8, w4, w8
from edgedistill.quantization.w4 import GROUP
from edgedistill.runtime.trust import GET_AGAIN

ZEROS = {"_int8": 0, "_uint8": int8.ZERO}  # what is subtracted from 8-bit values, by the end of their name

Arrays = dict[str, np.ndarray]


def constants(model: onnx.ModelProto) -> Arrays:
    """The constants by the names that they had in the float32 graph: floats as float32, integers as they are.

    `model` is a graph that `convert` returned, in any precision, or with some products in another one. What
    is stored besides, such as scales, keeps its own name. Raises CheckFailed for blocks of bits that do not
    have the size they claim.
    """
    stored = {constant.name: numpy_helper.to_array(constant) for constant in model.graph.initializer}
    found = {
        name.removesuffix("_fp16"): array.astype(np.float32) if array.dtype.kind == "f" else array
        for name, array in stored.items()
    }
    # scales first: of int8 with w8 they are in 8 bits too
    for name in sorted(stored, key=lambda name: "_scale_" not in name):
        for end, zero in ZEROS.items():
            before = name.removesuffix(end)
            if before != name and f"{before}_scale" in found:
                found[before] = (stored[name].astype(np.float32) - zero) * found[f"{before}_scale"]
    for name in [name for name in found if name.endswith("_negative")]:  # of a bias, see `qdq`
        found[name.removesuffix("_negative")] = -found[name]
    restored = {
        node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"
    }
    divided = set[str]()
    for node in model.graph.node:
        if node.op_type in ("MatMul", "MatMulIntegerToFloat"):
            stored_x, stored_weight = (restored.get(each, each) for each in node.input[:2])
            name, x = stored_weight.removesuffix("_int8"), stored_x.removesuffix("_uint8")
            if name in found and f"{x}_factors" in found and name not in divided:
                divided.add(name)  # several products may read it
                found[name] = found[name] * found[f"{x}_factors"][:, None]
        elif node.op_type == "MatMulNBits":
            found[node.input[1].removesuffix("_w8").removesuffix("_w4")] = _blocks(node, stored, found)
        elif node.op_type == "GatherBlockQuantized":
            found[node.input[0].removesuffix("_w4")] = _rows(
                stored[node.input[0]], found[node.input[2].removesuffix("_float")]
            )
    return found


def _blocks(node: onnx.NodeProto, stored: Arrays, found: Arrays) -> np.ndarray:
    """The weight (K, N) of a MatMulNBits of 8 or 4 bits: symmetric, in groups along K that share a scale."""
    about = {attribute.name: attribute.i for attribute in node.attribute}
    packed, scales = stored[node.input[1]].reshape(-1), found[node.input[2].removesuffix("_float")]
    values = packed.astype(np.int16) - w8.ZERO
    if about["bits"] == 4:  # the lower 4 bits of each byte come first
        values = np.stack([packed & 15, packed >> 4], -1).reshape(-1).astype(np.int16) - w4.ZERO
    if scales.size * GROUP != values.size or scales.size % about["N"] or about["block_size"] != GROUP:
        raise CheckFailed(
            f"{node.input[1]!a}: {values.size} weights and {scales.size} scales do not fit together; "
            f"{GET_AGAIN}"
        )
    rows = _rows(values.reshape(about["N"], -1), scales.reshape(about["N"], -1))
    return np.ascontiguousarray(rows[:, : about["K"]].T)


def _rows(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """A matrix (V, H), whose groups of 32 along H share a scale (V, ⌈H / 32⌉)."""
    return values.astype(np.float32) * np.repeat(scales, GROUP, axis=1)[:, : values.shape[1]]
