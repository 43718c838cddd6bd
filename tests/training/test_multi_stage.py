"""The four stages on tiny models: an assistant taught from a teacher, a student from both, resumed, exported,
measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from edgedistill import bundle_run, files, recipe, run
from edgedistill.data import rows as training_rows
from edgedistill.errors import UserError
from edgedistill.evaluation import bench, speed
from edgedistill.export import bundle_writer
from edgedistill.planning import cost
from edgedistill.runtime import batching, bundle
from edgedistill.session import Session
from edgedistill.students.pooling import pool
from edgedistill.teacher import assistant, encoder, tokenizer_files
from edgedistill.training import checkpoint, checks, train
from edgedistill.training.initial_student import finished_student, initial_weights
from edgedistill.training.initial_student.prepared_student import PreparedStudent, StudentTokenizer
from edgedistill.training.inputs.batches import of_stage
from edgedistill.training.inputs.stage_targets import TargetReader
from edgedistill.training.load_models import open_models
from edgedistill.training.stage_in_progress import StageInProgress
from edgedistill.training.stages import distillation_stages
from edgedistill.training.training_sources import TrainingSources
from edgedistill.vocabulary import learn_tokenizer
from tests.conftest import World, sentences
from tests.vocabulary.test_trim_tokenizer import plain_model, unigram

BOTH = {"kind": "each_side", "objective": {"kind": "mse"}}
OWN = {"of": "assistant", "language": "own"}
EMBEDDINGS = {"of": "assistant", "layer": "embeddings", "language": "own"}
FAST = {"steps": 6, "batch": 8, "bucket": 2}
STUDENT = {
    "kind": "recurrent",
    "weights": "assistant",
    "tokenizer": "assistant",
    "layers": 1,
    "bottleneck": 8,
    "max_tokens": 32,
}


def quiet(line: str):
    pass


def translated(text: str) -> str:
    return " ".join(word[::-1] for word in text.split())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of English and its words spelled backwards, and an STS suite's texts in both."""
    folder = tmp_path_factory.mktemp("pairs")
    texts = sentences(240)
    rows = [f"{text}\t{translated(text)}" for text in texts]
    (folder / "en-xx.tsv").write_text("en\txx\n" + "\n".join(rows[:160]) + "\n", encoding="utf-8")
    (folder / "en-yy.tsv").write_text(
        "en\tyy\n" + "\n".join(f"{text}\t{text.upper()}q" for text in texts[120:]) + "\n", encoding="utf-8"
    )
    for at, name in enumerate(("en", "xx")):
        lines = [
            f"{row.split(chr(9))[at]}\t{rows[(number * 7) % 40].split(chr(9))[at]}\t{number % 5}"
            for number, row in enumerate(rows[:40])
        ]
        (folder / f"sts.{name}.tsv").write_text(
            "sentence1\tsentence2\tscore\n" + "\n".join(lines) + "\n", encoding="utf-8"
        )
    suite = "kind: sts\ntasks:\n  - {name: en-xx, file: sts.en.tsv, translation: sts.xx.tsv}\n"
    (folder / "suite.yaml").write_text(suite, encoding="utf-8")
    return folder


def written(world: World, name: str, **changes: Any) -> dict[str, Any]:
    parts = [
        {"files": [f"en-{each}.tsv"], "columns": ["en", each], "languages": ["en", each]}
        for each in ("xx", "yy")
    ]
    return {
        "name": name,
        "teacher": {"model": str(world.teacher), "max_tokens": 32, "dtype": "fp32"},
        "rows": {"tables": parts, "held_out": 10},
        **changes,
    }


@pytest.fixture(scope="module")
def taught(world: World, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stage 1: XLM-R's architecture with the teacher's layers, behind a tokenizer learned from the pairs."""
    student = {
        "kind": "recurrent",
        "layers": 2,
        "repeats": 1,
        "position_ids": "pad",
        "unigram": {"vocabulary_size": 300},
        "max_tokens": 32,
    }
    stages = [{"name": "teach", "objective": BOTH, **FAST}]
    spec = recipe.parse(written(world, "assistant", student=student, stages=stages), "test")
    out = tmp_path_factory.mktemp("assistant") / "assistant"
    train.train(spec, out, Session(data=data, log=quiet))
    return out


def test_translations_match_targets_of_the_lengths_that_their_map_was_fitted_to(
    world: World, data: Path, tmp_path: Path
):
    """The map of `targets` subtracts the mean of embeddings of unit length."""
    spec = recipe.parse(
        written(
            world,
            "mapped",
            rows={"files": ["sts.en.tsv"], "column": "sentence1"},
            targets={"dims": 8, "reduce": {"kind": "pca"}, "normalize": False},
            student={"kind": "static", "tokenizer": "teacher"},
            stages=[{"name": "pairs", "objective": BOTH, "rows": written(world, "pairs")["rows"], **FAST}],
        ),
        "test",
    )
    session, sources = Session(data=data), TrainingSources.of_recipe(spec, Session(data=data))
    unread: Any = None  # the student, which these targets are not fitted to
    reader = TargetReader(spec, open_models(spec, session), sources.texts, unread, session, tmp_path)
    rows = sources.of_stage("stages[0].rows")
    [(found, _), _] = reader.of_stage(distillation_stages(spec)[0], rows).embeddings
    ours, theirs = (list(each.sides[0]) for each in (rows, sources.texts))
    pair, text = next((ours.index(each), theirs.index(each)) for each in ours if each in theirs)
    assert np.allclose(found[np.array([pair])], reader.of_texts[np.array([text])], atol=1e-5)


def four(world: World, data: Path, taught: Path, **changes: Any) -> recipe.Recipe:
    """Stages 2 to 4 from a finished assistant."""
    last = {
        "kind": "sum",
        "terms": [{"weight": 1.0, "objective": {"kind": "mcl"}}, {"weight": 1.0, "objective": BOTH}],
    }
    stages = [
        {"name": "align", "objective": BOTH, "match": EMBEDDINGS, "learning_rate": 1e-2, **FAST},
        {"name": "teach", "objective": BOTH, "match": OWN, **FAST},
        {"name": "contrast", "objective": last, "tables": ["en-xx"], **FAST},
    ]
    parts: dict[str, Any] = {
        "assistant": {"model": str(taught), "max_tokens": 32, "dtype": "fp32"},
        "student": {**STUDENT, "embeddings": {"from": "random"}},
        "stages": stages,
        "select": {"suite": str(data / "suite.yaml"), "every": 4, "languages_without_dev": ["yy"]},
    }
    return recipe.parse(written(world, "student", **{**parts, **changes}), "test")


@pytest.fixture(scope="module")
def whole(world: World, data: Path, taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("student") / "student"
    train.train(four(world, data, taught), out, Session(data=data, log=quiet))
    return out


def test_a_run_as_a_teacher(taught: Path):
    """Its vectors are its student's, as they come; its embedding layer is the mean of its tables."""
    opened = assistant.open_assistant(recipe.Teacher(model=str(taught), dtype="fp32"))
    texts = [*sentences(3), translated(sentences(1)[0])]
    ids, mask = batching.pad(
        tokenizer_files.encode_ids(opened.tokenizer, texts, 32), opened.tokenizer.pad_token_id or 0
    )
    student: Any = run.open_run(taught).student()
    with torch.inference_mode():
        expected = student(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
        at = torch.from_numpy((ids != 1).cumsum(1) * (ids != 1) + 1)
        tables = pool(
            student.model.embeddings(input_ids=torch.from_numpy(ids), position_ids=at),
            torch.from_numpy(mask),
            "mean",
        ).numpy()
    assert np.abs(opened.embed(texts, unit=False) - expected).max() < 1e-5
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(opened.embed(texts) - unit).max() < 1e-5 < np.abs(unit - expected).max()
    layer = assistant.embedding_layer(opened)
    assert np.abs(layer.embed(texts, unit=False) - tables).max() < 1e-6
    assert layer.identity() != opened.identity()


def test_a_run_names_what_its_assistants_layers_were_trained_on(taught: Path, whole: Path):
    (earlier,) = run.open_run(whole).info["earlier"]
    assert earlier["recipe"] == "assistant" and {"en-xx.tsv", "en-yy.tsv"} == {
        each["name"] for each in earlier["sources"]
    }
    assert "earlier" not in run.open_run(taught).info, (
        "its layers are a model's, which no run of ours has trained"
    )


def test_an_assistant_has_the_teachers_layers_and_a_tokenizer_of_its_own(
    world: World, data: Path, taught: Path
):
    opened = run.open_run(taught)
    assert opened.shape["position_ids"] == "pad" and opened.shape["config"]["num_hidden_layers"] == 2
    words = opened.tokenizer()
    assert [words.convert_ids_to_tokens(at) for at in range(4)] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert words.convert_ids_to_tokens(len(words) - 1) == "<mask>" and len(words) <= 300
    assert words("the cat")["input_ids"][0] == 0 and words("the cat")["input_ids"][-1] == 2
    assert words.unk_token_id not in words(translated("the cat eats a red apple"))["input_ids"]
    spec = opened.recipe
    assert spec.rows is not None and isinstance(spec.student, recipe.Recurrent) and spec.student.unigram
    pairs = training_rows.build(spec.rows, Session(data=data), 0)
    again = learn_tokenizer._train_unigram([pairs.sides[0], pairs.sides[1]], spec.student.unigram)
    assert again.backend_tokenizer.get_vocab() == words.get_vocab(), "the same texts give the same pieces"


def test_what_each_stage_reads(world: World, data: Path, taught: Path):
    """The texts of a pair, and whose vectors: the assistant's of either side, then the teacher's of the first
    for both."""
    spec = four(world, data, taught)
    assert spec.rows is not None and spec.assistant is not None
    pairs = training_rows.build(spec.rows, Session(data=data), 0)
    models = open_models(spec, Session(data=data))
    assert models.assistant is not None and isinstance(models.teacher, encoder.TeacherEncoder)
    words = models.assistant.tokenizer
    limited = StudentTokenizer(words, 32).limited_to(spec.distilling)
    unread: Any = None  # the student: there are no `targets`
    reader = TargetReader(spec, models, pairs, unread, Session(log=quiet), data)
    align, teach, contrast = (
        replace(of_stage(stage, pairs, limited, Session(log=quiet)), targets=reader.of_stage(stage, pairs))
        for stage in distillation_stages(spec)
    )
    rows = np.array([0, 5, 17])
    for batches in (align, teach, contrast):
        (one, _), (other, _) = batches.batch(rows, rows)[0]
        for ids, side, corpus in ((one, 0, pairs.sides[0]), (other, 1, pairs.sides[1])):
            texts = corpus.texts(pairs.index[rows, side])
            assert [row[row != 1].tolist() for row in ids] == [
                each.tolist() for each in tokenizer_files.encode_ids(words, texts, 32)
            ]
    sources, targets = (
        corpus.texts(pairs.index[rows, at]) for at, corpus in enumerate((pairs.sides[0], pairs.sides[1]))
    )
    layer = assistant.embedding_layer(models.assistant)
    for batches, reader in ((align, layer), (teach, models.assistant)):
        expected = [reader.embed(sources, unit=False), reader.embed(targets, unit=False)]
        kept = np.stack(batches.compared(rows).embeddings)  # in half precision
        assert np.abs(kept - np.stack(expected)).max() < 2e-3
    of_both = contrast.compared(rows).embeddings
    assert len(of_both) == 2
    assert max(np.abs(each - models.teacher.embed(sources, unit=False)).max() for each in of_both) < 5e-3
    assert contrast.rows == pairs.sources[0]["trained"] < teach.rows == pairs.training_count


def test_stage_two_moves_the_tables_and_nothing_else(world: World, data: Path, taught: Path, tmp_path):
    spec = four(world, data, taught)
    only = spec.model_copy(update={"stages": spec.stages[:1]})
    info = train.train(only, tmp_path / "two", Session(data=data, log=quiet))
    assert info["selected"] is None
    after, before = (
        load_file(tmp_path / "two" / "student.safetensors"),
        load_file(taught / "student.safetensors"),
    )
    layers = [name for name in after if name.startswith("model.encoder.")]
    assert layers and all(torch.equal(after[name], before[name]) for name in layers)
    first = initial_weights.build(
        spec, open_models(spec, Session(data=data)), run.open_run(taught).tokenizer(), Session(data=data)
    ).module
    moved = {name for name, value in first.state_dict().items() if not torch.equal(value, after[name])}
    assert moved and all(name.startswith("model.embeddings.") for name in moved)
    assert "model.embeddings.word_embeddings.project.weight" in moved


class Killed(BaseException):
    pass


def test_killed_in_every_stage_and_resumed_gives_the_same_bytes(
    world: World, data: Path, taught: Path, whole: Path, tmp_path, monkeypatch
):
    spec, steps = four(world, data, taught), 0
    batch = StageInProgress.batch

    def counted(stage: StageInProgress) -> Any:
        nonlocal steps
        steps += 1
        if steps in (4, 11, 17):
            raise Killed
        return batch(stage)

    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(StageInProgress, "batch", counted)
    for resume in (False, True, True):
        with pytest.raises(Killed):
            train.train(spec, tmp_path / "cut", Session(data=data, log=quiet), resume=resume)
    train.train(spec, tmp_path / "cut", Session(data=data, log=quiet), resume=True)
    for name in ("student.safetensors", "student.json", "tokenizer/tokenizer.json"):
        assert (whole / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name


def test_through_export_and_bench(data: Path, whole: Path, tmp_path):
    info = files.read_json(whole / "run.json")
    assert [stage["name"] for stage in info["stages"]] == ["align", "teach", "contrast"]
    assert info["selected"]["stage"] == "contrast"
    opened = run.open_run(whole)
    assert (opened.shape["repeats"], opened.shape["bottleneck"], opened.shape["position_ids"]) == (
        2,
        8,
        "pad",
    )
    bundle_writer.export(whole, ["fp32", "w8"], tmp_path / "bundle", quiet)
    texts = [*sentences(4), translated(sentences(1)[0])]
    expected = PreparedStudent.of(opened).embed(texts)
    assert np.abs(bundle.load(tmp_path / "bundle", precision="fp32").encode(texts) - expected).max() < 1e-5
    suite = tmp_path / "lost.yaml"
    (tmp_path / "lost.tsv").write_text(
        "sentence1\tsentence2\tscore\nкот\tпёс\t1\nthe cat\tthe dog\t3\n", encoding="utf-8"
    )
    suite.write_text("kind: sts\ntasks: [{name: en-ru, file: lost.tsv}]\n", encoding="utf-8")
    said: list[str] = []
    found = bench.bench(
        [f"{tmp_path / 'bundle'}:fp32"],
        [str(data / "suite.yaml"), str(suite)],
        Session(data=data, log=said.append, threads=1),
        plan=speed.MeasurementPlan(2, 1, 1, 0.0, 2),
    )
    report = found["reports"][0]
    assert set(report["quality"][next(iter(report["quality"]))]["tasks"]) == {"en-xx"}
    lost = report["quality"]["lost"]["unknown"]
    assert lost["texts"] == 2 and lost["tokens"] > 0 and lost["first"] == "кот"
    assert any(
        "lost: 2 of 4 texts have tokens that are not in its vocabulary" in line and "кот" in line
        for line in said
    )


def vectors(folder: Path, texts: list[str]) -> np.ndarray:
    """A finished run's own, of at most 32 tokens."""
    opened = run.open_run(folder)
    return PreparedStudent.of(opened).embed(texts)


def test_check_counts_both_sides(world: World, data: Path, taught: Path, whole: Path):
    spec = four(world, data, taught)
    found = cost.costs([spec], Session(data=data, log=quiet))[0]
    assert found["teacher_texts"] == 0  # all in the cache, from training
    assert found["training_samples"] == 3 * 6 * 8 * 2
    again = spec.model_copy(update={"seed": 1})  # other texts are held out, but they are the same texts
    assert cost.costs([again], Session(data=data, log=quiet))[0]["teacher_texts"] == 0


def test_a_published_assistant_by_its_folder(world: World, data: Path, tmp_path):
    """Stage 1 skipped: XLM-R as transformers saves it, read with the pooling that the recipe names; and a
    trimmed vocabulary."""
    folder = plain_model(tmp_path / "xlm-r", "xlm-roberta", unigram(), num_hidden_layers=2)
    spec = four(world, data, folder)
    spec = spec.model_copy(
        update={
            "assistant": recipe.Teacher(model=str(folder), pooling="mean", max_tokens=32, dtype="fp32"),
            "select": None,
        }
    )
    wider = [stage.model_copy(update={"steps": 2}) for stage in spec.stages[:2]]
    student = recipe.Recurrent.model_validate({**STUDENT, "trim": {}})
    info = train.train(
        spec.model_copy(update={"stages": wider, "student": student}),
        tmp_path / "run",
        Session(data=data, log=quiet),
    )
    assert len(run.open_run(tmp_path / "run").tokenizer()) < len(unigram())
    assert info["parameters"]["total"] > 0


def refused(world: World, data: Path, taught: Path, **changes: Any) -> recipe.Recipe:
    spec = four(world, data, taught, **changes)
    cost.costs([spec], Session(data=data, log=quiet))[0]
    return spec


def test_recipes_that_cannot_be(world: World, data: Path, taught: Path, tmp_path):
    stage = {"name": "x", "objective": BOTH, **FAST}
    other = plain_model(tmp_path / "xlm-r", "xlm-roberta", unigram(), num_hidden_layers=2)
    for changes, says in (
        (
            {"assistant": None, "stages": [stage]},
            "student: takes weights or tokenizer from an assistant, and the recipe has none; set "
            "assistant.model",
        ),
        (
            {"assistant": None, "student": {**STUDENT, "weights": "teacher", "tokenizer": "teacher"}},
            r"stages\[0\].match: needs an assistant",
        ),
        (
            {"stages": [{**stage, "objective": {"kind": "mse"}}]},
            r"mse reads single texts, the rows hold translations; apply it to each side",
        ),
        (
            {"stages": [{**stage, "tables": ["en-de"]}]},
            r"stages\[0\].tables: none is named 'en-de'; the rows have \(en-xx, en-yy\)",
        ),
        (
            {"stages": [{**stage, "match": {"layer": "embeddings"}}]},
            "need an assistant, which knows all the languages; set `of: assistant`",
        ),
        (
            {"stages": [{**stage, "objective": {"kind": "mcl"}, "match": EMBEDDINGS}]},
            "match embedding layers with",
        ),
        ({"targets": {"dims": 8, "reduce": {"kind": "pca"}}}, "`targets` need texts, not translations"),
        (
            {"rows": {"files": ["x.txt"]}, "stages": [stage]},
            "each_side reads translations; give rows with",
        ),
        (
            {"select": {"suite": str(data / "suite.yaml")}},
            r"yy: no task of the suite .* is in these languages.*select.languages_without_dev: \[yy\]",
        ),
        (
            {"student": {**STUDENT, "tokenizer": str(other)}, "stages": [{**stage, "match": OWN}]},
            "student.weights: the assistant's layers read .* into other tokens; set student.tokenizer: "
            "assistant",
        ),
        (
            {"student": {**STUDENT, "weights": "teacher", "tokenizer": str(other)}},
            r"stages\[0\].match: .* into other tokens; set student.tokenizer: assistant",
        ),
        (
            {"student": {"kind": "bert", "weights": "assistant", "tokenizer": "assistant", "layers": 1}},
            "recurrent student.*`kind: recurrent`",
        ),
        (
            {"assistant": {"model": "runs/of-no-name"}},
            "runs/of-no-name: no such run here; train it first: edgedistill train of-no-name",
        ),
        (
            {"student": {**STUDENT, "unigram": {}, "trim": {}}},
            "`unigram` learns its own tokenizer; leave `trim` out",
        ),
    ):
        with pytest.raises(UserError, match=says):
            refused(world, data, taught, **changes)


def test_an_assistant_gives_layers_and_tokenizer_unless_told_otherwise(world: World):
    """Methods §5.1."""
    bare = {"kind": "recurrent", "layers": 1}
    found = recipe.parse(
        written(world, "student", assistant={"model": "runs/x"}, student=bare, stages=[]), "test"
    ).student
    assert isinstance(found, recipe.Recurrent) and (found.weights, found.tokenizer) == (
        "assistant",
        "assistant",
    )
    found = recipe.parse(written(world, "student", student=bare, stages=[]), "test").student
    assert isinstance(found, recipe.Recurrent) and (found.weights, found.tokenizer) == ("teacher", "teacher")


def test_places_that_no_stage_trains_are_not_read(world: World, data: Path, taught: Path):
    """Where tables start from noise; those of an assistant may be read to their end."""
    words = run.open_run(taught).tokenizer()
    for embeddings, most in (({"from": "random"}, 20), ({"from": "teacher"}, 32)):
        stage = {"name": "x", "objective": BOTH, "match": OWN, **FAST, "max_tokens": 20}
        spec = four(world, data, taught, student={**STUDENT, "embeddings": embeddings}, stages=[stage])
        assert (
            initial_weights.build(
                spec, open_models(spec, Session(data=data)), words, Session(data=data)
            ).max_tokens
            == most
        )


def test_a_head_goes_with_the_layers_it_was_trained_behind(world: World, data: Path, taught: Path, tmp_path):
    student = {
        "kind": "recurrent",
        "layers": 1,
        "bottleneck": 8,
        "head": "linear",
        "dims": 32,
        "max_tokens": 32,
    }
    stage = {"name": "x", "objective": BOTH, "match": OWN, **FAST}
    first = recipe.parse(
        written(world, "one", assistant={"model": str(taught)}, student=student, stages=[stage]), "test"
    )
    train.train(first, tmp_path / "one", Session(data=data, log=quiet))
    again = {"model": str(tmp_path / "one"), "max_tokens": 32, "dtype": "fp32"}
    second = recipe.parse(written(world, "two", assistant=again, student=student, stages=[]), "test")
    train.train(second, tmp_path / "two", Session(data=data, log=quiet))
    assert (
        np.abs(vectors(tmp_path / "one", sentences(4)) - vectors(tmp_path / "two", sentences(4))).max() < 1e-4
    )


def test_an_unfinished_run_is_no_assistant(world: World, data: Path, tmp_path):
    (tmp_path / "half.partial").mkdir()
    with pytest.raises(
        UserError, match="its training has not finished; run edgedistill train again with --resume"
    ):
        refused(world, data, tmp_path / "half")


def test_a_suite_that_names_no_language_is_english(world: World, data: Path, taught: Path):
    spec = four(world, data, taught)
    assert spec.rows is not None and spec.select is not None
    parts = [part.model_copy(update={"languages": ["en", "xx"]}) for part in spec.rows.tables]
    mini = spec.select.model_copy(update={"suite": "mini", "languages_without_dev": ["xx"]})
    of_two = spec.model_copy(update={"rows": spec.rows.model_copy(update={"tables": parts}), "select": mini})
    checks.check_languages(of_two)
    with pytest.raises(UserError, match="languages: xx: no task of the suite mini"):
        checks.check_languages(
            of_two.model_copy(update={"select": mini.model_copy(update={"languages_without_dev": []})})
        )


def test_a_trimmed_run_reads_no_further_than_it_was_taught(world: World, data: Path, whole: Path, tmp_path):
    """The stages of the run taught its fresh position table 32 places; what is made of it without stages
    keeps to those."""
    read = run.open_run(whole).max_tokens
    student = {**STUDENT, "trim": {}, "max_tokens": 64}
    assistant = {"model": str(whole), "max_tokens": 64, "dtype": "fp32"}
    spec = recipe.parse(written(world, "short", assistant=assistant, student=student, stages=[]), "test")
    train.train(spec, tmp_path / "short", Session(data=data, log=quiet))
    assert run.open_run(tmp_path / "short").max_tokens == read < 64


def test_the_card_and_later_trainings_name_the_tables_of_pairs(world: World, data: Path, tmp_path):
    student = {
        "kind": "recurrent",
        "layers": 1,
        "repeats": 1,
        "position_ids": "pad",
        "unigram": {"vocabulary_size": 300},
        "max_tokens": 32,
    }
    stages = [{"name": "teach", "objective": BOTH, **FAST}]
    described = written(world, "named", student=student, stages=stages)
    described["rows"]["licences"] = {"en-xx.tsv": "CC0"}
    train.train(recipe.parse(described, "test"), tmp_path / "named", Session(data=data, log=quiet))
    bundle_writer.export(tmp_path / "named", ["fp32"], tmp_path / "bundle", quiet)
    made = run.open_run(tmp_path / "named").info["corpus"]
    pairs = [source["pairs"] for source in made["sources"]]
    card = (tmp_path / "bundle" / "README.md").read_text(encoding="utf-8")
    assert (
        f"| en-xx.tsv | {pairs[0]:,} | CC0 |" in card and f"| en-yy.tsv | {pairs[1]:,} | not named |" in card
    )
    assert (
        f"Trained on samples of {sum(pairs) - made['held_out']:,} pairs of texts ({made['held_out']} more "
        "were held out)" in card
    )
    (recorded,) = finished_student.earlier(bundle_run.open_finished(str(tmp_path / "bundle"), "test"))
    assert [(each["texts"], each["licence"]) for each in recorded["sources"]] == [
        (pairs[0], "CC0"),
        (pairs[1], None),
    ]
