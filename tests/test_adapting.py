"""`edgedistill adapt`: a finished student learns somebody's texts; what it chose is an ordinary recipe."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from edgedistill import adapting, bundle_run, cli, recipe, resolve, run
from edgedistill.adapting import plan
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.export import bundle_writer
from edgedistill.fitting import judge, texts
from edgedistill.fitting.queries import Pairs
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.training import record, train
from tests.conftest import World, sentences


@pytest.fixture(scope="module")
def student(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a student that has hardly been trained."""
    root = tmp_path_factory.mktemp("student")
    few = {
        "stages": [{"name": "distil", "objective": {"kind": "cosine"}, "steps": 2, "batch": 16, "bucket": 4}]
    }
    train.train(world.spec(**few), root / "run", Session(data=world.data))
    bundle_writer.export(root / "run", ["fp32"], root / "bundle", lambda line: None)
    return root / "bundle"


def documents(folder: Path, count: int = 80) -> Path:
    """Texts of five sentences, a line each."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = sentences(5 * count, seed=8)
    lines = [" ".join(each.rstrip(".!") + "." for each in drawn[5 * n : 5 * n + 5]) for n in range(count)]
    (folder / "own.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_a_student_agrees_better_with_its_teacher_on_texts_that_were_held_out(
    world: World, student: Path, tmp_path, monkeypatch
):
    data = documents(tmp_path / "data")
    before = {path: path.read_bytes() for path in student.rglob("*") if path.is_file()}
    arguments = [
        "adapt",
        str(student),
        "--texts",
        "*.txt",
        "--data",
        str(data),
        "--out",
        str(tmp_path / "mine"),
        "--json",
    ]
    arguments += ["--teacher", str(world.teacher)]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    opened: Any = run.open_run(Path(found["run"]))
    measured = scoring.evaluate(scoring.suite(found["suite"]), bundle.load(found["bundle"]))
    assert measured["tasks"]["made"]["ndcg_at_10"] == pytest.approx(
        found["search"]["made"]["ndcg_at_10"]["after"]
    )
    for more in [], ["--overwrite", "--out", str(data)]:
        assert isinstance(CliRunner().invoke(cli.app, arguments + more).exception, UserError), (
            "neither an earlier bundle unasked, nor ever a folder of something else is replaced"
        )
    assert found["after"]["agreement"] > found["before"]["agreement"]
    assert found["better"] == (found["after"]["score"] > found["before"]["score"] + judge.RESOLUTION)
    assert found["verdict"].endswith(f" after {found['steps']} training steps")
    assert found["search"]["made"]["queries"] < 50 and "agreement" in found["verdict"]  # too few to judge by
    assert opened.recipe.student.weights == "bundle" and opened.info["weights"]["bundle"] == "bundle"
    rows: Any = opened.recipe.rows
    assert rows.passages is not None and rows.held_out == 10, "texts of many words are cut into sentences"
    sources = [source["name"] for source in opened.info["corpus"]["sources"]]
    assert sources == ["own.txt", "passages of their texts"]
    assert (
        sum(source["texts"] for source in opened.info["corpus"]["sources"]) == opened.info["corpus"]["texts"]
    )
    card = (tmp_path / "mine" / "README.md").read_text(encoding="utf-8").split("### Earlier training")[0]
    assert "| own.txt |" in card
    assert bundle.load(tmp_path / "mine", "int8").encode(["a text"]).shape == (1, 32)
    assert {path: path.read_bytes() for path in student.rglob("*") if path.is_file()} == before


def other_teacher(world: World, folder: Path) -> Path:
    """The tiny teacher with its token embeddings in another order: another space."""
    shutil.copytree(world.teacher, folder)
    weights = load_file(folder / "model.safetensors")
    table = next(name for name in weights if name.endswith("word_embeddings.weight"))
    save_file(
        {**weights, table: weights[table].flip(0).contiguous()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    return folder


def test_another_teacher_is_said_and_fitted_to(world: World, student: Path, tmp_path):
    said: list[str] = []
    session = Session(data=documents(tmp_path / "data"), log=said.append)
    other = recipe.Teacher(model=str(other_teacher(world, tmp_path / "other")), max_tokens=32)
    request = adapting.Request(
        str(student), ["own.txt"], tmp_path / "b", tmp_path / "runs", teacher=other, steps=60
    )
    found = adapting.adapt(request, session)
    *_, verdict, commands = found["report"].split("\n\n")
    assert verdict.replace("\n", " ") == found["verdict"]
    assert shlex.split(commands.splitlines()[0])[-2:] == [
        str(session.data / "own.txt"),
        found["bundle"],
    ]
    assert any("keeps its own space" in line for line in said)
    assert run.open_run(request.run).recipe.targets.align == "procrustes"  # type: ignore[union-attr]
    assert found["after"]["agreement"] > found["before"]["agreement"]


def test_it_learns_from_a_second_teacher_too(world: World, student: Path, tmp_path):
    second = recipe.Teacher(model=str(other_teacher(world, tmp_path / "other")))
    request = adapting.Request(
        *(str(student), ["own.txt"], tmp_path / "b", tmp_path / "runs"),
        teacher=recipe.Teacher(model=str(world.teacher)),
        steps=20,
        also=second,
    )
    session = Session(data=documents(tmp_path / "data"))
    found = adapting.adapt(request, session)
    opened: Any = run.open_run(request.run)
    assert [each.model for each in opened.recipe.targets.teachers] == ["other"]
    assert found["after"]["agreement"] != found["before"]["agreement"]
    with pytest.raises(UserError, match="planned with --also"):
        adapting.adapt(replace(request, also=None), session, resume=True)


def test_it_can_be_resumed_and_says_what_it_chose(world: World, student: Path, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "FEWEST_STEPS", 40)
    data = documents(tmp_path / "data")
    teacher = recipe.Teacher(model=str(world.teacher))
    request = adapting.Request(str(student), ["own.txt"], tmp_path / "b", tmp_path / "runs", teacher=teacher)

    def killed(*_: Any):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(record, "write_run", killed)
        with pytest.raises(KeyboardInterrupt):
            adapting.adapt(request, Session(data=data))
    assert not (tmp_path / "b").exists() and resolve.unfinished_run(request.run).exists()
    (data / "others.txt").write_text("\n".join(sentences(90, seed=5)), encoding="utf-8")
    source, written = bundle_run.open_finished(str(student), "test"), resolve.unfinished_run(request.run)
    changes: list[dict[str, Any]] = [{}, {"texts": ["others.txt"]}, {"steps": 21}, {"student": "nano"}]
    asked = [replace(request, **change) for change in changes]
    specs = [plan.resumed(one, source, written / "recipe.yaml", Session(data=data)) for one in asked]
    assert len(set(map(recipe.dump, specs))) == 4, "each of them is seen"
    others: list[tuple[dict[str, Any], str]] = [
        (changes[2], "steps"),
        ({"pairs": Pairs("pairs.tsv")}, "planned without --pairs"),
    ]
    for change, place in others:
        with pytest.raises(UserError, match=re.escape(place)):
            adapting.adapt(replace(request, **change), Session(data=data), resume=True)
    found = adapting.adapt(request, Session(data=data), resume=True)
    assert found["steps"] > 0 and run.open_run(request.run).recipe.distilling[0].minutes


def test_an_unknown_precision_is_refused_before_anything_is_trained(student: Path, tmp_path):
    request = adapting.Request(
        str(student), ["own.txt"], tmp_path / "b", tmp_path / "runs", precisions=("int9",)
    )
    with pytest.raises(UserError, match="--precision: no precision 'int9'; did you mean 'int8'"):
        adapting.adapt(request, Session(data=documents(tmp_path / "data")))
    assert not request.run.exists() and not resolve.unfinished_run(request.run).exists()


def adapted(student: Path, count: int, words: int, steps: int | None = None) -> recipe.Recipe:
    """The recipe for so many texts of so many words."""
    source = bundle_run.open_finished(str(student), "test")
    request = adapting.Request(str(student), ["a.txt"], Path("mine"), steps=steps)
    lengths = np.full(count, words)
    section, teacher = {"files": ["a.txt"]}, source.recipe.teacher
    described = plan.adaptation_recipe(request, source, teacher, section, lengths, source.max_tokens)
    return recipe.parse(described, "adapt")


def test_more_texts_are_given_more_steps(student: Path):
    specs = [adapted(student, count, 12) for count in (200, 2_000, 20_000)]
    steps = [spec.distilling[0].steps or 0 for spec in specs]
    assert steps[0] < steps[2] and sorted(steps) == steps
    corpus: Any = specs[0].rows
    assert corpus.passages is None, "short texts stay whole"
    assert all(stage.rehearsal and stage.initial_share for stage in specs[0].distilling)


def test_long_texts_are_read_further_than_before():
    def read(words: int, student: int, teacher: int) -> int:
        """Nine in ten texts have at most so many words."""
        return plan.tokens_to_read(np.array([10] * 8 + [words] * 2), student, teacher)

    assert read(15, 128, 256) == 128, "short texts"
    assert read(120, 128, 256) == 192
    assert read(1_200, 128, 4_096) == 256, "at most"
    assert read(1_200, 128, 128) == 128, "the teacher reads no further"
    assert read(1_200, 512, 512) == 512, "never fewer than before"


def test_of_very_many_texts_some_are_drawn(student: Path):
    """As many as can be trained on one and a half times."""
    for most in (2_000, 150):
        spec = adapted(student, 50_000, 200, most)
        drawn: Any = spec.rows
        assert spec.distilling[0].steps == most
        rows = drawn.limit + drawn.passages.texts - drawn.held_out
        assert 1.5 * rows == pytest.approx(64 * most, rel=0.01)
    few: Any = adapted(student, 100, 12).rows
    assert few.limit is None and few.passages is None, "all are taken"


def test_little_time_means_few_texts(world: World, student: Path, tmp_path, monkeypatch):
    """A teacher that takes a second for a text; with --steps the time does not count."""
    session = Session(data=documents(tmp_path / "data"))
    source = bundle_run.open_finished(str(student), "test")
    teacher = recipe.Teacher(model=str(world.teacher), max_tokens=32, dtype="fp32")
    request = adapting.Request(str(student), ["own.txt"], tmp_path / "b", tmp_path / "runs", teacher=teacher)
    monkeypatch.setattr(plan.training_time, "seconds_per_text", lambda *_: 1.0)
    spec: Any = plan.planned(replace(request, minutes=5.0), source, session)
    rows = spec.rows.limit + spec.rows.passages.texts - spec.rows.held_out
    assert 0 < rows <= 2 * 5 * 60 * plan.TEACHER_SHARE
    late = replace(request, minutes=5.0, began=request.began - 60.0)
    spec = plan.planned(late, source, session)
    assert spec.rows.limit + spec.rows.passages.texts - spec.rows.held_out < rows, "a minute had passed"
    assert plan.planned(replace(request, steps=9), source, session).distilling[0].steps == 9
    with pytest.raises(
        UserError, match=r"^--minutes 0\.1: the teacher embeds \d+ texts/s .* --minutes [\d.]+$"
    ):
        plan.planned(replace(request, minutes=0.1), source, session)


def test_what_training_does_not_better_is_exported_as_it_was(
    world: World, student: Path, tmp_path, monkeypatch
):
    monkeypatch.setattr(judge, "RESOLUTION", 1.0)  # nothing is so much better
    teacher = recipe.Teacher(model=str(world.teacher))
    request = adapting.Request(
        str(student), ["own.txt"], tmp_path / "b", tmp_path / "runs", teacher=teacher, steps=5, overwrite=True
    )
    resolve.unfinished_run(request.run).mkdir(parents=True)  # which it replaces
    found = adapting.adapt(request, Session(data=documents(tmp_path / "data")))
    assert not found["better"] and "no better than the start, which is exported" in found["report"]
    start, kept = (bundle.load(each).encode(sentences(9)) for each in (student, tmp_path / "b"))
    assert np.array_equal(start, kept)


def test_wrapped_lines_are_told_from_texts(tmp_path):
    draw = random.Random(0)
    words = " ".join(draw.choice(sentences(300)) for _ in range(300)).split()
    lines = [" ".join(words[n : n + 8]) for n in range(0, len(words), 8)]
    wrapped = "\n\n".join("\n".join(lines[n : n + 4]) for n in range(0, len(lines), 4))
    (tmp_path / "wrapped.txt").write_text(wrapped + "\n")
    (tmp_path / "lines.txt").write_text("\n".join(sentences(100)) + "\n")
    paragraphs = wrapped.count("\n\n") + 1

    def found(pattern: str) -> tuple[dict[str, Any], int]:
        section = texts.files_section([pattern], None, tmp_path)
        return section, len(texts.read(section, 50, Session(data=tmp_path)))

    assert found("wrapped.txt") == ({"files": ["wrapped.txt"], "unit": "auto"}, paragraphs)
    assert found("*.txt") == ({"files": ["*.txt"], "unit": "auto"}, paragraphs + 100), "each by itself"
    assert found("lines.txt") == ({"files": ["lines.txt"]}, 100)


def test_too_few_texts_are_refused(student: Path, tmp_path):
    (tmp_path / "own.txt").write_text("\n".join(sentences(10)) + "\n")
    with pytest.raises(UserError) as raised:
        adapting.adapt(
            adapting.Request(str(student), ["own.txt"], tmp_path / "b", tmp_path / "runs"),
            Session(data=tmp_path),
        )
    assert str(raised.value) == "--texts: 10 distinct texts, at least 50 are needed; add texts"
    assert not (tmp_path / "runs").exists() and not (tmp_path / "b").exists()


def test_an_unfinished_run_is_seen_before_anything_is_read(student: Path, tmp_path):
    request = adapting.Request(str(student), ["none.txt"], tmp_path / "b", tmp_path / "runs")
    with pytest.raises(UserError, match=r"runs/b.partial: nothing to resume; leave --resume out"):
        adapting.adapt(request, Session(data=tmp_path), resume=True)
    (tmp_path / "runs" / "b.partial").mkdir(parents=True)
    (tmp_path / "runs" / "b.partial" / "recipe.yaml").touch()
    with pytest.raises(
        UserError,
        match=r"runs/b.partial: an unfinished run; continue it with --resume, or replace it with --overwrite",
    ):
        adapting.adapt(request, Session(data=tmp_path))


def clicks(data: Path, count: int = 60):
    """A query for each document: two of its words in the middle."""
    texts_of = (data / "own.txt").read_text(encoding="utf-8").splitlines()[:count]
    rows = [json.dumps({"q": " ".join(text.split()[6:11]), "answer": text}) for text in texts_of]
    (data / "clicks.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


def test_pairs_are_trained_on_and_held_out_by_query(world: World, student: Path, tmp_path):
    data = documents(tmp_path / "data")
    clicks(data)
    teacher = recipe.Teacher(model=str(world.teacher))
    pairs = Pairs("clicks.jsonl", "q", "answer")
    request = adapting.Request(
        str(student), ["own.txt"], tmp_path / "b", tmp_path / "runs", teacher=teacher, pairs=pairs, steps=40
    )
    found = adapting.adapt(request, Session(data=data))
    texts_stage, pair_stage = run.open_run(request.run).recipe.distilling
    assert texts_stage.rows is None and pair_stage.rows is not None
    assert pair_stage.rows.held_out == 5
    own, made = found["search"]["own"], found["search"]["made"]
    assert own["queries"] == 5 and made["queries"] == 10, "one of each held-out text"
    assert set(own["ndcg_at_10"]) == {"before", "after", "teacher"}
    assert own["bm25"] > 0.1, "words of the text itself find it"
    assert "too few to tell" in found["report"] and "with BM25" in found["report"]


NONE_LEFT = "--pairs: no row is left of 30 read, 30 with {}; add tables, or check {}"
OPTIONS = "--query-column and --text-column"


@pytest.mark.parametrize(
    ("rows", "fact"),
    [
        (
            ["q,answer"] + [f"why {n},text {n}" for n in range(10)],
            "--pairs: 10 distinct queries, at least",
        ),
        (["what,that", "who,they"], f"p.csv: no column 'q'; .* {OPTIONS}"),
        (["q,answer"] + [f",text {n}" for n in range(30)], NONE_LEFT.format("an empty text", OPTIONS)),
        (
            ["q,answer"] + [f"t {n},T {n}" for n in range(30)],
            "--pairs: no row is left of 30 read, 30 whose query is one of its documents; ",
        ),
        (
            ["q,answer"] + [f"t {n},same" for n in range(30)],
            "--pairs: all 30 rows have the same document",
        ),
    ],
)
def test_pairs_that_teach_nothing_are_refused(
    world: World, student: Path, tmp_path, rows: list[str], fact: str
):
    data = documents(tmp_path / "data")
    (data / "p.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    request = adapting.Request(
        *(str(student), ["own.txt"], tmp_path / "b", tmp_path / "runs"),
        teacher=recipe.Teacher(model=str(world.teacher)),
        pairs=Pairs("p.csv", "q", "answer"),
    )
    with pytest.raises(UserError, match=fact):
        adapting.adapt(request, Session(data=data))
    assert not request.run.exists() and not (tmp_path / "b").exists()
