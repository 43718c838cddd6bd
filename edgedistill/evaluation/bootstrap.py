"""Bootstrap intervals of latency quantiles, of their ratios and of scores; and how noisy the machine was.

Latencies come in rounds, one process each. A round times the same queries in the same order for every
bundle, once or several times over; it is an array of milliseconds, and rounds may differ in length.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedistill.evaluation.suites.cosines import places, rank_correlation

Floats = npt.NDArray[np.float64]
Rounds = Sequence[Floats]
LEVELS = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}


def quantiles(
    rounds: Rounds, resamples: int = 1000, seed: int = 0
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Estimate p50, p90 and p99 of latencies in ms, each with a 95% bootstrap interval.

    Returns ({p50_ms: value, …}, {p50_ms: [low, high], …}), rounded to 0.1 µs. Two-stage percentile bootstrap
    (Efron and Tibshirani 1993): rounds are resampled with replacement, then queries within each round.
    """
    levels = list(LEVELS.values())
    resampled = np.array(_two_stage(rounds, lambda taken: np.quantile(taken, levels), resamples, seed))
    points = np.quantile(np.concatenate(list(rounds)), levels)
    return (
        {name: round(float(value), 4) for name, value in zip(LEVELS, points, strict=True)},
        {name: interval(column, 4) for name, column in zip(LEVELS, resampled.T, strict=True)},
    )


def interval(draws: Floats, digits: int = 5) -> list[float]:
    """Return [low, high], the middle 95% of resampled values, rounded."""
    return [round(float(end), digits) for end in np.quantile(draws, [0.025, 0.975])]


def _two_stage(rounds: Rounds, of: Callable[[Floats], Any], resamples: int, seed: int) -> list[Any]:
    random, count = np.random.default_rng(seed), len(rounds)
    found = []
    for _ in range(resamples):
        chosen = [rounds[at] for at in random.integers(0, count, count)]
        found.append(of(np.concatenate([each[random.integers(0, len(each), len(each))] for each in chosen])))
    return found


def ratio(ours: Rounds, theirs: Rounds, queries: int, resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Estimate how many times as long a query takes in `ours` as in `theirs`, query by query.

    Both have the same rounds of `queries` queries in the same order; of several passes a query's median
    counts. Returns {ratio, interval95}: the median of the ratios, by the two-stage bootstrap.
    """

    def each(times: Floats) -> Floats:
        whole = times[: len(times) // queries * queries]
        medians: Floats = np.median(whole.reshape(-1, queries), axis=0)
        return medians

    logs = [np.log(each(a) / each(b)) for a, b in zip(ours, theirs, strict=True)]
    draws = np.exp(_two_stage(logs, np.median, resamples, seed))
    return {"ratio": round(float(np.exp(np.median(logs))), 4), "interval95": interval(draws, 4)}


def ratio_between_runs(ours: Rounds, theirs: Rounds, resamples: int = 1000) -> dict[str, Any]:
    """Estimate the ratio of two medians whose rounds have nothing in common. Returns {ratio, interval95}."""
    above = np.array(_two_stage(ours, np.median, resamples, 0))
    below = np.array(_two_stage(theirs, np.median, resamples, 1))
    point = np.median(np.concatenate(list(ours))) / np.median(np.concatenate(list(theirs)))
    return {"ratio": round(float(point), 4), "interval95": interval(above / below, 4)}


def resolution(same: dict[str, Any]) -> float:
    """Return the smallest relative difference that a run can resolve, given the ratio of a bundle to itself
    (A/A test): the end of its interval that is further from 1."""
    return round(float(np.exp(np.abs(np.log([same["ratio"], *same["interval95"]])).max()) - 1), 4)


def scores(name: str, samples: dict[str, Any], resamples: int = 1000, seed: int = 0) -> Floats:
    """Resample the score of a task: (resamples,). Of encoders on the same items the same items are drawn, so
    that differences are paired (Sakai 2006).

    `samples` is {scores}, of which the task's score is the mean, or {cosines, gold} of pairs, where it is
    Spearman's correlation, whose ranks are those within each resample. `name` of the task decides with `seed`
    what is drawn.
    """
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    items = len(next(iter(samples.values())))
    draws = (random.integers(0, items, items) for _ in range(resamples))
    if "scores" in samples:
        values = np.asarray(samples["scores"], np.float64)
        return np.array([values[rows].mean() for rows in draws])
    x, y = (places(np.asarray(samples[key])) for key in ("cosines", "gold"))
    return np.array([rank_correlation(x[rows], y[rows]) or 0.0 for rows in draws])


def of_suite(tasks: dict[str, Any], resamples: int = 1000, seed: int = 0) -> dict[str, Floats]:
    """Resample the scores of a suite's tasks by their names and, where all have samples, as "" their mean."""
    sampled = {name: task["samples"] for name, task in tasks.items() if "samples" in task}
    found = {name: scores(name, each, resamples, seed) for name, each in sampled.items()}
    return {**found, "": np.mean(list(found.values()), axis=0)} if len(found) == len(tasks) else found


def difference(ours: Floats, theirs: Floats, mean: float) -> dict[str, Any]:
    """Return {mean, interval95} of a difference of scores, given both scores' paired resamples."""
    return {"mean": round(mean, 5), "interval95": interval(ours - theirs)}


def noise(rounds: Rounds) -> float:
    """Return how much the rounds of a bundle differ, each in a fresh process on the same queries: the slowest
    round's p50 over the fastest's, minus 1."""
    p50 = [np.median(each) for each in rounds]
    return round(float(max(p50) / min(p50) - 1), 4)
