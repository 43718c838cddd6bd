"""What a recipe refuses, in whose words, all at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.recipe.reading import ALIASES

GOOD: dict[str, Any] = {
    "name": "x",
    "teacher": {"model": "packaged:all-MiniLM-L6-v2"},
    "rows": {"files": ["a.txt"]},
    "student": {"kind": "bert", "layers": 2, "width": 128},
    "stages": [{"name": "distil", "objective": {"kind": "cosine"}}],
}
TUPLES = {"files": ["t.tsv"], "columns": ["a", "b", "c"]}


def problems(**changes: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        recipe.parse({**GOOD, **changes}, "recipes/x.yaml")
    return list(caught.value.problems)


def test_what_is_written_is_what_is_read(tmp_path):
    first = recipe.parse(GOOD, "x")
    (tmp_path / "x.yaml").write_text(recipe.dump(first), encoding="utf-8")
    assert recipe.read(tmp_path / "x.yaml") == first


def test_unknown_kind_names_the_nearest():
    [line] = problems(stages=[{"name": "a", "objective": {"kind": "ckdd"}}])
    assert line.startswith(
        "recipes/x.yaml: stages[0].objective.kind: no objective 'ckdd'; did you mean 'ckd'? (ckd, congen, "
        "cosine, "
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"teacher": "packaged:x"}, "teacher: 'packaged:x' is not a mapping; write a mapping, {key: value}"),
        ({"student": None}, "student: no value; write a mapping, {key: value}"),
        (
            {"rows": {"files": "*.txt"}},
            "rows.files: '*.txt' is not a list; write a list, each item after a dash",
        ),
        (
            {"stages": [{"name": "a", "objective": "mse"}]},
            "stages[0].objective: 'mse' is not a mapping; write a mapping, {key: value}",
        ),
        ({"stages": {"name": "a"}}, "stages: a mapping is not a list; write a list, each item after a dash"),
        (
            {"name": "My Recipe"},
            "name: 'My Recipe' is not a valid name; use lower-case letters, digits, dots and dashes",
        ),
        ({"seed": 1.5}, "seed: 1.5 is not a whole number; write one, such as 3"),
        ({"about": 3}, "about: 3 is not text; write text in quotes"),
    ],
)
def test_wrong_types_are_described_in_plain_words(changes: dict, expected: str):
    assert f"recipes/x.yaml: {expected}" in problems(**changes)


def test_all_the_problems_at_once():
    found = problems(
        seed="one",
        extra=1,
        student={"kind": "bert", "layers": 2, "width": 128, "widht": 3},
        stages=[{"name": "a", "batch": 0}],
    )
    text = "\n".join(found)
    assert len(found) == 5
    assert "seed: 'one' is not a whole number; write one, such as 3" in text
    assert "extra: no key 'extra'" in text
    assert "student.widht: no key 'widht'; did you mean 'width'?" in text
    assert "stages[0].objective: missing" in text
    assert "stages[0].batch: must be at least 1, not 0" in text
    assert problems(student={"kind": "bert", "layers": "two"}) == [
        f"recipes/x.yaml: student.layers: 'two' is not a {choice}" for choice in ("whole number", "list")
    ]
    assert problems(student={"kind": "bert", "layers": 99}) == [
        "recipes/x.yaml: student.layers: must be at most 64, not 99"
    ]


@pytest.mark.parametrize(
    ("student", "says"),
    [
        (
            {"kind": "brt"},
            "student.kind: no student 'brt'; did you mean 'bert'? (bert, bilstm, finished, recurrent, "
            "static, teacher)",
        ),
        (
            {"weights": "teacher", "layers": 2},
            "student.kind: missing; choose one: (bert, bilstm, finished, recurrent, static, teacher)",
        ),
        (
            {"weights": "teacher"},
            "`weights: teacher` is no finished student; add the `kind` of the new student, such as bert",
        ),
        (
            {"weights": "nano", "max_tokens": 2},
            "student.max_tokens: must be at least 3, not 2",
        ),
        ({"kind": "finished"}, "student.weights: missing; this key is required"),
        ({"kind": "finished", "weights": "nano", "layers": 2}, "student.layers: no key 'layers'"),
        ({"kind": "bert"}, "random weights need `layers` (a number) and `width`"),
        (
            {"kind": "bert", "weights": "teacher", "heads": 2},
            "`heads` is defined by the weights; leave it out, or give a smaller `width`",
        ),
        (
            {"kind": "bert", "weights": "teacher", "width": 64, "pooling": "cls_pooler"},
            "cls_pooler belongs to the weights' own width",
        ),
        ({"kind": "bert", "layers": 1, "width": 8, "dims": 4}, "`dims` is the output of a head"),
        (
            {"kind": "static", "width": 8, "pq_centroids": 512},
            "`pq_centroids` are what PQ codes select from; set `pq_bytes`, or leave it out",
        ),
        (
            {"kind": "bert", "weights": "teacher", "embeddings": {"of": "outputs"}},
            "`embeddings` come with the weights; leave them out",
        ),
        (
            {"kind": "bilstm", "embeddings": {"from": "random", "of": "outputs"}},
            "`of: outputs` takes them from the teacher; set `from: teacher`",
        ),
        (
            {"kind": "bert", "weights": "teacher", "embeddings": {"weighting": "frequency"}},
            "needs a compressed table; set `bottleneck` or `pq_bytes`",
        ),
        (
            {"kind": "bilstm", "embeddings": {"from": "random", "weighting": "frequency"}},
            "`weighting` applies to a table reduced from the teacher's",
        ),
        (
            {"kind": "static", "embeddings": {"weighting": "freq"}},
            "student.embeddings.weighting: must be 'none' or 'frequency', not 'freq'",
        ),
        (
            {"kind": "static", "embeddings": {"count_exponent": 0}},
            "student.embeddings.count_exponent: must be greater than 0",
        ),
        (
            {"kind": "bilstm", "trim": {}, "unigram": {"vocabulary_size": 900}},
            "`unigram` learns its own tokenizer; leave `trim` out",
        ),
        (
            {"kind": "bert", "layers": 1, "width": 8, "trim": {"min_count": -1}},
            "student.trim.min_count: must be at least 0",
        ),
        ({"kind": "recurrent", "layers": 0}, "must be at least 1"),
        ({"kind": "recurrent", "layers": []}, "`layers` is empty; the shared block needs at least one"),
        ({"kind": "recurrent", "repeats": 0}, "student.repeats: must be at least 1"),
        ({"kind": "recurrent", "embeddings": {"of": "outputs"}}, "`embeddings` are the source's or random"),
    ],
    ids=str,
)
def test_students_that_cannot_be(student: dict[str, Any], says: str):
    assert any(says in line for line in problems(student=student))


def test_a_finished_student_needs_no_kind():
    short, long = (
        {**GOOD, "student": {**kind, "weights": "nano", "dropout": 0.1}}
        for kind in ({}, {"kind": "finished"})
    )
    assert recipe.parse(short, "x") == recipe.parse(long, "x")
    assert recipe.parse(
        yaml.safe_load(recipe.dump(recipe.parse(short, "x"))), "x"
    ).student == recipe.Finished(weights="nano", dropout=0.1)


PCA = {"reduce": {"kind": "pca"}, "dims": 128}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"targets": {"dims": 8, "reduce": {"kind": "pac"}}},
            "targets.reduce.kind: no reduce 'pac'; did you mean 'pca'?",
        ),
        (
            {"targets": {**PCA, "reduce": {"kind": "pca", "center": True}}},
            "did you mean 'centre'?",
        ),
        (
            {"targets": PCA, "student": {"kind": "teacher"}, "stages": [], "rows": None},
            "`targets` are fitted on the texts of `rows`",
        ),
        (
            {"targets": {**PCA, "align": "procrustes"}, "student": {"kind": "teacher"}, "stages": []},
            "define it with student.reference_student",
        ),
        (
            {
                "targets": PCA,
                "student": {"kind": "teacher", "reference_student": GOOD["student"]},
                "stages": [],
            },
            "student.reference_student is only used by ridge",
        ),
        (
            {
                "targets": {**PCA, "align": "procrustes"},
                "student": {**GOOD["student"], "head": "linear", "head_kept": False},
            },
            "need the student's own embeddings",
        ),
        ({"teacher": {}}, "teacher: give `model` or `embeddings`"),
        (
            {"teacher": {"embeddings": "b.npy", "prompt": "query: "}},
            "precomputed `embeddings` are used unchanged",
        ),
        (
            {"teacher": {"embeddings": "b.npy"}, "student": {"kind": "teacher"}, "stages": []},
            "there is no model to export",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_targets_that_cannot_be(changes: dict[str, Any], says: str):
    assert any(says in line for line in problems(**changes)), problems(**changes)


def test_a_batch_of_one_compares_nothing():
    says = "compares the texts of a batch with each other; set it to 2 or more"
    added = {"kind": "sum", "terms": [{"weight": 1, "objective": {"kind": "mcl"}}]}
    for objective in ({"kind": "mcl"}, {"kind": "ckd", "queue": 0}, added):
        stage = {"name": "x", "objective": objective, "batch": 1}
        assert any(says in line for line in problems(stages=[stage])), objective
    for objective in ({"kind": "cosine"}, {"kind": "ckd", "queue": 8}):
        recipe.parse({**GOOD, "stages": [{"name": "x", "objective": objective, "batch": 1}]}, "x")


def test_matryoshkas_that_cannot_be():
    inner = {"kind": "cosine"}
    for fields, says in [
        ({"dims": [64, 32]}, "`dims` [64, 32] must be ascending"),
        ({"dims": [0, 32]}, "must be ascending and start at 1"),
        ({"dims": [32, 64], "weights": [1.0]}, "1 `weights` for 2 `dims`"),
        ({"dims": [32, 64], "weights": [1.0, 0.0]}, "must all be above 0"),
        (
            {"dims": [1, 2], "objective": {"kind": "matryoshka", "dims": [1, 2], "objective": inner}},
            "a matryoshka inside a matryoshka",
        ),
    ]:
        stage = {"name": "a", "objective": {"kind": "matryoshka", "objective": inner, **fields}}
        assert any(says in line for line in problems(stages=[stage])), says


def test_stages_need_rows_and_a_student_to_train():
    assert any("stages need `rows`" in line for line in problems(rows=None))
    assert any("the teacher itself is not trained" in line for line in problems(student={"kind": "teacher"}))


def test_changes_apply_before_the_check(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(GOOD), encoding="utf-8")
    changed = recipe.read(
        path, ["stages.0.epochs=3", "stages.0.learning_rate=1e-4", "student.layers=1", "rows.limit=10"]
    )
    assert isinstance(changed.student, recipe.Bert)
    assert (changed.stages[0].epochs, changed.stages[0].learning_rate, changed.student.layers) == (3, 1e-4, 1)
    for change, says in [
        ("seed", "no '='"),
        ("stages.7.epochs=1", "stages has 1 item, numbered from 0; correct '7'"),
        ("name.first=1", "inside a plain value"),
        ("stages.0.epoch=1", "no key 'epoch'; did you mean 'epochs'?"),
    ]:
        with pytest.raises(UserError, match=says.replace("?", "\\?")):
            recipe.read(path, [change])


def test_not_a_recipe():
    with pytest.raises(UserError, match="no recipe 'bert-2x129'; did you mean 'bert-2x128'"):
        recipe.read("bert-2x129")
    with pytest.raises(UserError, match="no such file, and no recipe"):
        recipe.read("nowhere/x.yaml")


SUM = {
    "kind": "sum",
    "terms": [
        {"weight": 1, "objective": {"kind": "info_nce"}},
        {"weight": 1, "objective": {"kind": "each_side", "objective": {"kind": "cosine"}}},
    ],
}


@pytest.mark.parametrize(
    ("stage", "student", "says"),
    [
        (
            {"objective": {"kind": "congen"}},
            {},
            "stages[0]: congen compares a text with a second view of it; give the stage a `view`, or set",
        ),
        (
            {"objective": {"kind": "congen", "alpha": 1}, "view": {"kind": "crop"}},
            {},
            "congen reads no second view; leave `view` out",
        ),
        (
            {"objective": {"kind": "mse"}, "rows": TUPLES},
            {},
            "mse reads single texts, and the rows are queries with documents; apply it to both",
        ),
        ({"objective": {"kind": "listwise"}}, {}, "listwise ranks the documents of queries; give the stage"),
        (
            {"objective": {"kind": "info_nce"}, "rows": {**TUPLES, "scores": ["s", "t"]}},
            {},
            "scores are matched by listwise and margin_mse; add one, or leave them out",
        ),
        (
            {"objective": {"kind": "listwise"}, "rows": {**TUPLES, "scores": ["s"]}},
            {},
            "`scores` names 1, and `columns` 2 of documents; give each document its score",
        ),
        (
            {"objective": {"kind": "listwise"}, "rows": {**TUPLES, "columns": ["a", "a"]}},
            {},
            "names a column twice",
        ),
        (
            {"objective": {"kind": "info_nce"}, "rows": TUPLES, "skip_longer_than": 9},
            {},
            "skip_longer_than: applies to rows of one text; leave it out",
        ),
        (
            {"objective": {"kind": "congen"}, "view": {"kind": "crop", "fracton": 1}},
            {},
            "no key 'fracton'; did you mean 'drop_fraction'? (drop_fraction, kind)",
        ),
        (
            {"objective": SUM, "rows": TUPLES},
            {"head": "linear", "head_kept": False},
            "give info_nce a stage of its own",
        ),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
def test_views_that_are_missing_or_not_read(stage: dict[str, Any], student: dict[str, Any], says: str):
    found = problems(student={**GOOD["student"], **student}, stages=[{"name": "a", **stage}])
    assert any(says in line for line in found), found


def test_views_and_tuples_that_are_read():
    for stage, views in [
        ({"objective": {"kind": "congen", "alpha": 1}}, 1),
        ({"objective": {"kind": "congen"}, "view": {"kind": "word_deletion"}}, 2),
        ({"objective": {"kind": "info_nce"}, "rows": TUPLES}, 3),
        ({"objective": {"kind": "margin_mse"}, "rows": {**TUPLES, "negatives": {"count": 4}}}, 7),
        ({"objective": {"kind": "listwise"}, "rows": {"queries": {}}}, 2),
        (
            {
                "objective": {"kind": "info_nce"},
                "rows": {
                    "dataset": "owner/name",
                    "revision": "main",
                    "columns": ["anchor", "positive", "negative"],
                },
            },
            3,
        ),
        (
            {
                "objective": SUM,
                "rows": TUPLES,
            },
            3,
        ),
    ]:
        student = {**GOOD["student"], "dropout": 0.1, "head": "linear"}
        read = recipe.parse({**GOOD, "student": student, "stages": [{"name": "a", **stage}]}, "x")
        [first] = read.distilling
        assert first.views(read.rows_of(first)) == views
        assert recipe.parse(yaml.safe_load(recipe.dump(read)), "x") == read


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"stages": [{**GOOD["stages"][0], "lr": 1e-3}]},
            "stages[0].lr: no key 'lr'; did you mean 'learning_rate'?",
        ),
        (
            {"student": {**GOOD["student"], "max_seq_length": 8}},
            "student.max_seq_length: no key 'max_seq_length'; did you mean 'max_tokens'?",
        ),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
def test_what_other_tools_call_a_key_leads_to_ours(changes: dict[str, Any], says: str):
    assert any(says in line for line in problems(**changes)), problems(**changes)


def test_every_alias_leads_to_a_key_that_exists_and_is_none_itself():
    known = {
        key
        for section in json.loads(recipe.schema())["$defs"].values()
        for key in section.get("properties", {})
    }
    assert set(ALIASES.values()) <= known
    assert set(ALIASES) & known == {"licence", "texts"}, "a key of other sections"


def test_a_recorded_recipe_may_have_keys_of_before():
    data = recipe.read("nano").model_dump(mode="json", by_alias=True)
    data["stages"][0]["objective"]["gone"] = data["rows"]["gone"] = 3
    assert recipe.parse(data, "run", recorded=True) == recipe.read("nano")
    with pytest.raises(UserError, match="rows.gone: no key 'gone'"):
        recipe.parse(data, "mine")
