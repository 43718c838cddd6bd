"""The measuring process of edgedistill's own runner: read a request as JSON on stdin, load one bundle, time
it, and print the answer as one line of JSON. `speed` starts it afresh for each measurement, which keeps
caches and memory apart."""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from edgedistill import machine

BATCH_SIZES = (1, 8, 32)
LENGTHS = (8, 16, 32, 64, 128, 256)  # tokens, of the latency by length
LEAST_CALLS = 5  # at each of these
LONGEST = 512  # words of a text, for the peak memory

Request = dict[str, Any]


class Calls(NamedTuple):
    """What is timed of a bundle. The answer is an embedding or, for a fine-tuned bundle, the logits."""

    tokenize: Callable[[Any], Any]  # texts -> token ids
    run_graph: Callable[[Any], Any]  # token ids -> answer
    run: Callable[[Any], Any]  # texts -> answer


def answer(request: Request) -> Request:
    """Load a bundle, warm up, time single texts one by one, texts of set lengths, and throughput in batches;
    then the peak memory after texts of every length, single and batched."""
    from edgedistill.runtime import bundle

    opened = bundle.load(request["bundle"], request["precision"], request["threads"], request["device"])
    calls = Calls(partial(opened.tokenize, role="query"), opened.encode_ids, opened.encode_query)
    if opened.labels:
        calls = Calls(opened.tokenize_items, opened.item_rows, opened.logits)  # type: ignore[attr-defined]
    calls.run([["a first text", "another"] if opened.pair else "a first text"])
    start_ms = (time.perf_counter_ns() - request["started_ns"]) / 1e6
    loaded = machine.peak_rss_bytes()
    texts = request["texts"]
    seconds = request["seconds"]
    times, tokens = _single(calls, request)
    sizes = {**{str(size): size for size in BATCH_SIZES}, "budget": len(texts)}
    rates = {name: _rate(calls.run, texts, size, seconds) for name, size in sizes.items()}
    by_length = {} if opened.labels else _by_length(calls, opened.max_tokens, request)
    words = _words(texts, LONGEST)
    long = [" ".join(words[: 2**power]) for power in range(LONGEST.bit_length())]
    varied = [[text, text] for text in long] if opened.pair else long
    for batch in [*([text] for text in varied), varied * 16]:
        calls.run(batch)
    return {
        "start_ms": start_ms,
        "single_ms": [round(value, 4) for value in times],
        "tokens_mean": tokens / len(times),
        "by_length": by_length,
        "texts_s": rates,
        "threads": opened.threads,
        "device": request["device"],
        "loaded_rss_bytes": loaded,
        "peak_rss_bytes": machine.peak_rss_bytes(),
    }


def _single(calls: Calls, request: Request) -> tuple[list[float], int]:
    """The milliseconds of single texts, and how many tokens these have."""
    singles = [[request["texts"][at]] for at in request["queries"]]
    for single in itertools.islice(itertools.cycle(singles), request["warmups"]):
        calls.run_graph(calls.tokenize(single))
    times: list[float] = []
    tokens = 0
    began = time.perf_counter()
    gc.collect()
    for single in itertools.cycle(singles):
        if len(times) >= len(singles) and time.perf_counter() - began >= request["query_seconds"]:
            break
        start = time.perf_counter_ns()
        ids = calls.tokenize(single)
        calls.run_graph(ids)
        times.append((time.perf_counter_ns() - start) / 1e6)
        tokens += sum(map(np.size, ids[0])) if isinstance(ids[0], list) else len(ids[0])
    return times, tokens


def _by_length(calls: Calls, longest: int, request: Request) -> dict[str, dict[str, float]]:
    """The medians {tokens, tokenize_ms, graph_ms} of a text of each of LENGTHS up to the longest."""
    words = _words(request["texts"], LENGTHS[-1])
    medians = {}
    for length in (length for length in LENGTHS if length <= longest):
        text = " ".join(words[:length])
        while len(calls.tokenize([text])[0]) > length and " " in text:
            text = text.rpartition(" ")[0]
        ids = calls.tokenize([text])
        both = partial(calls.tokenize, [text]), partial(calls.run_graph, ids)
        tokenizing, graph = _medians_ms(both, request["seconds"] / len(LENGTHS))
        medians[str(length)] = {"tokens": len(ids[0]), "tokenize_ms": tokenizing, "graph_ms": graph}
    return medians


def _medians_ms(calls: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """The median milliseconds of each call, which are made in turns for so many seconds."""
    rounds: list[list[int]] = []
    began = time.perf_counter()
    while len(rounds) < LEAST_CALLS or time.perf_counter() - began < seconds:
        times = [time.perf_counter_ns()]
        for call in calls:
            call()
            times.append(time.perf_counter_ns())
        rounds.append(times)
    return (np.median(np.diff(rounds, axis=1), axis=0) / 1e6).tolist()


def _rate(call: Callable[[list[str]], Any], texts: list[str], size: int, seconds: float) -> float:
    """Texts per second in batches of `size`, over at least `seconds` and one call; the first call is not
    counted."""
    call(texts[:size])
    done = 0
    began = time.perf_counter()
    for start in itertools.cycle(range(0, len(texts), size)):
        batch = texts[start : start + size]
        call(batch)
        done += len(batch)
        if (spent := time.perf_counter() - began) >= seconds:
            break
    return done / spent


def _words(texts: list[Any], count: int) -> list[str]:
    """So many words of the texts, from their first on and over again."""
    words = " ".join(item if isinstance(item, str) else " ".join(item) for item in texts).split()
    return list(itertools.islice(itertools.cycle(words or ["word"]), count))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin)), separators=(",", ":")) + "\n")
