"""Texts per second of a bundle's precisions beside their peers, in one run: the same texts, rounds in turns,
medians.

python bench/int8_speed.py bundles/teacher --texts texts.txt --sentence-transformers FOLDER --optimum
FOLDER/model_quantized.onnx

--sentence-transformers: the model that the bundle was exported from; its `encode` on torch in float32, with
its defaults. --optimum: that model's dynamic int8 graph, as optimum-onnx writes it (avx512_vnni, per
channel), from an environment of its own (pip install 'edgedistill[optimum]'). It runs in the same sessions
and batches as the bundle's graphs, without its pooling.

`runner` is tokenization, batching and graph; `graph` the graph alone, on the same batches. `products` is the
    share of matrix products in
the time of the graph's operators, by onnxruntime's own profile.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

import edgedistill
from edgedistill import machine
from edgedistill.runtime.batching import longest_first, pad
from edgedistill.runtime.bundle import BATCH_TOKENS

ROUNDS = 9
PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention", "LSTM", "GRU", "RNN")


class Batch(NamedTuple):
    ids: np.ndarray
    mask: np.ndarray


class Graph:
    """A graph of any maker in a session with the options of edgedistill's runner."""

    def __init__(self, path: Path, threads: int, profile: Path | None = None) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads, options.inter_op_num_threads = 3, threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        if profile is not None:
            options.enable_profiling, options.profile_file_prefix = True, str(profile)
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in self.session.get_outputs()]
        self.output = "sentence_embedding" if "sentence_embedding" in names else names[0]
        self.segments = any(each.name == "token_type_ids" for each in self.session.get_inputs())
        self.options = onnxruntime.RunOptions()
        self.options.only_execute_path_to_fetches = True

    def run(self, batches: list[Batch]) -> None:
        for ids, mask in batches:
            inputs = {"input_ids": ids, "attention_mask": mask} | (
                {"token_type_ids": np.zeros_like(ids)} if self.segments else {}
            )
            self.session.run([self.output], inputs, self.options)


def rates(tasks: dict[str, Callable[[], object]], texts: int) -> dict[str, float]:
    """Texts per second of each task: the median over rounds, in which the tasks take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for task in tasks.values():  # warm-up: memory arenas, thread pools
        task()
    for _ in range(ROUNDS):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - start)
    return {name: round(texts / float(np.median(each)), 1) for name, each in seconds.items()}


def operators(path: Path, batches: list[Batch]) -> tuple[float, dict[str, float]]:
    """(share of matrix products, milliseconds of each operator) in one pass over the batches, one thread."""
    with tempfile.TemporaryDirectory() as folder:
        graph = Graph(path, 1, Path(folder) / "profile")
        graph.run(batches)
        events = json.loads(Path(graph.session.end_profiling()).read_text())
    spent: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["args"]["op_name"]] += event["dur"] / 1000
    share = sum(spent[name] for name in PRODUCTS) / sum(spent.values())
    return round(share, 3), {name: round(ms, 1) for name, ms in spent.most_common()}


def measure(arguments: argparse.Namespace, threads: int, texts: list[str]) -> dict[str, Any]:
    folder = Path(arguments.bundle)
    bundles = {name: edgedistill.load(folder, name, threads) for name in arguments.precisions.split(",")}
    rows = next(iter(bundles.values())).tokenize(texts)
    batches = [
        Batch(*pad([rows[at] for at in batch], 0))
        for batch in longest_first([len(row) for row in rows], BATCH_TOKENS["cpu"])
    ]
    paths = {name: folder / each.manifest["precisions"][name]["file"] for name, each in bundles.items()}
    if arguments.optimum:
        paths["optimum int8"] = Path(arguments.optimum)
    graphs = {name: Graph(path, threads) for name, path in paths.items()}
    # before torch is loaded, whose threads would disturb them
    graph_rates = rates(
        {name: lambda graph=graph: graph.run(batches) for name, graph in graphs.items()}, len(texts)
    )
    runners: dict[str, Callable[[], object]] = {
        name: lambda each=each: each.encode(texts) for name, each in bundles.items()
    }
    if arguments.sentence_transformers:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        model = SentenceTransformer(arguments.sentence_transformers, device="cpu")
        runners["sentence-transformers"] = lambda: model.encode(texts, show_progress_bar=False)
    found: dict[str, Any] = {
        "graph_texts_s": graph_rates,
        "runner_texts_s": rates(runners, len(texts)),
    }
    if threads == 1:
        profiles = {name: operators(path, batches) for name, path in paths.items()}
        found["products"] = {name: share for name, (share, _) in profiles.items()}
        found["operators_ms"] = {name: spent for name, (_, spent) in profiles.items()}
        alone = {
            name: np.concatenate([each.encode([text]) for text in texts[:200]])
            for name, each in bundles.items()
        }
        found["drift_max"] = {
            name: float(np.abs(alone[name] - each.encode(texts)[:200]).max())
            for name, each in bundles.items()
        }
        if "fp32" in bundles:
            cosines = {
                name: (each.encode(texts) * bundles["fp32"].encode(texts)).sum(1)
                for name, each in bundles.items()
            }
            found["cosine_mean"] = {name: round(float(each.mean()), 5) for name, each in cosines.items()}
            found["cosine_min"] = {name: round(float(each.min()), 5) for name, each in cosines.items()}
    return found


def table(report: dict[str, Any]) -> str:
    lines = []
    for threads, found in report["threads"].items():
        lines.append(f"{threads} thread(s), {report['texts']} texts of {report['tokens_mean']} tokens")
        for kind in ("graph", "runner"):
            each = found[f"{kind}_texts_s"]
            peer = each.get("optimum int8") if kind == "graph" else each.get("sentence-transformers")
            for name, rate in sorted(each.items(), key=lambda item: -item[1]):
                beside = f"  {rate / peer:5.2f} × the peer's" if peer else ""
                products = (
                    f"  products {found['products'][name]:.0%}"
                    if kind == "graph" and name in found.get("products", {})
                    else ""
                )
                lines.append(f"  {kind:6}  {name:22} {rate:9.1f} texts/s{beside}{products}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle")
    parser.add_argument("--texts", required=True, help="a file with one text per line")
    parser.add_argument("--limit", type=int, default=600, help="of texts")
    parser.add_argument(
        "--precisions",
        default="fp32,w8,int8",
        help="the first ones' names in the bundle, separated by commas",
    )
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--sentence-transformers", metavar="MODEL")
    parser.add_argument("--optimum", metavar="GRAPH")
    parser.add_argument("--out", metavar="FILE", help="write the report as JSON")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads would spin while others are timed
    os.environ["RAYON_NUM_THREADS"] = "1"
    texts = [line for line in Path(arguments.texts).read_text(encoding="utf-8").splitlines() if line.strip()][
        : arguments.limit
    ]
    tokens = [
        len(row)
        for row in edgedistill.load(arguments.bundle, arguments.precisions.split(",")[0]).tokenize(texts)
    ]
    threads = [int(each) for each in arguments.threads.split(",")]
    report = {
        "bundle": Path(arguments.bundle).name,
        "texts": len(texts),
        "tokens_mean": round(float(np.mean(tokens)), 1),
        "machine": machine.here(),
        "versions": machine.versions(),
        "threads": {str(count): measure(arguments, count, texts) for count in threads},
    }
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(table(report))


if __name__ == "__main__":
    main()
