"""bench/reproduction: the statistics on worked examples, the papers' files, and a tiny queue that is stopped, killed and resumed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import spearmanr
from typer.testing import CliRunner

from edgedistill import files, recipe
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.session import Session
from edgedistill.training import checkpoint, loop
from tests.conftest import World
from tests.training.test_train import suite_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "reproduction"))
import ranking_claims
import run as queue
import table


def test_scores_are_spearmans_with_ties_or_means() -> None:
    random = np.random.default_rng(0)
    gold, rows = random.integers(0, 5, 40).astype(float), random.normal(size=(3, 40)).round(1)
    drawn = random.integers(0, 40, 40)
    found = ranking_claims._scores(rows, gold, drawn)
    assert found == pytest.approx([spearmanr(row[drawn], gold[drawn]).statistic for row in rows])
    assert ranking_claims._scores(np.array([[1.0, 0.0, 1.0]]), None, np.array([0, 0, 1])) == pytest.approx([2 / 3])
    assert ranking_claims._scores(np.zeros((1, 4)), np.arange(4.0), None) == pytest.approx([0])  # a constant ranks nothing
    items = ranking_claims.Items(
        {"a": np.array([1.0, 2, 3]), "b": np.array([1.0, 2, 3])}, {"a": np.array([1.0, 2, 3]), "b": np.array([3.0, 2, 1])}
    )
    assert items.score() == pytest.approx(0)  # ρ 1 and −1


def test_the_bootstrap_is_paired() -> None:
    """A run that is 0.25 better on every query is so on every sample; its own score varies."""
    first = np.random.default_rng(1).random(30)
    found = ranking_claims.resampled([ranking_claims.Items({"q": first}, {}), ranking_claims.Items({"q": first + 0.25}, {})], 200)
    assert found.shape == (2, 200)
    assert np.allclose(found[1] - found[0], 0.25) and found[0].std() > 0.02
    assert found[0].std() == pytest.approx(first.std() / 30**0.5, rel=0.25)  # the standard error of a mean
    assert np.array_equal(
        found, ranking_claims.resampled([ranking_claims.Items({"q": first}, {}), ranking_claims.Items({"q": first + 0.25}, {})], 200)
    )
    with pytest.raises(UserError, match="q: the reports cover different test items; delete the older reports and run run.py again"):
        ranking_claims.resampled([ranking_claims.Items({"q": first}, {}), ranking_claims.Items({"q": first[1:]}, {})], 2)


def test_contrasts_by_hand() -> None:
    """a: 1, 3 (mean 2, variance 2); b: 0, 1, 2 (mean 1, variance 1): pooled over 1 + 2 degrees of freedom √((2 + 2) / 3)."""
    scores = {"a": np.array([1.0, 3.0]), "b": np.array([0.0, 1.0, 2.0]), "c": np.array([5.0])}
    assert ranking_claims.contrasted(scores, {"a": 1, "b": -1}) == pytest.approx((1, (4 / 3) ** 0.5))
    assert ranking_claims.contrasted(scores, {"a": 1, "c": -1}) == pytest.approx((-3, 2**0.5))  # one seed has no variance
    assert ranking_claims.contrasted(scores, {"a": 2, "b": -1, "c": -0.5})[0] == pytest.approx(0.5)
    mean, deviation = ranking_claims.contrasted({"a": np.array([1.0]), "b": np.array([0.0])}, {"a": 1, "b": -1})
    assert mean == 1 and np.isnan(deviation)


@pytest.mark.parametrize(
    ("mean", "deviation", "interval", "expected"),
    [
        (0.8, 0.3, (0.2, 1.4), "reproduced"),
        (0.8, 0.9, (0.2, 1.4), "inconclusive"),  # seeds differ as much
        (0.8, 0.3, (-0.1, 1.7), "inconclusive"),  # test pairs do
        (-0.8, 0.3, (-1.4, -0.2), "contradicted"),
        (-0.8, 0.3, (-1.4, 0.1), "inconclusive"),
        (-0.8, 0.9, (-1.4, -0.2), "inconclusive"),
        (0.8, 0.3, None, "reproduced"),
        (-0.8, 0.3, None, "contradicted"),
        (0.0, 0.0, (0.0, 0.0), "inconclusive"),
        (0.8, float("nan"), (0.2, 1.4), "inconclusive"),
    ],
)
def test_verdicts(mean: float, deviation: float, interval: tuple[float, float] | None, expected: str) -> None:
    assert ranking_claims.verdict(mean, deviation, interval) == expected


def test_every_paper_is_ready() -> None:
    """Every variant's recipe parses with its changes, under a name of its own."""
    found = ranking_claims.papers()
    assert {name: (len(paper.variants), len(paper.ranking_claims)) for name, paper in found.items()} == {
        "congen": (8, 8),
        "distilcse": (12, 8),
        "multi-stage": (14, 14),
        "sra": (11, 7),
        "text-level": (13, 15),
    }
    for paper in found.values():
        names = {ranking_claims.slug(variant, 1) for variant in paper.variants}
        assert len(names) == len(paper.variants)
        for variant in paper.variants:
            spec = queue.variant_recipe(paper, variant, 1, Path("runs"))
            assert (spec.seed, spec.name) == (1, ranking_claims.slug(variant, 1))
        assert all(ranking.suite in (None, *paper.suites) for ranking in paper.ranking_claims)


def write(folder: Path, world: World) -> Path:
    stage = {"name": "distil", "objective": {"kind": "cosine"}, "steps": 4, "batch": 8, "bucket": 2, "learning_rate": 1e-2}
    select = {"suite": suite_of(world), "every": 2}
    (folder / "base.yaml").write_text(yaml.safe_dump(world.recipe(stages=[stage], select=select)), encoding="utf-8")
    paper = {
        "paper": "tiny",
        "about": "Tiny.",
        "source": "nobody",
        "suites": [suite_of(world)],
        "set": [],
        "variants": {
            "a": {"recipe": str(folder / "base.yaml")},
            "a second": {"recipe": str(folder / "base.yaml"), "set": ["stages.0.steps=8"]},
            "none": {"recipe": "not-there"},
        },
        "ranking_claims": [
            {"claim": "longer is better", "reported": "2 > 1", "contrast": {"a second": 1, "a": -1}},
            {"claim": "early in training too", "reported": "2 > 1", "at_step": 2, "contrast": {"a second": 1, "a": -1}},
            {"claim": "or not", "reported": "3 > 1", "contrast": {"none": 1, "a": -1}},
        ],
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(paper), encoding="utf-8")
    (folder / "base.yaml").rename(folder / "base.yml")
    text = (folder / "tiny.yaml").read_text(encoding="utf-8").replace("base.yaml", "base.yml")
    (folder / "tiny.yaml").write_text(text, encoding="utf-8")
    return folder


def test_a_tiny_queue_from_recipes_to_a_page(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, runs, reports = write(tmp_path, world), tmp_path / "runs", tmp_path / "reports"
    found = queue.chosen(None, home)
    assert list(queue.queue(found, 2))[:4] == [("tiny", "a", 0), ("tiny", "a second", 0), ("tiny", "none", 0), ("tiny", "a", 1)]

    logged: list[str] = []
    workspace = queue.Workspace(runs, reports, Session(data=world.data, log=logged.append))

    def work(minutes: float | None = None) -> dict[str, list[str]]:
        return queue.work(found, 2, minutes, workspace)

    assert work(minutes=0.0)["left"] == [f"tiny/{name}-s{seed}" for seed in (0, 1) for name in ("a", "a-second", "none")]
    with monkeypatch.context() as patch:  # killed after training, before the run folder is written
        patch.setattr(loop.Loop, "_hand_over", lambda self: (_ for _ in ()).throw(KeyboardInterrupt()))
        patch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            work()
    assert (runs / "tiny" / "a-s0.partial").exists()
    first = work()
    assert first["done"] == ["tiny/a-s0", "tiny/a-second-s0", "tiny/a-s1", "tiny/a-second-s1"]
    assert first["failed"] == ["tiny/none-s0", "tiny/none-s1"]
    assert any("resuming from step" in line for line in logged) and any("no recipe 'not-there'" in line for line in logged)
    again = work()
    assert (again["kept"], again["done"]) == (first["done"], [])

    suite = scoring.suite(suite_of(world))
    report = files.read_json(reports / "tiny" / "a-second-s1.json")
    assert (report["seed"], report["passes"], report["curve"].keys()) == (1, 64, {"2", "4", "6", "8"})
    average = report["suites"][suite_of(world)]["average"]
    reports_ = table.load(found["tiny"], reports)
    assert {variant: len(each) for variant, each in reports_.items()} == {"a": 2, "a second": 2, "none": 0}
    assert reports_["a second"][1]["items"][suite_of(world)].score() == pytest.approx(average, abs=1e-6)
    assert suite.tasks.keys() == report["suites"][suite_of(world)]["tasks"].keys()

    page = CliRunner().invoke(
        table.app, ["--papers", str(home), "--reports", str(reports), "--out", str(tmp_path / "pages"), "--resamples", "50"]
    )
    assert page.exit_code == 0, page.output
    text = (tmp_path / "pages" / "tiny.md").read_text(encoding="utf-8")
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    averages = {name: [each["suites"][suite_of(world)]["average"] for each in own] for name, own in reports_.items() if own}
    means = {name: 100 * np.mean(values) for name, values in averages.items()}
    assert f"| {means['a second'] - means['a']:+.2f} ± " in lines["longer is better"] and " … " in lines["longer is better"]
    assert "selection, step 2" in lines["early in training too"] and " … " not in lines["early in training too"]
    assert lines["or not"].endswith("**not run**: no reports for `none` |")
    assert "1 not run" in text
    assert any(line.startswith("| a second (`") and "| 2 | 64 |" in line for line in text.splitlines())


def test_the_commands_explain_themselves(tmp_path: Path) -> None:
    for app in (queue.app, table.app):
        shown = CliRunner().invoke(app, ["--help"])
        assert shown.exit_code == 0 and "Example: python bench/reproduction/" in shown.output
        refused = CliRunner().invoke(app, ["--only", "congem"])
        assert refused.exit_code == 2
    (tmp_path / "bad.yaml").write_text("paper: bad\nabouf: x\n", encoding="utf-8")
    with pytest.raises(UserError, match="bad.yaml: abouf: Extra inputs are not permitted"):
        ranking_claims.papers(tmp_path)
    good = {"paper": "x", "about": "", "source": "", "suites": ["sts7"], "set": [], "variants": {"a": {"recipe": "bert-2x128"}}}
    unknown = {**good, "ranking_claims": [{"claim": "c", "reported": "", "contrast": {"a": 1, "b": -1}}]}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(unknown), encoding="utf-8")
    with pytest.raises(UserError, match="no variant 'b'"):
        ranking_claims.papers(tmp_path)


def test_queries_one_by_one_average_to_the_suite_score(tmp_path: Path) -> None:
    """nDCG of three queries, among them one that finds nothing."""
    import json

    from edgedistill.evaluation.suites import retrieval

    rows = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(("x", "y", "z"))]
    (tmp_path / "corpus.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "queries.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n0\t0\t1\n1\t1\t1\n2\t0\t1\n", encoding="utf-8")
    (tmp_path / "suite.yaml").write_text("name: t\nkind: retrieval\ntasks: [{name: T, folder: .}]\n", encoding="utf-8")
    suite = scoring.suite(tmp_path / "suite.yaml")
    where = {"x": [1.0, 0.0], "y": [0.0, 1.0], "z": [-1.0, 0.1]}

    def encode(texts: list[str]) -> np.ndarray:
        return np.array([where[text] for text in texts], np.float32)

    values, texts = retrieval.each_query(suite.tasks["T"], encode)
    assert (values, texts) == (pytest.approx([1.0, 1.0, 0.5]), 3)  # third place: 1 / log2(4)
    assert scoring.evaluate(suite, encode)["average"] == pytest.approx(2.5 / 3)
    assert queue._retrieval(suite, encode)["T"][0].tolist() == pytest.approx(values)
    assert isinstance(recipe.read("bert-2x128"), recipe.Recipe)
