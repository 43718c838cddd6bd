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
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from edgedistill import files, machine
from edgedistill.errors import UserError, first_line, quote, unknown_name
from edgedistill.evaluation import bootstrap
from edgedistill.evaluation.suites.cosines import Measures
from edgedistill.runtime.manifest import Part, validated
from edgedistill.session import Session

TIMEOUT_S = 3600.0  # of one measurement
IMPORT_ROOT = Path(__file__).resolve().parents[2]  # holds the package, for the runner's PYTHONPATH
OWN = "python"
CORE = "edgedistill.device.speed_child"
PROGRAMS = ("node", "web")  # of export/, on Node
PLACE = re.compile(r"ssh://|adb(://|$)")  # where --on has a bundle measured
FORM_IS_IN = "see bench/README.md"
FORM = '{"single_ms": [ms, …], "texts_s": {"32": rate}}'


class Runner(NamedTuple):
    """A program that runs bundles, as reports name it."""

    name: str
    command: tuple[str, ...]

    @classmethod
    def named(cls, name: str) -> Runner:
        """Return python, node or web, a place, or the runner that a command line starts. Raises UserError
        where its program is missing, or a place does not take it."""
        if name == OWN:
            return cls(name, (sys.executable, "-m", "edgedistill.evaluation.speed_child"))
        if name in PROGRAMS:
            if shutil.which("node") is None:
                raise UserError(f"--runner {name}: no Node on the path; install Node 20")
            return cls(name, (sys.executable, "-m", CORE, name))
        if PLACE.match(name):
            place = cls(name, (sys.executable, "-m", CORE, name))
            _told(place, {"what": "check"}, TIMEOUT_S)
            return place
        try:
            command = shlex.split(name)
        except ValueError as error:
            raise UserError(
                f"--runner {name}: not a command line ({first_line(error)}); close its quotes"
            ) from None
        if not command or shutil.which(command[0]) is None:
            known = [OWN, *PROGRAMS, "adb", "ssh://USER@HOST"]
            raise UserError(f"--runner or --on: {unknown_name('program or machine', name, known)}")
        return cls(shlex.join(map(files.portable, command)), tuple(command))

    @property
    def option(self) -> str:
        """As it was given on the command line."""
        return f"{'--on' if PLACE.match(self.name) else '--runner'} {self.name}"


PYTHON = Runner.named(OWN)
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]  # of a steady clock
Count = Annotated[int, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Length(Part):
    """What is timed of a text of so many tokens."""

    tokens: Count
    tokenize_ms: NotNegative
    graph_ms: NotNegative


class Golden(Part):
    """The lowest cosine of a golden text, and what the student's file asks for."""

    worst: float
    least: float


class Answer(Part):
    """What a runner answers to a request for times, as bench/README.md describes it."""

    single_ms: list[Positive] = Field(min_length=1)
    texts_s: dict[str, Positive] = Field(min_length=1)
    by_length: dict[str, Length] = Field({})
    embeddings: list[list[float]] | None = None
    peak_rss_bytes: Count | None = None
    loaded_rss_bytes: Count | None = None
    tokens_mean: Positive | None = None
    threads: Count | None = None
    version: str | None = None
    start_ms: Positive | None = None
    device: str = "cpu"
    golden: Golden | None = None
    machine: Measures | None = None  # where it is another than this one


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
    query_seconds: float = 0.0  # minimum time of single texts per round


PLAN = MeasurementPlan(query_seconds=3.5)  # MLPerf's 1,024 queries and 10 s
QUICK = MeasurementPlan(queries=128, warmups=8, seconds=0.1, resamples=300)


class Round(NamedTuple):
    """What a runner answered, and what else took the machine's time meanwhile (`machine.pressure`)."""

    answer: Answer
    pressure: dict[str, float]

    @property
    def single_ms(self) -> np.ndarray:
        return np.array(self.answer.single_ms)


def measure(
    targets: Sequence[Target], texts: list[str], session: Session, plan: MeasurementPlan
) -> list[Measures]:
    """Measure bundles in alternation. Returns, for each, {single, offline, load, peak_rss_bytes,
    memory, noise, against, threads, device, runner}.

    There must be one text at least. Each round times the same `plan.queries` of them one by one, in another
    order. Times are in ms, memory in bytes. Raises UserError for a runner that does not answer.
    """
    timed: list[list[Round]] = [[] for _ in range(len(targets) + 1)]  # the last is the first bundle again
    for number in range(1, plan.rounds + 1):
        order = np.random.default_rng(number - 1).permutation(plan.queries)
        for target, rounds in zip([*targets, targets[0]], timed, strict=True):
            session.log(f"timing {target.title}, round {number} of {plan.rounds}")
            request = {
                "what": "time",
                "bundle": str((target.timed or target.folder).resolve()),
                "precision": target.precision,
                "threads": session.threads,
                "device": session.device,
                "texts": texts,
                "queries": (order % len(texts)).tolist(),
                "warmups": plan.warmups,
                "query_seconds": plan.query_seconds,
                "seconds": plan.seconds,
            }
            rounds.append(ask(target.runner, request))
    *first, again = timed
    pooled = [summary(rounds, plan) for rounds in first]
    compare([target.title for target in targets], pooled, first, again, plan)
    return pooled


def compare(
    titles: list[str],
    summaries: list[Measures],
    timed: list[list[Round]],
    again: list[Round],
    plan: MeasurementPlan,
) -> None:
    """Add to the summaries what the run resolves, by the A/A test, and as `against` the ratio of each
    bundle's latency to each other's: a tie where the interval holds 1, or the ratio is below what can be
    resolved."""
    latencies = [[one.single_ms for one in rounds] for rounds in [*timed, again]]
    sampling = plan.queries, plan.resamples
    same = bootstrap.ratio(latencies[-1], latencies[0], *sampling)
    resolved = bootstrap.resolution(same)
    for summarized in summaries:
        summarized["noise"] |= {"resolution": resolved, "same_bundle": {"title": titles[0], **same}}
        summarized["against"] = {}
    for a, b in permutations(range(len(titles)), 2):
        against = summaries[a]["against"]
        if titles[b] not in {titles[a], *against}:
            ratio = against[titles[b]] = bootstrap.ratio(latencies[a], latencies[b], *sampling)
            low, high = ratio["interval95"]
            ratio["tie"] = low <= 1 <= high or abs(math.log(ratio["ratio"])) <= math.log1p(resolved)


def ask(runner: Runner, request: Measures, timeout_s: float = TIMEOUT_S) -> Round:
    """Run one measurement in a fresh process. Raises UserError for a runner that is too slow, fails or
    answers anything but a line of the agreed form."""
    before = machine.pressure()
    started = time.perf_counter_ns()
    told = _told(runner, {**request, "started_ns": started}, timeout_s)
    seconds = (time.perf_counter_ns() - started) / 1e9
    after = machine.pressure()
    shares = {key: round((after[key] - before[key]) / seconds, 4) for key in before if key in after}
    line = (told.strip().splitlines() or [""])[-1]
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{runner.option}: its last line is {quote(line)}, not {FORM}; {FORM_IS_IN}")
    return Round(validated(Answer, value, f"{runner.option}: its answer's ", FORM_IS_IN), shares)


def _told(runner: Runner, request: Measures, timeout_s: float) -> str:
    """What a runner prints. Raises UserError for one that is too slow or fails."""
    paths = [str(IMPORT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            runner.command,
            input=json.dumps(request),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{runner.option}: no answer within {timeout_s:g} s; run it by itself, or leave it out"
        ) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it wrote nothing to stderr"])[-1][:500]
        if CORE not in runner.command:
            reason = f"ended with {done.returncode}: {reason}; run it by itself"
        raise UserError(f"{runner.option}: {reason}")
    return done.stdout


def summary(rounds: list[Round], plan: MeasurementPlan) -> Measures:
    """Pool the rounds of one bundle: medians, quantiles with intervals, and the raw samples, in ms and texts
    per second; null for what its runner does not tell."""
    answers = [one.answer for one in rounds]
    single = [one.single_ms for one in rounds]
    first = answers[0]
    points, intervals = bootstrap.quantiles(single, plan.resamples)
    batches = {size: [answer.texts_s[size] for answer in answers] for size in first.texts_s}
    by_batch = {size: float(np.median(rates)) for size, rates in batches.items()}
    best = max(by_batch, key=lambda size: by_batch[size])
    by_length = {}
    for length in first.by_length:
        timings = [answer.by_length[length].model_dump() for answer in answers]
        medians = {}
        for key in timings[0]:
            medians[key] = round(float(np.median([timing[key] for timing in timings])), 4)
        whole = [round(timing["tokenize_ms"] + timing["graph_ms"], 4) for timing in timings]
        by_length[length] = {**medians, "range_ms": [min(whole), max(whole)]}
    return {
        "threads": first.threads,
        "device": first.device,
        "runner": {
            "version": first.version,
            "embeddings": first.embeddings,
            **({"golden": first.golden.model_dump()} if first.golden else {}),
        },
        "machine": first.machine,
        "single": {
            **points,
            "interval95": intervals,
            "tokens_mean": first.tokens_mean,
            "by_length": by_length,
            "queries": sum(map(len, single)),
            "distinct": plan.queries,
            "warmups": plan.warmups,
            "samples_ms": [answer.single_ms for answer in answers],
        },
        "offline": {
            "texts_s": by_batch[best],
            "batch": best,
            "by_batch": by_batch,
            "samples_texts_s": batches,
        },
        "load": {"start_ms": [answer.start_ms for answer in answers]},
        "peak_rss_bytes": max(answer.peak_rss_bytes or 0 for answer in answers) or None,
        "memory": {"loaded_rss_bytes": first.loaded_rss_bytes},
        "noise": {
            "between": bootstrap.noise(single),
            "pressure": {key: [one.pressure[key] for one in rounds] for key in rounds[0].pressure},
        },
    }
