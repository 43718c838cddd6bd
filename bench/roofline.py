"""How near to this processor's limits bundles run: multiply-adds, the peak of its products, the share of time
that products take, and the share of the peak that the graph reaches.

python bench/roofline.py [BUNDLE[:PRECISION] …] [--threads 1] [--out bench/reports/roofline.json]

The peak is measured: one product of onnxruntime, 512 rows by a square matrix that is constant, as weights
are, in fp32 (MatMul) and int8 (MatMulInteger, uint8 by int8), the best of several; in bf16 by torch, where
it is installed, since onnxruntime has no such product on a CPU. The multiply-adds of a graph are those of
its products, from the shapes in onnxruntime's own profile; so is their share of the operators' time.
`share_of_peak` is the time that the products would need at the peak of their type, divided by the time that
the graph takes; the time of MultiHeadAttention holds its softmax too. Energy is that of the processor's
package, by RAPL, where the system lets it be read. About a minute, on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from int8_speed import PRODUCTS, Batch, Graph
from onnx import TensorProto, helper, numpy_helper

from edgedistill import files, machine, run
from edgedistill.evaluation.bench import targets

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "bench" / "reports" / "roofline.json"
BUNDLES = ("nano", "micro", "multi")
INT8 = (
    "MatMulIntegerToFloat",
    "MatMulInteger",
    "DynamicQuantizeMatMul",
    "MatMulNBits",
    "DynamicQuantizeLSTM",
)
RECURRENT, ATTENTION = ("LSTM", "DynamicQuantizeLSTM"), ("MultiHeadAttention",)
ROWS, WIDTHS = 512, (384, 1024)  # of the products whose speed is the peak
BATCHES = {"1 × 16": (1, 16), "32 × 32": (32, 32)}  # texts × tokens
SECONDS, RUNS = 1.0, 20
ENERGY = Path("/sys/class/powercap/intel-rapl:0/energy_uj")


def best_seconds(task: Callable[[], object], seconds: float = SECONDS) -> float:
    """The shortest of several calls, in seconds."""
    task()
    spent, began = list[float](), time.perf_counter()
    while len(spent) < 5 or time.perf_counter() - began < seconds:
        started = time.perf_counter()
        task()
        spent.append(time.perf_counter() - started)
    return min(spent)


def product(width: int, dtype: str, threads: int) -> Callable[[], object]:
    """A product (ROWS, width) by a constant (width, width) in onnxruntime."""
    random = np.random.default_rng(0)
    weights = random.integers(-64, 64, (width, width), np.int8)
    given = random.integers(0, 128, (ROWS, width), np.uint8)
    kind, out = TensorProto.UINT8, TensorProto.INT32
    if dtype == "fp32":
        weights, given = weights.astype(np.float32), given.astype(np.float32)
        kind = out = TensorProto.FLOAT
    node = helper.make_node("MatMul" if dtype == "fp32" else "MatMulInteger", ["x", "w"], ["y"])
    places = [helper.make_tensor_value_info(*each) for each in (("x", kind, [ROWS, width]), ("y", out, None))]
    constant = [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph([node], "product", places[:1], places[1:], constant)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": given})


def peaks(threads: int) -> dict[str, float | None]:
    """Multiply-adds per second of the fastest product in each type; None where there is none."""
    found: dict[str, float | None] = {}
    for dtype in ("fp32", "int8"):
        rates = [ROWS * width**2 / best_seconds(product(width, dtype, threads)) for width in WIDTHS]
        found[dtype] = max(rates)
    try:
        import torch
    except ModuleNotFoundError:
        return {**found, "bf16": None}
    torch.set_num_threads(threads)
    rates = []
    for width in WIDTHS:
        rows, weights = (torch.ones(count, width, dtype=torch.bfloat16) for count in (ROWS, width))
        rates.append(ROWS * width**2 / best_seconds(lambda x=rows, w=weights: x @ w))
    return {**found, "bf16": max(rates)}


def multiply_adds(event: dict[str, Any]) -> int:
    """Those of a node in onnxruntime's profile; 0 where it is no product."""
    shapes = [next(iter(each.values())) for each in event["args"]["input_type_shape"] if each]
    outputs = [next(iter(each.values())) for each in event["args"]["output_type_shape"] if each]
    name = event["args"]["op_name"]
    if name in RECURRENT:  # four gates of each direction, of the input and of the hidden state
        steps, texts, width = shapes[0]
        directions, hidden = outputs[0][1], outputs[0][3]
        return int(steps * texts * directions * 4 * hidden * (width + hidden))
    if name in ATTENTION:  # each token's scores, and the mean of the values that they weigh
        texts, tokens, width = shapes[0]
        return int(2 * texts * tokens**2 * width)
    if name not in PRODUCTS:
        return 0
    return math.prod(outputs[0]) * int(shapes[0][-1])


def profile(path: Path, batch: Batch) -> dict[str, Any]:
    """{multiply_adds: {fp32, int8}, product_share} of one graph on one batch, on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        graph = Graph(path, 1, Path(folder) / "profile")
        for _ in range(RUNS):
            graph.run([batch])
        events = json.loads(Path(graph.session.end_profiling()).read_text())
    counts, spent = Counter(fp32=0, int8=0), Counter[bool]()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            name = event["args"]["op_name"]
            counts["int8" if name in INT8 else "fp32"] += multiply_adds(event)
            spent[name in (*PRODUCTS, *RECURRENT, *ATTENTION)] += event["dur"]
    share = spent[True] / max(1, sum(spent.values()))
    return {"multiply_adds": {key: count // RUNS for key, count in counts.items()}, "product_share": share}


def microjoules(path: Path = ENERGY) -> int | None:
    """The energy that the processor's package has used so far; None where the system does not let it be
    read."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def measured(path: Path, threads: int, peak: dict[str, float | None]) -> list[dict[str, Any]]:
    """A row for each of BATCHES of a graph."""
    rows = []
    for title, (texts, tokens) in BATCHES.items():
        ids = np.random.default_rng(0).integers(200, 1000, (texts, tokens))
        batch, graph = Batch(ids, np.ones_like(ids)), Graph(path, threads)
        counted = profile(path, batch)
        seconds, calls = best_seconds(lambda g=graph, b=batch: g.run([b])), 0
        before, started = microjoules(), time.perf_counter()
        while time.perf_counter() - started < SECONDS:
            graph.run([batch])
            calls += 1
        after = microjoules()
        energy = None if before is None or after is None or after < before else (after - before) / 1e6
        needed = sum(count / (peak[key] or math.inf) for key, count in counted["multiply_adds"].items())
        rows.append(
            {
                "batch": title,
                **counted,
                "ms": 1000 * seconds,
                "share_of_peak": needed / seconds,
                "joules_per_1000_texts": None if energy is None else 1000 * energy / (calls * texts),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundles", nargs="*", default=BUNDLES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=REPORT)
    arguments = parser.parse_args()
    peak, rows = peaks(arguments.threads), list[dict[str, Any]]()
    for target in [each for name in arguments.bundles for each in targets(name)]:
        path = target.folder / target.manifest["precisions"][target.precision]["file"]
        for row in measured(path, arguments.threads, peak):
            rows.append({"bundle": target.title, **row})
            print(json.dumps(rows[-1]), flush=True)
    report = {
        "schema": 1,
        "bench": "roofline",
        "threads": arguments.threads,
        "peak_multiply_adds_s": peak,
        "energy": "read" if microjoules() is not None else "not readable",
        "rows": rows,
        "onnxruntime": onnxruntime.__version__,
        "machine": machine.here(),
        **run.provenance(),
    }
    files.write_json(arguments.out, report)


if __name__ == "__main__":
    main()
