"""Predict what an int8 graph gives on x86 processors without VNNI, whose products add neighbours in a saturating int16.

Such a processor (AVX2, AVX-512 without VNNI) multiplies uint8 activations by int8 weights with `vpmaddubsw`: the two products of
neighbouring inputs, 0 and 1, 2 and 3, …, are added in 16 bits and clipped to −32768 … 32767 before the sum goes on in 32 bits. The
instruction sees the raw integers; zero points are taken off afterwards, by sums of rows and columns, which do not saturate.
Source: onnxruntime's MLAS, QgemmU8X8KernelAvx2.S, QgemmU8X8KernelAvx512Core.S and QgemvU8S8KernelAvx2.S; bench/saturation_check.py
compares with the real kernels. uint8 weights take another kernel (`vpmaddwd` on 16-bit values), which is exact.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgedistill import files
from edgedistill.errors import CheckFailed
from edgedistill.quantization.graph_editor import GraphEditor
from edgedistill.runtime import bundle, golden_file, verify
from edgedistill.runtime import manifest as manifests
from edgedistill.runtime.bundle_location import locate

LOWEST, HIGHEST = -32768, 32767  # of int16
PRODUCTS = {"MatMulInteger": (2, 3), "MatMulIntegerToFloat": (4, 5)}  # {operator: where its zero points of activations and weights are}
# Products of uint8 and int8 that are not emulated: {operator: its inputs with weights}. An LSTM quantizes its state at every step.
NOT_EMULATED = {"DynamicQuantizeLSTM": (1, 2), "DynamicQuantizeMatMul": (1,), "QLinearMatMul": (3,), "QGemm": (3,), "QAttention": (1,)}


class SaturationCount(NamedTuple):
    """The uint8 × int8 products of a graph. products: emulated ones; pairs: of their weights, neighbours in a column; candidates: pairs
    whose sum leaves int16 for some activations; not_emulated: {operator: candidates} of products that `simulate` leaves as they are.
    """

    products: int
    pairs: int
    candidates: int
    not_emulated: dict[str, int]


def can_saturate(weights: np.ndarray) -> np.ndarray:
    """Which pairs of int8 weights (…, K, N) can leave int16 for some activations of 0 to 255: (…, ⌈K/2⌉, N) booleans."""
    first, second = _pairs(weights)
    above = 255 * (np.maximum(first, 0) + np.maximum(second, 0)) > HIGHEST
    return np.asarray(above | (255 * (np.minimum(first, 0) + np.minimum(second, 0)) < LOWEST))


def count(model: onnx.ModelProto) -> SaturationCount:
    """Count the pairs of weights that can saturate."""
    editor, products, pairs, candidates, others = GraphEditor(model), 0, 0, 0, dict[str, int]()
    for node in editor.model.graph.node:
        if (weights := _weights(editor, node)) is not None:
            can = can_saturate(weights)
            products, pairs, candidates = products + 1, pairs + can.size, candidates + int(can.sum())
        for at in NOT_EMULATED.get(node.op_type, ()):
            if (other := _int8(editor, node.input[at])) is not None:
                others[node.op_type] = others.get(node.op_type, 0) + int(can_saturate(other).sum())
    return SaturationCount(products, pairs, candidates, others)


def simulate(model: onnx.ModelProto, saturating: bool = True) -> onnx.ModelProto:
    """The graph with every product of uint8 activations and constant int8 weights computed as a processor without VNNI computes it.

    The product itself gets uint8 weights, which no processor saturates; what saturation changes is computed beside it, in int32,
    and added. So the graph gives the same on every processor. saturating: False leaves that out, for the exact result.
    """
    editor = GraphEditor(model)
    editor.rewrite(lambda editor, node: _rewritten(editor, node, saturating))
    return editor.finish()


def report(name: str | Path) -> dict[str, Any]:
    """What the golden texts of a bundle come to on a processor without VNNI, in each precision that has uint8 × int8 products.

    Returns {bundle, processor, texts, precisions}. A precision has {products, pairs, candidates, not_emulated, cosine_min, text,
    threshold, change_max}; change_max: the largest distance between a text's embeddings with and without saturation (of a classifier:
    apart_max in place of cosine_min, and the distance of logits). Raises CheckFailed where a golden text falls below the threshold,
    UserError as `verify`, which is to be run first: it checks the golden texts' hash.
    """
    folder, _ = locate(name)
    manifest = manifests.read(folder)
    golden = golden_file.read(folder, manifest)
    problems, found = list[str](), dict[str, Any]()
    for precision, entry in manifest["precisions"].items():
        bundle.load(folder, precision=precision)  # checks its files, and the graph, before onnx reads it
        model = onnx.load(folder / entry["file"])
        counted = count(model)
        if counted.products or counted.not_emulated:
            measured, differences = _measure(folder, manifest, precision, model, golden)
            found[precision] = {**counted._asdict(), **measured}
            problems += differences
    if problems:
        raise CheckFailed("\n".join(problems), {"problems": problems, "precisions": found})
    return {"bundle": str(folder), "processor": "avx2", "texts": len(golden["texts"]), "precisions": found}


def summary(found: dict[str, Any]) -> str:
    """One line for each precision of a result of `report`."""
    if not found["precisions"]:
        return "on processors without VNNI: the same, no precision has products of uint8 and int8"
    return "\n".join(f"on processors without VNNI, {precision}: {_line(entry)}" for precision, entry in found["precisions"].items())


def _line(entry: dict[str, Any]) -> str:
    emulated = f"{entry['candidates']:,} of {entry['pairs']:,} pairs of weights can saturate"
    if "cosine_min" in entry:
        emulated += f", worst cosine {entry['cosine_min']:.5f}, of text {entry['text']}"
        emulated += f", largest change of an embedding {entry['change_max']:.5f}"
    else:
        emulated += f", largest difference of a probability {entry['apart_max']:.5f}, of item {entry['text']}"
        emulated += f", largest change of logits {entry['change_max']:.5f}"
    others = entry["not_emulated"].items()
    return "; ".join([emulated, *(f"{name} is not emulated, {pairs:,} of its pairs can saturate" for name, pairs in others if pairs)])


def _measure(
    folder: Path, manifest: dict[str, Any], precision: str, model: onnx.ModelProto, golden: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """({cosine_min, text, threshold, change_max}, problems) of one precision, by bundles of the rewritten graphs in a temporary folder."""
    with tempfile.TemporaryDirectory() as temporary:
        saturated = _bundle(Path(temporary) / "saturated", folder, manifest, precision, simulate(model))
        exact = _bundle(Path(temporary) / "exact", folder, manifest, precision, simulate(model, saturating=False))
        measured, problems = verify.compare(saturated, golden, manifest["precisions"][precision]["parity"]["threshold"])
        change = float(np.linalg.norm(verify.golden_rows(saturated, golden) - verify.golden_rows(exact, golden), axis=1).max())
    place = "on this machine"  # how `verify` puts it
    problems = [problem.replace(str(saturated.folder), str(folder)).replace(place, "without VNNI") for problem in problems]
    return {**measured, "change_max": round(change, 6)}, problems


def _bundle(out: Path, folder: Path, manifest: dict[str, Any], precision: str, model: onnx.ModelProto) -> bundle.Bundle:
    """Open a copy of a bundle that has one graph, this one."""
    name = manifest["precisions"][precision]["file"]
    (out / name).parent.mkdir(parents=True)
    (out / name).write_bytes(model.SerializeToString())
    (out / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    entry = {key: value for key, value in manifest["precisions"][precision].items() if key not in ("sha256", "size_bytes", "operators")}
    hashes = {each: files.sha256_file(out / each) for each in (name, "tokenizer.json")}
    changed = {**manifest, "precisions": {precision: entry}, "files": hashes}
    files.write_json(out / "manifest.json", {**changed, "digest": manifests.digest(changed)})
    return bundle.load(out, precision=precision)


def _pairs(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights of even and of odd inputs (…, ⌈K/2⌉, N) int32; an odd K is filled up with zeros."""
    wide = weights.astype(np.int32)
    if wide.shape[-2] % 2:
        wide = np.concatenate([wide, np.zeros_like(wide[..., :1, :])], axis=-2)
    return wide[..., 0::2, :], wide[..., 1::2, :]


def _int8(editor: GraphEditor, name: str) -> np.ndarray | None:
    """The values of an int8 constant; None for anything else."""
    constant = editor.constants.get(name)
    return None if constant is None or constant.data_type != TensorProto.INT8 else numpy_helper.to_array(constant)


def _weights(editor: GraphEditor, node: onnx.NodeProto) -> np.ndarray | None:
    """The int8 weights (K, N) of a product with uint8 activations; None for any other node."""
    if node.op_type not in PRODUCTS:
        return None
    weights, at = _int8(editor, node.input[1]), PRODUCTS[node.op_type][0]
    signed = len(node.input) > at and _int8(editor, node.input[at]) is not None  # int8 activations take other kernels
    return None if weights is None or weights.ndim != 2 or signed else weights


def _rewritten(editor: GraphEditor, node: onnx.NodeProto, saturating: bool) -> list[onnx.NodeProto] | None:
    """A product -> MatMulInteger with uint8 weights, plus what saturation changes; scaled as MatMulIntegerToFloat scales."""
    weights = _weights(editor, node)
    if weights is None:
        return None
    inputs = [*node.input, *[""] * (7 - len(node.input))]  # those left out at the end
    at, zero_at = PRODUCTS[node.op_type]
    zero = _int8(editor, inputs[zero_at]) if inputs[zero_at] else np.int8(0)
    if zero is None:
        return None
    unsigned = editor.constant(_as_uint8(weights), f"{node.input[1]}_uint8")
    unsigned_zero = editor.constant(_as_uint8(np.asarray(zero)), f"{inputs[zero_at] or node.input[1]}_uint8_zero")
    steps = _Steps(node.output[0])
    total = steps.add("MatMulInteger", inputs[0], unsigned, inputs[at], unsigned_zero)
    if saturating and can_saturate(weights).any():
        total = steps.add("Add", total, _change(editor, steps, inputs[0], weights, node.input[1]))
    if node.op_type == "MatMulIntegerToFloat":
        total = steps.add("Mul", steps.add("Cast", total, to=TensorProto.FLOAT), steps.add("Mul", inputs[2], inputs[3]))
        total = steps.add("Add", total, inputs[6]) if inputs[6] else total
    steps.nodes[-1].output[0] = node.output[0]
    return steps.nodes


class _Steps:
    """Nodes that replace one, named after its output."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[onnx.NodeProto] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"{self.name}_saturation_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output


def _change(editor: GraphEditor, steps: _Steps, activations: str, weights: np.ndarray, name: str) -> str:
    """What saturation adds to each output: Σ clip(s) − s over the pairs of its column that can saturate, (…, N) int32.

    s = a₀·w₀ + a₁·w₁. Columns have different numbers of such pairs: all are filled up to the most, R, with weights of zero.
    """
    can = can_saturate(weights)
    places = np.argsort(~can, axis=0, kind="stable")[: can.sum(0).max()]  # (R, N): the pairs that can, then some that cannot
    used = np.take_along_axis(can, places, axis=0)
    integers = steps.add("Cast", activations, to=TensorProto.INT32)
    products = []
    for at, values in enumerate(_pairs(weights)):
        chosen = np.where(used, np.take_along_axis(values, places, axis=0), 0).astype(np.int32)
        inputs = np.minimum(2 * places + at, len(weights) - 1)  # beyond an odd K the weight is zero
        gathered = steps.add("Gather", integers, editor.constant(inputs.astype(np.int64), f"{name}_pair_inputs_{at}"), axis=-1)
        products.append(steps.add("Mul", gathered, editor.constant(chosen, f"{name}_pair_weights_{at}")))
    total = steps.add("Add", *products)
    bounds = [editor.constant(np.array(value, np.int32), f"int16_{key}") for key, value in (("lowest", LOWEST), ("highest", HIGHEST))]
    change = steps.add("Sub", steps.add("Clip", total, *bounds), total)
    return steps.add("ReduceSum", change, editor.constant(np.array([-2], np.int64), "pair_axis"), keepdims=0)


def _as_uint8(values: np.ndarray) -> np.ndarray:
    """int8 + 128."""
    return np.asarray(values.astype(np.int16) + 128).astype(np.uint8)
