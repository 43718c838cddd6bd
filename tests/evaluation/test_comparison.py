"""Two report files side by side: what changed, whether it is beyond noise, and what that means for CI."""

from __future__ import annotations

import copy
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedistill.errors import CheckFailed, UserError
from edgedistill.evaluation import bootstrap, comparison, report
from edgedistill.evaluation.suites.cosines import spearman
from tests.evaluation.test_report import made, reports
from tests.test_cli import call


def sampled(name: str = "x", noise: float = 0.2, seed: int = 0) -> dict[str, Any]:
    """A report with the cosines of 200 pairs, whose error has this size."""
    random = np.random.default_rng(seed)
    gold = np.linspace(0, 5, 200)
    cosines = gold / 5 + random.normal(0, noise, 200)
    found = made(name, "bert", "w8", 4, 1.0, spearman(cosines, gold) or 0.0)
    samples = {"cosines": cosines.tolist(), "gold": gold.tolist()}
    found["quality"]["sts7"]["tasks"] = {"A": {"all": 0.0, "samples": samples}}
    found["offline"] = {
        "texts_s": 100.0,
        "by_batch": {"budget": 100.0},
        "samples_texts_s": {"budget": [100.0] * 3},
    }
    return found


def compared(tmp_path: Path, before: Any, after: Any) -> dict[str, Any]:
    for name, given in (("a", before), ("b", after)):
        report.write(tmp_path / f"{name}.json", given if isinstance(given, list) else [given])
    return comparison.compare(tmp_path / "a.json", tmp_path / "b.json", [].append)


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {each["measure"]: each["verdict"] for each in found["changes"]}


def test_a_report_is_no_different_from_itself(tmp_path):
    found = compared(tmp_path, sampled(), sampled())
    assert verdicts(found) == dict.fromkeys(["sts7", "graph MB", "p50 ms", "texts/s"], "within noise")
    assert found["changes"][0]["interval95"] == [0, 0]


def test_a_loss_counts_only_beyond_its_paired_interval(tmp_path):
    """The same errors a little larger are a loss; other errors of that size are none, though scores differ
    by more."""
    smaller, larger, others = sampled(noise=0.2), sampled(noise=0.205), sampled(noise=0.2, seed=3)
    with pytest.raises(CheckFailed, match=r"x:w8: sts7: \d\d\.\d\d to \d\d\.\d\d, -\d\.\d%"):
        compared(tmp_path, smaller, larger)
    assert verdicts(compared(tmp_path, larger, smaller))["sts7"] == "better"
    change = compared(tmp_path, smaller, others)["changes"][0]
    assert change["verdict"] == "within noise"
    loss = smaller["quality"]["sts7"]["average"] - larger["quality"]["sts7"]["average"]
    assert abs(change["after"] - change["before"]) > 100 * abs(loss)


def test_without_samples_half_a_per_cent_counts(tmp_path):
    before, same, worse = (made("x", "bert", "w8", 4, 1.0, score) for score in (0.7, 0.697, 0.694))
    assert verdicts(compared(tmp_path, before, same))["sts7"] == "within noise"
    with pytest.raises(CheckFailed, match=r"sts7: 70.00 to 69.40, -0.9%"):
        compared(tmp_path, before, worse)
    larger = sampled()
    larger["size_bytes"] = {"graph": 4_015_000}
    assert verdicts(compared(tmp_path, sampled(), larger))["graph MB"] == "within noise"
    larger["size_bytes"]["graph"] = 4_100_000
    with pytest.raises(CheckFailed, match=r"^x:w8: graph MB: 4.000 to 4.100, \+2.5%$") as no:
        compared(tmp_path, sampled(), larger)
    assert no.value.details["changes"][1]["verdict"] == "worse"


def slowed(factor: float, between: float = 0.02) -> dict[str, Any]:
    slower = sampled()
    single = slower["single"]
    single["p50_ms"] *= factor
    single["interval95"]["p50_ms"] = [factor * end for end in single["interval95"]["p50_ms"]]
    slower["noise"] = {"between": between}
    return slower


def test_a_slower_bundle_fails_beyond_what_the_runs_resolve(tmp_path):
    with pytest.raises(CheckFailed, match=r"x:w8: p50 ms: .*\+50.0%"):
        compared(tmp_path, sampled(), slowed(1.5))
    assert verdicts(compared(tmp_path, slowed(1.5), sampled()))["p50 ms"] == "better"
    noisy = compared(tmp_path, sampled(), slowed(1.5, 0.6))["changes"][2]
    assert noisy["interval95"][0] > 0 and noisy["verdict"] == "within noise"
    slower = slowed(1.5)
    slower["noise"]["resolution"] = 0.7  # of an A/A test, which counts for more
    assert verdicts(compared(tmp_path, sampled(), slower))["p50 ms"] == "within noise"


def test_times_of_another_machine_are_not_compared(tmp_path):
    other, lines = slowed(3.0), list[str]()
    other["machine"]["cpu"], other["threads"] = "Another", 4
    other["single"]["distinct"] = 128  # of --quick
    assert set(verdicts(compared(tmp_path, sampled(), other))) == {"sts7", "graph MB"}
    comparison.compare(tmp_path / "a.json", tmp_path / "b.json", lines.append)
    assert "measured with another processor, number of threads, number of texts" in lines[0]


def test_a_suite_or_task_of_one_report_is_named(tmp_path):
    without, other = sampled(), sampled()
    del without["quality"]["sts7"]
    other["quality"]["sts7"]["tasks"]["B"] = other["quality"]["sts7"]["tasks"]["A"]
    for after in (without, other):
        with pytest.raises(CheckFailed, match="x:w8: no suite") as failed:
            compared(tmp_path, sampled(), after)
        found = failed.value.details
        assert found["not_compared"] == {"x:w8": ["sts7"]} and "sts7" not in verdicts(found)


def test_scores_of_nothing_and_below_it_may_rise(tmp_path):
    for before, after in ((0.0, 0.5), (-0.1, 0.2)):
        given = (made("x", "bert", "w8", 4, 1.0, score) for score in (before, after))
        assert verdicts(compared(tmp_path, *given))["sts7"] == "better"
    with pytest.raises(UserError, match="a.json: 2 reports of x:w8; "):
        compared(tmp_path, [sampled(), sampled(noise=0.3)], sampled())


def test_bundles_are_matched_by_title_and_single_ones_whatever_theirs(tmp_path):
    found = compared(tmp_path, reports(3), reports(4)[1:])
    assert found["only_before"] == ["the-teacher:fp32"] and found["only_after"] == ["student-1:w8"]
    assert {each["bundle"] for each in found["changes"]} == {report.title(each) for each in reports(3)[1:]}
    alone = compared(tmp_path, sampled("one"), sampled("two"))
    assert {each["bundle"] for each in alone["changes"]} == {"one:w8 to two:w8"} and alone["only_after"] == []
    with pytest.raises(
        UserError, match=r"no bundle in both: .*a.json has x:w8, .*b.json has the-teacher:fp32"
    ):
        compared(tmp_path, sampled(), reports(3))


def test_the_command(tmp_path):
    larger = copy.deepcopy(sampled())
    larger["size_bytes"]["graph"] = 5_000_000
    for name, given in (("a", sampled()), ("b", larger)):
        report.write(tmp_path / f"{name}.json", [given])
    done = call("bench", "--compare", "a.json", "b.json", "--json", folder=tmp_path)
    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[-1])["changes"][1]["change"] == pytest.approx(0.25)
    assert done.stderr.endswith("x:w8: graph MB: 4.000 to 5.000, +25.0%\n")
    done = call("bench", "--compare", "a.json", "a.json", "--html", "c.html", folder=tmp_path)
    assert done.returncode == 0 and "within noise" in done.stdout and not done.stderr
    assert '"x after"' in (tmp_path / "c.html").read_text(encoding="utf-8")
    (tmp_path / "new.json").write_text(json.dumps({**sampled(), "schema": 9}))
    for arguments, message in (
        (
            ["a.json", "none.json"],
            "none.json: no such file; make one with edgedistill bench … --out none.json",
        ),
        (["new.json", "a.json"], "new.json: schema 9, this edgedistill reads up to 1; upgrade edgedistill"),
        (
            ["a.json", "a.json", "nano"],
            "--compare: measures nothing, but nano is named too; leave one of them out",
        ),
    ):
        done = call("bench", "--compare", *arguments, folder=tmp_path)
        assert (done.returncode, done.stderr.strip()) == (2, message)


def test_a_report_file_is_shown_without_measuring(tmp_path):
    report.write(tmp_path / "a.json", reports(3))
    done = call("bench", "--from", "a.json", "--html", "a.html", folder=tmp_path)
    assert done.returncode == 0 and "the-teacher:fp32" in done.stdout
    assert "the-teacher" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert call("bench", "--from", "a.json", "--html", "a.html", folder=tmp_path).returncode == 2  # exists
    (tmp_path / "b.json").write_text('{"texts": 1}')
    done = call("bench", "--from", "b.json", folder=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("b.json: ")


def test_resampled_spearman_is_that_of_the_resample():
    """Ties and repeated pairs included: ranks are recomputed in every resample, as in scipy."""
    from scipy.stats import spearmanr

    random = np.random.default_rng(1)
    gold, cosines = random.integers(0, 6, 40).astype(float), np.round(random.random(40), 1)
    drawn = np.random.default_rng([0, zlib.crc32(b"x")])
    found = bootstrap.scores("x", {"cosines": cosines.tolist(), "gold": gold.tolist()}, 3)
    for value in found:
        rows = drawn.integers(0, 40, 40)
        assert value == pytest.approx(spearmanr(cosines[rows], gold[rows]).statistic)


def test_throughput_counts_beyond_the_spread_of_its_rounds(tmp_path):
    """What rounds of one run differ by is no change."""
    before, after = sampled(), sampled()
    before["offline"] |= {"batch": "budget", "samples_texts_s": {"budget": [69.0, 100.0, 170.0]}}
    after["offline"] |= {
        "texts_s": 70.0,
        "batch": "budget",
        "samples_texts_s": {"budget": [69.0, 70.0, 71.0]},
    }
    assert verdicts(compared(tmp_path, before, after))["texts/s"] == "within noise"
    before["offline"]["samples_texts_s"]["budget"] = [99.0, 100.0, 101.0]
    with pytest.raises(CheckFailed, match=r"x:w8: texts/s: 100.0 to 70.00, -30.0%"):
        compared(tmp_path, before, after)
