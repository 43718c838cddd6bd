"""Stages over tuples: from tables and from the corpus' own texts, with the teacher's scores."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedistill import recipe
from edgedistill.data import bm25, corpus, made_tuples
from edgedistill.data import rows as training_rows
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.files import sha256_file
from edgedistill.session import Session
from edgedistill.teacher import tuple_scores
from edgedistill.teacher.tuple_scores import Embedded
from edgedistill.training import open_recipe, train, training_data
from tests.conftest import World, sentences
from tests.training.test_resuming import cut_at

COSINE = {"kind": "each_side", "objective": {"kind": "cosine"}}


def documents(count: int) -> list[str]:
    """Texts of three sentences each."""
    found = sentences(3 * count, seed=5)
    return [
        " ".join(f"{part[0].upper()}{part[1:]}" for part in found[at : at + 3])
        for at in range(0, 3 * count, 3)
    ]


@pytest.fixture(scope="module")
def data(world: World) -> World:
    (world.data / "documents.txt").write_text("\n".join(documents(80)) + "\n", encoding="utf-8")
    rows = [f"{text.split('.')[0][:40]}\t{text}\t{1 + at % 7}" for at, text in enumerate(documents(60))]
    (world.data / "clicks.tsv").write_text("q\tanswer\tscore\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return world


def stage(objective: dict[str, Any], tuples: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"name": "search", "objective": objective, "rows": tuples, "steps": 6, "batch": 8, **changes}


def spec(world: World, *stages: dict[str, Any], **changes: Any) -> recipe.Recipe:
    section = {"files": ["documents.txt"], "held_out": 10, "passages": {}, "documentation_texts": 20}
    return world.spec(rows=section, stages=list(stages), **changes)


def session(world: World, log: Any = None) -> Session:
    return Session(data=world.data, log=log or (lambda line: None))


def batch_of(world: World, parsed: recipe.Recipe, folder: Path, rows: int = 8) -> tuple[list[Any], Any]:
    folder.mkdir(exist_ok=True)
    opened = open_recipe.open_recipe(parsed, session(world), folder)
    _, (batches,) = training_data.build(opened, session(world), folder)
    return batches.batch(np.arange(rows), np.zeros(rows, int))


def test_queries_are_made_from_whole_training_texts(data: World):
    parsed = spec(data, stage(COSINE, {"queries": {"per_text": 2}}))
    assert parsed.rows is not None
    texts = corpus.build(parsed.rows, session(data), 0)
    tuples = parsed.distilling[0].rows
    assert tuples is not None and tuples.queries is not None
    made = made_tuples.build(tuples.queries, texts, 70, session(data), "stages[0].rows", 0)
    assert len(made.sides[1]) == 70 and 100 < len(made) <= 140
    whole = set(documents(80))
    for query, document in made.index:
        text = made.sides[1][int(document)]
        assert made.sides[0][int(query)] in text and text in whole
    assert len(set(made.sides[0].texts(range(len(made))))) == len(made)
    held_out = {texts[int(row)] for row in texts.held_out}
    assert not held_out & set(made.sides[1].texts(range(70)))


def test_queries_are_the_sentences_of_a_text_that_has_several():
    text = "A title of this text. Does it ask another thing? "
    assert made_tuples.of_text(text) == ["A title of this text.", "Does it ask another thing?"]
    assert made_tuples.of_text("Only one sentence is here.") == []


def test_texts_of_one_sentence_have_no_queries(world: World):
    parsed = world.spec(stages=[stage(COSINE, {"queries": {}})])
    with pytest.raises(UserError, match=r"stages\[0\].rows: 0 of 400 texts have two sentences or more"):
        open_recipe.open_recipe(parsed, session(world))


def test_a_batch_has_each_document_once(data: World, tmp_path):
    table = {"files": ["clicks.tsv"], "columns": ["q", "answer"], "negatives": {"count": 3}}
    views, ranking = batch_of(data, spec(data, stage({"kind": "info_nce"}, table)), tmp_path / "a")
    assert len(views) == 2 and views[0][0].shape[0] == 8
    assert ranking.embeddings == () and ranking.scores is None
    distinct = views[1][0].shape[0]
    assert distinct <= 8 * 4 and ranking.positives.max() < distinct
    assert len(np.unique(views[1][0], axis=0)) == distinct


def test_other_answers_of_a_query_are_no_negatives(data: World, tmp_path):
    rows = [f"query {at // 2}\tanswer {at}" for at in range(8)]
    (data.data / "answers.tsv").write_text("q\ta\n" + "\n".join(rows) + "\n", encoding="utf-8")
    table = {"files": ["answers.tsv"], "columns": ["q", "a"]}
    _, ranking = batch_of(data, spec(data, stage({"kind": "info_nce"}, table)), tmp_path / "a")
    pairs = np.arange(8) ^ 1  # of 0 and 1, of 2 and 3, …
    assert (ranking.answers == (np.arange(8) == ranking.positives[pairs][:, None])).all()


def test_queries_are_the_recipes_own_rows_and_texts_those_of_a_stage(data: World, tmp_path):
    clicks = {"files": ["clicks.tsv"], "columns": ["q", "answer"], "held_out": 5}
    texts = {"files": ["texts.txt"], "held_out": 10}
    first = {"name": "first", "objective": {"kind": "cosine"}, "rows": texts, "steps": 2, "batch": 8}
    ranked = {"name": "ranked", "objective": {"kind": "info_nce"}, "steps": 2, "batch": 8}
    described = data.recipe(
        rows=clicks, stages=[first, ranked], targets={"dims": 16, "reduce": {"kind": "pca"}}
    )
    parsed = recipe.parse(described, "test")
    opened = open_recipe.open_recipe(parsed, session(data), tmp_path)
    _, (of_texts, of_queries) = training_data.build(opened, session(data), tmp_path)
    assert 420 < of_texts.rows <= 430 and of_queries.rows == 55 and not of_texts.ranked and of_queries.ranked
    assert train.train(parsed, tmp_path / "run", session(data))["corpus"]["held_out"] == 5


def test_scores_of_a_column_are_those_of_the_tuples_own(data: World, tmp_path):
    rows = [f"query {at}\tfirst {at}\tsecond {at}\t{at / 10}\t{-at}" for at in range(20)]
    (data.data / "scored.tsv").write_text("q\ta\tb\tx\ty\n" + "\n".join(rows) + "\n", encoding="utf-8")
    table = {"files": ["scored.tsv"], "columns": ["q", "a", "b"], "scores": ["x", "y"]}
    _, ranking = batch_of(data, spec(data, stage({"kind": "margin_mse"}, table)), tmp_path / "a")
    own = ranking.scores[np.arange(8), ranking.positives]
    assert own == pytest.approx(np.arange(8) / 10)
    assert (~np.isnan(ranking.scores)).sum(1).tolist() == [2] * 8
    assert np.nansum(ranking.scores, 1) == pytest.approx(np.arange(8) / 10 - np.arange(8))


def test_cosines_score_every_document(data: World, tmp_path):
    tuples: dict[str, Any] = {"queries": {}}
    objective = {
        "kind": "sum",
        "terms": [{"weight": 1, "objective": each} for each in (COSINE, {"kind": "listwise"})],
    }
    _, dense = batch_of(data, spec(data, stage(objective, tuples)), tmp_path / "a")
    assert dense.scores == pytest.approx(dense.embeddings[0] @ dense.embeddings[1].T, abs=1e-5)


def toy(count: int = 40) -> tuple[Rows, Embedded]:
    """Documents on a quarter circle, and one query per document at its own place."""

    class Rows:
        dims = 2

        def __getitem__(self, rows: np.ndarray) -> np.ndarray:
            angles = np.asarray(rows) * np.pi / 2 / count
            return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)

    tuples = SimpleNamespace(
        fingerprint="toy", training_count=count, index=np.stack([np.arange(count)] * 2, 1)
    )
    tuples.sides = [list(range(count)), SimpleNamespace(training_count=count)]
    return tuples, Embedded(Rows(), Rows(), {"toy": 1})  # type: ignore[return-value, arg-type]


def test_negatives_are_spread_over_the_range_and_none_is_too_near(tmp_path):
    tuples, teacher = toy()
    table = recipe.Rows(files=["t.tsv"], columns=["a", "b"], negatives=recipe.Negatives(count=4))
    found = tuple_scores.build(
        table, tuples, [teacher], False, Session(cache_folder=tmp_path), "stages[0].rows", 0
    ).index
    assert found.shape == (40, 6)
    for row in found:
        query, positive, *negatives = row.tolist()
        assert positive == query and len(set(negatives)) == 4
        cosines = np.cos((np.array(negatives) - query) * np.pi / 80)
        assert (cosines <= 0.95 + 1e-6).all() and (np.diff(cosines) <= 1e-6).all()
    spread = np.cos((found[:, 2:] - found[:, :1]) * np.pi / 80)
    assert spread[0].max() > 0.6 and spread[0].min() < 0.3, "near and far ones"
    too_many = table.model_copy(update={"negatives": recipe.Negatives(count=39)})
    with pytest.raises(
        UserError, match=r"negatives.count: 39 of 40 documents are to be drawn for each query"
    ):
        tuple_scores.build(
            too_many, tuples, [teacher], False, Session(cache_folder=tmp_path), "stages[0].rows", 0
        )


def test_training_on_tuples_learns_and_resumes_with_the_same_bytes(data: World, tmp_path, monkeypatch):
    terms = [
        {"weight": 1.0, "objective": COSINE},
        {"weight": 0.2, "objective": {"kind": "listwise", "positive": False}},
        {"weight": 0.2, "objective": {"kind": "info_nce"}},
    ]
    tuples = {"queries": {}, "negatives": {"count": 2}}
    search = stage({"kind": "sum", "terms": terms}, tuples, steps=30, bucket=4, learning_rate=5e-3)
    texts = {"name": "texts", "objective": {"kind": "cosine"}, "steps": 4, "batch": 8, "bucket": 4}
    parsed = spec(data, texts, search)
    train.train(parsed, tmp_path / "a", session(data))
    cut_at(monkeypatch, 20)
    with pytest.raises(InterruptedError):
        train.train(parsed, tmp_path / "b", session(data))
    train.train(parsed, tmp_path / "b", session(data), resume=True)
    names = [tmp_path / each / "student.safetensors" for each in "ab"]
    assert sha256_file(names[0]) == sha256_file(names[1])


@pytest.mark.parametrize(
    ("rows", "fact"),
    [
        (["q\tsame\tother"] * 1 + ["q 2\tsame\tother"], None),
        (["q\tq\tb", "\tx\ty", "r\tu\tu"], r"no row is left of 3 read"),
        (["q\tone\tone"] * 3, r"no row is left"),
    ],
)
def test_rows_that_teach_nothing_are_left_out(tmp_path, rows: list[str], fact: str | None):
    (tmp_path / "t.tsv").write_text("a\tb\tc\n" + "\n".join(rows) + "\n", encoding="utf-8")
    table = recipe.Rows(files=["t.tsv"], columns=["a", "b", "c"])
    given = Session(data=tmp_path, cache_folder=tmp_path / "cache")
    if fact is None:
        assert len(training_rows.build(table, given, 0, place="stages[0].rows")) == 2
        return
    with pytest.raises(UserError, match=fact):
        training_rows.build(table, given, 0, place="stages[0].rows")


@pytest.mark.parametrize(
    ("rows", "fact"),
    [
        (["q\ta\tx", "r\tb\t1"], "'x' are not all numbers"),
        (["q\ta\tnan", "r\tb\t1"], "'nan' are not all finite"),
        (["q\ta\t1", "r\tb\t1"], "all scores are 1, and rank nothing"),
        (["q\ta\t1", "r\ta\t2"], "all 2 rows have the same document"),
    ],
)
def test_scores_and_documents_that_rank_nothing(tmp_path, rows: list[str], fact: str):
    (tmp_path / "t.tsv").write_text("a\tb\ts\n" + "\n".join(rows) + "\n", encoding="utf-8")
    table = recipe.Rows(files=["t.tsv"], columns=["a", "b"], scores=["s"])
    given = Session(data=tmp_path, cache_folder=tmp_path / "cache")
    with pytest.raises(UserError, match=fact):
        training_rows.build(table, given, 0, place="stages[0].rows")


def small_teacher(world: World, folder: Path, width: int) -> Path:
    """Another encoder with the world's tokenizer, of another width."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    tokenizer = AutoTokenizer.from_pretrained(world.teacher)
    torch.manual_seed(width)
    shape = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_scores_of_two_teachers_and_words_are_mean_z_scores(data: World, tmp_path):
    other = {"model": str(small_teacher(data, tmp_path / "other", 16)), "pooling": "mean"}
    other |= {"query_prompt": "ask: ", "document_prompt": "read: "}
    table = {"files": ["clicks.tsv"], "columns": ["q", "answer"], "negatives": {"count": 3}}
    table["scores"] = {"teachers": [other], "bm25": 0.5}
    parsed = spec(data, stage({"kind": "listwise"}, table))
    opened = open_recipe.open_recipe(parsed, session(data), tmp_path)
    assert opened.models is not None and list(opened.models.scorers) == ["stages[0].rows.scores.teachers[0]"]
    _, (batches,) = training_data.build(opened, session(data), tmp_path)
    scored = batches.targets.scored
    texts = [side.texts(range(len(side))) for side in opened.stages[0].rows.sides]
    models = [opened.models.teacher, *opened.models.scorers.values()]
    assert [model.dims for model in models] == [32, 16]
    pairs = [
        [model.in_role(role).embed(side) for role, side in zip(("query", "document"), texts, strict=True)]
        for model in models
    ]
    parts = [query @ document.T for query, document in pairs]
    parts.append(bm25.BM25(texts[1], "test").scores(texts[0]))
    for row, expected in zip(scored.index, scored.own, strict=True):
        own = [part[row[0], row[1:]] for part in parts]
        z = [(values - values.mean()) / max(values.std(), 1e-6) for values in own]
        assert expected == pytest.approx((z[0] + z[1] + 0.5 * z[2]) / 2.5, abs=0.01)
        assert np.argmax(expected) == 0 or expected.std() > 0.1
    ranking = batches.batch(np.arange(8), np.zeros(8, int))[1]
    assert (~np.isnan(ranking.scores)).sum(1).tolist() == [4] * 8


@pytest.mark.parametrize(
    ("scores", "more", "fact"),
    [
        ({"bm25": -1}, {"negatives": {}}, r"scores.bm25: must be at least 0"),
        ({"bm25": 1}, {}, "scores. compare the documents of a row, which has one"),
        (
            {"teachers": [{"embeddings": "x.npy"}]},
            {"negatives": {}},
            "scores.teachers: .*are models",
        ),
        ({"teachers": [{"model": "none/here"}]}, {"negatives": {}}, r"scores.teachers\[0\].*none/here"),
        (["score"], {"negatives": {}}, "negatives. have no .scores."),
    ],
)
def test_joint_scores_that_cannot_be_computed(data: World, scores: Any, more: dict[str, Any], fact: str):
    table = {"files": ["clicks.tsv"], "columns": ["q", "answer"], "scores": scores, **more}
    with pytest.raises(UserError, match=fact):
        open_recipe.open_recipe(spec(data, stage({"kind": "listwise"}, table)), session(data))


def test_bm25_needs_words(data: World, tmp_path):
    rows = [f"query {at}\t{'!' * (at + 1)}\t{'?' * (at + 1)}" for at in range(9)]
    (data.data / "marks.tsv").write_text("q\ta\tb\n" + "\n".join(rows) + "\n", encoding="utf-8")
    table = {"files": ["marks.tsv"], "columns": ["q", "a", "b"], "scores": {"bm25": 1.0}}
    with pytest.raises(UserError, match=r"stages\[0\].rows.scores.bm25: no words"):
        batch_of(data, spec(data, stage({"kind": "listwise"}, table)), tmp_path / "a")
