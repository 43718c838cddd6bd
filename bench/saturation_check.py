"""Compare `edgedistill.quantization.saturation` with the kernels of a processor without VNNI, on one that has it.

python bench/saturation_check.py [BUNDLE[:PRECISION] …]

`valgrind --tool=none` runs a program unchanged, but on a processor that says it has AVX2 and nothing above: onnxruntime then takes its AVX2
kernels. Each graph below, and the graphs of the bundles named, run here, under valgrind, and in their emulation. Prints a table in
markdown; exits with 1 where the emulation and the AVX2 kernels differ by more than float rounding. Needs valgrind; takes a minute, more for
bundles.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

ROUNDING = 1e-5  # relative to the largest output: float32 sums in another order
PRECISE = "session.x64quantprecision"  # onnxruntime then multiplies weights above 6 bits and a sign as uint8, where there is no VNNI
DRAW = np.random.default_rng(0)


class Case(NamedTuple):
    """A graph, what it runs on, one feed after the other, and whether its emulation must give what AVX2 gives."""

    model: onnx.ModelProto
    feeds: list[dict[str, np.ndarray]]
    emulated: bool = True
    config: str = ""


def model(nodes: list[onnx.NodeProto], kind: int, constants: dict[str, Any]) -> onnx.ModelProto:
    """A graph from input `x` to output `y`. kind: of the input; integer products give int32."""
    output = TensorProto.INT32 if nodes[-1].op_type == "MatMulInteger" else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", kind, None)],
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    microsoft = op in ("MatMulIntegerToFloat", "MatMulNBits", "DynamicQuantizeLSTM")
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), domain="com.microsoft" if microsoft else "", **attributes)


def weights(shape: tuple[int, ...], largest: int) -> np.ndarray:
    return DRAW.integers(-largest, largest + 1, shape).astype(np.int8)


def activations(*shape: int) -> dict[str, np.ndarray]:
    """uint8, a third of them 255."""
    values = DRAW.integers(0, 256, shape)
    return {"x": np.where(DRAW.random(shape) < 1 / 3, 255, values).astype(np.uint8)}


def floats(*shape: int) -> dict[str, np.ndarray]:
    return {"x": DRAW.normal(1, 1, shape).astype(np.float32)}


def cases() -> dict[str, Case]:
    found, zeros = {}, {"za": np.uint8(128), "zw": np.int8(0)}
    plain = [node("MatMulInteger", "x w za zw")]
    for k, n in ((4, 16), (20, 40), (33, 17), (384, 48), (1000, 33)):
        feeds = [activations(m, k) for m in (1, 2, 3, 7)]
        found[f"MatMulInteger {k}×{n}, 8 bits"] = Case(model(plain, TensorProto.UINT8, {"w": weights((k, n), 127), **zeros}), feeds)
    feeds = [activations(m, 384) for m in (1, 7)]
    found["MatMulInteger 384×48, 7 bits"] = Case(model(plain, TensorProto.UINT8, {"w": weights((384, 48), 64), **zeros}), feeds)
    eight = weights((384, 48), 127)
    unsigned = {"w": (eight.astype(np.int16) + 128).astype(np.uint8), "za": np.uint8(128), "zw": np.uint8(128)}
    found["MatMulInteger 384×48, 8 bits as uint8"] = Case(model(plain, TensorProto.UINT8, unsigned), feeds)
    signed = model(plain, TensorProto.UINT8, {"w": eight, **zeros})
    found[f"MatMulInteger 384×48, 8 bits, {PRECISE}"] = Case(signed, feeds, emulated=False, config=PRECISE)
    scales = {"sa": np.float32(1), "sw": DRAW.random(48).astype(np.float32), "b": DRAW.random(48).astype(np.float32)}
    rows = [node("MatMulIntegerToFloat", "x w sa sw za zw b")]
    found["MatMulIntegerToFloat 384×48, 8 bits, bias"] = Case(model(rows, TensorProto.UINT8, {"w": eight, **scales, **zeros}), feeds)
    batch = [activations(2, 5, 384)]
    found["MatMulIntegerToFloat, batch of 2×5 rows"] = Case(model(rows, TensorProto.UINT8, {"w": eight, **scales, **zeros}), batch)
    dynamic = [
        node("DynamicQuantizeLinear", "x", "q sa za"),
        node("MatMulInteger", "q w za zw", "i"),
        node("Cast", "i", "f", to=TensorProto.FLOAT),
        node("Mul", "sa sw", "s"),
        node("Mul", "f s"),
    ]
    constants = {"w": eight, "sw": scales["sw"], "zw": np.int8(0)}
    found["dynamic quantization 384×48, 8 bits"] = Case(model(dynamic, TensorProto.FLOAT, constants), [floats(m, 384) for m in (1, 7)])
    for bits, largest in ((8, 127), (7, 64)):
        found[f"DynamicQuantizeLSTM, {bits} bits"] = Case(lstm(largest), [floats(6, 2, 32)], emulated=False)
    for bits in (8, 4):
        found[f"MatMulNBits, {bits} bits, accuracy level 4"] = Case(n_bits(bits), [floats(m, 384) for m in (1, 7)], emulated=False)
    return found


def lstm(largest: int) -> onnx.ModelProto:
    """An LSTM of width 32 and 24 states; scales that keep its gates from saturating by themselves."""
    constants = {
        "w": weights((1, 32, 96), largest),
        "r": weights((1, 24, 96), largest),
        "ws": np.full((1, 96), 0.05 / largest, np.float32),
        "wz": np.zeros((1, 96), np.int8),
    }
    made = node("DynamicQuantizeLSTM", "x w r - - - - - ws wz ws wz", hidden_size=24, direction="forward")
    return model([made], TensorProto.FLOAT, constants)


def n_bits(bits: int) -> onnx.ModelProto:
    packed = DRAW.integers(0, 256, (48, 12, 32 * bits // 8)).astype(np.uint8)
    constants = {"w": packed, "s": DRAW.random(48 * 12).astype(np.float32)}
    shape = {"K": 384, "N": 48, "bits": bits, "block_size": 32, "accuracy_level": 4}
    return model([node("MatMulNBits", "x w s", **shape)], TensorProto.FLOAT, constants)


def bundle_case(name: str) -> Case:
    """A bundle's golden texts through one of its graphs."""
    from edgedistill.runtime import bundle, golden_file

    opened = bundle.load(name)
    golden = golden_file.read(opened.folder, opened.manifest)
    ids = [np.array([row], np.int64) for row in golden["ids"]]
    feeds = [{"input_ids": each, "attention_mask": np.ones_like(each)} for each in ids]
    return Case(onnx.load(opened.folder / opened.manifest["precisions"][opened.precision]["file"]), feeds)


def run(graph: Path, feeds: list[dict[str, np.ndarray]], config: str) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if config:
        options.add_session_config_entry(config, "1")
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return [session.run(None, feed)[0] for feed in feeds]


def run_folder(folder: Path) -> None:
    """Run every case that `store` wrote, and write its outputs; in a process of its own, under valgrind."""
    for graph in sorted(folder.glob("*.onnx")):
        stored = np.load(graph.with_suffix(".npz"))
        feeds: dict[str, dict[str, np.ndarray]] = {}
        for key in stored.files:
            number, _, name = key.partition(" ")
            feeds.setdefault(number, {})[name] = stored[key]
        config = graph.with_suffix(".txt").read_text()
        np.savez(graph.with_suffix(".avx2.npz"), *run(graph, list(feeds.values()), config))


def store(folder: Path, number: int, case: Case) -> Path:
    path = folder / f"{number:03}.onnx"
    path.write_bytes(case.model.SerializeToString())
    np.savez(path.with_suffix(".npz"), **{f"{at} {name}": value for at, feed in enumerate(case.feeds) for name, value in feed.items()})
    path.with_suffix(".txt").write_text(case.config)
    return path


def apart(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The largest difference, relative to the largest output."""
    largest = max(float(np.abs(each).max()) for each in expected)
    return max(float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) for a, b in zip(found, expected, strict=True)) / largest


def compare(all_cases: dict[str, Case]) -> bool:
    """Print the table; returns whether every emulation gives what the AVX2 kernels give."""
    from edgedistill.quantization import saturation

    fine = True
    print("| graph | pairs that can saturate | AVX2 against this processor | emulation against AVX2 |\n| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        paths = {name: store(folder, number, case) for number, (name, case) in enumerate(all_cases.items())}
        command = ["valgrind", "-q", "--tool=none", sys.executable, __file__, "--run", str(folder)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        for name, case in all_cases.items():
            stored = np.load(paths[name].with_suffix(".avx2.npz"))
            avx2, native = [stored[key] for key in stored.files], run(paths[name], case.feeds, case.config)
            counted = saturation.count(case.model)
            candidates = f"{counted.candidates + sum(counted.not_emulated.values()):,}" if counted.pairs or counted.not_emulated else "–"
            difference = "–"
            if case.emulated:
                emulated = folder / "emulated.onnx"
                emulated.write_bytes(saturation.simulate(case.model).SerializeToString())
                found = apart(run(emulated, case.feeds, ""), avx2)
                fine, difference = fine and found <= ROUNDING, f"{found:.1e}"
            print(f"| {name} | {candidates} | {apart(avx2, native):.1e} | {difference} |")
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="*", metavar="BUNDLE[:PRECISION]")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run_folder(arguments.run)
        return 0
    if not shutil.which("valgrind"):
        print("valgrind is not installed; apt install valgrind", file=sys.stderr)
        return 2
    return 0 if compare({**cases(), **{name: bundle_case(name) for name in arguments.bundles}}) else 1


if __name__ == "__main__":
    sys.exit(main())
