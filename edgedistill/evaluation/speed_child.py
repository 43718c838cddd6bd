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
ROWS, WIDTHS = 512, (384, 1024)  # of the products whose speed is the peak: (ROWS, width) by (width, width)
PEAKS = {  # by type: the product, the types of its input and weights, and ONNX's numbers of these and its output's
    "fp32": ("MatMul", np.float32, np.float32, 1, 1, 1),
    "int8": ("MatMulInteger", np.uint8, np.int8, 2, 3, 6),
}

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
    measures = {"time": _time, "memory": _memory, "start": _start, "server": _server, "products": _products}
    try:
        result = measures[request["what"]](request)
    except UserError as error:
        code, result = 2, {"problems": error.problems}
    except CheckFailed as failure:
        code, result = 1, {"problems": str(failure).splitlines()}
    sys.stdout.write(json.dumps(result, separators=(",", ":")) + "\n")
    return code


def _load(request: Request) -> tuple[Any, Calls, dict[str, float]]:
    """Return (bundle, its calls, {import_ms, load_ms, first_ms, start_ms}): how long importing the runtime,
    opening the bundle and the first answer took, and all from before the process was started."""
    start = time.perf_counter_ns()
    from edgedistill.runtime import bundle

    imported = time.perf_counter_ns()
    options = {key: request[key] for key in ("precision", "threads", "device")}
    opened = bundle.load(request["bundle"], **options)
    loaded = time.perf_counter_ns()
    calls = Calls(opened.tokenize, opened.encode_ids, opened.encode)
    if opened.labels:
        calls = Calls(opened.tokenize_items, opened.logits_ids, opened.logits)  # type: ignore[attr-defined]
    calls.run([["a first text", "another"] if opened.pair else "a first text"])
    first = time.perf_counter_ns()
    spent = {"import_ms": imported - start, "load_ms": loaded - imported, "first_ms": first - loaded}
    spent["start_ms"] = first - request["started_ns"]
    return opened, calls, {key: value / 1e6 for key, value in spent.items()}


def _start(request: Request) -> dict[str, Any]:
    return _load(request)[2]


def _time(request: Request) -> dict[str, Any]:
    """Load, warm up, time single texts one by one, texts of set lengths, and throughput in batches."""
    opened, (tokenize, run_graph, run), spent = _load(request)
    texts, seconds = request["texts"], request["seconds"]
    singles = [texts[at] for at in request["queries"]]
    for i in range(request["warmups"]):
        run_graph(tokenize([singles[i % len(singles)]]))
    tokenizing, total, tokens, began = [], [], 0, time.perf_counter()
    gc.collect()
    for at in itertools.count():
        if at >= len(singles) and time.perf_counter() - began >= request["query_seconds"]:
            break
        start = time.perf_counter_ns()
        ids = tokenize([singles[at % len(singles)]])
        tokenized = time.perf_counter_ns()
        run_graph(ids)
        total.append((time.perf_counter_ns() - start) / 1e6)
        tokenizing.append((tokenized - start) / 1e6)
        tokens += sum(len(row) for row in ids[0]) if opened.labels else len(ids[0])
    rates = {str(size): _rate(run, texts, size, seconds) for size in BATCH_SIZES}
    rates["budget"] = _rate(run, texts, len(texts), seconds)
    return {
        **spent,
        "single_ms": [round(value, 4) for value in total],
        "tokenize_ms": [round(value, 4) for value in tokenizing[: len(singles)]],
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

    file = opened.folder / opened.manifest["precisions"][opened.precision]["file"]
    session = onnx_session.open_session(file, opened.threads, request["device"])
    outputs = [["sentence_embedding"], ["last_hidden_state"]]
    outputs = outputs[: 1 + any(each.name == "last_hidden_state" for each in session.get_outputs())]
    words, found = _words(request) * LENGTHS[-1], dict[str, dict[str, float]]()
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
    words = _words(request)
    lengths = [2**power for power in range(10)]  # in words
    long = [" ".join((words * (length // len(words) + 1))[:length]) for length in lengths]
    varied: list[Any] = [[text, text] for text in long] if opened.pair else long
    for text in [*varied, *reversed(varied)]:
        run([text])
    for start in range(0, len(texts), 32):
        run(texts[start : start + 32])
    run(varied * 16)
    run(texts)
    return {"peak_rss_bytes": machine.peak_rss_bytes(), "loaded_rss_bytes": loaded}


def _products(request: Request) -> dict[str, Any]:
    """Measure how near a graph comes to what this processor can compute. Returns {peak_multiply_adds_s: {fp32,
    int8}, batches: {title: {multiply_adds: {fp32, int8}, product_share, ms, share_of_peak,
    joules_per_1000_texts}}}; nothing on a device other than the processor.

    `product_share` is the products' share of the operators' time, profiled on one thread; that of
    MultiHeadAttention holds its softmax too. `share_of_peak` is the time that the products would need at the
    peak of their type, divided by the time of the graph.
    """
    from edgedistill.runtime import bundle, manifest, onnx_session

    if request["device"] != "cpu":
        return {}
    opened = bundle.load(request["bundle"], request["precision"], request["threads"])
    file = opened.folder / opened.manifest["precisions"][opened.precision]["file"]
    seconds = request["seconds"] / 2
    peaks = {dtype: peak(dtype, opened.threads, seconds / len(WIDTHS)) for dtype in PEAKS}
    text, found = " ".join(_words(request)), dict[str, dict[str, Any]]()
    for title, (texts, tokens) in BATCHES.items():
        shape = texts, min(tokens, opened.max_tokens)
        given = [np.resize(opened._tokenizer.encode(text).ids, shape), np.ones(shape, np.int64)]
        inputs = dict(zip(manifest.INPUTS, given * (1 + opened.pair), strict=False))
        asked = [opened.manifest["output"]], inputs, onnx_session.RUN_OPTIONS
        with tempfile.TemporaryDirectory() as folder:
            profile = str(Path(folder) / "profile")
            session = onnx_session.open_in_memory(file, 1, onnx_session.SERVING, profile=profile)
            for _ in range(PROFILED_RUNS):
                session.run(*asked)
            counts, share = products(json.loads(Path(session.end_profiling()).read_text()))
        session = onnx_session.open_in_memory(file, opened.threads, onnx_session.SERVING)
        spent, joules, calls = fastest(lambda run=session.run, its=asked: run(*its), seconds)
        found[title] = {
            "multiply_adds": {dtype: count // PROFILED_RUNS for dtype, count in counts.items()},
            "product_share": share,
            "ms": 1000 * spent,
            "share_of_peak": sum(count / peaks[dtype] for dtype, count in counts.items()) / PROFILED_RUNS / spent,
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
    """Return the multiply-adds per second of the fastest product of a type in onnxruntime, trying each of
    WIDTHS for so long."""
    from edgedistill.runtime import onnx_session

    rates = []
    for width in WIDTHS:
        session = onnx_session.open_in_memory(product_graph(dtype, width), threads, onnx_session.SERVING)
        given = {"x": np.ones((ROWS, width), PEAKS[dtype][1])}
        rates.append(ROWS * width**2 / fastest(lambda run=session.run, x=given: run(None, x), seconds)[0])
    return max(rates)


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


def product_graph(dtype: str, width: int) -> bytes:
    """Return the ONNX model of `x` (n, width) by constant weights (width, width), which base installs cannot
    write with onnx. The numbers are those of the fields in onnx.proto3."""
    operator, _, weights_type, of_input, of_weights, of_output = PEAKS[dtype]
    dims, raw = _field(1, width) * 2, np.ones((width, width), weights_type).tobytes()
    weights = dims + _field(2, of_weights) + _field(8, b"w") + _field(9, raw)
    node = _field(1, b"x") + _field(1, b"w") + _field(2, b"y") + _field(4, operator.encode())
    graph = _field(1, node) + _field(2, b"product") + _field(5, weights)
    for number, name, of in ((11, b"x", of_input), (12, b"y", of_output)):
        of_type = _field(1, of) + _field(2, _field(1, b"") * 2)  # of two dimensions, of any size
        graph += _field(number, _field(1, name) + _field(2, _field(1, of_type)))
    return _field(1, 8) + _field(7, graph) + _field(8, _field(2, 13))


def _field(number: int, value: int | bytes) -> bytes:
    """Return a field of a message of protobuf: a varint, or bytes behind their length."""
    is_bytes = isinstance(value, bytes)
    first = _varint(number << 3 | 2 * is_bytes)
    return first + _varint(len(value)) + value if isinstance(value, bytes) else first + _varint(value)


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + _varint(value // 128)


def _words(request: Request) -> list[str]:
    """Return the words of a request's texts, one at least."""
    sides = itertools.chain.from_iterable(
        [item] if isinstance(item, str) else item for item in request["texts"]
    )
    return " ".join(sides).split() or ["word"]


if __name__ == "__main__":
    sys.exit(main(json.load(sys.stdin)))
