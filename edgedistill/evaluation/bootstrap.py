"""Bootstrap intervals of latency quantiles (p50, p90, p95, p99) and of differences between two rankings; and
how noisy the machine was."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float64]  # (rounds, queries) in milliseconds


def quantiles(
    samples: Samples, resamples: int = 1000, seed: int = 0
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Estimate p50, p90, p95 and p99 of latency samples, each with a 95% bootstrap interval.

    The samples are (rounds, queries) in ms. Returns ({p50_ms: value, …}, {p50_ms: [low, high], …}), rounded
    to 0.1 µs. Two-stage percentile bootstrap (Efron and Tibshirani 1993): rounds are resampled with
    replacement, then queries within each round.
    """
    names, levels = ("p50_ms", "p90_ms", "p95_ms", "p99_ms"), (0.5, 0.9, 0.95, 0.99)
    random = np.random.default_rng(seed)
    count, queries = samples.shape
    resampled = np.empty((resamples, len(levels)))
    for i in range(resamples):
        rows: npt.NDArray[np.int64] = random.integers(0, count, (count, 1))
        resampled[i] = np.quantile(samples[rows, random.integers(0, queries, (count, queries))], levels)
    low, high = np.quantile(resampled, 0.025, axis=0), np.quantile(resampled, 0.975, axis=0)
    points = {
        name: round(float(value), 4) for name, value in zip(names, np.quantile(samples, levels), strict=True)
    }
    return points, {
        name: [round(float(a), 4), round(float(b), 4)] for name, a, b in zip(names, low, high, strict=True)
    }


def difference(
    student: list[float], teacher: list[float], resamples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Estimate the mean difference of two scores of the same queries. Returns {mean, interval95: [low,
    high]}, the latter by the paired percentile bootstrap over queries (Sakai 2006), rounded to 5 digits."""
    differences, random = np.subtract(student, teacher), np.random.default_rng(seed)
    count = len(differences)
    means = [differences[random.integers(0, count, count)].mean() for _ in range(resamples)]
    interval = np.quantile(means, [0.025, 0.975])
    return {
        "mean": round(float(differences.mean()), 5),
        "interval95": [round(float(end), 5) for end in interval],
    }


def noise(samples: Samples) -> dict[str, Any]:
    """Compare a bundle with itself on the same queries in several fresh processes (A/A test).

    The samples are (rounds, queries) in ms. Returns {p50_ms_by_round, between, within}, the last two relative
    (0.05 = 5%): `between` is the slowest round's p50 over the fastest's, minus 1; `within` compares the p50
    of a round's second half with that of its first half, for the round where they differ most.
    """
    p50 = np.median(samples, axis=1)
    half = samples.shape[1] // 2
    within = (
        np.median(samples[:, half:], axis=1) / np.median(samples[:, :half], axis=1) - 1
        if half
        else np.zeros(1)
    )
    return {
        "p50_ms_by_round": [round(float(value), 4) for value in p50],
        "between": round(float(p50.max() / p50.min() - 1), 4),
        "within": round(float(within[np.argmax(np.abs(within))]), 4),
    }
