"""Times are never asserted: what is asserted is that they are counted, pooled and described rightly."""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from edgedistill import machine
from edgedistill.errors import UserError
from edgedistill.evaluation import bootstrap, speed, speed_child


def round_of(single: list[float], rate: float = 100.0) -> speed.Round:
    answer = {
        "single_ms": single,
        "tokens_mean": 12.0,
        "threads": 2,
        "texts_s": {"1": rate / 4, "8": rate / 2, "32": rate, "budget": rate * 2},
        "start_ms": 800.0,
        "by_length": {"8": {"tokens": 8, "tokenize_ms": 0.1, "graph_ms": rate, "pooling_ms": 0.01}},
        "peak_rss_bytes": int(rate),
    }
    return speed.Round(speed.Answer(**answer), {"steal": 0.0})


def test_rounds_are_pooled_by_hand():
    plan = speed.MeasurementPlan(queries=4, rounds=2, resamples=20)
    rounds = [round_of([1.0, 2.0, 3.0, 4.0], 100), round_of([1.0, 2.0, 3.0, 14.0], 300)]
    found = speed.summary(rounds, plan)
    single = found["single"]
    assert single["p50_ms"] == 2.5  # of 1 1 2 2 3 3 4 14
    assert single["p99_ms"] == pytest.approx(4 + 10 * 0.93)  # rank 0.99 · 7 = 6.93
    assert single["queries"] == 8
    assert single["samples_ms"] == [[1, 2, 3, 4], [1, 2, 3, 14]]
    assert found["offline"]["texts_s"] == 400  # median of 200 and 600, at the best batch
    assert found["offline"]["batch"] == "budget"
    assert single["by_length"]["8"]["graph_ms"] == 200  # median of 100 and 300
    assert single["by_length"]["8"]["range_ms"] == [100.1, 300.1]  # with tokenization
    assert found["load"]["start_ms"] == [800, 800]
    assert found["offline"]["by_batch"] == {"1": 50, "8": 100, "32": 200, "budget": 400}
    assert found["peak_rss_bytes"] == 300


def test_intervals_hold_the_value_and_narrow_with_samples():
    random = np.random.default_rng(0)
    points, few = bootstrap.quantiles([*random.lognormal(0, 0.3, (3, 50))], 300)
    _, many = bootstrap.quantiles([*random.lognormal(0, 0.3, (3, 5000))], 300)
    for name, value in points.items():
        assert few[name][0] <= value <= few[name][1]
    assert many["p50_ms"][1] - many["p50_ms"][0] < (few["p50_ms"][1] - few["p50_ms"][0]) / 3
    assert many["p50_ms"][0] < 1.02
    assert many["p50_ms"][1] > 0.98


@pytest.mark.parametrize(
    ("value", "expected"), [("3", 3), ("4,2", 4), ("0", None), ("", None), ("many", None)]
)
def test_default_threads(monkeypatch, value: str, expected: int | None):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert machine.default_threads() == (expected or machine.processors())


def test_peak_memory_is_of_this_process_not_of_its_parent():
    ballast = np.ones(40_000_000)  # 320 MB
    code = "from edgedistill import machine; print(machine.peak_rss_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 5_000_000 < int(done.stdout) < ballast.nbytes < machine.peak_rss_bytes()


def test_rates_count_texts_and_leave_the_first_call_out():
    calls: list[int] = []
    rate = speed_child._rate(lambda batch: calls.append(len(batch)), ["x"] * 5, 2, 0.0)
    assert calls == [2, 2]  # the first, then at least one that counts
    assert math.isfinite(rate)
    assert rate > 0
    calls.clear()
    speed_child._rate(lambda batch: calls.append(len(batch)), ["x"] * 5, 2, 0.001)
    assert calls[:7] == [2, 2, 2, 1, 2, 2, 1]


def test_a_difference_between_rankings_is_paired_and_agrees_with_scipy():
    from scipy.stats import bootstrap as by_scipy

    random = np.random.default_rng(3)
    teacher = random.random(200)

    def difference(student: np.ndarray, resamples: int) -> list[float]:
        drawn = [bootstrap.scores("x", {"scores": each.tolist()}, resamples) for each in (student, teacher)]
        return bootstrap.interval(drawn[0] - drawn[1])

    constant = difference(teacher - 0.25, 100)
    assert constant == [-0.25, -0.25]  # however hard the queries are
    student = teacher - 0.1 * random.random(200)
    found = difference(student, 4000)
    expected = by_scipy((student - teacher,), np.mean, method="percentile", random_state=random)
    assert found == pytest.approx(list(expected.confidence_interval), abs=5e-4)


def drawn(rounds: int, factor: float = 1.0, noise: float = 0.05, seed: int = 0) -> list[speed.Round]:
    """Rounds of two passes over 40 queries of very different lengths, each with its own error."""
    random = np.random.default_rng(seed)
    queries = np.geomspace(1, 20, 40)
    times = [factor * np.tile(queries, 2) * np.exp(random.normal(0, noise, 80)) for _ in range(rounds)]
    return [round_of(each.tolist()) for each in times]


def test_ratios_are_paired_query_by_query():
    """Queries that differ twentyfold do not widen the interval of a ratio; an unfinished pass is left out."""
    ours = [np.array([*each.single_ms, 1e6]) for each in drawn(3, 1.1, seed=1)]
    theirs = [each.single_ms for each in drawn(3, seed=2)]
    found = bootstrap.ratio(ours, theirs, 40, 200)
    low, high = found["interval95"]
    assert low < 1.1 < high and low > 1.07 and high < 1.13


def test_the_same_bundle_twice_decides_what_is_a_tie():
    """A difference of 10% counts where the A/A test is narrow, and is a tie where it is wide."""
    plan = speed.MeasurementPlan(queries=40, resamples=200)

    def compared(again: float) -> list[dict[str, Any]]:
        timed = [drawn(3, 1.0, seed=1), drawn(3, 1.1, seed=2), drawn(3, 1.0, seed=3)]
        pooled = [speed.summary(rounds, plan) for rounds in timed]
        speed.compare(["a", "b", "c"], pooled, timed, drawn(3, again, seed=4), plan)
        return pooled

    a, b, c = compared(1.0)
    assert a["noise"]["resolution"] == c["noise"]["resolution"] < 0.05
    assert a["noise"]["same_bundle"]["title"] == "a"
    assert not a["against"]["b"]["tie"] and a["against"]["c"]["tie"]
    assert a["against"]["b"]["ratio"] == pytest.approx(1 / b["against"]["a"]["ratio"], rel=1e-3)
    noisy, *_ = compared(1.2)
    assert 0.15 < noisy["noise"]["resolution"] < 0.25 and noisy["against"]["b"]["tie"]


def test_what_disturbs_a_machine_is_read_from_the_system(tmp_path):
    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 250 0 0\ncpu0 1 2 3 4 5 6 7 9 0 0\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nnr_throttled 2\nthrottled_usec 1500000\n")
    found = machine.pressure(tmp_path, tmp_path / "stat")
    assert found == {"steal": 250 / os.sysconf("SC_CLK_TCK"), "throttled": 1.5}
    assert machine.pressure(tmp_path / "none", tmp_path / "none") == {}


def asked_of(command: str, timeout_s: float = 60) -> speed.Round:
    return speed.ask(speed.Runner.named(f"sh -c {shlex.quote(command)}"), {"what": "time"}, timeout_s)


ANSWER = {"single_ms": [1.5, 2.0], "texts_s": {"32": 100.0}}


def answered(**changes: Any) -> str:
    return f"echo '{json.dumps(ANSWER | changes)}'"


def test_any_program_that_answers_in_the_agreed_form_is_a_runner():
    found = asked_of(f"read request; echo loading; echo '{json.dumps(ANSWER)}'")
    assert found.answer.single_ms == ANSWER["single_ms"] and found.answer.texts_s == ANSWER["texts_s"]
    pooled = speed.summary([found], speed.MeasurementPlan(queries=2, resamples=10))
    assert pooled["single"]["p50_ms"] == 1.75 and pooled["offline"]["batch"] == "32"
    assert pooled["peak_rss_bytes"] is None


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo hello", 'its last line is "hello"'),
        ("echo '[1]'", 'its last line is "[1]"'),
        ("echo broken >&2; exit 3", "ended with 3: broken"),
        ("sleep 60", "no answer within 0.2 s"),
        (answered(single_ms=[1.0, -3.2]), "its answer's single_ms.1: "),
        (answered(single_ms=[1.0, float("inf")]), "its answer's single_ms.1: "),
        (answered(single_ms=[]), "its answer's single_ms: "),
        (answered(by_length={"8": {"tokens": "x"}}), "its answer's by_length.8.tokens: "),
        (answered(by_length={"8": {"tokens": 8, "graph_ms": 1}}), "its answer's by_length.8.tokenize_ms: "),
    ],
)
def test_a_runner_that_answers_otherwise_is_refused_by_name(command: str, problem: str):
    with pytest.raises(UserError) as refused:
        asked_of(command, 0.2 if command.startswith("sleep") else 60)
    assert str(refused.value).startswith(f"--runner sh -c {shlex.quote(command)}: {problem}")


def test_a_runner_that_is_not_there_is_refused_by_name():
    with pytest.raises(UserError, match="--runner node 'x: not a command line"):
        speed.Runner.named("node 'x")
    with pytest.raises(UserError, match="--runner or --on: .*'noed'; did you mean 'node'?"):
        speed.Runner.named("noed")


# products
