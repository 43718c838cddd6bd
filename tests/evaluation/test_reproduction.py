"""bench/reproduction: the statistics on worked examples, the papers' files, and a tiny queue that is stopped,
killed and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import arm_recipe
import baselines
import judging
import numpy as np
import paper_settings
import pytest
import ranking_claims
import report_table
import run as queue
import table
import yaml
from scipy.stats import spearmanr
from typer.testing import CliRunner

from edgedistill import files
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.training import checkpoint, stage_in_progress
from tests.conftest import World, added_kinds
from tests.training.test_train import suite_of


@pytest.fixture(scope="module", autouse=True)
def known_baselines() -> Iterator[None]:
    with added_kinds(*baselines.SECTIONS):
        yield


def test_scores_are_spearmans_with_ties_or_means():
    random = np.random.default_rng(0)
    gold, rows = random.integers(0, 5, 40), random.normal(size=(3, 40)).round(1)
    drawn = random.integers(0, 40, 40)
    found = ranking_claims._scores(rows, gold, drawn)
    assert found == pytest.approx([spearmanr(row[drawn], gold[drawn]).statistic for row in rows])
    assert ranking_claims._scores(np.array([[1.0, 0.0, 1.0]]), None, np.array([0, 0, 1])) == pytest.approx(
        [2 / 3]
    )
    assert ranking_claims._scores(np.zeros((1, 4)), np.arange(4.0), None) == pytest.approx(
        [0]
    )  # a constant ranks nothing


def test_the_bootstrap_is_paired():
    """A run that is 0.25 better on every query is so on every sample; its own score varies."""
    first = np.random.default_rng(1).random(30)
    found = ranking_claims.resampled(
        [ranking_claims.Items({"q": first}, {}), ranking_claims.Items({"q": first + 0.25}, {})], 200
    )
    assert found.shape == (2, 200)
    assert np.allclose(found[1] - found[0], 0.25) and found[0].std() > 0.02
    assert found[0].std() == pytest.approx(first.std() / 30**0.5, rel=0.25)  # the standard error of a mean
    with pytest.raises(
        UserError,
        match="q: the reports cover different test items; delete the older reports and run run.py again",
    ):
        ranking_claims.resampled(
            [ranking_claims.Items({"q": first}, {}), ranking_claims.Items({"q": first[1:]}, {})], 2
        )


def test_contrasts_are_paired_by_seed():
    """Seeds differ by points, their differences by little: a − b is 1, 2 and 3 on seeds 0, 1 and 4, with a
    standard error of 1 / √3."""
    scores = {
        "a": {0: 11.0, 1: 52.0, 2: 5.0, 4: 33.0},
        "b": {0: 10.0, 1: 50.0, 4: 30.0},
        "c": {0: 1.0, 1: 1.0},
    }
    found = ranking_claims.contrasted(scores, {"a": 1, "b": -1})
    assert found.tolist() == [1, 2, 3]
    assert ranking_claims.standard_error(found) == pytest.approx(1 / 3**0.5)
    assert ranking_claims.contrasted(scores, {"a": 1, "b": -2, "c": 1}).tolist() == [-8, -47]
    assert np.isnan(ranking_claims.standard_error(found[:1]))
    assert len(ranking_claims.contrasted({"a": {0: 1.0}, "b": {1: 1.0}}, {"a": 1, "b": -1})) == 0


@pytest.mark.parametrize(
    ("differences", "interval", "expected"),
    [
        ([0.7, 0.8, 0.9], (0.2, 1.4), "reproduced"),  # 0.8 ± 4.30 · 0.058
        ([0.2, 0.8, 1.4], (0.2, 1.4), "inconclusive"),  # seeds differ as much: ± 4.30 · 0.35
        ([0.7, 0.8, 0.9], (-0.1, 1.7), "inconclusive"),  # test pairs do
        ([-0.7, -0.8, -0.9], (-1.4, -0.2), "contradicted"),
        ([0.10, 0.11, 0.12], (0.09, 0.13), "equal"),  # surely above 0, yet by less than 0.2
        ([-0.2, -0.8, -1.4], (-1.4, -0.2), "inconclusive"),
        ([0.7, 0.8, 0.9], None, "reproduced"),
        ([-0.7, -0.8, -0.9], None, "contradicted"),
        ([0.0, 0.0, 0.0], (0.0, 0.3), "inconclusive"),
        ([0.8, 0.8], (0.2, 1.4), "not judged: 2 of 3 seeds"),
        ([], None, "not judged: 0 of 3 seeds"),
    ],
)
def test_verdicts(differences: list[float], interval: tuple[float, float] | None, expected: str):
    assert ranking_claims.verdict(np.array(differences), interval) == expected


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([-1.5, -3.2, 0.1], True),
        ([1.0, 9.0, 30.0], True),  # 13.3 ± 4.30 · 8.6
        ([29.0, 30.0, 31.0], False),
        ([-1.5, -3.2], False),  # not yet known
    ],
)
def test_a_student_that_learned_nothing(scores: list[float], expected: bool):
    assert ranking_claims.at_chance(np.array(scores)) == expected


def test_every_paper_is_ready():
    """Every variant's recipe parses with its changes, under a name of its own, after the runs it reads."""
    papers = ranking_claims.papers()
    assert set(papers) == {"congen", "distilcse", "multi-stage", "sra", "text-level"}
    for paper in papers.values():
        order = list(paper.variants)
        assert len({ranking_claims.slug(variant, 1) for variant in order}) == len(order)
        for variant in order:
            spec = queue.variant_recipe(paper, variant, 1, Path("runs"))
            assert (spec.seed, spec.name) == (1, ranking_claims.slug(variant, 1))
            assert "{run:" not in spec.model_dump_json()
            assert all(
                order.index(other) < order.index(variant) for other in arm_recipe.runs_before(paper, variant)
            )
        assert all(ranking.suite in (None, *paper.suites) for ranking in paper.ranking_claims)


@pytest.mark.parametrize("name", ["congen", "distilcse", "multi-stage", "sra", "text-level"])
def test_every_arm_is_the_papers_or_the_page_says_why_not(name: str):
    paper, stated = ranking_claims.papers()[name], paper_settings.read(name)
    assert len(stated.settings) >= 9
    assert paper_settings.problems(paper, stated) == []
    page = (ranking_claims.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert "\n".join(paper_settings.markdown(paper, stated)) in page, (
        f"run python bench/reproduction/table.py --only {name}"
    )


def test_a_deviation_that_is_not_stated_is_a_problem():
    paper = ranking_claims.papers()["congen"]

    def problems(**setting: Any) -> list[str]:
        stated = {"settings": [{"key": "teacher.max_tokens", "paper": 128, "where": "x"}, setting]}
        return paper_settings.problems(paper, paper_settings.PaperSettings.model_validate(stated))

    batch = {"key": "stages.0.batch", "where": "§4.1", "arms": ["congen", "seed"]}
    assert problems(**batch, paper=128) == []
    deviates, unlisted = problems(**batch, paper=512)
    assert "congen, seed has 128, the paper 512" in deviates and "is not listed" in unlisted
    assert problems(**batch, paper=512, why="small") == [unlisted]
    everywhere = {**batch, "arms": None}
    assert problems(**everywhere, paper=512, why="small") == []
    assert "no arm deviates" in problems(**batch, paper=128, why="small")[0]
    assert "no arm 'congem'" in problems(**{**batch, "arms": ["congem"]}, paper=128)[0]
    assert "no arm has this key" in problems(key="stages.0.bath", where="x", paper=128)[0]


def write(folder: Path, world: World) -> Path:
    stage = {
        "name": "distil",
        "objective": {"kind": "cosine"},
        "steps": 4,
        "batch": 8,
        "bucket": 2,
        "learning_rate": 1e-2,
    }
    select = {"suite": suite_of(world), "every": 2}
    (folder / "base.yaml").write_text(
        yaml.safe_dump(world.recipe(stages=[stage], select=select)), encoding="utf-8"
    )
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
            {
                "claim": "early in training too",
                "reported": "2 > 1",
                "at_step": 2,
                "contrast": {"a second": 1, "a": -1},
            },
            {"claim": "or not", "reported": "3 > 1", "contrast": {"none": 1, "a": -1}},
        ],
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(paper), encoding="utf-8")
    (folder / "base.yaml").rename(folder / "base.yml")
    text = (folder / "tiny.yaml").read_text(encoding="utf-8").replace("base.yaml", "base.yml")
    (folder / "tiny.yaml").write_text(text, encoding="utf-8")
    return folder


def test_a_tiny_queue_from_recipes_to_a_page(world: World, tmp_path, monkeypatch):
    home, runs, reports = write(tmp_path, world), tmp_path / "runs", tmp_path / "reports"
    papers, suite = queue.chosen(None, home), suite_of(world)
    logged: list[str] = []
    workspace = queue.Workspace(runs, reports, Session(data=world.data, log=logged.append))

    def work(minutes: float | None = None) -> dict[str, list[str]]:
        return queue.work(papers, 1, minutes, workspace)

    assert work(minutes=0.0)["left"] == ["tiny/a-s0", "tiny/a-second-s0", "tiny/none-s0"]
    with monkeypatch.context() as patch:  # killed after training, before the run folder is written
        patch.setattr(
            stage_in_progress.StageInProgress,
            "hand_over",
            lambda self: (_ for _ in ()).throw(KeyboardInterrupt()),
        )
        patch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            work()
    assert (runs / "tiny" / "a-s0.partial").exists()
    first = work()
    assert (first["done"], first["failed"]) == (["tiny/a-s0", "tiny/a-second-s0"], ["tiny/none-s0"])
    assert any("resuming from step" in line for line in logged)
    again = work()
    assert (again["kept"], again["done"]) == (first["done"], [])

    report = files.read_json(reports / "tiny" / "a-second-s0.json")
    assert (report["seed"], report["passes"], report["student_samples"]) == (0, 64, 64)
    assert report["curve"].keys() == {"2", "4", "6", "8"}
    loaded, older = judging.load(papers["tiny"], reports)
    assert {variant: len(each) for variant, each in loaded.items()} == {"a": 1, "a second": 1, "none": 0}
    assert older == []
    average = report["suites"][suite]["average"]
    assert loaded["a second"][0]["items"][suite].score() == pytest.approx(average, abs=1e-6)

    options = {"--papers": home, "--reports": reports, "--out": tmp_path / "pages", "--resamples": 50}
    page = CliRunner().invoke(table.app, [str(part) for option in options.items() for part in option])
    assert page.exit_code == 0, page.output
    text = (tmp_path / "pages" / "tiny.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("| longer is better"))
    means = {name: 100 * each[0]["suites"][suite]["average"] for name, each in loaded.items() if each}
    assert f"| {means['a second'] - means['a']:+.2f}" in line
    assert line.endswith("| 1 | **not judged: 1 of 3 seeds** |")
    assert "**not judged: no reports for `none`** |" in text

    # a variant whose settings change: its reports stand for it no longer, and are kept aside when it is run
    # again
    changed = yaml.safe_load((home / "tiny.yaml").read_text(encoding="utf-8"))
    changed["variants"]["a"]["set"] = ["stages.0.batch=4"]
    (home / "tiny.yaml").write_text(yaml.safe_dump(changed), encoding="utf-8")
    paper = ranking_claims.papers(home)["tiny"]
    loaded, older = judging.load(paper, reports)
    assert (len(loaded["a"]), len(loaded["a second"]), len(older)) == (0, 1, 1)
    text = table.markdown(paper, (loaded, older), paper_settings.read("tiny", home), 50)
    assert "`stages.0.batch` 8 → 4" in text and "Not yet run: `a`, `none`." in text
    with pytest.raises(UserError, match="a-s0: was trained with other settings"):
        queue.train_and_measure(paper, "a", 0, workspace)
    elsewhere = queue.Workspace(tmp_path / "again", reports, workspace.session)
    queue.train_and_measure(paper, "a", 0, elsewhere)
    assert {path.stem for path in (reports / "tiny").glob("a-s0*.json")} == {"a-s0", "a-s0.older"}

    # joined into one table the reports are the same, and the queue finds them there
    before = judging.load(paper, reports)
    assert report_table.join(reports, "tiny") == 3 and not list((reports / "tiny").iterdir())
    joined = judging.load(paper, reports)
    assert len(joined[1]) == len(before[1])
    (one,), (other,) = before[0]["a"], joined[0]["a"]
    assert {**one, "items": None} == {**other, "items": None}
    assert one["items"][suite].score() == other["items"][suite].score()
    assert queue.Job("tiny", "a", 0) not in queue.unfinished({"tiny": paper}, 1, elsewhere)


def test_other_circumstances_and_a_teacher_in_a_folder(world: World, tmp_path):
    """A counterpart has its changes after the variant's; the hub's teacher is read from a folder, and the
    report names it and its hash."""
    home, reports = write(tmp_path, world), tmp_path / "reports"
    plain = yaml.safe_load((home / "tiny.yaml").read_text(encoding="utf-8"))
    changes = ["teacher.model=owner/tiny", "teacher.revision=main", "stages.0.steps=2"]
    counterparts = {"a": [], "a second": ["stages.0.steps=6"]}
    other = {"name": "other", "about": "Other than above.", "set": changes, "variants": counterparts}

    def paper_of(circumstances: dict[str, Any]) -> ranking_claims.Paper:
        changed = {**plain, "circumstances": circumstances}
        (home / "tiny.yaml").write_text(yaml.safe_dump(changed), encoding="utf-8")
        return ranking_claims.papers(home)["tiny"]

    with pytest.raises(UserError, match="circumstances: no variant 'c'"):
        paper_of({**other, "variants": {"c": []}})
    paper = paper_of(other)
    assert list(paper.variants) == ["a", "a second", "none", "other a", "other a second"]
    assert paper.variants["other a second"].set == ["stages.0.steps=8", *changes, "stages.0.steps=6"]
    assert paper.judged_again()[0].contrast == {"other a second": 1, "other a": -1}
    assert list(queue.chosen(None, home, "other")["tiny"].variants) == ["other a", "other a second"]
    with pytest.raises(UserError, match="--under: .*'others'"):
        queue.chosen(None, home, "others")

    session = Session(data=world.data, log=lambda line: None)
    workspace = queue.Workspace(tmp_path / "runs", reports, session, teacher=world.teacher)
    queue.train_and_measure(paper, "other a", 0, workspace)
    path = reports / "tiny" / "other-a-s0.json"
    report, sha256 = files.read_json(path), files.sha256_file(world.teacher / "model.safetensors")
    assert (report["teacher"], report["teacher_weights"], report["passes"]) == ("owner/tiny@main", sha256, 16)
    assert str(tmp_path) not in path.read_text(encoding="utf-8").replace(report["recipe"], "")
    text = table.markdown(paper, judging.load(paper, reports), paper_settings.PaperSettings(settings=[]), 50)
    assert f"owner/tiny@main (sha256 of model.safetensors: {sha256})" in text and "Other than above." in text


def test_the_commands_explain_themselves(tmp_path):
    for app in (queue.app, table.app):
        shown = CliRunner().invoke(app, ["--help"])
        assert shown.exit_code == 0 and "Example: python bench/reproduction/" in shown.output
        assert CliRunner().invoke(app, ["--only", "congem"]).exit_code == 2
    changed = CliRunner().invoke(queue.app, ["--only", "congen", "--set", "stages.0.steps=1"])
    assert changed.exit_code == 2 and "--reports" in changed.output
    (tmp_path / "bad.yaml").write_text("paper: bad\nabouf: x\n", encoding="utf-8")
    with pytest.raises(UserError, match="bad.yaml: abouf: "):
        ranking_claims.papers(tmp_path)
