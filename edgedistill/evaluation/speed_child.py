"""The measuring process of edgedistill's own runner: read a request as JSON on stdin, load one bundle, time
or weigh it, and print the answer as one line of JSON. `speed` starts it afresh for each measurement, which
keeps caches and memory apart."""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from edgedistill import machine
from edgedistill.errors import CheckFailed, UserError

BATCH_SIZES = (1, 8, 32)
LENGTHS = (8, 16, 32, 64, 128, 256)  # tokens, of the latency by length

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
    measures = {"time": _time, "memory": _memory}
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
        calls = Calls(opened.tokenize_items, opened.item_rows, opened.logits)  # type: ignore[attr-defined]
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


def _words(request: Request, count: int) -> list[str]:
    """Return so many words of a request's texts, from their first on and over again."""
    sides = itertools.chain.from_iterable(
        [item] if isinstance(item, str) else item for item in request["texts"]
    )
    return list(itertools.islice(itertools.cycle(" ".join(sides).split() or ["word"]), count))


if __name__ == "__main__":
    sys.exit(main(json.load(sys.stdin)))
