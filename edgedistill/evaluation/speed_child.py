"""The measuring process: load one bundle, time or weigh it, and print the result as one line of JSON.

`speed` starts it as `python -m edgedistill.evaluation.speed_child TASK`, a Task as JSON, with the texts on
stdin; a fresh process per measurement keeps caches and memory apart.
"""

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


class Task(NamedTuple):
    """One measurement of one bundle. Where `threads` is None, the bundle chooses."""

    what: str  # time or memory
    folder: str
    precision: str
    threads: int | None
    device: str
    queries: int
    warmups: int
    seconds: float
    seed: int


class Calls(NamedTuple):
    """What is timed of a bundle. The answer is an embedding or, for a fine-tuned bundle, the logits."""

    tokenize: Callable[[Any], Any]  # texts -> token ids
    run_graph: Callable[[Any], Any]  # token ids -> answer
    run: Callable[[Any], Any]  # texts -> answer


def main(task: Task) -> int:
    """Measure one bundle. The last line of stdout is compact JSON: the result (exit 0), or {problems} (exit 2
    UserError, 1 CheckFailed)."""
    code, result = 0, dict[str, Any]()
    try:
        result = {"time": _time, "memory": _memory}[task.what](task)
    except UserError as error:
        code, result = 2, {"problems": error.problems}
    except CheckFailed as failure:
        code, result = 1, {"problems": str(failure).splitlines()}
    sys.stdout.write(json.dumps(result, separators=(",", ":")) + "\n")
    return code


def _load(task: Task) -> tuple[Any, dict[str, float]]:
    """Return (bundle, {import_ms, load_ms, first_ms}): how long importing the runtime, opening the bundle and
    the first answer took."""
    start = time.perf_counter_ns()
    from edgedistill.runtime import bundle

    imported = time.perf_counter_ns()
    opened = bundle.load(task.folder, precision=task.precision, threads=task.threads, device=task.device)
    loaded = time.perf_counter_ns()
    _calls(opened).run([["a first text", "another"] if opened.pair else "a first text"])
    first = time.perf_counter_ns()
    spent = {"import_ms": imported - start, "load_ms": loaded - imported, "first_ms": first - loaded}
    return opened, {key: value / 1e6 for key, value in spent.items()}


def _calls(opened: Any) -> Calls:
    if opened.labels:
        return Calls(opened.tokenize_items, opened.logits_ids, opened.logits)
    return Calls(opened.tokenize, opened.encode_ids, opened.encode)


def _time(task: Task) -> dict[str, Any]:
    """Load, warm up, time single texts one by one, then throughput in batches."""
    opened, spent = _load(task)
    tokenize, run_graph, run = _calls(opened)
    texts: list[Any] = json.load(sys.stdin)
    random = np.random.default_rng(task.seed)
    singles = [texts[i % len(texts)] for i in random.permutation(task.queries)]
    for i in range(task.warmups):
        run_graph(tokenize([singles[i % len(singles)]]))
    tokenizing, total, tokens = [], [], 0
    gc.collect()
    for text in singles:
        start = time.perf_counter_ns()
        ids = tokenize([text])
        tokenized = time.perf_counter_ns()
        run_graph(ids)
        total.append((time.perf_counter_ns() - start) / 1e6)
        tokenizing.append((tokenized - start) / 1e6)
        tokens += sum(len(row) for row in ids[0]) if opened.labels else len(ids[0])
    rates = {str(size): _rate(run, texts, size, task.seconds) for size in BATCH_SIZES}
    rates["budget"] = _rate(run, texts, len(texts), task.seconds)
    return {
        **spent,
        "single_ms": [round(value, 4) for value in total],
        "tokenize_ms": [round(value, 4) for value in tokenizing],
        "tokens_mean": tokens / len(singles),
        "texts_s": rates,
        "tokenize_texts_s": _rate(tokenize, texts, len(texts), task.seconds / 4),
        "threads": opened.threads,
        "device": task.device,
    }


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


def _memory(task: Task) -> dict[str, Any]:
    """Return the peak memory after texts of every length, single and batched, up to the bundle's limit."""
    opened, _ = _load(task)
    loaded = machine.peak_rss_bytes()
    texts: list[Any] = json.load(sys.stdin)
    run = _calls(opened).run
    sides = itertools.chain.from_iterable([item] if isinstance(item, str) else item for item in texts)
    words = " ".join(sides).split() or ["word"]
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


if __name__ == "__main__":
    sys.exit(main(Task(**json.loads(sys.argv[1]))))
