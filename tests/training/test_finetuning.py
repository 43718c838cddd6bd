"""Fine-tuning on the tiny world: losses by hand, the same bytes after a kill, what is exported says what
torch says, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import edgedistill
from edgedistill import files, recipe, run
from edgedistill.data import added_texts, labelled_tasks
from edgedistill.data.token_cache import TokenCache
from edgedistill.errors import CheckFailed, UserError
from edgedistill.evaluation import bench, scoring, speed
from edgedistill.evaluation.suites import labelled_task, sts
from edgedistill.export import bundle_writer
from edgedistill.objectives import classification
from edgedistill.objectives.classification import pair_features
from edgedistill.planning import cost
from edgedistill.runtime import verify
from edgedistill.runtime.manifest import digest
from edgedistill.session import Session
from edgedistill.students import classifier
from edgedistill.students.classifier import Classifier
from edgedistill.teacher import tokenizer_files
from edgedistill.training import finetuning, train
from edgedistill.training.inputs.batches import Batches
from edgedistill.training.stage_in_progress import StageInProgress
from tests.conftest import World, sentences

ANIMALS = ("cat", "dog")
BILSTM = {"kind": "bilstm", "width": 12, "hidden": 8}
PLAN = speed.MeasurementPlan(queries=4, warmups=1, rounds=1, seconds=0.0, resamples=2)


def quiet(line: str):
    pass


def write_tasks(data: Path):
    """single.*: is it about an animal? pair.*: do both begin with the same words? three.tsv: another label in
    dev."""
    for name, seed, count in (("train", 31, 240), ("dev", 32, 80), ("test", 33, 80)):
        texts = sentences(count, seed)
        rows = [
            f"{'animal' if any(word in text for word in ANIMALS) else 'person'}\t{text}" for text in texts
        ]
        (data / f"single.{name}.tsv").write_text(
            "\n".join(["kind\tsentence", *rows]) + "\n", encoding="utf-8"
        )
        others = sentences(count, seed + 10)
        paired = [
            (text, text.split()[0] + " " + other if at % 2 else other)
            for at, (text, other) in enumerate(zip(texts, others, strict=True))
        ]
        rows = [f"{at % 2}\t{a}\t{b}" for at, (a, b) in enumerate(paired)]
        (data / f"pair.{name}.tsv").write_text("\n".join(["label\tone\ttwo", *rows]) + "\n", encoding="utf-8")


def single(**more: Any) -> dict[str, Any]:
    files_ = {name: f"single.{name}.tsv" for name in ("dev", "test")}
    return {"files": ["single.train.tsv"], "columns": ["sentence"], "label": "kind", **files_, **more}


def pair(**more: Any) -> dict[str, Any]:
    files_ = {name: f"pair.{name}.tsv" for name in ("dev", "test")}
    return {"files": ["pair.train.tsv"], "columns": ["one", "two"], "label": "label", **files_, **more}


def stage(task: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "kind": "finetune",
        "rows": task,
        "hidden": 16,
        "steps": 30,
        "batch": 16,
        "learning_rate": 5e-3,
        **more,
    }


def go(
    world: World, out: Path, last: dict[str, Any], resume: bool = False, distil: bool = False, **changes: Any
) -> dict[str, Any]:
    stages = [*(world.recipe()["stages"] if distil else []), last]
    spec = world.spec(**{"student": BILSTM, "stages": stages, **changes})
    return train.train(spec, out, Session(data=world.data, log=quiet), resume=resume)


@pytest.fixture(scope="module")
def tasks(world: World) -> World:
    write_tasks(world.data)
    return world


@pytest.fixture(scope="module")
def tuned(tasks: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runs/ and bundles/: `one`, distilled and fine-tuned on single texts; `two`, on pairs from random;
    `teacher`, of single texts."""
    folder = tmp_path_factory.mktemp("tuned")
    go(tasks, folder / "runs/one", stage(single(), steps=120), distil=True)
    go(tasks, folder / "runs/two", stage(pair(), dropout=0.1, learning_rate=2e-2, steps=90))
    go(
        tasks,
        folder / "runs/teacher",
        stage(single(), learning_rate=3e-3, steps=60),
        student={"kind": "teacher"},
    )
    for name in ("one", "two", "teacher"):
        precisions = ["fp32"] if name == "teacher" else ["fp32", "w8", "int8"]
        bundle_writer.export(folder / "runs" / name, precisions, folder / "bundles" / name, quiet)
    return folder


# Formulas


def test_the_loss_by_hand():
    """One row, logits (2, 0), label 0, teacher (1, 1): CE = log(1 + e⁻²), MSE = (1 + 1) / 2."""
    logits, labels, teacher = torch.tensor([[2.0, 0.0]]), torch.tensor([0]), torch.tensor([[1.0, 1.0]])
    cross = float(np.log(1 + np.exp(-2)))
    assert float(classification.loss(logits, labels, None, 1.0)) == pytest.approx(cross)
    assert float(classification.loss(logits, labels, teacher, 0.0)) == pytest.approx(1.0)
    assert float(classification.loss(logits, labels, teacher, 0.25)) == pytest.approx(0.25 * cross + 0.75)


@pytest.mark.parametrize("rates", [{"learning_rate": 1e36}, {"learning_rates": [1e-3, 1e36]}], ids=str)
def test_a_rate_that_diverges_is_named(tasks: World, tmp_path, rates: dict[str, Any]):
    spec = recipe.parse(tasks.recipe(student=BILSTM, stages=[stage(pair(), steps=4)]), "test")
    # rates that break the weights of a tiny student at once are above what recipes take
    spec = spec.model_copy(update={"stages": [spec.stages[0].model_copy(update=rates)]})
    with pytest.raises(
        UserError,
        match=rf"^stages\[0\].{next(iter(rates))}: finetune.* diverged at 1e\+36: .* at step \d; ",
    ):
        train.train(spec, tmp_path / "run", Session(data=tasks.data, log=quiet))
    # a learning rate that is done is kept, as every checkpoint
    assert [path.name for path in tmp_path.iterdir()] == (
        ["run.partial"] if "learning_rates" in rates else []
    )


def test_the_pair_head_by_hand():
    u, v = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 1.0]])
    assert pair_features(u, v).tolist() == [[1, -2, 3, 1, 2, 3, 3, -2]]


def test_the_papers_sizes():
    """§3.4: with the pair head of three labels 4,908,035 beside the word table, with a single one of two
    4,317,954."""
    from edgedistill.students import bilstm, kinds

    spec = recipe.BiLSTM(kind="bilstm")
    encoder = bilstm.build(bilstm.shape(spec, 10, 0, 768))
    for labels, is_pair, total in ((3, True, 4_908_035), (2, False, 4_317_954)):
        counted = classifier.parameters(
            kinds.parameters(encoder), Classifier(encoder, 768, labels, is_pair, 256)
        )
        assert counted["encoder"] + counted["head"] == total
        assert counted["total"] == total + 10 * 300


def test_scores_by_hand():
    found, gold = np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0])
    assert labelled_task.scores(found, gold, ["0", "1"]) == {
        "accuracy": 0.5,
        "f1": 0.5,
    }
    gold = np.array(
        [1, 1, 1, 0]
    )  # of 1: 2 hits of 2 found and 3 gold: 4/5; of 0: 1 hit of 2 found and 1 gold: 2/3
    assert labelled_task.scores(found, gold, ["0", "1"])["f1"] == pytest.approx(0.8)
    assert labelled_task.scores(found, gold, ["0", "1", "2"])["f1"] == pytest.approx((0.8 + 2 / 3 + 0) / 3)


# Tasks


def test_a_fraction_is_drawn_label_by_label_and_lies_in_a_larger():
    labels = np.repeat([0, 1], [80, 20])
    small, large = (
        labelled_tasks.stratified_mask(labels, 0.2, 3),
        labelled_tasks.stratified_mask(labels, 0.5, 3),
    )
    assert [int(each[:80].sum()) for each in (small, large)] == [16, 40]
    assert [int(each[80:].sum()) for each in (small, large)] == [4, 10]
    assert not (small & ~large).any()
    assert (labelled_tasks.stratified_mask(labels, 0.5, 4) != large).any()
    assert (
        labelled_tasks.stratified_mask(np.repeat([0, 1], [9, 1]), 0.01, 0).sum() == 2
    )  # one of each at least


def quiet_session(folder: Path) -> Session:
    return Session(data=folder, cache_folder=folder / ".cache", log=quiet)


def opened(
    spec: recipe.Rows, folder: Path, fraction: float = 1.0, session: Session | None = None
) -> labelled_tasks.LabelledTask:
    return labelled_tasks.open_task(spec, session or quiet_session(folder), 0, fraction, "stages[0].rows")


FILE: dict[str, Any] = {"files": ["t.tsv"], "columns": ["sentence"], "label": "label"}


def test_labels_in_order_and_dev_rows_set_aside(tmp_path):
    rows = [f"{(7, 10, 9)[at % 3]}\ttext {at}" for at in range(60)]
    (tmp_path / "t.tsv").write_text("\n".join(["label\tsentence", *rows]), encoding="utf-8")
    (tmp_path / "other.xlsx").write_bytes(b"PK")
    session = quiet_session(tmp_path)
    task = opened(recipe.Rows(**{**FILE, "files": ["."]}, dev_rows=12), tmp_path, 0.5, session)
    reading = session.reading
    assert reading.files == 1 and "not read: 1 .xlsx" in reading.line
    assert task.labels == ["7", "9", "10"]
    assert (len(task.dev.labels), len(task.train.labels)) == (12, 24)
    assert not set(task.dev.items) & set(task.train.items)
    labels = {f"text {at}": (7, 10, 9)[at % 3] for at in range(60)}
    assert [int(task.labels[at]) for at in task.dev.labels] == [labels[text] for (text,) in task.dev.items]


def test_rows_to_train_on_are_distinct_and_those_measured_are_whole(tmp_path):
    rows = ["0\tone", "1\ttwo", "0\tone", "1\tone", "0\tthree", "1\t"]
    measured = ["0\tfour", "1\tfive", "0\tfour", "1\tfour", "0\tsix", "1\t"]
    for name, others in (("t.tsv", ["1\tFOUR.", "0\tSeven"]), ("dev.tsv", measured)):
        lines = ["label\tsentence", *(others if name == "dev.tsv" else rows + others)]
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    spec = recipe.Rows(**FILE, dev="dev.tsv")
    elsewhere = added_texts.measured(["seven"])  # held out
    task = labelled_tasks.open_task(spec, quiet_session(tmp_path), 0, 1.0, "rows", elsewhere)
    assert task.train.items == [("one",), ("two",), ("one",), ("three",)]
    assert task.train.labels.tolist() == [0, 1, 1, 0]
    assert len(task.train.sides[0]) == 3  # a text is stored, and tokenized, once
    assert len(task.dev) == 6 and task.dev.label_counts == {"0": 3, "1": 3}


def test_a_hub_data_set_by_its_class_names(tmp_path):
    datasets: Any = pytest.importorskip("datasets")
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    for name, numbers in (("train", [0, 1, 1, 0]), ("validation", [1, 0]), ("test", [-1, -1])):
        table = datasets.Dataset.from_dict(
            {"sentence": [f"{name} {at}" for at in range(len(numbers))], "label": numbers}, features=features
        )
        table.to_parquet(str(tmp_path / "set" / f"{name}.parquet"))
    spec = recipe.Rows(
        dataset=str(tmp_path / "set"), revision="main", columns=["sentence"], label="label", dev="validation"
    )
    task = opened(spec, tmp_path)
    assert (task.labels, task.train.labels.tolist()) == (["no", "yes"], [0, 1, 1, 0])
    assert task.train.items[1] == ("train 1",)
    with pytest.raises(
        UserError,
        match=r"stages\[0\].rows.test: row 1 has the label -1: labels are hidden, as in GLUE's test sets",
    ):
        opened(spec.model_copy(update={"test": "test"}), tmp_path)
    with pytest.raises(
        UserError, match="no column 'text'; did you mean 'sentence'|no column 'text'; choose one"
    ):
        opened(spec.model_copy(update={"columns": ["text"]}), tmp_path)


BAD = [
    (
        "label\tsentence\n1\ta\n0\tb\n1\tc\n0\td\n",
        "label\tsentence\n1\tq\n2\tr\n",
        r"dev: the label '2' does not occur in train \(0, 1\)",
    ),
    (
        "label\tsentence\n1\ta\n0\tb\n1\tc\n0\td\n",
        "label\tsentence\n1\tq\n",
        r"dev: the label '0' is missing, and occurs in train",
    ),
    (
        "label\tsentence\n1\ta\n \tb\n",
        "label\tsentence\n1\tq\n",
        "files: a.tsv: row 2 has a blank 'label'; give it a label",
    ),
    (
        "label\tsentence\n1\ta\n1\tb\n",
        "label\tsentence\n1\tq\n",
        "all 2 rows have the label '1', and a classifier needs two",
    ),
    ("lable\tsentence\n1\ta\n", "label\tsentence\n1\ta\n", "no column 'label'; did you mean 'lable'"),
    (
        "label\tsentence\nx\ta\ny\tb\nz\tc\n",
        "label\tsentence\nx\tq\n",
        "3 different labels in 3 rows; name the column",
    ),
    ("label\tsentence\n", "label\tsentence\nx\ta\n", r"stages\[0\].rows: no row is left of 0 read"),
]


@pytest.mark.parametrize(("trained", "dev", "says"), BAD, ids=[says[:24] for *_, says in BAD])
def test_tasks_that_cannot_be(tmp_path, trained: str, dev: str, says: str):
    (tmp_path / "a.tsv").write_text(trained, encoding="utf-8")
    (tmp_path / "b.tsv").write_text(dev, encoding="utf-8")
    with pytest.raises(UserError, match=says):
        opened(recipe.Rows(**FILE | {"files": ["a.tsv"], "dev": "b.tsv"}), tmp_path)


def test_stages_that_cannot_be(tasks: World, tmp_path):
    one, distil = stage(single()), tasks.recipe()["stages"]
    for changes, says in [
        ({"stages": [one, *distil]}, r"stages\[0\]: a finetune stage must be the last"),
        (
            {"stages": [{**one, "augment": {}}]},
            r"stages\[0\]: `augment` makes unlabelled texts; give a `teacher`",
        ),
        (
            {"stages": [{**one, "rows": FILE}]},
            r"stages\[0\].rows: give either `dev` or `dev_rows`: one of them must select the weights",
        ),
        ({"stages": [{**one, "learning_rates": [0.1, 0.1]}]}, "must be positive and distinct"),
    ]:
        with pytest.raises(UserError, match=says):
            recipe.parse(tasks.recipe(**changes), "test")
    with pytest.raises(UserError, match=r"stages\[0\].batch: 512 of a task of 233 training rows; lower it"):
        go(tasks, tmp_path / "a", stage(single(), batch=512))


# Training


def test_it_learns_its_task(tuned: Path):
    for name in ("one", "teacher"):
        info = run.open_run(tuned / "runs" / name).info
        assert info["task"]["test"]["accuracy"] > 0.95, name
        assert info["task"]["dev"]["accuracy"] == max(
            line["dev"] for line in lines(tuned / "runs" / name) if line["stage"] == "finetune"
        )
    info = run.open_run(tuned / "runs/one").info
    assert [each["name"] for each in info["stages"]] == ["distil", "finetune"]
    assert info["task"]["rows"]["train"]["rows"] == 233  # 7 are texts of dev or test, too
    assert (
        sum(info["parameters"][part] for part in ("embedding", "encoder", "head"))
        == info["parameters"]["total"]
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def same(one: Path, other: Path):
    """Two runs have the same weights and the same measurements, but for their speed."""
    for file in ("student.safetensors", "head.safetensors"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file
    measured = [[{**line, "texts_s": 0} for line in lines(folder)] for folder in (one, other)]
    assert measured[0] == measured[1]


def test_distilled_or_begun_from_a_run_is_the_same(tuned: Path, tasks: World, tmp_path):
    """Two stages in one recipe, and a run of the first that a second recipe starts from, differ in the seed
    of the stage alone."""
    spec = recipe.parse(tasks.recipe(student=BILSTM), "test")
    train.train(spec, tmp_path / "first", Session(data=tasks.data, log=quiet))
    go(
        tasks,
        tmp_path / "second",
        stage(single(), steps=1, learning_rate=1e-9),
        student={"weights": str(tmp_path / "first")},
    )
    (earlier,) = run.open_run(tmp_path / "second").info["earlier"]
    assert earlier["recipe"] == run.open_run(tmp_path / "first").recipe.name
    first, second = (load_file(tmp_path / name / "student.safetensors") for name in ("first", "second"))
    assert all(torch.allclose(first[name], second[name], atol=1e-6) for name in first)


def test_stopped_and_resumed_gives_the_same_bytes(tuned: Path, tasks: World, tmp_path):
    """Stopped in the second learning rate, with dropout, a teacher and a transfer set: this rate begins
    again; the first one, the teacher's logits and the stage before do not."""
    last = stage(
        single(),
        learning_rates=[1e-3, 4e-3],
        steps=20,
        dropout=0.2,
        every=10,
        teacher={"run": str(tuned / "runs/teacher"), "alpha": 0.3},
        augment={"limit": 400},
    )
    info = go(tasks, tmp_path / "whole", last, distil=True)
    assert info["task"]["augmented"] > 100
    assert [each["rate"] for each in info["task"]["tried"]] == [1e-3, 4e-3]

    def stop(line: str):
        if line.startswith("finetune at 0.004: step 10 of 20"):
            raise InterruptedError

    spec = recipe.parse(tasks.recipe(student=BILSTM, stages=[*tasks.recipe()["stages"], last]), "test")
    with pytest.raises(InterruptedError):
        train.train(spec, tmp_path / "cut", Session(data=tasks.data, log=stop))
    assert not (tmp_path / "cut").exists()
    assert len((tmp_path / "cut.partial/metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 3
    logged = list[str]()
    train.train(spec, tmp_path / "cut", Session(data=tasks.data, log=logged.append), resume=True)
    again = ("at 0.001: step", "logits of", "distil: ")
    assert not [line for line in logged if any(each in line for each in again)]
    same(tmp_path / "cut", tmp_path / "whole")
    whole, cut = (files.read_json(tmp_path / name / "run.json") for name in ("whole", "cut"))
    assert (whole["task"], whole["stages"]) == (cut["task"], cut["stages"])


def test_a_run_does_not_go_on_with_other_rows(tasks: World, tmp_path):
    rows = (tasks.data / "single.train.tsv").read_text(encoding="utf-8").splitlines()
    train_file = tasks.data / "changing.tsv"
    train_file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    last = stage({**single(), "files": ["changing.tsv"]}, learning_rates=[1e-3, 4e-3], steps=6, every=3)
    spec = recipe.parse(tasks.recipe(student=BILSTM, stages=[last]), "test")

    def stop(line: str):
        if line.startswith("finetune at 0.004: step"):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train.train(spec, tmp_path / "cut", Session(data=tasks.data, log=stop))
    train_file.write_text("\n".join(rows[:-40]) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"cut\.partial: what its rows hold has changed"):
        train.train(spec, tmp_path / "cut", Session(data=tasks.data), resume=True)


def test_a_teachers_logits_are_followed(tuned: Path, tasks: World, tmp_path):
    """With α = 0 wrong labels do no harm: the teacher alone is followed."""
    header, *rows = (tasks.data / "single.train.tsv").read_text(encoding="utf-8").splitlines()
    turned = [("animal" if row.startswith("person") else "person") + row[row.index("\t") :] for row in rows]
    (tasks.data / "turned.tsv").write_text("\n".join([header, *turned]) + "\n", encoding="utf-8")
    task = {**single(), "files": ["turned.tsv"]}
    teacher = {"run": str(tuned / "runs/teacher")}
    found = go(
        tasks, tmp_path / "a", stage(task, steps=80, teacher=teacher), student={**BILSTM, "hidden": 12}
    )
    assert found["task"]["test"]["accuracy"] > 0.9
    with pytest.raises(
        UserError,
        match=r"stages\[0\].teacher: .* has the labels animal, person for texts, this task 0, 1; give a "
        r"teacher",
    ):
        go(tasks, tmp_path / "b", stage(pair(), teacher=teacher))


def test_the_cost_counts_the_classifier_and_every_rate(tuned: Path, tasks: World):
    last = stage(pair(), learning_rates=[1e-3, 4e-3], steps=20, batch=8)
    found = cost.costs(
        [recipe.parse(tasks.recipe(student=BILSTM, stages=[last]), "test")],
        Session(data=tasks.data, log=quiet),
    )[0]
    assert found["parameters"] == files.read_json(tuned / "runs/two/run.json")["parameters"]
    assert found["labelled"] == {"train": 238, "dev": 80}
    assert found["training_samples"] == 20 * 8 * 2 * 2  # steps, batch, texts of a pair, rates
    assert "238 train, 80 dev" in cost.table(found)


def test_check_refuses_what_training_would(tasks: World, tmp_path, monkeypatch):
    """And training refuses it before it embeds, a stage that comes after others too."""
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))
    distil = tasks.recipe()["stages"]
    plain = {"run": str(tmp_path / "none")}
    wide = {"kind": "pca"}
    for change, says in (
        (
            {
                "stages": [
                    {**distil[0], "view": {"kind": "crop"}, "objective": {"kind": "congen", "queue": 5000}}
                ]
            },
            r"stages\[0\].objective: a queue of 5,000 texts",
        ),
        ({"stages": [{**distil[0], "skip_longer_than": 3}]}, None),
        (
            {"targets": {"reduce": wide, "dims": 64}},
            "targets.dims: pca cannot make 64 dimensions of the teacher's 32; lower it",
        ),
        (
            {"targets": {"reduce": wide, "dims": 16, "sample": 16}},
            "targets.dims: 16 dimensions cannot be fitted on 16 texts; add texts",
        ),
        (
            {"stages": [*distil, stage(single(), batch=512)]},
            r"stages\[1\].batch: 512 of a task of 233 training rows; lower it",
        ),
        (
            {"stages": [*distil, stage(single(), teacher=plain)]},
            r"stages\[1\]\.teacher\.run: .*none: not a run",
        ),
    ):
        spec = recipe.parse(tasks.recipe(**{"student": BILSTM, **change}), "test")
        if says is None:  # only the tokens tell
            cost.costs([spec], Session(data=tasks.data, log=quiet))[0]
        else:
            with pytest.raises(UserError, match=says):
                cost.costs([spec], Session(data=tasks.data, log=quiet))
        with pytest.raises(
            UserError,
            match=says or r"stages\[0\].skip_longer_than: no text has 3 tokens or fewer",
        ):
            train.train(spec, tmp_path / "run", Session(data=tasks.data, log=quiet))
    assert not (tmp_path / "cache" / "teachers").exists() and not list(tmp_path.glob("run*"))


def test_what_a_transfer_set_lacks_is_found_before_the_stages_ahead_of_it(
    tuned: Path, tasks: World, tmp_path, monkeypatch
):
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(StageInProgress, "__init__", lambda *_: pytest.fail("a stage began"))
    taught = {"run": str(tuned / "runs/teacher")}
    maskless = Path(shutil.copytree(tasks.teacher, tmp_path / "maskless"))
    for path in maskless.glob("*token*.json"):
        settings = json.loads(path.read_text(encoding="utf-8"))
        if settings.pop("mask_token", None) is not None:
            files.write_json(path, settings)
    last = stage(single(), teacher=taught, augment={})
    with pytest.raises(
        UserError, match=r"stages\[1\].augment.mask: the student's tokenizer has no mask token; set mask: 0"
    ):
        go(tasks, tmp_path / "masked", last, distil=True, teacher={"model": str(maskless)})


# The transfer set


def test_the_rules_one_by_one():
    words = "a b c d".split()

    def edit(**chances: float) -> list[str | None]:
        spec = recipe.Augment.model_validate({"mask": 0.0, "ngram": 0.0, **chances})
        return [labelled_tasks.edited(spec, words, "[M]", np.random.default_rng(seed)) for seed in range(400)]

    masked = [text.split() for text in edit(mask=0.3) if text]
    assert np.mean([word == "[M]" for text in masked for word in text]) == pytest.approx(0.3, abs=0.04)
    cut = [text for text in edit(ngram=0.99) if text]
    assert all(text in "a b c d" for text in cut)
    assert {len(text.split()) for text in cut} == {1, 2, 3, 4}
    gone = edit(mask=0.9)
    assert gone.count(None) > 200  # 0.9⁴ of 400: nothing of the text was left


def test_pairs_are_edited_on_either_side_and_nothing_comes_twice():
    items = [("one two three four five six", "seven eight nine ten"), ("a b c d e f", "g h i j")]
    spec = recipe.Augment(mask=0.4, ngram=0)
    made = labelled_tasks.transfer_set(spec, items, "[M]", 0)
    assert len(set(made) | set(items)) == len(made) + 2
    sides = [
        (first == items[0][0], second == items[0][1])
        for first, second in made
        if first[-3:] in ("six", "[M]") and "a" not in first
    ]
    assert {(True, False), (False, True), (False, False)} <= set(sides)
    assert (True, True) not in sides
    assert made == labelled_tasks.transfer_set(spec, items, "[M]", 0)
    assert len(labelled_tasks.transfer_set(spec.model_copy(update={"limit": 12}), items, "[M]", 0)) == 10


# On the device


@pytest.mark.parametrize("name", ["one", "two", "teacher"])
def test_the_bundle_says_what_torch_says(tuned: Path, name: str):
    opened = edgedistill.load(tuned / "bundles" / name, precision="fp32")
    texts = sentences(12, seed=50)
    items: list[Any] = (
        [(a, b[:20]) for a, b in zip(texts, reversed(texts), strict=True)] if opened.pair else texts
    )
    labels, probabilities = opened.classify(items)
    trained = run.open_run(tuned / "runs" / name)
    module = trained.classifier()
    columns = zip(*items, strict=True) if opened.pair else [items]
    ids = [tokenizer_files.encode_ids(trained.tokenizer(), list(column), 32) for column in columns]
    ends = [np.cumsum([0, *map(len, column)]) for column in ids]
    tokens = [TokenCache(np.concatenate(column), end, 0) for column, end in zip(ids, ends, strict=True)]
    rows = Batches(np.tile(np.arange(12)[:, None], len(tokens)), tokens, 32)
    logits = finetuning.logits(module, len(module.out.bias), rows, torch.device("cpu"))
    expected = torch.from_numpy(logits).softmax(-1).numpy()
    assert np.abs(probabilities - expected).max() < 1e-4
    assert labels == [trained.labels[at] for at in expected.argmax(1)]
    assert np.ptp(probabilities[:, 0]) > 0.01
    alone = np.concatenate([opened.classify([item]).probabilities for item in items])
    assert np.abs(probabilities - alone).max() < 1e-4
    swapped = opened.classify([(b, a) for a, b in items]).probabilities if opened.pair else None
    assert swapped is None or np.abs(swapped - probabilities).max() > 1e-4  # the first is not the second


@pytest.mark.parametrize("name", ["one", "two"])
def test_what_is_in_the_bundle(tuned: Path, name: str):
    folder = tuned / "bundles" / name
    manifest = files.read_json(folder / "manifest.json")
    assert manifest["labels"] == (["animal", "person"] if name == "one" else ["0", "1"])
    assert (
        manifest["inputs"]
        == ["input_ids", "attention_mask", "input_ids_2", "attention_mask_2"][: 2 if name == "one" else 4]
    )
    found = verify.verify(folder)
    assert set(found["precisions"]) == {"fp32", "w8", "int8"}
    precision, worst = max(found["precisions"].items(), key=lambda each: each[1]["apart_max"])
    about = f"{worst['apart_max']:.5f}, of item {worst['text']} in {precision}"
    assert verify.summary("x", found).endswith(f"(worst difference of probabilities {about})")
    assert manifest["precisions"]["fp32"]["parity"]["apart_max"] < 1e-4
    assert ".classify(" in (folder / "README.md").read_text(encoding="utf-8")
    for precision in ("w8", "int8"):
        assert (
            edgedistill.load(folder, precision=precision).classify([] if name == "one" else [("a", "b")])
            is not None
        )
    sizes = {precision: entry["size_bytes"] for precision, entry in manifest["precisions"].items()}
    assert sizes["w8"] < sizes["fp32"]


def test_a_changed_answer_is_found(tuned: Path, tmp_path):
    import shutil

    folder = shutil.copytree(tuned / "bundles/one", tmp_path / "one")
    golden = files.read_json(folder / "parity.json")
    golden["logits"][3] = golden["logits"][3][::-1]
    files.write_json(folder / "parity.json", golden)
    manifest = files.read_json(folder / "manifest.json")
    manifest["files"]["parity.json"] = files.sha256_file(folder / "parity.json")
    files.write_json(folder / "manifest.json", {**manifest, "digest": digest(manifest)})
    with pytest.raises(CheckFailed, match=r"item 4 of 32 .* has a probability"):
        verify.verify(folder)


def test_what_a_classifier_refuses(tuned: Path):
    one, two = (edgedistill.load(tuned / "bundles" / name, precision="fp32") for name in ("one", "two"))
    with pytest.raises(
        UserError, match=r"a classifier \(animal, person\), which has no embeddings; call classify"
    ):
        one.encode(["a"])
    with pytest.raises(UserError, match=r"items\[1\]: not a string; tiny classifies texts"):
        one.classify(["a", ("a", "b")])
    with pytest.raises(UserError, match=r"items\[0\]: not a pair of strings; tiny classifies pairs"):
        two.classify(["a"])
    with pytest.raises(UserError, match="one string; put it in a list"):
        one.classify("a")
    with pytest.raises(UserError, match=r"items\[0\]: not a string; tiny classifies texts"):
        one.classify([1])  # type: ignore[list-item]
    assert two.classify(np.array([["a", "b"]])).labels == two.classify([("a", "b")]).labels  # type: ignore[arg-type]


def test_bench_measures_a_task(tuned: Path, tasks: World, tmp_path):
    def measure(names: list[str], suites: list[str]) -> list[dict[str, Any]]:
        bundles = [str(tuned / "bundles" / name) for name in names]
        return bench.bench(
            bundles,
            suites,
            Session(data=tasks.data, log=quiet, threads=1),
            bench.Outputs(html=tmp_path / "r.html"),
            PLAN,
        )["reports"]

    [found] = measure(["two:w8"], [f"task:{tasks.data / 'pair.dev.tsv'}"])
    assert next(iter(found["quality"].values()))["tasks"]["pair.dev.tsv"]["rows"] == 80
    assert found["offline"]["texts_s"] > 0
    assert found["agreement"] is None
    assert "accuracy × 100" in (tmp_path / "r.html").read_text(encoding="utf-8")
    with pytest.raises(UserError, match="--suite mini: one returns labels; give --suite task for labels"):
        measure(["one:w8"], ["mini"])
    (tmp_path / "other.tsv").write_text("kind\tsentence\nneither\ta\n", encoding="utf-8")
    for name, fact in (
        ("none.tsv", "no such file"),
        ("other.tsv", "label 'neither' is not among the bundle's"),
    ):
        with pytest.raises(UserError, match=fact):
            measure(["one:w8"], [f"task:{tmp_path / name}"])
    with pytest.raises(UserError, match="some bundles return different labels"):
        measure(["one:w8", "two:w8"], [])
    with pytest.raises(
        UserError, match="no column 'sentence'; choose one: .label, one, two.; set --suite task.columns"
    ):
        measure(["one:w8"], [f"task:{tasks.data / 'pair.dev.tsv'}"])


# Zero-shot pair classification


def test_the_threshold_comes_from_dev_by_hand(tmp_path):
    """Directions 0° to 90°: dev's best cut lies between cos 30° and cos 60°; test has one pair on the wrong
    side of it."""
    angles = {"zero": 0.0, "ten": 10.0, "thirty": 30.0, "sixty": 60.0, "ninety": 90.0}

    def encode(texts: list[str]) -> np.ndarray:
        turned = np.radians([angles[text] for text in texts])
        return np.stack([np.cos(turned), np.sin(turned)], 1).astype(np.float32)

    dev = "label\tsentence1\tsentence2\n1\tzero\tten\n1\tzero\tthirty\n0\tzero\tsixty\n0\tzero\tninety\n"
    test = "label\tsentence1\tsentence2\n1\tzero\tten\n0\tten\tthirty\n0\tzero\tsixty\n1\tzero\tzero\n"
    for name, text in (("dev", dev), ("test", test)):
        (tmp_path / f"{name}.tsv").write_text(text, encoding="utf-8")
    (tmp_path / "suite.yaml").write_text(
        "kind: pair_classification\ntasks: [{name: t, dev: dev.tsv, test: test.tsv}]\n", encoding="utf-8"
    )
    found = scoring.evaluate(scoring.suite(tmp_path / "suite.yaml"), encode)["tasks"]["t"]
    assert found["threshold"] == pytest.approx((np.cos(np.radians(30)) + 0.5) / 2, abs=1e-6)
    assert found["accuracy"] == 0.75  # the second pair is taken, and does not match
    cosine, same = np.array([0.9, 0.9, 0.1]), np.array([True, False, False])
    # equals fall together: taking both is no better than none
    assert sts.threshold(cosine, same) > 0.9
