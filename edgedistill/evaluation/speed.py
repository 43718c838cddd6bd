"""Latency, throughput, load time and memory of bundles, each measurement in a fresh process (`speed_child`).

The parent sleeps while a child runs. Bundles alternate (A B A B …), so that a machine that slows down affects
all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill.errors import CheckFailed, UserError
from edgedistill.evaluation import bootstrap
from edgedistill.evaluation.speed_child import Task
from edgedistill.session import Session

CHILD_TIMEOUT_S = 3600.0
IMPORT_ROOT = Path(__file__).resolve().parents[2]  # holds the package, for the child's PYTHONPATH


@dataclass
class Target:
    """One precision of a bundle, to be measured.

    In reports it has the `name` of its folder, because several bundles can be exported from one recipe.
    """

    folder: Path
    precision: str
    name: str = ""
    timed: Path | None = None  # of a pair: the folder of the encoder of queries, which alone is timed

    def __post_init__(self) -> None:
        self.name = self.name or Path(os.path.abspath(self.folder)).name

    @property
    def title(self) -> str:
        return f"{self.name}:{self.precision}"


@dataclass(frozen=True)
class MeasurementPlan:
    """How much to measure. The defaults are the minimum for a published report."""

    queries: int = 1024  # single texts per round
    warmups: int = 32
    rounds: int = 3
    seconds: float = 1.0  # minimum time per batch size and round
    resamples: int = 1000  # of the bootstrap
    seed: int = 0


PLAN = MeasurementPlan()


def measure(
    targets: Sequence[Target], texts: list[str], session: Session, plan: MeasurementPlan
) -> list[dict[str, Any]]:
    """Measure bundles in alternation. Returns, for each, {single, offline, load_ms, load, peak_rss_bytes,
    memory, noise, threads, device}.

    There must be one text at least. Each round times `plan.queries` of them one by one, in another order.
    Times are in ms, memory in bytes. Raises UserError for a device that does not exist, or does not start.
    """

    def run(what: str, target: Target, seed: int) -> dict[str, Any]:
        sizes = plan.queries, plan.warmups, plan.seconds, seed
        task = Task(
            what,
            str(target.timed or target.folder),
            target.precision,
            session.threads,
            session.device,
            *sizes,
        )
        return run_child(task, texts)

    timed: list[list[dict[str, Any]]] = [[] for _ in targets]
    for number in range(plan.rounds):
        for target, rounds in zip(targets, timed, strict=True):
            session.log(f"timing {target.title}, round {number + 1} of {plan.rounds}")
            rounds.append(run("time", target, plan.seed + number))
    memory = []
    for target in targets:
        session.log(f"memory of {target.title}")
        memory.append(run("memory", target, plan.seed))
    return [summary(rounds, used, plan) for rounds, used in zip(timed, memory, strict=True)]


def run_child(task: Task, texts: list[str]) -> dict[str, Any]:
    """Run one measurement in a fresh process and return its result.

    Raises UserError or CheckFailed with the child's own message; RuntimeError with its stderr when it
    crashes.
    """
    command = [sys.executable, "-m", "edgedistill.evaluation.speed_child", json.dumps(task._asdict())]
    paths = [str(IMPORT_ROOT), os.environ.get("PYTHONPATH")]
    done = subprocess.run(
        command,
        input=json.dumps(texts),
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        timeout=CHILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode not in (0, 1, 2) or not done.stdout.strip():
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if done.returncode == 2:
        raise UserError(*result["problems"])
    if done.returncode == 1:
        raise CheckFailed("\n".join(result["problems"]), result)
    return result


def summary(rounds: list[dict[str, Any]], memory: dict[str, Any], plan: MeasurementPlan) -> dict[str, Any]:
    """Pool the rounds of one bundle: medians, quantiles with intervals, and the raw samples, in ms and texts
    per second."""
    single = [np.array(r["single_ms"]) for r in rounds]
    tokenizing = np.array([r["tokenize_ms"] for r in rounds])
    points, intervals = bootstrap.quantiles(single, plan.resamples, plan.seed)
    batches = {size: [r["texts_s"][size] for r in rounds] for size in rounds[0]["texts_s"]}
    by_batch = {size: float(np.median(values)) for size, values in batches.items()}
    return {
        "threads": rounds[0]["threads"],
        "device": rounds[0]["device"],
        "single": {
            **points,
            "interval95": intervals,
            "tokenize_p50_ms": round(float(np.median(tokenizing)), 4),
            "tokens_mean": rounds[0]["tokens_mean"],
            "queries": sum(map(len, single)),
            "warmups": plan.warmups,
            "samples_ms": [each.tolist() for each in single],
            "tokenize_samples_ms": tokenizing.tolist(),
        },
        "offline": {
            "texts_s": by_batch["budget"],
            "tokenize_texts_s": float(np.median([r["tokenize_texts_s"] for r in rounds])),
            "by_batch": by_batch,
            "samples_texts_s": batches,
        },
        "load_ms": float(np.median([r["load_ms"] for r in rounds])),
        "load": {key: [r[key] for r in rounds] for key in ("import_ms", "load_ms", "first_ms")},
        "peak_rss_bytes": memory["peak_rss_bytes"],
        "memory": memory,
        "noise": bootstrap.noise(single),
    }
