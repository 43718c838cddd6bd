"""Bootstrap intervals of latency quantiles, of their ratios and of scores; and how noisy the machine was.

Latencies come in rounds, one process each. A round times the same queries in the same order for every
bundle, once or several times over; it is an array of milliseconds, and rounds may differ in length.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgedistill.evaluation.suites.cosines import Measures, places, rank_correlation

Floats = npt.NDArray[np.float64]
Rounds = Sequence[Floats]
LEVELS = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}


def quantiles(rounds: Rounds, resamples: int = 1000) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Estimate p50, p90 and p99 of latencies in ms, each with a 95% bootstrap interval.

    Returns ({p50_ms: value, …}, {p50_ms: [low, high], …}), rounded to 0.1 µs. Two-stage percentile bootstrap
    (Efron and Tibshirani 1993): rounds are resampled with replacement, then queries within each round.
    """
    points = {}
    intervals = {}
    resampled = _two_stage(rounds, list(LEVELS.values()), resamples)
    for number, (name, level) in enumerate(LEVELS.items()):
        points[name] = round(float(np.quantile(np.concatenate(rounds), level)), 4)
        intervals[name] = interval(resampled[:, number], 4)
    return points, intervals


def interval(draws: Floats, digits: int = 5) -> list[float]:
    """Return [low, high], the middle 95% of resampled values, rounded."""
    return [round(float(end), digits) for end in np.quantile(draws, [0.025, 0.975])]


def _two_stage(rounds: Rounds, levels: list[float], resamples: int) -> Floats:
    """The quantiles of each resample: (resamples, levels)."""
    random = np.random.default_rng(0)
    draws = []
    for _ in range(resamples):
        chosen = [rounds[at] for at in random.integers(0, len(rounds), len(rounds))]
        times = np.concatenate([random.choice(times, len(times)) for times in chosen])
        draws.append(np.quantile(times, levels))
    return np.array(draws)


def ratio(ours: Rounds, theirs: Rounds, queries: int, resamples: int = 1000) -> Measures:
    """Estimate how many times as long a query takes in `ours` as in `theirs`, query by query.

    Both have the same rounds of `queries` queries in the same order; of several passes a query's median
    counts. Returns {ratio, interval95}: the median of the ratios, by the two-stage bootstrap.
    """
    logs = [np.log(_by_query(a, queries) / _by_query(b, queries)) for a, b in zip(ours, theirs, strict=True)]
    draws = np.exp(_two_stage(logs, [0.5], resamples))
    return {"ratio": round(float(np.exp(np.median(logs))), 4), "interval95": interval(draws, 4)}


def _by_query(times: Floats, queries: int) -> Floats:
    """The median of each query over the whole passes of a round."""
    passes = times[: len(times) // queries * queries].reshape(-1, queries)
    return np.median(passes, axis=0)


def resolution(same: Measures) -> float:
    """Return the smallest relative difference that a run can resolve, given the ratio of a bundle to itself
    (A/A test): the end of its interval that is further from 1."""
    return round(float(np.exp(np.abs(np.log([same["ratio"], *same["interval95"]])).max()) - 1), 4)


def scores(name: str, samples: Measures, resamples: int = 1000) -> Floats:
    """Resample the score of a task: (resamples,). Of encoders on the same items the same items are drawn, so
    that differences are paired (Sakai 2006).

    `samples` is {scores}, of which the task's score is the mean, or {cosines, gold} of pairs, where it is
    Spearman's correlation, whose ranks are those within each resample. `name` of the task decides
    what is drawn.
    """
    random = np.random.default_rng([0, zlib.crc32(name.encode())])
    items = len(next(iter(samples.values())))
    draws = (random.integers(0, items, items) for _ in range(resamples))
    if "scores" in samples:
        values = np.asarray(samples["scores"], np.float64)
        return np.array([values[rows].mean() for rows in draws])
    x, y = (places(np.asarray(samples[key])) for key in ("cosines", "gold"))
    return np.array([rank_correlation(x[rows], y[rows]) or 0.0 for rows in draws])


def of_suite(tasks: dict[str, Measures], resamples: int = 1000) -> dict[str, Floats]:
    """Resample the scores of a suite's tasks by their names and, where all have samples, as "" their mean."""
    draws = {}
    for name, task in tasks.items():
        if "samples" in task:
            draws[name] = scores(name, task["samples"], resamples)
    if len(draws) == len(tasks):
        draws[""] = np.mean(list(draws.values()), axis=0)
    return draws


def noise(rounds: Rounds) -> float:
    """Return how much the rounds of a bundle differ, each in a fresh process on the same queries: the slowest
    round's p50 over the fastest's, minus 1."""
    p50 = [np.median(times) for times in rounds]
    return round(float(max(p50) / min(p50) - 1), 4)
