"""bench/reproduction: the statistics on worked examples, the papers' files, and a tiny queue that is stopped,
killed and resumed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import spearmanr
from typer.testing import CliRunner

from edgedistill import files, recipe
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.session import Session
from edgedistill.training import checkpoint, stage_in_progress
from tests.conftest import World, added_kinds
from tests.training.test_train import suite_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "reproduction"))
import arm_recipe
import baselines
import judging
import paper_settings
import ranking_claims
import report_table
import run as queue
import table


@pytest.fixture(scope="module", autouse=True)
def known_baselines() -> Iterator[None]:
    with added_kinds(*baselines.SECTIONS):
        yield


def test_scores_are_spearmans_with_ties_or_means() -> None:
    random = np.random.default_rng(0)
    gold, rows = random.integers(0, 5, 40).astype(float), random.normal(size=(3, 40)).round(1)
    drawn = random.integers(0, 40, 40)
    found = ranking_claims._scores(rows, gold, drawn)
    assert found == pytest.approx([spearmanr(row[drawn], gold[drawn]).statistic for row in rows])
    assert ranking_claims._scores(np.array([[1.0, 0.0, 1.0]]), None, np.array([0, 0, 1])) == pytest.approx(
        [2 / 3]
    )
    assert ranking_claims._scores(np.zeros((1, 4)), np.arange(4.0), None) == pytest.approx(
        [0]
    )  # a constant ranks nothing
    items = ranking_claims.Items(
        {"a": np.array([1.0, 2, 3]), "b": np.array([1.0, 2, 3])},
        {"a": np.array([1.0, 2, 3]), "b": np.array([3.0, 2, 1])},
    )
    assert items.score() == pytest.approx(0)  # ρ 1 and −1


def test_the_bootstrap_is_paired() -> None:
    """A run that is 0.25 better on every query is so on every sample; its own score varies."""
    first = np.random.default_rng(1).random(30)
    found = ranking_claims.resampled(
        [ranking_claims.Items({"q": first}, {}), ranking_claims.Items({"q": first + 0.25}, {})], 200
    )
    assert found.shape == (2, 200)
    assert np.allclose(found[1] - found[0], 0.25) and found[0].std() > 0.02
    assert found[0].std() == pytest.approx(first.std() / 30**0.5, rel=0.25)  # the standard error of a mean
    assert np.array_equal(
        found,
        ranking_claims.resampled(
            [ranking_claims.Items({"q": first}, {}), ranking_claims.Items({"q": first + 0.25}, {})], 200
        ),
    )
    with pytest.raises(
        UserError,
        match="q: the reports cover different test items; delete the older reports and run run.py again",
    ):
        ranking_claims.resampled(
            [ranking_claims.Items({"q": first}, {}), ranking_claims.Items({"q": first[1:]}, {})], 2
        )


def test_contrasts_are_paired_by_seed() -> None:
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
        ([-0.7, -0.8, -0.9], (-1.4, 0.1), "inconclusive"),
        ([-0.2, -0.8, -1.4], (-1.4, -0.2), "inconclusive"),
        ([0.7, 0.8, 0.9], None, "reproduced"),
        ([-0.7, -0.8, -0.9], None, "contradicted"),
        ([0.0, 0.0, 0.0], (0.0, 0.0), "inconclusive"),
        ([0.8, 0.8], (0.2, 1.4), "not yet: 2 of 3 seeds"),
        ([], None, "not yet: 0 of 3 seeds"),
    ],
)
def test_verdicts(differences: list[float], interval: tuple[float, float] | None, expected: str) -> None:
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
def test_a_student_that_learned_nothing(scores: list[float], expected: bool) -> None:
    assert ranking_claims.at_chance(np.array(scores)) == expected


def test_every_paper_is_ready() -> None:
    """Every variant's recipe parses with its changes, under a name of its own."""
    found = ranking_claims.papers()
    assert {name: (len(paper.variants), len(paper.ranking_claims)) for name, paper in found.items()} == {
        "congen": (15, 11),
        "distilcse": (22, 10),
        "multi-stage": (27, 34),
        "sra": (44, 35),
        "text-level": (18, 17),
    }
    assert {name: list(paper.judged_again()) for name, paper in found.items()} == {
        "congen": [0, 4, 5, 6],
        "distilcse": [0, 1, 2, 3],
        "multi-stage": [0, 1, 6, 7, 24, 25, 32, 33],
        "sra": [],
        "text-level": [10],
    }
    for paper in found.values():
        assert all(spec.about for name, spec in paper.variants.items() if name not in paper.counterparts)
        names = {ranking_claims.slug(variant, 1) for variant in paper.variants}
        assert len(names) == len(paper.variants)
        order = list(paper.variants)
        for variant in paper.variants:
            spec = queue.variant_recipe(paper, variant, 1, Path("runs"))
            assert (spec.seed, spec.name) == (1, ranking_claims.slug(variant, 1))
            assert "{run:" not in spec.model_dump_json()
            assert all(
                order.index(other) < order.index(variant) for other in arm_recipe.runs_before(paper, variant)
            )
        assert all(ranking.suite in (None, *paper.suites) for ranking in paper.ranking_claims)


@pytest.mark.parametrize("name", ["congen", "distilcse", "multi-stage", "sra", "text-level"])
def test_every_arm_is_the_papers_or_the_page_says_why_not(name: str) -> None:
    paper, stated = ranking_claims.papers()[name], paper_settings.read(name)
    assert len(stated.settings) >= 9
    assert paper_settings.problems(paper, stated) == []
    page = (ranking_claims.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert "\n".join(paper_settings.markdown(paper, stated)) in page, (
        f"run python bench/reproduction/table.py --only {name}"
    )


def test_a_deviation_that_is_not_stated_is_a_problem() -> None:
    paper = ranking_claims.papers()["congen"]

    def problems(**setting: Any) -> list[str]:
        stated = paper_settings.PaperSettings.model_validate(
            {"settings": [{"key": "teacher.max_tokens", "paper": 128, "where": "x"}, setting]}
        )
        return paper_settings.problems(paper, stated)

    batch = {"key": "stages.0.batch", "where": "§4.1", "arms": ["congen", "seed"]}
    assert problems(**batch, paper=128) == []
    others = ", ".join(arm for arm in paper.variants if arm not in ("teacher", "congen", "seed"))
    unlisted = f"stages.0.batch: {others} has 128 and is not listed for it; list it"
    assert problems(**batch, paper=512) == [
        "stages.0.batch: congen, seed has 128, the paper 512 (§4.1); say why",
        unlisted,
    ]
    assert problems(**batch, paper=512, why="small") == [unlisted]
    assert problems(**{**batch, "arms": None}, paper=512, why="small") == []
    assert problems(**batch, paper=128, why="small") == [
        "stages.0.batch: no arm deviates from 128; leave `why` out"
    ]
    assert problems(**{**batch, "arms": ["congem"]}, paper=128) == [
        "stages.0.batch: no arm 'congem'; correct the name"
    ]
    window = {"key": "stages.0.sorting_window", "where": "code", "arms": ["l2"]}
    others = ", ".join(arm for arm in paper.variants if arm not in ("teacher", "l2"))
    assert problems(**window, paper=100) == [
        "stages.0.sorting_window: l2 has 1, the paper 100 (code); say why",
        f"stages.0.sorting_window: {others} has 1 and is not listed for it; list it",
    ]
    rate = {"key": "stages.0.learning_rate", "where": "§4.1", "paper": 5e-4}
    assert problems(**rate, arms=["congen"]) == []
    lower = {"set": ["stages.0.learning_rate=3.0e-4"]}
    changed = paper.model_copy(
        update={"variants": {**paper.variants, "l2": paper.variants["l2"].model_copy(update=lower)}}
    )
    stated = paper_settings.PaperSettings.model_validate(
        {"settings": [{**rate, "arms": ["congen"]}, {**batch, "arms": None, "paper": 128}]}
    )
    assert paper_settings.problems(changed, stated) == [
        "stages.0.learning_rate: l2 has 0.0003 and is not listed for it; list it"
    ]
    typo = {"key": "stages.0.bath", "where": "x", "paper": 128}
    assert problems(**typo) == ["stages.0.bath: no arm has this key; correct it"]
    alone = paper_settings.PaperSettings.model_validate({"settings": [{**batch, "paper": 128}]})
    assert "l2: no setting is held against it; list its own" in paper_settings.problems(paper, alone)


def test_two_arms_are_one_only_with_the_same_settings() -> None:
    paper = ranking_claims.papers()["congen"]
    first = arm_recipe.composition_of(paper, "congen", 0)
    assert first == arm_recipe.composition(queue.variant_recipe(paper, "congen", 2, Path("elsewhere")))
    assert first["stages.0.bucket"] == 1 and first["stages.0.bias_correction"] is False
    sorted_ = arm_recipe.composition(
        queue.variant_recipe(paper, "congen", 0, Path("runs"), ("stages.0.bucket=100",))
    )
    assert {key for key in {**first, **sorted_} if first.get(key) != sorted_.get(key)} == {"stages.0.bucket"}
    sra = ranking_claims.papers()["sra"]
    taught = arm_recipe.composition(queue.variant_recipe(sra, "kd 50%", 2, Path("runs")))
    assert taught["stages.0.teacher.run"] == "run:teacher-50pct"


def test_claims_are_judged_again_at_equal_steps_and_from_the_same_start() -> None:
    """Within a claim the counterparts differ in nothing but what it is about."""
    found = ranking_claims.papers()

    def differing(paper: str, one: str, other: str) -> set[str]:
        first, second = (arm_recipe.composition_of(found[paper], name, 0) for name in (one, other))
        return {key for key in {**first, **second} if first.get(key, "default") != second.get(key, "default")}

    objective = {
        f"stages.0.objective.{key}"
        for key in ("kind", "queue", "temperature", "teacher_temperature", "alpha", "normalize")
    }
    assert differing("distilcse", "pretrained ckd", "pretrained kd") - objective == {"stages.0.clip"}
    assert differing("distilcse", "pretrained two-stage ckd", "pretrained two-stage kd") == {
        "student.weights",
        "student.tokenizer",
    }
    assert differing("congen", "pretrained congen", "pretrained l2") - objective == {"stages.0.view.kind"}
    assert differing("congen", "pretrained seed", "pretrained ckd") <= objective
    assert differing("text-level", "pretrained softcos", "pretrained mse") <= objective
    assert differing("multi-stage", "full b128 m3", "full once") == {"student.repeats"}
    assert all(
        key.startswith("stages.2.objective")
        for key in differing("multi-stage", "full b128 m3", "full no mcl")
    )

    def steps(variant: str) -> int:
        stages = queue.variant_recipe(found["multi-stage"], variant, 0, Path("runs")).distilling
        return sum(stage.steps or 0 for stage in stages)

    assert steps("full single") == steps("full assistant") + steps("full b128 m3")
    assert (
        steps("full b128 m3") == steps("full once") == steps("full no mcl") == steps("b128 m3") * 4400 / 350
    )
    chain = queue.variant_recipe(found["multi-stage"], "full once", 2, Path("runs"))
    assert chain.assistant is not None and chain.assistant.model == "runs/multi-stage/full-assistant-s0"
    second = queue.variant_recipe(found["distilcse"], "pretrained two-stage kd", 2, Path("runs"))
    assert second.student.kind == "bert" and second.student.weights == "runs/distilcse/pretrained-kd-s2"


def test_a_part_of_a_suite_is_found_in_a_report_of_more() -> None:
    tasks = {"es-es": {"all": 0.7}, "es-en": {"all": 0.5}}
    items = ranking_claims.Items(
        {name: np.arange(3.0) for name in tasks}, {name: np.arange(3.0) for name in tasks}
    )
    report = {
        "suites": {"sts17:es-en,es-es": {"kind": "sts", "average": 0.6, "tasks": tasks}},
        "items": {"sts17:es-en,es-es": items},
    }
    assert (judging.part_of(report, "sts17:es-en") or {})["average"] == 0.5
    assert (judging.part_of(report, "sts17:es-en,es-es") or {})["average"] == 0.6
    assert judging.part_of(report, "sts17:en-en") is None and judging.part_of(report, "xsts:es-en") is None
    part = judging.items_of(report, "sts17:es-en")
    assert part is not None and part.found.keys() == part.gold.keys() == {"es-en"}


def test_a_claim_is_judged_although_other_variants_are_measured_on_another_task() -> None:
    """SST-2's test items are not MRPC's, though the suite of both is called `task`."""
    variants = {name: {"recipe": "not-there"} for name in ("sst2 sra", "sst2 random", "mrpc sra")}
    claim = {"claim": "sra is better", "reported": "2 > 1", "contrast": {"sst2 sra": 1, "sst2 random": -1}}
    paper = ranking_claims.Paper.model_validate(
        {
            "paper": "p",
            "about": "",
            "source": "",
            "suites": ["task"],
            "set": [],
            "variants": variants,
            "ranking_claims": [claim],
        }
    )

    def reports(correct: list[float]) -> list[dict[str, Any]]:
        suites = {"task": {"kind": "task", "average": float(np.mean(correct)), "tasks": {}}}
        items = {"task": ranking_claims.Items({"test": np.array(correct)}, {})}
        return [{"seed": seed, "suites": suites, "items": items} for seed in range(3)]

    found = {
        "sst2 sra": reports([1, 1, 1, 0]),
        "sst2 random": reports([1, 0, 1, 0]),
        "mrpc sra": reports([1, 0]),
    }
    ((judgement, _),) = judging.judged(paper, found, 50)
    assert (judgement.seeds, judgement.mean, judgement.over_seeds) == (
        3,
        pytest.approx(25),
        pytest.approx((25, 25)),
    )
    assert judgement.over_items is not None and judgement.over_items[0] < 25 < judgement.over_items[1]

    # a seed that only one of them has counts neither for the difference nor for its interval
    more = reports([1, 0, 0, 0])[0] | {"seed": 3}
    assert judging.judged(paper, {**found, "sst2 sra": [*found["sst2 sra"], more]}, 50) == [(judgement, None)]


def test_older_runs_of_one_arm_are_averaged_only_within_a_composition() -> None:
    paper = ranking_claims.papers()["congen"]
    now = arm_recipe.composition_of(paper, "l2", 0)

    def report(steps: int, average: float) -> dict[str, Any]:
        return {
            "arm": "l2",
            "seed": 0,
            "teacher": "t",
            "settings": now | {"stages.0.steps": steps},
            "suites": {"sts7": {"average": average}},
        }

    text = table.markdown(
        paper,
        ({name: [] for name in paper.variants}, [report(7, 0.1), report(8, 0.3), report(7, 0.2)]),
        paper_settings.read("none"),
    )
    assert "| l2 | sts7 | 15.00 ± 7.07 | 2 | `stages.0.steps` 7 → 1000 |" in text
    assert "| l2 | sts7 | 30.00 | 1 | `stages.0.steps` 8 → 1000 |" in text


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


def test_a_tiny_queue_from_recipes_to_a_page(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, runs, reports = write(tmp_path, world), tmp_path / "runs", tmp_path / "reports"
    found = queue.chosen(None, home)
    assert list(queue.queue(found, 2))[:4] == [
        ("tiny", "a", 0),
        ("tiny", "a second", 0),
        ("tiny", "none", 0),
        ("tiny", "a", 1),
    ]

    logged: list[str] = []
    workspace = queue.Workspace(runs, reports, Session(data=world.data, log=logged.append))

    def work(minutes: float | None = None) -> dict[str, list[str]]:
        return queue.work(found, 2, minutes, workspace)

    assert work(minutes=0.0)["left"] == [
        f"tiny/{name}-s{seed}" for seed in (0, 1) for name in ("a", "a-second", "none")
    ]
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
    assert first["done"] == ["tiny/a-s0", "tiny/a-second-s0", "tiny/a-s1", "tiny/a-second-s1"]
    assert first["failed"] == ["tiny/none-s0", "tiny/none-s1"]
    assert any("resuming from step" in line for line in logged) and any(
        "no recipe 'not-there'" in line for line in logged
    )
    again = work()
    assert (again["kept"], again["done"]) == (first["done"], [])

    suite = scoring.suite(suite_of(world))
    report = files.read_json(reports / "tiny" / "a-second-s1.json")
    assert (report["seed"], report["passes"], report["curve"].keys()) == (1, 64, {"2", "4", "6", "8"})
    assert (
        report["student_samples"],
        report["dtype"] in ("float32", "bfloat16"),
        report["settings"]["stages.0.steps"],
    ) == (64, True, 8)
    average = report["suites"][suite_of(world)]["average"]
    reports_, older = judging.load(found["tiny"], reports)
    assert older == []
    assert {variant: len(each) for variant, each in reports_.items()} == {"a": 2, "a second": 2, "none": 0}
    assert reports_["a second"][1]["items"][suite_of(world)].score() == pytest.approx(average, abs=1e-6)
    assert suite.tasks.keys() == report["suites"][suite_of(world)]["tasks"].keys()

    page = CliRunner().invoke(
        table.app,
        [
            "--papers",
            str(home),
            "--reports",
            str(reports),
            "--out",
            str(tmp_path / "pages"),
            "--resamples",
            "50",
        ],
    )
    assert page.exit_code == 0, page.output
    text = (tmp_path / "pages" / "tiny.md").read_text(encoding="utf-8")
    lines = {
        line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")
    }
    averages = {
        name: [each["suites"][suite_of(world)]["average"] for each in own]
        for name, own in reports_.items()
        if own
    }
    means = {name: 100 * np.mean(values) for name, values in averages.items()}
    assert (
        f"| {means['a second'] - means['a']:+.2f} ± " in lines["longer is better"]
        and " … " in lines["longer is better"]
    )
    assert lines["longer is better"].endswith("| 2 | **not yet: 2 of 3 seeds** |")
    assert (
        "selection, step 2" in lines["early in training too"] and " … " not in lines["early in training too"]
    )
    assert lines["or not"].endswith("**not run**: no reports for `none` |")
    assert "1 not run" in text
    assert any(line.startswith("| a second (`") and "| 2 | 64 |" in line for line in text.splitlines())

    # a variant whose settings change: its reports stand for it no longer, and are kept aside when it is run
    # again
    changed = yaml.safe_load((home / "tiny.yaml").read_text(encoding="utf-8"))
    changed["variants"]["a"]["set"] = ["stages.0.batch=4"]
    (home / "tiny.yaml").write_text(yaml.safe_dump(changed), encoding="utf-8")
    paper = ranking_claims.papers(home)["tiny"]
    now, older = judging.load(paper, reports)
    assert ([len(now[name]) for name in ("a", "a second")], len(older)) == ([0, 2], 2)
    text = table.markdown(paper, (now, older), paper_settings.read("tiny", home), 50)
    assert (
        "## Older compositions" in text
        and "`stages.0.batch` 8 → 4" in text
        and "Not yet run: `a`, `none`." in text
    )
    with pytest.raises(
        UserError,
        match="a-s0: was trained with other settings; delete it, or give another folder with --runs",
    ):
        queue.train_and_measure(paper, "a", 0, workspace)
    elsewhere = queue.Workspace(tmp_path / "again", reports, workspace.session)
    queue.train_and_measure(paper, "a", 0, elsewhere)
    assert sorted(path.stem for path in (reports / "tiny").glob("a-s[0-9]*.json")) == [
        "a-s0",
        "a-s0.older",
        "a-s1",
    ]
    now, older = judging.load(paper, reports)
    assert (len(now["a"]), len(older)) == (1, 2)

    # joined into one table the reports are the same, and the queue finds them there
    assert report_table.join(reports, "tiny") == 5 and not list((reports / "tiny").iterdir())
    joined, older_ones = judging.load(paper, reports)
    assert older_ones == older and joined.keys() == now.keys()
    for variant, before in now.items():
        for one, other in zip(before, joined[variant], strict=True):
            assert {**one, "items": None} == {**other, "items": None}
            for suite_name, items in one["items"].items():
                for kind in ("found", "gold"):
                    values, again_ = getattr(items, kind), getattr(other["items"][suite_name], kind)
                    assert (
                        all(np.array_equal(values[task], again_[task]) for task in values)
                        and values.keys() == again_.keys()
                    )
    assert queue.Job("tiny", "a", 0) not in queue.unfinished({"tiny": paper}, 1, elsewhere)

    # a report of other settings takes the place of the table's, which stays as an older one
    content, items_ = report_table.read_one(reports, "tiny", "a-s0"), {"x/y/found": np.zeros(2, np.float32)}
    assert content is not None
    report_table.write(reports / "tiny" / "a-s0.json", {**content, "settings": {"stages.0.batch": 2}}, items_)
    assert report_table.join(reports, "tiny") == 1
    names = {name: content["settings"] for name, content, _ in report_table.read(reports, "tiny")}
    assert names["a-s0"] == {"stages.0.batch": 2} and names["a-s0.older"] == content["settings"]


def test_other_circumstances_and_a_teacher_in_a_folder(world: World, tmp_path: Path) -> None:
    """A counterpart has its changes after the variant's; the hub's teacher is read from a folder, and the
    report names it and its hash."""
    home, reports = write(tmp_path, world), tmp_path / "reports"
    plain = yaml.safe_load((home / "tiny.yaml").read_text(encoding="utf-8"))
    plain["variants"].pop("none")
    plain["variants"]["b"] = {"recipe": str(home / "base.yml"), "set": ["assistant={model: '{run:a}'}"]}
    plain["ranking_claims"] = [
        {**plain["ranking_claims"][0], "note": "Chance."},
        {**plain["ranking_claims"][1], "control": True},
    ]
    own = {"a": [], "a second": ["stages.0.steps=6"]}
    changes = ["teacher.model=owner/tiny", "teacher.revision=main", "stages.0.steps=2"]
    plain["circumstances"] = {"name": "other", "about": "Other than above.", "set": changes, "variants": own}

    def paper_of(**changed: Any) -> ranking_claims.Paper:
        (home / "tiny.yaml").write_text(yaml.safe_dump({**plain, **changed}), encoding="utf-8")
        return ranking_claims.papers(home)["tiny"]

    paper = paper_of()
    assert list(paper.variants) == ["a", "a second", "b", "other a", "other a second"]
    assert paper.variants["other a second"].set == ["stages.0.steps=8", *changes, "stages.0.steps=6"]
    assert paper.judged_again()[0].contrast == {"other a second": 1, "other a": -1}
    assert list(queue.chosen(None, home, "other")["tiny"].variants) == ["other a", "other a second"]
    with pytest.raises(UserError, match="--under: no paper that was chosen has circumstances 'others'"):
        queue.chosen(None, home, "others")
    reads = paper_of(circumstances={**plain["circumstances"], "variants": {"b": [], "a": []}, "set": []})
    assert reads.variants["other b"].set == ["assistant={model: '{run:other a}'}"]
    alone = paper_of(circumstances={**plain["circumstances"], "variants": {"b": []}, "set": []})
    assert alone.variants["other b"].set == ["assistant={model: '{run:a}'}"] and alone.judged_again() == {}
    assert list(queue.chosen(None, home, "other")["tiny"].variants) == ["a", "other b"]
    with pytest.raises(UserError, match="circumstances: no variant 'c'"):
        paper_of(circumstances={**plain["circumstances"], "variants": {"c": []}})

    paper, session = paper_of(), Session(data=world.data, log=lambda line: None)
    workspace = queue.Workspace(tmp_path / "runs", reports, session, teacher=world.teacher)
    queue.train_and_measure(paper, "a", 0, workspace)
    assert [job.variant for job in queue.unfinished({"tiny": paper}, 1, workspace)] == [
        "a second",
        "b",
        "other a",
        "other a second",
    ]
    for variant in ("a second", "other a", "other a second"):
        queue.train_and_measure(paper, variant, 0, workspace)
    report = files.read_json(reports / "tiny" / "other-a-s0.json")
    sha256 = files.sha256_file(world.teacher / "model.safetensors")
    assert (report["teacher"], report["teacher_weights"], report["passes"]) == ("owner/tiny@main", sha256, 16)
    assert str(tmp_path) not in (reports / "tiny" / "other-a-s0.json").read_text(encoding="utf-8").replace(
        report["recipe"], ""
    )
    loaded = judging.load(paper, reports)
    assert [len(found) for found in loaded[0].values()] == [1, 1, 0, 1, 1] and loaded[1] == []
    text = table.markdown(paper, loaded, paper_settings.PaperSettings(settings=[]), 50)
    assert f"owner/tiny@main (sha256 of model.safetensors: {sha256})" in text and "Other than above." in text
    first, again = (line for line in text.splitlines() if line.startswith("| longer is better"))
    assert first.endswith("| **not yet: 1 of 3 seeds** | not yet: 1 of 3 seeds |") and again.endswith(
        "| **not yet: 1 of 3 seeds** |"
    )
    assert (
        "Verdicts of `other`: 1 not yet." in text
        and "Verdicts with this teacher, corpus and student: 1 not yet." in text
    )
    assert text.index("Comparisons of our own") < text.rindex("| early in training too")
    assert "* longer is better (not yet: 1 of 3 seeds, `other` not yet: 1 of 3 seeds): Chance." in text
    assert "## Data" in text and ", and 40 held out." in text


def test_a_verdict_that_is_not_the_papers_needs_a_word() -> None:
    paper = ranking_claims.papers()["congen"]
    claims = [each.model_copy(update={"note": ""}) for each in paper.ranking_claims[:4]]

    def judged(number: int, verdict: str, mean: float) -> judging.Judgement:
        return judging.Judgement(claims[number], "sts7", [], verdict, 3, mean)

    pairs = [
        (judged(0, "reproduced", 1.0), judged(0, "reproduced", 2.0)),
        (judged(1, "contradicted", -1.0), None),
        (judged(2, "inconclusive", 1.0), judged(2, "reproduced", 1.0)),
        (judged(3, "inconclusive", -1.0), judged(3, "reproduced", 1.0)),
    ]
    assert table._notes(paper, pairs)[2:-1] == [
        f"* {claims[1].claim} (contradicted): Cause not yet known.",
        f"* {claims[2].claim} (inconclusive, `pretrained` reproduced): "
        "One of them does not decide it; both differences have the same sign.",
        f"* {claims[3].claim} (inconclusive, `pretrained` reproduced): Cause not yet known.",
    ]


def test_texts_embedded_and_files_read() -> None:
    """A pair's two sides and a triple's three columns count; a report of samples alone is enough where all
    stages are alike."""
    found = ranking_claims.papers()
    qqp = queue.variant_recipe(found["sra"], "qqp random", 0, Path("runs"))
    assert [arm_recipe.texts_embedded(stage) for stage in qqp.stages] == [2]
    assert arm_recipe.files_read(qqp) == ["transfer/qqp/dev.tsv.gz", "transfer/qqp/test.tsv.gz"]
    two = queue.variant_recipe(found["distilcse"], "two-stage kd", 0, Path("runs"))
    assert [arm_recipe.texts_embedded(stage) for stage in two.stages] == [1, 3]
    assert table._embedded(found["congen"], "dual-l2", [{"passes": 500}]) == "1,000"
    assert table._embedded(found["distilcse"], "two-stage kd", [{"passes": 500}]) == "—"
    assert (
        table._embedded(found["distilcse"], "two-stage kd", [{"passes": 500, "student_samples": 700}])
        == "700"
    )


def test_a_run_that_is_gone_is_trained_again_where_another_reads_it(world: World, tmp_path: Path) -> None:
    home = write(tmp_path, world)
    plain = yaml.safe_load((home / "tiny.yaml").read_text(encoding="utf-8"))
    base = plain["variants"]["a"]["recipe"]
    plain["variants"] = {
        "a": {"recipe": base},
        "alone": {"recipe": base},
        "b": {"recipe": base, "set": ["teacher.model={run:a}"]},
    }
    plain["ranking_claims"] = []
    found = {"tiny": ranking_claims.Paper.model_validate(plain)}
    workspace = queue.Workspace(
        tmp_path / "runs", tmp_path / "reports", Session(data=world.data, log=lambda line: None)
    )
    for variant in ("a", "alone"):
        queue.train_and_measure(found["tiny"], variant, 0, workspace)
    reported = (workspace.reports / "tiny" / "a-s0.json").read_bytes()
    shutil.rmtree(workspace.runs)
    assert queue.unfinished(found, 1, workspace) == [("tiny", "a", 0), ("tiny", "b", 0)]
    assert queue.hours(found, 1, workspace)[1] == 0
    result = queue.work(found, 1, None, workspace)
    assert (result["kept"], result["done"]) == (["tiny/alone-s0"], ["tiny/a-s0", "tiny/b-s0"])
    assert (workspace.reports / "tiny" / "a-s0.json").read_bytes() == reported
    shutil.rmtree(workspace.runs)
    assert queue.unfinished(found, 1, workspace) == []  # nothing is left to read it


class Finished:
    """A process that ends at once, or after `polls` looks at it."""

    def __init__(self, status: int, polls: int) -> None:
        self.returncode, self.polls = status, polls

    def poll(self) -> int | None:
        self.polls -= 1
        return self.returncode if self.polls < 0 else None


def test_jobs_wait_for_the_runs_they_read_and_for_the_first_to_embed(world: World, tmp_path: Path) -> None:
    base = str(write(tmp_path, world) / "base.yml")
    paper = ranking_claims.Paper.model_validate(
        {
            "paper": "tiny",
            "about": "",
            "source": "",
            "suites": ["mini"],
            "set": [],
            "variants": {
                "first": {"recipe": base, "shared": True},
                "second": {"recipe": base},
                "other texts": {"recipe": base, "set": ["corpus.held_out=41"]},
                "reads": {"recipe": base, "set": ["teacher.model={run:other texts}"]},
            },
            "ranking_claims": [],
        }
    )
    begun: list[tuple[str, int]] = []
    seen: list[set[str]] = []
    alive: dict[str, Finished] = {}

    def start(job: queue.Job) -> Any:
        seen.append({title for title, process in alive.items() if process.polls >= 0})
        begun.append((job.variant, job.seed))
        alive[job.variant] = Finished(int(job == ("tiny", "second", 1)), 2)
        return alive[job.variant]

    workspace = queue.Workspace(
        tmp_path / "runs", tmp_path / "reports", Session(data=world.data, log=lambda line: None)
    )
    result = queue.work_side_by_side({"tiny": paper}, 2, None, workspace, start, 2)
    assert begun[:2] == [
        ("first", 0),
        ("other texts", 0),
    ]  # `second` would embed the texts that `first` is embedding
    assert len(begun) == 7 and ("first", 1) not in begun
    assert begun.index(("reads", 0)) > begun.index(("other texts", 0)) and begun.index(
        ("reads", 1)
    ) > begun.index(("other texts", 1))
    assert max(len(each) for each in seen) == 1  # the other of two
    assert result["failed"] == ["tiny/second-s1"] and len(result["done"]) == 6
    assert queue.work_side_by_side({"tiny": paper}, 1, 0.0, workspace, start, 2)["left"] == [
        f"tiny/{name}-s0" for name in ("first", "second", "other-texts", "reads")
    ]


def test_the_hours_come_from_earlier_reports(world: World, tmp_path: Path) -> None:
    home, reports = write(tmp_path, world), tmp_path / "reports"
    paper = ranking_claims.papers(home)["tiny"].model_copy(update={"ranking_claims": []})
    paper.variants.pop("none")
    workspace = queue.Workspace(tmp_path / "runs", reports, Session(data=world.data))
    assert queue.hours({"tiny": paper}, 2, workspace) == (0, 4)
    report = {"arm": "a", "seconds": 1800, "passes": 32, "suites": {suite_of(world): {}}, "settings": {}}
    files.write_json(reports / "tiny" / "a-s0.json", report)
    # a: half an hour for each of two seeds; a second: twice the texts
    assert queue.hours({"tiny": paper}, 2, workspace) == (pytest.approx(1 + 2), 0)
    files.write_json(
        reports / "tiny" / "a-s0.json", {**report, "settings": arm_recipe.composition_of(paper, "a", 0)}
    )
    assert queue.hours({"tiny": paper}, 2, workspace) == (pytest.approx(0.5 + 2), 0)
    # from nothing: no report of one's own, but those that ship tell how long it takes
    hours, unknown = queue.hours({"congen": ranking_claims.papers()["congen"]}, 1, workspace)
    assert hours > 1 and unknown == 0


def test_the_commands_explain_themselves(tmp_path: Path) -> None:
    for app in (queue.app, table.app):
        shown = CliRunner().invoke(app, ["--help"])
        assert shown.exit_code == 0 and "Example: python bench/reproduction/" in shown.output
        refused = CliRunner().invoke(app, ["--only", "congem"])
        assert refused.exit_code == 2
    changed = CliRunner().invoke(queue.app, ["--only", "congen", "--set", "stages.0.steps=1"])
    assert changed.exit_code == 2 and "give another folder with --reports" in changed.output
    (tmp_path / "bad.yaml").write_text("paper: bad\nabouf: x\n", encoding="utf-8")
    with pytest.raises(UserError, match="bad.yaml: abouf: Extra inputs are not permitted"):
        ranking_claims.papers(tmp_path)
    good = {
        "paper": "x",
        "about": "",
        "source": "",
        "suites": ["sts7"],
        "set": [],
        "variants": {"a": {"recipe": "bert-2x128"}},
    }
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
    (tmp_path / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\n0\t0\t1\n1\t1\t1\n2\t0\t1\n", encoding="utf-8"
    )
    (tmp_path / "suite.yaml").write_text(
        "name: t\nkind: retrieval\ntasks: [{name: T, folder: .}]\n", encoding="utf-8"
    )
    suite = scoring.suite(tmp_path / "suite.yaml")
    where = {"x": [1.0, 0.0], "y": [0.0, 1.0], "z": [-1.0, 0.1]}

    def encode(texts: list[str]) -> np.ndarray:
        return np.array([where[text] for text in texts], np.float32)

    found = retrieval.rankings(suite.tasks["T"], scoring.Encoder.of(encode), scoring.Search())[""]
    values, texts = found["samples"]["scores"], found["texts"]
    assert (values, texts) == (pytest.approx([1.0, 1.0, 0.5]), 3)  # third place: 1 / log2(4)
    assert scoring.evaluate(suite, encode)["average"] == pytest.approx(2.5 / 3)
    assert queue._retrieval(suite, encode)["T"][0].tolist() == pytest.approx(values)
    assert isinstance(recipe.read("bert-2x128"), recipe.Recipe)
