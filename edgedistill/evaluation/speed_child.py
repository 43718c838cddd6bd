"""The measuring process of edgedistill's own runner: read a request as JSON on stdin, load one bundle, time
or weigh it, and print the answer as one line of JSON. `speed` starts it afresh for each measurement, which
keeps caches and memory apart."""

from __future__ import annotations

import gc
import itertools
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import machine
from edgedistill.errors import CheckFailed, UserError

BATCH_SIZES = (1, 8, 32)
LENGTHS = (8, 16, 32, 64, 128, 256)  # tokens, of the latency by length
TRIALS = 7  # of the server scenario: halvings, so that the rate is found to 1% of the highest
ARRIVALS = 100  # at least, in a trial
INT8_PRODUCTS = ("MatMulIntegerToFloat", "MatMulInteger", "DynamicQuantizeMatMul", "MatMulNBits")
PRODUCTS = ("MatMul", "FusedMatMul", "Gemm", *INT8_PRODUCTS)
RECURRENT, ATTENTION = ("LSTM", "DynamicQuantizeLSTM"), "MultiHeadAttention"
BATCHES = {"1 × 16": (1, 16), "32 × 32": (32, 32)}  # texts × tokens, whose products are counted
PROFILED_RUNS = 20
# The product whose speed is the peak, (ROWS, WIDTH) by constants (WIDTH, WIDTH): a graph for each type, which
# tests/evaluation/test_speed.py writes from its text.
PEAK_GRAPHS = Path(__file__).with_name("peak")
ROWS, WIDTH, PEAKS = 512, 384, {"fp32": np.float32, "int8": np.uint8}

Request = dict[str, Any]


class Calls(NamedTuple):
    """What is timed of a bundle. The answer is an embedding or, for a fine-tuned bundle, the logits."""

    tokenize: Callable[[Any], Any]  # texts -> token ids
    run_graph: Callable[[Any], Any]  # token ids -> answer
    run: Callable[[Any], Any]  # texts -> answer


def main(request: Request) -> int:
    """Measure one bundle. The last line of stdout is compact JSON: the result (exit 0), or {problems} (exit 2
    UserError, 1 CheckFailed)."""
    code, result = 0, dict[str, Any]()
    measures = {
        "time": _time,
        "memory": _memory,
        "start": lambda asked: {"start_ms": _load(asked)[2]},
        "server": _server,
        "products": _products,
    }
    try:
        result = measures[request["what"]](request)
    except UserError as error:
        code, result = 2, {"problems": error.problems}
    except CheckFailed as failure:
        code, result = 1, {"problems": str(failure).splitlines()}
    sys.stdout.write(json.dumps(result, separators=(",", ":")) + "\n")
    return code


def _load(request: Request) -> tuple[Any, Calls, float]:
    """Return (bundle, its calls, ms from before the process was started to the first answer)."""
    from edgedistill.runtime import bundle

    options = {key: request[key] for key in ("precision", "threads", "device")}
    opened = bundle.load(request["bundle"], **options)
    calls = Calls(opened.tokenize, opened.encode_ids, opened.encode)
    if opened.labels:
        calls = Calls(opened.tokenize_items, opened.logits_ids, opened.logits)  # type: ignore[attr-defined]
    calls.run([["a first text", "another"] if opened.pair else "a first text"])
    return opened, calls, (time.perf_counter_ns() - request["started_ns"]) / 1e6


def _time(request: Request) -> dict[str, Any]:
    """Load, warm up, time single texts one by one, texts of set lengths, and throughput in batches."""
    opened, (tokenize, run_graph, run), start_ms = _load(request)
    texts, seconds = request["texts"], request["seconds"]
    singles = [texts[at] for at in request["queries"]]
    for i in range(request["warmups"]):
        run_graph(tokenize([singles[i % len(singles)]]))
    total, tokens, began = [], 0, time.perf_counter()
    gc.collect()
    for at in itertools.count():
        if at >= len(singles) and time.perf_counter() - began >= request["query_seconds"]:
            break
        start = time.perf_counter_ns()
        ids = tokenize([singles[at % len(singles)]])
        run_graph(ids)
        total.append((time.perf_counter_ns() - start) / 1e6)
        tokens += sum(len(row) for row in ids[0]) if opened.labels else len(ids[0])
    rates = {str(size): _rate(run, texts, size, seconds) for size in BATCH_SIZES}
    rates["budget"] = _rate(run, texts, len(texts), seconds)
    return {
        "start_ms": start_ms,
        "single_ms": [round(value, 4) for value in total],
        "tokens_mean": tokens / len(total),
        "by_length": {} if opened.labels else _by_length(opened, request),
        "texts_s": rates,
        "threads": opened.threads,
        "device": request["device"],
    }


def _by_length(opened: Any, request: Request) -> dict[str, dict[str, float]]:
    """Return the medians {tokens, tokenize_ms, graph_ms, pooling_ms} of a text of each of LENGTHS. Pooling is
    what the graph takes longer than for `last_hidden_state`, and left out where it has no such output."""
    from edgedistill.runtime import manifest, onnx_session
    from edgedistill.runtime.batching import pad

    session = onnx_session.open_session(opened.graph_file, opened.threads, request["device"])
    outputs = [["sentence_embedding"], ["last_hidden_state"]]
    outputs = outputs[: 1 + any(each.name == "last_hidden_state" for each in session.get_outputs())]
    words, found = _words(request, LENGTHS[-1]), dict[str, dict[str, float]]()
    for most in (each for each in LENGTHS if each <= opened.max_tokens):
        count = most
        while len(opened.tokenize([" ".join(words[:count])])[0]) > most and count > 1:
            count -= 1
        text = " ".join(words[:count])
        ids = opened.tokenize([text])
        inputs = dict(zip(manifest.INPUTS, pad(ids, 0), strict=False))
        samples, began = list[list[int]](), time.perf_counter()
        while len(samples) < 5 or time.perf_counter() - began < request["seconds"] / len(LENGTHS):
            times = [time.perf_counter_ns()]
            opened.tokenize([text])
            times.append(time.perf_counter_ns())
            for output in outputs:
                session.run(output, inputs, onnx_session.RUN_OPTIONS)
                times.append(time.perf_counter_ns())
            samples.append(times)
        tokenizing, graph, *hidden = (np.median(np.diff(samples, axis=1), axis=0) / 1e6).tolist()
        found[str(most)] = {"tokens": len(ids[0]), "tokenize_ms": tokenizing, "graph_ms": graph}
        if hidden:
            found[str(most)]["pooling_ms"] = max(0.0, graph - hidden[0])
    return found


def _rate(call: Callable[[list[str]], Any], texts: list[str], size: int, seconds: float) -> float:
    """Count texts per second in batches of `size`, over at least `seconds` and one call; the first call is
    not counted."""
    call(texts[:size])
    done, spent, began = 0, -1.0, time.perf_counter()
    starts = itertools.cycle(range(0, len(texts), size))
    while spent < seconds:
        start = next(starts)
        batch = texts[start : start + size]
        call(batch)
        done += len(batch)
        spent = time.perf_counter() - began
    return done / spent


def _server(request: Request) -> dict[str, Any]:
    """Find by halving the highest rate of Poisson arrivals whose p99, from arrival to answer, meets the
    bound. What waits is embedded at once, at most 32 texts. Returns {p99_ms: the bound, rate_texts_s,
    trials}."""
    _, calls, _ = _load(request)
    texts, bound = request["texts"], request["p99_ms"]
    random, trials = np.random.default_rng(0), list[dict[str, Any]]()
    low, high = 0.0, _rate(calls.run, texts, BATCH_SIZES[-1], request["seconds"])
    for _ in range(TRIALS):
        rate = (low + high) / 2
        arrivals = np.cumsum(random.exponential(1 / rate, max(ARRIVALS, int(rate * request["seconds"]))))
        p99 = _p99_ms(calls.run, texts, arrivals, bound)
        trials.append({"rate_texts_s": round(rate, 3), "p99_ms": p99})
        low, high = (low, rate) if p99 is None or p99 > bound else (rate, high)
    return {"p99_ms": bound, "rate_texts_s": round(low, 3), "trials": trials}


def _p99_ms(run: Callable[[Any], Any], texts: list[Any], arrivals: Any, bound: float) -> float | None:
    """Answer texts that arrive at these seconds. Returns the p99 of their latencies in ms; None as soon as it
    cannot meet the bound."""
    latencies, late, began = list[float](), 0, time.perf_counter()
    while (done := len(latencies)) < len(arrivals):
        now = time.perf_counter() - began
        waiting = min(int(np.searchsorted(arrivals, now, "right")) - done, BATCH_SIZES[-1])
        if waiting < 1:
            time.sleep(arrivals[done] - now)
            continue
        run([texts[at % len(texts)] for at in range(done, done + waiting)])
        answered = time.perf_counter() - began
        new = [1000 * (answered - at) for at in arrivals[done : done + waiting]]
        latencies += new
        late += sum(each > bound for each in new)
        if late > len(arrivals) / 100 + 1:
            return None
    return round(float(np.quantile(latencies, 0.99)), 3)


def _memory(request: Request) -> dict[str, Any]:
    """Return the peak memory after texts of every length, single and batched, up to the bundle's limit."""
    opened, (_, _, run), _ = _load(request)
    loaded, texts = machine.peak_rss_bytes(), request["texts"]
    words = _words(request, 512)
    long = [" ".join(words[: 2**power]) for power in range(10)]
    varied: list[Any] = [[text, text] for text in long] if opened.pair else long
    for text in [*varied, *reversed(varied)]:
        run([text])
    run(varied * 16)
    run(texts)
    return {"peak_rss_bytes": machine.peak_rss_bytes(), "loaded_rss_bytes": loaded}


def _products(request: Request) -> dict[str, Any]:
    """Measure how near a graph comes to what this processor can compute. Returns {peak_multiply_adds_s:
    {fp32, int8}, batches: {title: {multiply_adds: {fp32, int8}, product_share, ms, share_of_peak,
    joules_per_1000_texts}}}; nothing on a device other than the processor.

    `product_share` is the products' share of the operators' time, profiled on one thread; that of
    MultiHeadAttention holds its softmax too. `share_of_peak` is the time that the products would need at the
    peak of their type, divided by the time of the graph.
    """
    from edgedistill.runtime import bundle, manifest, onnx_session

    if request["device"] != "cpu":
        return {}
    opened = bundle.load(request["bundle"], request["precision"], request["threads"])
    seconds = request["seconds"] / 2
    peaks = {dtype: peak(dtype, opened.threads, seconds) for dtype in PEAKS}
    text, found = " ".join(_words(request, 1024)), dict[str, dict[str, Any]]()
    for title, (texts, tokens) in BATCHES.items():
        shape = texts, min(tokens, opened.max_tokens)
        given = [np.resize(opened._tokenizer.encode(text).ids, shape), np.ones(shape, np.int64)]
        inputs = dict(zip(manifest.INPUTS, given * (1 + opened.pair), strict=False))
        asked = [opened.manifest["output"]], inputs, onnx_session.RUN_OPTIONS
        with tempfile.TemporaryDirectory() as folder:
            profile = str(Path(folder) / "profile")
            session = onnx_session.open_in_memory(opened.graph_file, 1, onnx_session.SERVING, profile=profile)
            for _ in range(PROFILED_RUNS):
                session.run(*asked)
            counts, share = products(json.loads(Path(session.end_profiling()).read_text()))
        session = onnx_session.open_in_memory(opened.graph_file, opened.threads, onnx_session.SERVING)
        spent, joules, calls = fastest(partial(session.run, *asked), seconds)
        found[title] = {
            "multiply_adds": {dtype: count // PROFILED_RUNS for dtype, count in counts.items()},
            "product_share": share,
            "ms": 1000 * spent,
            "share_of_peak": sum(counts[dtype] / peaks[dtype] for dtype in counts) / PROFILED_RUNS / spent,
            "joules_per_1000_texts": None if joules is None else 1000 * joules / (calls * texts),
        }
    return {"peak_multiply_adds_s": peaks, "batches": found}


def products(events: list[dict[str, Any]]) -> tuple[dict[str, int], float]:
    """Return the multiply-adds in onnxruntime's profile by type, and the share of products in its time."""
    counts, spent = {"fp32": 0, "int8": 0}, Counter[bool]()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            name = event["args"]["op_name"]
            counts["int8" if name in (*INT8_PRODUCTS, RECURRENT[1]) else "fp32"] += multiply_adds(event)
            spent[name in (*PRODUCTS, *RECURRENT, ATTENTION)] += event["dur"]
    return counts, spent[True] / max(1, spent.total())


def multiply_adds(event: dict[str, Any]) -> int:
    """Count those of a node in onnxruntime's profile, from its shapes; 0 where it is no product."""
    inputs, outputs = (
        [next(iter(each.values())) for each in event["args"][f"{side}_type_shape"] if each]
        for side in ("input", "output")
    )
    name = event["args"]["op_name"]
    if name in RECURRENT:  # four gates of each direction, of the input and of the hidden state
        steps, texts, width = inputs[0]
        directions, hidden = outputs[0][1], outputs[0][3]
        return int(steps * texts * directions * 4 * hidden * (width + hidden))
    if name == ATTENTION:  # each token's scores, and the mean of the values that they weigh
        texts, tokens, width = inputs[0]
        return int(2 * texts * tokens**2 * width)
    return math.prod(outputs[0]) * int(inputs[0][-1]) if name in PRODUCTS else 0


def peak(dtype: str, threads: int, seconds: float) -> float:
    """Return the multiply-adds per second that onnxruntime reaches in one product of a type."""
    from edgedistill.runtime import onnx_session

    graph = PEAK_GRAPHS / f"{dtype}.onnx"
    session = onnx_session.open_in_memory(graph, threads, onnx_session.SERVING)
    given = {"x": np.ones((ROWS, WIDTH), PEAKS[dtype])}
    return ROWS * WIDTH**2 / fastest(partial(session.run, None, given), seconds)[0]


def fastest(call: Callable[[], object], seconds: float) -> tuple[float, float | None, int]:
    """Call at least five times and for so long. Returns (seconds of the fastest call, joules of all calls,
    their number); joules are None where the system does not let them be read."""
    call()
    spent, before, began = list[float](), machine.joules(), time.perf_counter()
    while len(spent) < 5 or time.perf_counter() - began < seconds:
        started = time.perf_counter()
        call()
        spent.append(time.perf_counter() - started)
    after = machine.joules()
    used = None if before is None or after is None or after < before else after - before  # it wraps around
    return min(spent), used, len(spent)


def _words(request: Request, count: int) -> list[str]:
    """Return so many words of a request's texts, from their first on and over again."""
    sides = itertools.chain.from_iterable(
        [item] if isinstance(item, str) else item for item in request["texts"]
    )
    return list(itertools.islice(itertools.cycle(" ".join(sides).split() or ["word"]), count))


if __name__ == "__main__":
    sys.exit(main(json.load(sys.stdin)))
