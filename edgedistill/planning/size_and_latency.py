"""Size and latency of a student before it is trained: bytes of its graph and milliseconds of a query, in every precision."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnxruntime

from edgedistill import graph
from edgedistill.export import quantize

QUERIES = 200
TOKENS = 16  # of the timed query: about the median of a search query or a short sentence


def size_and_latency(student: Any, vocabulary_size: int) -> tuple[dict[str, int], dict[str, float]]:
    """({precision: bytes of the graph}, {precision: median milliseconds at batch 1, TOKENS tokens, graph only}) of fp32 and the rest."""
    sizes: dict[str, int] = {}
    latencies: dict[str, float] = {}
    fp32 = graph.build(student)
    for precision in quantize.PRECISIONS:
        model = fp32 if precision == "fp32" else quantize.quantize(fp32, precision)
        serialized = model.SerializeToString()
        sizes[precision] = len(serialized)
        latencies[precision] = round(_median_ms(serialized, vocabulary_size), 3)
    return sizes, latencies


def _median_ms(model: bytes, vocabulary_size: int) -> float:
    """Median milliseconds of one query, with all threads that this process may use."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(0).integers(0, min(100, vocabulary_size), (1, TOKENS))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    times = []
    for _ in range(QUERIES + 20):
        start = time.perf_counter()
        session.run(["sentence_embedding"], inputs)
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times[20:]))
