"""The families beyond plain STS and retrieval: worked by hand, or against another implementation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgedistill import files
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.evaluation.suites import FAMILIES, transfer
from edgedistill.evaluation.suites.cosines import Encode
from tests.evaluation.test_scoring import encode, write_suite


def refused(path: Path | str) -> str:
    with pytest.raises(UserError) as problem:
        scoring.suite(path)
    return str(problem.value)


# across languages

ENGLISH = "sentence1\tsentence2\tscore\nzero\tten\t5\nzero\tthirty\t3.0\nzero\tninety\t1\n"
GERMAN = "sentence1\tsentence2\tscore\nnull\tzehn\t5\nnull\tdreissig\t3\nnull\tneunzig\t1\n"
CROSS = (
    "kind: sts\ntasks:\n  - {name: en-de, file: en.tsv, translation: de.tsv}\n  - {name: en-en, file: "
    "en.tsv}\n"
)


def test_the_second_text_comes_from_the_translation(tmp_path):
    suite = scoring.suite(write_suite(tmp_path, CROSS, en=ENGLISH, de=GERMAN))
    task = suite.tasks["en-de"]
    assert task.pairs == [
        ("zero", "zehn"),
        ("zero", "dreissig"),
        ("zero", "neunzig"),
    ]
    assert task.gold.tolist() == [5, 3, 1]
    assert [second for _, second in suite.tasks["en-en"].pairs] == ["ten", "thirty", "ninety"]


@pytest.mark.parametrize(
    ("german", "message"),
    [
        (GERMAN.replace("\t3\n", "\t2\n"), "de.tsv: row 2: score 2, but "),
        (GERMAN + "mehr\tmehr\t0\n", "en.tsv: has fewer rows than "),
        (GERMAN.removesuffix("null\tneunzig\t1\n"), "de.tsv: has fewer rows than "),
        (GERMAN.replace("\t3\n", "\tdrei\n"), "de.tsv: row 2: score 'drei' is not a finite number; "),
        (GERMAN.replace("\t3\n", "\tnan\n"), "de.tsv: row 2: score 'nan' is not a finite number; "),
        (GERMAN.replace("score", "grade"), "de.tsv: no column 'score'; "),
    ],
)
def test_tables_that_are_not_translations(tmp_path, german: str, message: str):
    assert message in refused(write_suite(tmp_path, CROSS, en=ENGLISH, de=german))


def test_a_suite_in_part(tmp_path):
    path = write_suite(tmp_path / "cross", CROSS, en=ENGLISH, de=GERMAN)
    part = scoring.suite(f"{path}:en-de")
    assert (part.name, list(part.tasks)) == ("cross:en-de", ["en-de"])
    assert "ten" not in part.texts
    assert list(scoring.suite(f"{path}:en-en,en-de").tasks) == ["en-de", "en-en"]
    assert refused(f"{path}:en-fr") == f"{path}: no task 'en-fr'; did you mean 'en-en'? (en-de, en-en)"
    assert "no suite 'xtst'; did you mean 'xsts'?" in refused("xtst:en-de")
    assert "no task 'en-ko'" in refused("xsts:en-ko")  # a language without an evaluation set


# bitext

BITEXT = "en\tde\nzero\tzero x\nten\tsixty x\nninety\tninety x\nmore\tthirty x\n"
FOUND = "kind: bitext\ntasks: [{name: en-de, file: t.tsv, first: en, second: de}]\n"


def test_bitext_accuracy_by_hand(tmp_path):
    found = scoring.evaluate(scoring.suite(write_suite(tmp_path, FOUND, t=BITEXT)), encode)
    # English 0 10 90 150 finds among 0 60 90 30: 0 (right), 0 (10 is nearer to 0 than to 30), 90 (right), 90:
    # 2 of 4
    # German 0 60 90 30 finds among 0 10 90 150: 0 (right), 90, 90 (right), 10: 2 of 4
    assert found["tasks"]["en-de"] == {"accuracy": 0.5, "forward": 0.5, "backward": 0.5, "pairs": 4}
    table = BITEXT.replace("sixty", "ten")  # now each English text but the last finds its own, and 10 its own
    found = scoring.evaluate(scoring.suite(write_suite(tmp_path, FOUND, t=table)), encode)["tasks"]["en-de"]
    assert (found["forward"], found["backward"]) == (0.75, 0.75)
    assert found["accuracy"] == 0.75


def test_bitext_of_nothing(tmp_path):
    assert "t.tsv: 1 pairs, retrieval needs at least 2; give a table of translations" in refused(
        write_suite(tmp_path, FOUND, t="en\tde\na\tb\n")
    )
    assert "t.tsv: no column 'de'" in refused(write_suite(tmp_path, FOUND, t="en\tfr\na\tb\n"))


# transfer


def write_split(folder: Path, name: str, rows: list[tuple[str, str]], header: str = "label\tsentence"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.tsv").write_text(
        "\n".join([header, *("\t".join(row) for row in rows)]) + "\n", encoding="utf-8"
    )


def numbered(texts: list[str]) -> np.ndarray:
    """A text is a number of degrees."""
    angles = np.radians([float(text) for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def half_planes(count: int, seed: int, wrong: int = 0) -> list[tuple[str, str]]:
    """Angles, labelled by which half of the plane they lie in; the first `wrong` the other way round."""
    angles = np.random.default_rng(seed).uniform(5, 175, count) + 180 * (np.arange(count) % 2)
    return [(str(int((at % 2 == 1) ^ (at < wrong))), f"{angle:.3f}") for at, angle in enumerate(angles)]


def test_a_separable_set_is_learned_and_wrong_labels_are_missed(tmp_path):
    for name, seed, wrong in (("train", 0, 0), ("dev", 1, 0), ("test", 2, 3)):
        write_split(tmp_path / "set", name, half_planes(60, seed, wrong))
    path = write_suite(tmp_path, "kind: transfer\ntasks: [{name: halves, folder: set}]\n")
    found = scoring.evaluate(scoring.suite(path), numbered)
    assert found["kind"] == "transfer"
    assert found["average"] == found["tasks"]["halves"]["accuracy"] == pytest.approx(57 / 60)
    assert {key: found["tasks"]["halves"][key] for key in ("rows", "classes")} == {"rows": 180, "classes": 2}


def test_folds_see_every_row_once_and_repeat_exactly(tmp_path):
    for name, seed, wrong in (("train", 0, 4), ("dev", 1, 0), ("test", 2, 0)):
        write_split(tmp_path / "set", name, half_planes(40, seed, wrong))
    path = write_suite(tmp_path, "kind: transfer\ntasks: [{name: halves, folder: set, folds: 10}]\n")
    first, again = (scoring.evaluate(scoring.suite(path), numbered) for _ in range(2))
    assert first == again
    task = first["tasks"]["halves"]
    assert len(task["folds"]) == len(task["C"]) == 10
    assert task["accuracy"] == pytest.approx(
        116 / 120
    )  # the four on the wrong side are missed, whichever fold has them
    labels = scoring.suite(path).tasks["halves"].labels
    folds = list(transfer._folds(labels, 10))
    assert sorted(np.concatenate([test for _, _, test in folds]).tolist()) == list(range(120))
    for train, dev, test in folds:
        assert sorted(np.concatenate([train, dev, test]).tolist()) == list(range(120))
        assert sorted(labels[test].tolist()).count("0") == 6  # stratified


def test_features_by_hand():
    x = np.array([[3, 4], [0, 2]], np.float32)
    root = np.sqrt(2)
    assert np.allclose(transfer.features([x[::-1]]), [[0, root], [0.6 * root, 0.8 * root]])
    pair = transfer.features([x[:1], x[1:]])
    assert np.allclose(pair, [[0.6 * root, 0.2 * root, 0, 1.6]])  # |u - v|, then u ⊙ v
    assert np.allclose(pair, transfer.features([x[1:], x[:1]]))  # a pair has no order


def test_pairs_are_classified_by_their_difference(tmp_path):
    """Two angles are alike or a right angle apart: no text alone says which."""
    random = np.random.default_rng(0)
    for name in ("train", "dev", "test"):
        rows = [(a, a + 90 * (at % 2), at % 2) for at, a in enumerate(random.uniform(0, 360, 80))]
        write_split(
            tmp_path / "set",
            name,
            [(str(y), f"{a:.2f}", f"{b:.2f}") for a, b, y in rows],
            "label\tsentence1\tsentence2",
        )  # type: ignore[misc]
    yaml = "kind: transfer\ntasks: [{name: p, folder: set, texts: [sentence1, sentence2], refit: true}]\n"
    assert scoring.evaluate(scoring.suite(write_suite(tmp_path, yaml)), numbered)["average"] > 0.95


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("", lambda f: (f / "dev.tsv").unlink(), "set: no dev.tsv"),
        ("", lambda f: write_split(f, "train", [("1", "5")] * 3), "set: all 3 rows have the label '1'"),
        ("", lambda f: write_split(f, "test", [("2", "5")]), "set: label '2' has 0 rows"),
        ("", lambda f: write_split(f, "test", []), "test.tsv: no rows"),
        (", label: class", lambda f: None, "train.tsv: no column 'class'; "),
        (", folds: 10", lambda f: write_split(f, "test", [("2", "5")] * 4), "set: label '2' has 4 rows"),
        (", folds: 2", lambda f: None, "tasks[0].folds: must be at least 3"),
        (", folds: 5, refit: true", lambda f: None, "tasks[0]: `refit`"),
        (", text: sentence", lambda f: None, "tasks[0].text: no key 'text'"),
    ],
)
def test_sets_that_teach_nothing(tmp_path, task: str, change: Callable[[Path], None], message: str):
    for name in ("train", "dev", "test"):
        write_split(tmp_path / "set", name, half_planes(20, 0))
    change(tmp_path / "set")
    assert message in refused(
        write_suite(tmp_path, f"kind: transfer\ntasks: [{{name: t, folder: set{task}}}]\n")
    )


def test_without_scikit_learn_it_fails_before_anything_is_encoded(tmp_path, monkeypatch):
    for name in ("train", "dev", "test"):
        write_split(tmp_path / "set", name, half_planes(20, 0))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert "needs sklearn" in refused(
        write_suite(tmp_path, "kind: transfer\ntasks: [{name: t, folder: set}]\n")
    )


# all of them


def test_every_kind_has_a_measure_and_a_shipped_suite():
    kinds = {scoring.describe(path).kind for path in files.shipped("suite").values()}
    # a task is the bundle's own, which `--suite task` reads there, and `--suite mteb:TASK` needs no file
    assert kinds | {"task", "mteb"} == set(FAMILIES)


@pytest.mark.parametrize(("rows", "count"), [("a\tb\t3\nc\td\t3\n", 2), ("a\tb\t3\n", 1)])
def test_pairs_without_a_ranking_are_refused(tmp_path, rows: str, count: int):
    (tmp_path / "t.tsv").write_text("sentence1\tsentence2\tscore\n" + rows)
    (tmp_path / "suite.yaml").write_text("kind: sts\ntasks: [{name: a, file: t.tsv}]\n")
    with pytest.raises(UserError) as refused:
        scoring.suite(tmp_path / "suite.yaml")
    assert str(refused.value).startswith(f"{tmp_path}/t.tsv: pairs with a score: {count}, and a rank ")


# mteb

PAIRS = [("zero", "ten", 5.0), ("zero", "thirty", 3.0), ("zero", "sixty", 4.0), ("zero", "ninety", 1.0)]
COLLECTION = {  # as a repository of mteb's has it
    "README.md": "---\nconfigs:\n"
    + "".join(
        f"- config_name: {config}\n  data_files: [{{split: {split}, path: {config}.jsonl}}]\n"
        for config, split in (("corpus", "corpus"), ("queries", "queries"), ("default", "test"))
    )
    + "---\n",
    "corpus.jsonl": "".join(
        json.dumps({"_id": name, "title": "", "text": name}) + "\n" for name in ("ten", "sixty", "more")
    ),
    "queries.jsonl": json.dumps({"_id": "q", "text": "zero"}) + "\n",
    "default.jsonl": json.dumps({"query-id": "q", "corpus-id": "sixty", "score": 1}) + "\n",
}


def write_mteb(folder: Path, **tasks: dict[str, str]) -> Path:
    for name, contents in tasks.items():
        (folder / "mteb" / name).mkdir(parents=True)
        for file, text in contents.items():
            (folder / "mteb" / name / file).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def mteb(tmp_path, monkeypatch):
    pytest.importorskip("mteb", reason="mteb is not installed: pip install '.[mteb]'")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("mteb")
def test_mtebs_own_evaluator_scores_data_that_lie_below_the_data_folder(tmp_path):
    rows = "".join(json.dumps({"sentence1": a, "sentence2": b, "score": c}) + "\n" for a, b, c in PAIRS)
    data = write_mteb(tmp_path, STS12={"test.jsonl": rows}, SciFact=COLLECTION)
    suite = scoring.suite("mteb:STS12,SciFact", data)
    assert suite.name == "mteb:STS12,SciFact" and {"zero", "ninety", "more"} <= set(suite.texts)
    roles: list[str] = []

    def noted(role: str) -> Encode:
        return lambda texts: (roles.append(role), encode(texts))[1]

    found = scoring.evaluate(suite, scoring.Encoder(*map(noted, ("text", "query", "document"))))
    assert found["tasks"]["STS12"] == {"main_score": pytest.approx(0.8), "measure": "cosine_spearman"}
    # the document that answers is the second nearest
    assert found["tasks"]["SciFact"]["main_score"] == pytest.approx(1 / np.log2(3), abs=1e-4)
    assert found["average"] == pytest.approx((0.8 + 1 / np.log2(3)) / 2, abs=1e-4)
    assert set(roles) == {"text", "query", "document"}


@pytest.mark.usefixtures("mteb")
@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("STS99", "--suite mteb:STS99: 'STS99' not found. Did you mean"),
        ("STS12VisualSTS", "--suite mteb:STS12VisualSTS: has more than texts; choose another task"),
        ("STS13", "--suite mteb:STS13: mteb/sts13-sts cannot be loaded: "),
        ("STS14", "put that repository's files into mteb/STS14 below --data"),
    ],
)
def test_tasks_of_mteb_that_cannot_be_measured(tmp_path, monkeypatch, task: str, message: str):
    monkeypatch.setenv("EDGEDISTILL_DATA", str(write_mteb(tmp_path, STS14={"test.jsonl": "no json\n"})))
    assert message in refused(f"mteb:{task}")


def test_without_mteb_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    assert 'pip install ".[mteb]"' in refused("mteb:STS12")
