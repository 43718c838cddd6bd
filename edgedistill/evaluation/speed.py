"""Latency, throughput, start and memory of bundles, each measurement in a fresh process of a runner.

The parent sleeps while a runner works. Bundles alternate (A B C A again, A B C A again, …), so that a machine
that slows down affects all of them; A again is the A/A test, which shows what difference the run can resolve.

A runner is any program that reads a request, one JSON object, on stdin, and prints its answer, one JSON
object, as the last line of stdout. bench/README.md lists their keys; edgedistill's own is `speed_child`.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from edgedistill import files, machine
from edgedistill.errors import CheckFailed, UserError, first_line, quote, unknown_name
from edgedistill.evaluation import bootstrap
from edgedistill.runtime.manifest import Part, problems
from edgedistill.session import Session

TIMEOUT_S = 3600.0  # of one measurement
IMPORT_ROOT = Path(__file__).resolve().parents[2]  # holds the package, for the runner's PYTHONPATH
OWN = "python"
PROGRAMS = ("node", "web")  # of export/, on Node
FORM = '{"single_ms": [ms, …], "texts_s": {"32": rate}}'


class Runner(NamedTuple):
    """A program that runs bundles, as reports name it."""

    name: str
    command: tuple[str, ...]

    @classmethod
    def named(cls, name: str) -> Runner:
        """Return python, node or web, or the runner that a command line starts. Raises UserError where its
        program is missing."""
        try:
            command = shlex.split(name)
        except ValueError as error:
            fact = f"not a command line ({first_line(error)})"
            raise UserError(f"--runner {name}: {fact}; close its quotes") from None
        if name == OWN:
            return cls(name, (sys.executable, "-m", "edgedistill.evaluation.speed_child"))
        if name in PROGRAMS and shutil.which("node"):
            return cls(name, (sys.executable, "-m", "edgedistill.device.speed_child", name))
        if not command or shutil.which(command[0]) is None:
            known = unknown_name("runner or program", name, [OWN, *PROGRAMS])
            raise UserError(
                f"--runner: {known}"
                if name not in PROGRAMS
                else f"--runner {name}: no Node on the path; install Node 20"
            )
        return cls(shlex.join(map(files.portable, command)), tuple(command))


PYTHON = Runner.named(OWN)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]  # of a steady clock
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Length(Part):
    """What is timed of a text of so many tokens."""

    tokens: NotNegative
    tokenize_ms: NotNegative
    graph_ms: NotNegative
    pooling_ms: NotNegative = 0


class Answer(Part):
    """The line of another's runner to a request for times, as bench/README.md describes it."""

    single_ms: list[Positive] = Field(min_length=1)
    texts_s: dict[str, Positive] = Field(min_length=1)
    by_length: dict[str, Length] = Field({})
    embeddings: list[list[float]] | None = None
    peak_rss_bytes: Positive | None = None
    tokens_mean: Positive | None = None
    threads: Positive | None = None


def titled(name: str, precision: str, runner: str) -> str:
    """Return `name:precision`, as on the command line, and the runner where it is not edgedistill's own."""
    return f"{name}:{precision}" + ("" if runner == OWN else f" [{runner}]")


@dataclass
class Target:
    """One precision of a bundle in one runner, to be measured.

    In reports it has the `name` of its folder, because several bundles can be exported from one recipe.
    """

    folder: Path
    precision: str
    name: str = ""
    timed: Path | None = None  # of a pair: the folder of the encoder of queries, which alone is timed
    runner: Runner = PYTHON

    def __post_init__(self) -> None:
        self.name = self.name or Path(os.path.abspath(self.folder)).name

    @property
    def title(self) -> str:
        return titled(self.name, self.precision, self.runner.name)


@dataclass(frozen=True)
class MeasurementPlan:
    """How much to measure. The defaults are for a quick look."""

    queries: int = 1024  # distinct single texts per round
    warmups: int = 32
    rounds: int = 3
    seconds: float = 1.0  # minimum time per batch size and round
    resamples: int = 1000  # of the bootstrap
    seed: int = 0
    query_seconds: float = 0.0  # minimum time of single texts per round


PLAN = MeasurementPlan(query_seconds=3.5)  # MLPerf's 1,024 queries and 10 s
QUICK = MeasurementPlan(queries=128, warmups=8, seconds=0.1, resamples=300)


def measure(
    targets: Sequence[Target], texts: list[str], session: Session, plan: MeasurementPlan
) -> list[dict[str, Any]]:
    """Measure bundles in alternation. Returns, for each, {single, offline, load, peak_rss_bytes,
    memory, noise, against, threads, device, runner}.

    There must be one text at least. Each round times the same `plan.queries` of them one by one, in another
    order. Times are in ms, memory in bytes. Raises UserError for a device that does not exist or does not
    start, and for a runner that does not answer.
    """

    def run(what: str, target: Target, number: int = 0) -> dict[str, Any]:
        order = np.random.default_rng(plan.seed + number).permutation(plan.queries)
        request = {
            "what": what,
            "bundle": str((target.timed or target.folder).resolve()),
            "precision": target.precision,
            "threads": session.threads,
            "device": session.device,
            "texts": texts,
            "queries": [int(at) % len(texts) for at in order],
            "warmups": plan.warmups,
            "query_seconds": plan.query_seconds,
            "seconds": plan.seconds,
        }
        return ask(target.runner, request)

    first = targets[0]
    timed: list[list[dict[str, Any]]] = [[] for _ in targets]
    again: list[dict[str, Any]] = []
    for number in range(plan.rounds):
        for target, rounds in zip([*targets, first], [*timed, again], strict=True):
            session.log(f"timing {target.title}, round {number + 1} of {plan.rounds}")
            rounds.append(run("time", target, number))
            if _measured(rounds[-1]) != _measured(rounds[0]):
                fact = f"round {number + 1} has other batch sizes or lengths than round 1"
                raise UserError(f"--runner {target.runner.name}: {fact}; see bench/README.md")
    pooled = []
    for target, rounds in zip(targets, timed, strict=True):
        memory = None
        if target.runner.name == OWN:
            session.log(f"memory of {target.title}")
            memory = run("memory", target)
        pooled.append(summary(rounds, memory, plan))
    return _compared([target.title for target in targets], pooled, timed, again, plan)


def _compared(
    titles: list[str],
    found: list[dict[str, Any]],
    timed: list[list[dict[str, Any]]],
    again: list[dict[str, Any]],
    plan: MeasurementPlan,
) -> list[dict[str, Any]]:
    """Add what the run resolves, by the A/A test, and the ratio of each bundle's latency to each other's: a
    tie where the interval holds 1, or the ratio is below what can be resolved."""

    def ratio(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
        above, below = ([np.array(each["single_ms"]) for each in side] for side in (ours, theirs))
        return bootstrap.ratio(above, below, plan.queries, plan.resamples, plan.seed)

    same = ratio(again, timed[0])
    resolved = bootstrap.resolution(same)
    for one in found:
        one["noise"] |= {"resolution": resolved, "same_bundle": {"title": titles[0], **same}}
        one["against"] = {}
    for a, b in permutations(range(len(found)), 2):
        if titles[b] not in found[a]["against"] and titles[a] != titles[b]:
            each = ratio(timed[a], timed[b])
            low, high = each["interval95"]
            tie = low <= 1 <= high or abs(math.log(each["ratio"])) <= math.log1p(resolved)
            found[a]["against"][titles[b]] = {**each, "tie": tie}
    return found


def _measured(answer: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a runner measured: its batch sizes, and its lengths with what was timed of each."""
    return set(answer["texts_s"]), {length: set(each) for length, each in answer.get("by_length", {}).items()}


def ask(runner: Runner, request: dict[str, Any], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Run one measurement in a fresh process and return its answer, with `noise`: what else took the
    machine's time meanwhile.

    Raises UserError or CheckFailed with edgedistill's own runner's message; UserError for another that is
    too slow, fails or answers anything but a line of the agreed form; RuntimeError where our own crashes.
    """
    paths = [str(IMPORT_ROOT), os.environ.get("PYTHONPATH")]
    before, started = machine.pressure(), time.perf_counter_ns()
    try:
        done = subprocess.run(
            runner.command,
            input=json.dumps({**request, "started_ns": started}),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"--runner {runner.name}: no answer within {timeout_s:g} s; run it by itself, or leave it out"
        ) from None
    seconds, after = (time.perf_counter_ns() - started) / 1e9, machine.pressure()
    line = (done.stdout.strip().splitlines() or [""])[-1]
    if runner.name == OWN:
        if done.returncode not in (0, 1, 2) or not line:
            raise RuntimeError(f"{runner.command} ended with {done.returncode}:\n{done.stderr[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        if done.returncode == 2:
            raise UserError(*answer["problems"])
        if done.returncode == 1:
            raise CheckFailed("\n".join(answer["problems"]), answer)
    else:
        answer = _answer(runner, done, line)
    spent = {key: round((after[key] - before[key]) / seconds, 4) for key in before if key in after}
    return {**answer, "pressure": spent}


def _answer(runner: Runner, done: subprocess.CompletedProcess[str], line: str) -> dict[str, Any]:
    """Read the answer of another's runner to a request for times. Raises UserError where it is not of the
    agreed form."""
    place = f"--runner {runner.name}"
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it wrote nothing to stderr"])[-1]
        raise UserError(f"{place}: ended with {done.returncode}: {reason[:300]}; run it by itself")
    try:
        answer: Any = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise UserError(f"{place}: its last line is {quote(line)}, not {FORM}; see bench/README.md")
    if wrong := problems(Answer, answer):
        raise UserError(*(f"{place}: its answer's {fact}; see bench/README.md" for fact in wrong))
    return answer


def summary(
    rounds: list[dict[str, Any]], memory: dict[str, Any] | None, plan: MeasurementPlan
) -> dict[str, Any]:
    """Pool the rounds of one bundle: medians, quantiles with intervals, and the raw samples, in ms and texts
    per second; null for what its runner does not tell."""
    single = [np.array(each["single_ms"]) for each in rounds]
    points, intervals = bootstrap.quantiles(single, plan.resamples, plan.seed)
    batches = {size: [each["texts_s"][size] for each in rounds] for size in rounds[0]["texts_s"]}
    by_batch = {size: float(np.median(values)) for size, values in batches.items()}
    best = max(by_batch, key=lambda size: by_batch[size])
    lengths = [each.get("by_length", {}) for each in rounds]
    memory = memory or {"peak_rss_bytes": rounds[0].get("peak_rss_bytes")}
    return {
        "threads": rounds[0].get("threads"),
        "device": rounds[0].get("device", "cpu"),
        "runner": {key: rounds[0].get(key) for key in ("version", "embeddings")},
        "single": {
            **points,
            "interval95": intervals,
            "tokens_mean": rounds[0].get("tokens_mean"),
            "by_length": {length: _of_length([each[length] for each in lengths]) for length in lengths[0]},
            "queries": sum(map(len, single)),
            "distinct": plan.queries,
            "warmups": plan.warmups,
            "samples_ms": [each.tolist() for each in single],
        },
        "offline": {
            "texts_s": by_batch[best],
            "batch": best,
            "by_batch": by_batch,
            "samples_texts_s": batches,
        },
        "load": {"start_ms": [each.get("start_ms") for each in rounds]},
        "peak_rss_bytes": memory["peak_rss_bytes"],
        "memory": memory,
        "noise": {
            "between": bootstrap.noise(single),
            "pressure": {key: [each["pressure"][key] for each in rounds] for key in rounds[0]["pressure"]},
        },
    }


def _of_length(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return the medians over rounds of what was timed at one length, and as `range_ms` the whole time of the
    fastest and of the slowest round."""
    whole = [each["tokenize_ms"] + each["graph_ms"] for each in rounds]
    medians = {key: round(float(np.median([each[key] for each in rounds])), 4) for key in rounds[0]}
    return {**medians, "range_ms": [round(min(whole), 4), round(max(whole), 4)]}
