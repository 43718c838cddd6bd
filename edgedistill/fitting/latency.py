"""The p50 of graphs in the runner of a target: onnxruntime here, or its WASM in Node."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files
from edgedistill.errors import UserError
from edgedistill.runtime import onnx_session

ROUNDS = 5  # the least of their medians counts: other work on the machine only ever adds
WARM_UPS = 8
TIMEOUT_S = 600.0
Ids = Sequence[Sequence[int]]


def native(graphs: list[bytes], ids: Ids) -> list[float]:
    """Milliseconds of a text in each graph, on one thread, as a bundle runs there. ids: the token ids of some
    texts."""
    inputs = [
        {"input_ids": row, "attention_mask": np.ones_like(row)}
        for row in (np.array([each], np.int64) for each in ids)
    ]
    return [_p50(onnx_session.open_session(graph, 1, "cpu"), inputs) for graph in graphs]


def _p50(session: Any, inputs: list[dict[str, np.ndarray]]) -> float:
    def run(each: dict[str, np.ndarray]) -> None:
        session.run(["sentence_embedding"], each, onnx_session.RUN_OPTIONS)

    for each in inputs[:WARM_UPS]:
        run(each)
    return least_median(run, inputs)


def least_median(call: Callable[[Any], object], items: Sequence[Any]) -> float:
    """Milliseconds of a call: the least of ROUNDS medians over items."""
    medians = []
    for _ in range(ROUNDS):
        times = []
        for item in items:
            start = time.perf_counter()
            call(item)
            times.append(1e3 * (time.perf_counter() - start))
        medians.append(float(np.median(times)))
    return min(medians)


def web(graphs: list[bytes], ids: Ids) -> list[float]:
    """Milliseconds of a text in each graph, on one thread of WASM. A graph that WASM cannot run takes an
    infinite time."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.onnx" for number in range(len(graphs))]
        for path, graph in zip(paths, graphs, strict=True):
            path.write_bytes(graph)
        asked = {
            "graphs": [str(path) for path in paths],
            "lengths": [len(row) for row in ids],
            "rounds": ROUNDS,
        }
        command = ["node", str(web_folder() / "latency.mjs")]
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return [
        each if isinstance(each, int | float) else float("inf")
        for each in json.loads(done.stdout.splitlines()[-1])
    ]


def web_folder() -> Path:
    """The folder of the web runner."""
    return files.shipped("runner")["web"].parent


def check_target(target: str) -> None:
    """Raise UserError where the target's runner is not installed."""
    if target == "web" and (
        shutil.which("node") is None or not (web_folder() / "node_modules" / "onnxruntime-web").is_dir()
    ):
        lacks = "its packages are" if shutil.which("node") else "Node, which measures it, is"
        way_out = f"install Node 20 and run `npm install` in {web_folder()}, or leave --target out"
        raise UserError(f"--target web: {lacks} not installed; {way_out}")


RUNNERS: dict[str, Callable[[list[bytes], Ids], list[float]]] = {"native": native, "web": web}
