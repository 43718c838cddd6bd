"""How fast and how heavy a bundle is: every measurement in a fresh process, whose last line of stdout is its result.

The parent sleeps while a child runs. Bundles take turns, A B A B …, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedistill import machine
from edgedistill.errors import AnswerIsNo, UserError, unknown
from edgedistill.session import QUIET, Session

BATCHES = (1, 8, 32)
CHILD_LIMIT_S = 3600.0
Samples = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Target:
    """A bundle's precision to measure."""

    folder: Path
    precision: str


@dataclass(frozen=True)
class Plan:
    """How much to measure; the defaults are the least that is reported."""

    queries: int = 1024  # single texts a round
    warmups: int = 32
    rounds: int = 3
    seconds: float = 1.0  # least time spent on each batch size a round
    resamples: int = 1000  # of the bootstrap
    seed: int = 0


PLAN = Plan()


def measure(
    targets: list[Target],
    texts: list[str],
    threads: int | None = None,
    session: Session = QUIET,
    plan: Plan = PLAN,
) -> list[dict[str, Any]]:
    """Measure bundles side by side: for each {single, offline, load_ms, load, peak_rss_bytes, noise, threads, device}.

    `texts`: at least one; singles are the first `plan.queries` of these, in another order each round.
    Raises UserError for a device that is not there.
    """
    with tempfile.TemporaryDirectory(prefix="edgedistill-speed-") as scratch:
        asked = Path(scratch) / "texts.json"
        asked.write_text(json.dumps(texts), encoding="utf-8")
        order = [(number, target) for number in range(plan.rounds) for target in range(len(targets))]
        timed: list[list[dict[str, Any]]] = [[] for _ in targets]
        for number, at in order:
            session.log(f"timing {_name(targets[at])}, round {number + 1} of {plan.rounds}")
            timed[at].append(child("time", targets[at], asked, threads, session.device, plan, plan.seed + number))
        memory = []
        for target in targets:
            session.log(f"memory of {_name(target)}")
            memory.append(child("memory", target, asked, threads, session.device, plan, plan.seed))
    return [summary(rounds, weight, plan) for rounds, weight in zip(timed, memory, strict=True)]


def child(what: str, target: Target, texts: Path, threads: int | None, device: str, plan: Plan, seed: int) -> dict[str, Any]:
    """Run one measurement in a fresh process and read its last line.

    Raises UserError or AnswerIsNo in the child's own words; anything else that fails there is our bug.
    """
    command = [sys.executable, "-m", "edgedistill.evaluation.speed", what, str(target.folder), target.precision, str(texts)]
    command += ["--threads", str(threads or 0), "--device", device, "--queries", str(plan.queries), "--warmups", str(plan.warmups)]
    command += ["--seconds", str(plan.seconds), "--seed", str(seed)]
    here = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))}
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment, timeout=CHILD_LIMIT_S, check=False)
    if done.returncode not in (0, 1, 2) or not done.stdout.strip():
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if done.returncode == 2:
        raise UserError(*result["problems"])
    if done.returncode == 1:
        raise AnswerIsNo("\n".join(result["problems"]), result)
    return result


def summary(rounds: list[dict[str, Any]], weight: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Pool the rounds of one bundle; raw samples stay in, milliseconds rounded to 0.1 µs."""
    single = np.array([r["single_ms"] for r in rounds])  # (rounds, queries)
    tokenizing = np.array([r["tokenize_ms"] for r in rounds])
    points, intervals = quantiles(single, plan.resamples, plan.seed)
    batches = {size: [r["texts_s"][size] for r in rounds] for size in rounds[0]["texts_s"]}
    return {
        "threads": rounds[0]["threads"],
        "device": rounds[0]["device"],
        "single": {
            **points,
            "interval95": intervals,
            "tokenize_p50_ms": round(float(np.median(tokenizing)), 4),
            "tokens_mean": rounds[0]["tokens_mean"],
            "queries": int(single.size),
            "warmups": plan.warmups,
            "samples_ms": single.tolist(),
            "tokenize_samples_ms": tokenizing.tolist(),
        },
        "offline": {
            "texts_s": float(np.median(batches["budget"])),
            "tokenize_texts_s": float(np.median([r["tokenize_texts_s"] for r in rounds])),
            "by_batch": {size: float(np.median(values)) for size, values in batches.items()},
            "samples_texts_s": batches,
        },
        "load_ms": float(np.median([r["load_ms"] for r in rounds])),
        "load": {key: [r[key] for r in rounds] for key in ("import_ms", "load_ms", "first_ms")},
        "peak_rss_bytes": weight["peak_rss_bytes"],
        "memory": weight,
        "noise": noise(single, plan),
    }


def quantiles(samples: Samples, resamples: int = 1000, seed: int = 0) -> tuple[dict[str, float], dict[str, list[float]]]:
    """p50, p90, p95, p99 of samples (rounds, queries) in ms, with 95% intervals: rounds drawn again, and queries within them."""
    names, at = ("p50_ms", "p90_ms", "p95_ms", "p99_ms"), (0.5, 0.9, 0.95, 0.99)
    random = np.random.default_rng(seed)
    count, queries = samples.shape
    drawn = np.empty((resamples, len(at)))
    for i in range(resamples):
        rows: npt.NDArray[np.int64] = random.integers(0, count, (count, 1))
        drawn[i] = np.quantile(samples[rows, random.integers(0, queries, (count, queries))], at)
    low, high = np.quantile(drawn, 0.025, axis=0), np.quantile(drawn, 0.975, axis=0)
    points = {name: round(float(value), 4) for name, value in zip(names, np.quantile(samples, at), strict=True)}
    return points, {name: [round(float(a), 4), round(float(b), 4)] for name, a, b in zip(names, low, high, strict=True)}


def noise(samples: Samples, plan: Plan) -> dict[str, Any]:
    """The A/A check: the same bundle and queries in several fresh processes. 0.05: p50 differed by 5% though nothing changed.

    `between`: slowest round over fastest, less one; `within`: second half of a round over its first, the farthest from one, less one.
    """
    p50 = np.median(samples, axis=1)
    half = samples.shape[1] // 2
    within = np.median(samples[:, half:], axis=1) / np.median(samples[:, :half], axis=1) - 1 if half else np.zeros(1)
    return {
        "p50_ms_by_round": [round(float(value), 4) for value in p50],
        "between": round(float(p50.max() / p50.min() - 1), 4),
        "within": round(float(within[np.argmax(np.abs(within))]), 4),
    }


def check_device(device: str) -> None:
    """Raise UserError when onnxruntime cannot run on the device."""
    if device == "cuda":
        import onnxruntime

        offered = onnxruntime.get_available_providers()
        if "CUDAExecutionProvider" not in offered:
            short = ", ".join(name.removesuffix("ExecutionProvider") for name in offered)
            raise UserError(f"--device cuda: onnxruntime here offers {short}; pip install onnxruntime-gpu, or leave --device out")
    elif device != "cpu":
        raise UserError(f"--device: {unknown('device', device, ['cpu', 'cuda'])}")


def _name(target: Target) -> str:
    return f"{target.folder.name}:{target.precision}"


# ---- the child ----


def main(arguments: list[str] | None = None) -> int:
    """Measure one bundle in this process; print compact JSON as the last line: the result, or the problems (exit 2, 1)."""
    parser = argparse.ArgumentParser(prog="edgedistill.evaluation.speed")
    parser.add_argument("what", choices=["time", "memory"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("precision")
    parser.add_argument("texts", type=Path, help="a JSON list")
    parser.add_argument("--threads", type=int, default=0, help="0: the bundle's own choice")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--queries", type=int, default=Plan.queries)
    parser.add_argument("--warmups", type=int, default=Plan.warmups)
    parser.add_argument("--seconds", type=float, default=Plan.seconds)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    code = 0
    try:
        result = {"time": _time, "memory": _memory}[options.what](options)
    except UserError as error:
        code, result = 2, {"problems": error.problems}
    except AnswerIsNo as no:
        code, result = 1, {"problems": str(no).splitlines()}
    sys.stdout.write(json.dumps(result, separators=(",", ":")) + "\n")
    return code


def _load(options: argparse.Namespace) -> tuple[Any, dict[str, float]]:
    """The bundle, and what opening it took: the import of its runner apart from the load itself."""
    start = time.perf_counter_ns()
    from edgedistill.runtime import bundle

    imported = time.perf_counter_ns()
    opened = bundle.load(options.folder, precision=options.precision, threads=options.threads or None, device=options.device)
    loaded = time.perf_counter_ns()
    _verbs(opened)[2]([["a first text", "another"] if opened.pair else "a first text"])
    first = time.perf_counter_ns()
    spent = {"import_ms": imported - start, "load_ms": loaded - imported, "first_ms": first - loaded}
    return opened, {key: value / 1e6 for key, value in spent.items()}


def _verbs(opened: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]:
    """(texts -> ids, ids -> answer, texts -> answer) of a bundle: vectors, or of a fine-tuned one logits."""
    if opened.labels:
        return opened.tokenize_items, opened.logits_ids, opened.logits
    return opened.tokenize, opened.encode_ids, opened.encode


def _time(options: argparse.Namespace) -> dict[str, Any]:
    """Load, warm up, time single texts one by one, then batches."""
    opened, spent = _load(options)
    tokenize, answer_ids, answer = _verbs(opened)
    texts: list[Any] = json.loads(options.texts.read_text(encoding="utf-8"))
    random = np.random.default_rng(options.seed)
    singles = [texts[i % len(texts)] for i in random.permutation(options.queries)]
    for i in range(options.warmups):
        answer_ids(tokenize([singles[i % len(singles)]]))
    tokenizing, total, tokens = [], [], 0
    gc.collect()
    for text in singles:
        start = time.perf_counter_ns()
        ids = tokenize([text])
        tokenized = time.perf_counter_ns()
        answer_ids(ids)
        total.append((time.perf_counter_ns() - start) / 1e6)
        tokenizing.append((tokenized - start) / 1e6)
        tokens += sum(len(row) for row in ids[0]) if opened.labels else len(ids[0])
    rates = {str(size): _rate(answer, texts, size, options.seconds) for size in BATCHES}
    rates["budget"] = _rate(answer, texts, len(texts), options.seconds)
    return {
        **spent,
        "single_ms": [round(value, 4) for value in total],
        "tokenize_ms": [round(value, 4) for value in tokenizing],
        "tokens_mean": tokens / len(singles),
        "texts_s": rates,
        "tokenize_texts_s": _rate(tokenize, texts, len(texts), options.seconds / 4),
        "threads": opened.threads,
        "device": options.device,
    }


def _rate(work: Callable[[list[str]], Any], texts: list[str], size: int, seconds: float) -> float:
    """Texts a second, `size` at a time, for at least so many seconds and one call; the first call is not counted."""
    work(texts[:size])
    done, start = 0, time.perf_counter()
    for batch in _forever(texts, size):
        work(batch)
        done += len(batch)
        spent = time.perf_counter() - start
        if spent >= seconds:
            break
    return done / spent


def _forever(texts: list[str], size: int) -> Iterator[list[str]]:
    while True:
        for start in range(0, len(texts), size):
            yield texts[start : start + size]


def _memory(options: argparse.Namespace) -> dict[str, Any]:
    """Peak memory after texts of every length, alone and together, up to the bundle's limit."""
    opened, _ = _load(options)
    loaded = machine.peak_rss_bytes()
    texts: list[Any] = json.loads(options.texts.read_text(encoding="utf-8"))
    answer = _verbs(opened)[2]
    words = " ".join(text for item in texts for text in ([item] if isinstance(item, str) else item)).split() or ["word"]
    lengths = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    long = [" ".join((words * (length // len(words) + 1))[:length]) for length in lengths]
    varied: list[Any] = [[text, text] for text in long] if opened.pair else long
    for text in [*varied, *reversed(varied)]:
        answer([text])
    for start in range(0, len(texts), 32):
        answer(texts[start : start + 32])
    answer(varied * 16)
    answer(texts)
    return {"peak_rss_bytes": machine.peak_rss_bytes(), "loaded_rss_bytes": loaded}


if __name__ == "__main__":
    sys.exit(main())
