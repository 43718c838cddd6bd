"""Size and latency of a student before it is trained: bytes of its graph and milliseconds of a query, in every precision."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnxruntime

from edgedistill import quantization
from edgedistill.students import graph

ROUNDS, QUERIES, WARM_UPS = 5, 60, 5  # of each precision; the rounds of the precisions alternate
ROUND_SECONDS = 0.05  # a round of slow queries ends earlier, after the query that passes this
SAMPLES = 8  # texts that activations are measured on: what they hold changes no size and no latency
TOKENS = 16  # of the timed query: about the median of a search query or a short sentence


def size_and_latency(student: Any, vocabulary_size: int) -> tuple[dict[str, int], dict[str, float]]:
    """({precision: bytes of the graph}, {precision: milliseconds at batch 1, TOKENS tokens, graph only}) of fp32 and the rest.

    Milliseconds: the median over rounds of each round's median.
    """
    sizes: dict[str, int] = {}
    sessions: dict[str, onnxruntime.InferenceSession] = {}
    fp32 = graph.build(student)
    samples = np.random.default_rng(0).integers(0, vocabulary_size, (SAMPLES, TOKENS)).tolist()
    for precision in quantization.PRECISIONS:
        model = fp32 if precision == "fp32" else quantization.convert(fp32, precision, samples)
        serialized = model.SerializeToString()
        sizes[precision] = len(serialized)
        sessions[precision] = _open(serialized)
    medians = [{precision: _median_ms(session, vocabulary_size) for precision, session in sessions.items()} for _ in range(ROUNDS)]
    return sizes, {precision: round(float(np.median([each[precision] for each in medians])), 3) for precision in sessions}


def _open(model: bytes) -> onnxruntime.InferenceSession:
    """A session with all threads that this process may use. They sleep between queries: several sessions are open at once."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _median_ms(session: onnxruntime.InferenceSession, vocabulary_size: int) -> float:
    """Median milliseconds of one query of a round."""
    ids = np.random.default_rng(0).integers(0, min(100, vocabulary_size), (1, TOKENS))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < WARM_UPS + QUERIES and time.perf_counter() - began < ROUND_SECONDS:
        start = time.perf_counter()
        session.run(["sentence_embedding"], inputs)
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times[WARM_UPS:] or times[-1:]))
