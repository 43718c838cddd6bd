"""What is held out of one source is trained on in none: not in other letters, not as an answer, a negative, a
passage or a query made of a text."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedistill import recipe
from edgedistill.data import corpus, deduplicate, labelled_tasks
from edgedistill.data import rows as training_rows
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.fitting import texts
from edgedistill.session import Session
from edgedistill.training.training_sources import TrainingSources

TEXTS = [f"Article {n} is about thing{n}. It goes on with word{n * 7}." for n in range(100)]
PAIRS = [(f"How does article {n} go?", TEXTS[n]) for n in range(100)]


def table(folder: Path, rows: list[tuple[str, ...]], *columns: str):
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])


def described(folder: Path, corpus: dict[str, Any], *stages: dict[str, Any]) -> dict[str, Any]:
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return {
        "name": "x",
        "teacher": {"model": "m"},
        "student": {"weights": "nano"},
        "rows": {"files": ["texts.txt"], **corpus},
        "stages": [*stages],
    }


def sources(folder: Path, corpus: dict[str, Any], **tuples: Any) -> TrainingSources:
    spec = described(folder, corpus, {"name": "s", "objective": {"kind": "info_nce"}, "rows": tuples})
    return TrainingSources.of_recipe(
        recipe.parse(spec, "test"), Session(data=folder, cache_folder=folder / "cache")
    )


def trained_and_held(of: TrainingSources) -> tuple[set[int], set[int], list[set[int]], set[int]]:
    """The keys of texts trained on, texts held out, each tuple trained on, queries held out."""
    (texts,), tuples = of.texts.sides, of.of_stage("stages[0].rows")
    rows = [
        {deduplicate.key(tuples.sides[0][first]), *(deduplicate.key(tuples.sides[1][n]) for n in rest)}
        for first, *rest in tuples.index[: tuples.training_count].tolist()
    ]
    queries = tuples.sides[0].texts(np.unique(tuples.index[tuples.held_out, 0]))
    own = [
        set(map(deduplicate.key, texts.texts(part))) for part in (range(texts.training_count), texts.held_out)
    ]
    return own[0], own[1], rows, set(map(deduplicate.key, queries))


@pytest.mark.parametrize("column", [0, 1, 2])
def test_held_out_texts_are_in_no_tuple_and_held_out_queries_nowhere(tmp_path, column: int):
    """Whether a tuple's query, answer or negative is the text."""
    others = [(f"Who asks {n}?", f"Somebody asks {n}.", f"Nobody asks {n}.") for n in range(100)]
    rows = [(*row[:column], TEXTS[n].upper(), *row[column + 1 :]) for n, row in enumerate(others)]
    table(tmp_path, [*rows, *((TEXTS[n], "An answer.", f"No answer {n}.") for n in range(20))], "q", "a", "n")
    own = sources(tmp_path, {"held_out": 20}, files=["pairs.csv"], columns=["q", "a", "n"], held_out=15)
    trained, held, tuples, queries = trained_and_held(own)
    assert len(held) == 20 and len(queries) == 15 and tuples
    assert not any(row & (held | queries) for row in tuples)
    assert not trained & (held | queries)


def test_a_query_in_other_letters_is_on_one_side(tmp_path):
    spelled = [
        str.upper,
        lambda q: q.replace("o", "ö"),
        lambda q: q.replace("H", "\uff28"),
        lambda q: f" {q} ?",
        lambda q: q.replace("o", "\u00ado\u200b"),
    ]
    table(tmp_path, [*PAIRS, *((spell(q), t) for spell in spelled for q, t in PAIRS)], "query", "text")
    own = sources(tmp_path, {}, files=["pairs.csv"], columns=["query", "text"], held_out=10)
    _, _, tuples, queries = trained_and_held(own)
    held = own.of_stage("stages[0].rows")
    assert len(queries) == 10 and len(held.held_out) == 10 * 5 and len(tuples) == 90 * 5
    assert not any(row & queries for row in tuples)


def test_the_same_texts_are_held_out_where_nothing_is_excluded(tmp_path):
    table(tmp_path, PAIRS, "query", "text")
    columns = {"files": ["pairs.csv"], "columns": ["query", "text"]}
    held = [
        trained_and_held(sources(tmp_path, {"held_out": count}, **columns, held_out=10))[3]
        for count in (0, 20)
    ]
    assert held[0] == held[1]


def test_made_queries_are_no_sentences_of_held_out_texts(tmp_path):
    own = sources(tmp_path, {"held_out": 20, "passages": {}}, queries={})
    both = "Here is something. " + " ".join(TEXTS[:50]) + " Here is the end."
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in [*TEXTS, both]), encoding="utf-8")
    trained, held, tuples, _ = trained_and_held(own)
    sentences = {deduplicate.key(part) for text in TEXTS for part in (text, *text.split(". "))}
    assert held & sentences and trained & sentences
    assert not trained & held
    assert not any(row & held for row in tuples)


def test_no_passage_of_a_page_holds_a_held_out_text(tmp_path):
    lines = [f"Answer {n} is that word{n} means word{n + 1}." for n in range(100)]
    (tmp_path / "page.txt").write_text("".join(f"{text}\n" for text in [" ".join(lines), *lines]))
    section = recipe.Rows(files=["page.txt"], held_out=20, passages=recipe.Passages())
    built = corpus.build(section, Session(data=tmp_path, cache_folder=tmp_path / "cache"), 0)
    trained, held = built.texts(range(built.training_count)), built.texts(built.held_out)
    assert len([text for text in held if text in lines]) >= 19
    passages = [text for text in trained if text not in lines and len(text) < 300]
    assert passages and not any(text in passage for text in held for passage in passages)


def test_texts_that_are_all_measured_are_refused(tmp_path):
    table(tmp_path, [(text, "x") for text in ("a", "b", "A")], "query", "text")
    spec = recipe.Rows(files=["pairs.csv"], columns=["query", "text"], held_out=2)
    session = Session(data=tmp_path, cache_folder=tmp_path / "cache")
    with pytest.raises(UserError, match="stages.0..rows: nothing to train on: 2 source texts"):
        training_rows.build(spec, session, 0, place="stages[0].rows")


def test_excluded_texts_are_wrapped_as_those_they_are_to_be_known_in(tmp_path):
    wrapped = "A text that\nis wrapped over\nthree lines here\n\n"
    (tmp_path / "held.txt").write_text(wrapped)
    (tmp_path / "own.txt").write_text(f"Another one that\nis wrapped as well\nover lines.\n\n{wrapped}")
    section = recipe.Rows(files=["own.txt"], unit="auto", exclude=["held.txt"])
    built = corpus.build(section, Session(data=tmp_path, cache_folder=tmp_path / "cache"), 0)
    assert list(built) == ["Another one that is wrapped as well over lines."]


def test_what_adapt_and_fit_judge_by_is_not_trained_on(tmp_path):
    """Neither where the texts are read to be counted, nor by the recipe; both count it, and the file once."""
    shipped = [text.upper() for name in scoring.SHIPPED for text in scoring.suite(name).texts[:9]]
    section = described(tmp_path, {})["rows"]
    with (tmp_path / "texts.txt").open("a") as file:
        file.write("\n".join(shipped))
    session = Session(data=tmp_path, cache_folder=tmp_path / "cache")
    for more in ({}, {"held_out": 20}):
        built = texts.read({**section, **more}, 1, session)
        trained, held = built.texts(range(built.training_count)), built.texts(built.held_out)
        assert not set(trained) & set(shipped) and set(TEXTS) <= {*trained, *held}
        count = len(set(shipped) - set(held))
        assert f"read 1 file; rows left out: {count} with a text that is meas" in session.reading.line


@pytest.mark.parametrize("split", [{"dev": "dev.tsv"}, {"dev_rows": 4}])
def test_suites_and_splits_of_a_task_are_not_trained_on(tmp_path, split: dict[str, Any]):
    """Where the recipe lists them itself as rows to distil on and to fine-tune on, in other letters."""
    labelled = [f"{text.upper()}\t{n % 2}\n" for n, text in enumerate(TEXTS)]
    for name, rows in {"train": labelled, "dev": labelled[10:16], "test": labelled[20:26]}.items():
        (tmp_path / f"{name}.tsv").write_text("".join(["text\tlabel\n", *rows]), encoding="utf-8")
    graded = [f"{TEXTS[n]}\t{TEXTS[n + 1]}\t{n}\n" for n in (30, 32)]
    (tmp_path / "sts.tsv").write_text("".join(["sentence1\tsentence2\tscore\n", *graded]), encoding="utf-8")
    (tmp_path / "suite.yaml").write_text("kind: sts\ntasks: [{name: a, file: sts.tsv}]\n")
    section = {"files": ["train.tsv"], "columns": ["text"], "label": "label", "test": "test.tsv", **split}
    stages = (
        {"name": "s", "objective": {"kind": "cosine"}},
        {"kind": "finetune", "name": "f", "rows": section},
    )
    select = {"select": {"suite": str(tmp_path / "suite.yaml")}}
    spec = recipe.parse(described(tmp_path, {}, *stages) | select, "test")
    session = Session(data=tmp_path, cache_folder=tmp_path / "cache")
    own = TrainingSources.of_recipe(spec, session)
    assert spec.finetuning is not None
    task = labelled_tasks.open_task(spec.finetuning.rows, session, 0, 1.0, "stages[1].rows")
    assert task.test is not None
    measured = {deduplicate.key(text) for rows in (task.dev, task.test) for (text,) in rows.items}
    measured |= {deduplicate.key(text) for text in TEXTS[30:34]}
    trained = {deduplicate.key(text) for text in own.texts.sides[0]}
    assert not trained & measured and len(trained) == len(TEXTS) - len(measured)
    assert session.reading.rows_left_out["with a text that is measured"] >= len(measured)
    split = {deduplicate.key(text) for rows in (task.dev, task.test) for (text,) in rows.items}
    assert not {deduplicate.key(text) for (text,) in task.train.items} & split
    assert "rows left out: " in session.reading.line


def test_a_pair_of_dev_is_not_trained_on_and_one_of_its_texts_may_be(tmp_path):
    rows = [f"a {n}\tb {n}\t{n % 2}\n" for n in range(20)]
    other = ["a 3\tb 99\t0\n"]
    for name, part in {"train": [*rows, *other], "dev": [row.upper() for row in rows[2:6]]}.items():
        (tmp_path / f"{name}.tsv").write_text("".join(["x\ty\tlabel\n", *part]), encoding="utf-8")
    spec = recipe.Rows(files=["train.tsv"], columns=["x", "y"], label="label", dev="dev.tsv")
    session = Session(data=tmp_path, cache_folder=tmp_path / "cache")
    task = labelled_tasks.open_task(spec, session, 0, 1.0, "stages[0].rows")
    assert len(task.dev) == 4 and len(task.train) == 17 and ("a 3", "b 99") in task.train.items
    with pytest.raises(ValueError, match="`dev` and `test` are both dev.tsv; "):
        recipe.Rows(files=["train.tsv"], columns=["x", "y"], label="label", dev="dev.tsv", test="dev.tsv")
