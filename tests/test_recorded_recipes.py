"""Nothing that comes with a bundle, a run, a recipe or a model switches on its code, names files outside, or
starts a download."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from edgedistill import cli, files, recipe, run
from edgedistill.errors import UserError
from edgedistill.evaluation.suites import labelled_task
from edgedistill.export import bundle_writer
from edgedistill.export.model_source import Source
from edgedistill.recipe import recorded
from edgedistill.runtime import manifest
from edgedistill.session import Session
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training import train
from tests.conftest import World, sentences
from tests.export.test_export import make_run

CODE = """
from pathlib import Path
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
Path({marker!r}).touch()
class Config(BertConfig): pass
class Model(BertModel): config_class = Config
class Words(PreTrainedTokenizerFast): pass
"""


@pytest.fixture
def armed(world: World, tmp_path: Path) -> tuple[Path, Path]:
    """A model folder with Python code of its own, and the file that this code makes where it runs."""
    folder, marker = tmp_path / "armed", tmp_path / "ran"
    shutil.copytree(world.teacher, folder)
    (folder / "own.py").write_text(CODE.format(marker=str(marker)))
    named = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    files.write_json(folder / "config.json", {**files.read_json(folder / "config.json"), "auto_map": named})
    words = {
        **files.read_json(folder / "tokenizer_config.json"),
        "auto_map": {"AutoTokenizer": [None, "own.Words"]},
    }
    files.write_json(folder / "tokenizer_config.json", words)
    return folder, marker


def attempt(function: Callable[[], Any]):
    """Open or refuse: both are right, as long as no code ran."""
    try:
        function()
    except (UserError, ValueError):
        pass
    finally:
        for name in [each for each in sys.modules if each.endswith("own") and "transformers_modules" in each]:
            del sys.modules[name]


@pytest.mark.parametrize("way", ["teacher", "weights", "tokenizer", "export", "run", "trim"])
def test_the_code_of_a_model_does_not_run(way: str, armed: tuple[Path, Path], world: World, tmp_path):
    folder, marker = armed
    session = Session(data=world.data)
    student = {"kind": "bert", "width": 16, "heads": 2, "layers": 1}
    changes: dict[str, dict[str, Any]] = {
        "teacher": {"teacher": {"model": str(folder), "max_tokens": 32}},
        "weights": {"student": {"kind": "bert", "layers": [0], "weights": str(folder)}},
        "tokenizer": {"student": {**student, "tokenizer": str(folder)}},
    }
    if way in changes:
        attempt(lambda: train.train(world.spec(**changes[way]), tmp_path / "run", session))
    elif way == "export":
        attempt(
            lambda: bundle_writer.export(
                Source(str(folder), "mean"), ["fp32"], tmp_path / "b", lambda line: None
            )
        )
    elif way == "trim":
        arguments = [
            "trim",
            str(folder),
            "--corpus",
            str(world.data / "texts.txt"),
            "--out",
            str(tmp_path / "t"),
        ]
        attempt(lambda: CliRunner().invoke(cli.app, arguments))
    else:
        path = make_run(tmp_path / "run")
        words = {
            **files.read_json(path / "tokenizer" / "tokenizer_config.json"),
            "auto_map": {"AutoTokenizer": [None, "own.Words"]},
        }
        files.write_json(path / "tokenizer" / "tokenizer_config.json", words)
        shutil.copy(folder / "own.py", path / "tokenizer" / "own.py")
        attempt(lambda: run.open_run(path).tokenizer())
    assert not marker.exists()


def test_it_runs_where_the_command_says_so(armed: tuple[Path, Path]):
    folder, marker = armed
    attempt(lambda: TeacherEncoder(recipe.Teacher(model=str(folder)), remote_code=True))
    assert marker.exists(), "otherwise the tests above prove nothing"


@pytest.mark.parametrize("key", ["teacher", "assistant"])
def test_no_recipe_can_allow_it(key: str, world: World):
    section = {"model": str(world.teacher), "trust_remote_code": True}
    with pytest.raises(UserError, match=rf"{key}.trust_remote_code: no key 'trust_remote_code'"):
        recipe.parse(world.recipe(**{key: section}), "x")


@pytest.mark.parametrize("command", ["check", "train", "adapt", "fit", "export"])
def test_the_commands_that_open_models_offer_the_option(command: str):
    assert "--trust-remote-code" in CliRunner().invoke(cli.app, [command, "--help"]).output


FOREIGN = ["./model", "../model", "/opt/model", "owner/name", "runs/other", "~/model", "C:\\model"]


def hostile(folder: Path, bundle: Path, **teacher: Any) -> Path:
    """A copy of a bundle whose recorded recipe names another teacher, sealed again."""
    shutil.copytree(bundle, folder)
    described = files.read_json(folder / "manifest.json")
    described["recipe"]["teacher"].update(teacher)
    described["digest"] = manifest.digest(described)
    files.write_json(folder / "manifest.json", described)
    return folder


@pytest.fixture(scope="module")
def bundle(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded")
    bundle_writer.export(make_run(root / "run"), ["fp32"], root / "bundle", lambda line: None)
    return root / "bundle"


@pytest.mark.parametrize("model", FOREIGN)
@pytest.mark.parametrize("flags", [[], ["--trust-remote-code"]])
def test_adapt_opens_no_model_that_a_bundle_names(
    model: str, flags: list[str], bundle: Path, tmp_path, monkeypatch
):
    folder = hostile(tmp_path / "b", bundle, model=model, revision="main")
    (tmp_path / "own.txt").write_text("\n".join(sentences(80)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    result = CliRunner().invoke(
        cli.app, ["adapt", str(folder), "--texts", "own.txt", "--out", "mine", *flags]
    )
    assert isinstance(result.exception, UserError)
    assert f"names its teacher as {model!r}" in str(result.exception) and f"add --teacher {model}" in str(
        result.exception
    )
    assert not (tmp_path / "mine").exists()


def test_the_teacher_asked_for_keeps_the_recorded_pooling_and_prompt():
    described = {"model": "owner/name", "revision": "a", "pooling": "cls", "prompt": "query: "}
    spec = recipe.parse({"name": "x", "teacher": described, "student": {"kind": "teacher"}}, "x")
    same = recorded.teacher(spec, recipe.Teacher(model="owner/name", revision="b"), "x")
    assert (same.revision, same.pooling, same.prompt) == ("b", "cls", "query: ")
    other = recipe.Teacher(model="elsewhere")
    assert recorded.teacher(spec, other, "x") is other


@pytest.mark.parametrize(
    "task",
    [
        *(
            {"files": ["a.tsv"], "test": outside}
            for outside in (
                *("/etc/x.tsv", "../../private/x.tsv", "sub/../../x.tsv", "~/x.tsv", "s3://bucket/x.tsv"),
                *("{data}/../x.tsv", "\\\\host\\share\\x.tsv"),
            )
        ),
        {"dataset": "o/n", "revision": "m", "test": "t"},
    ],
)
def test_bench_scores_no_task_outside_it(task: dict[str, Any], world: World):
    rows = {**task, "columns": ["text"], "label": "label", "dev_rows": 2}
    stage = {"name": "task", "kind": "finetune", "rows": rows, "epochs": 1}
    text = recipe.dump(world.spec(stages=[stage]))
    described = yaml.safe_load(text)
    described["stages"][0]["rows"]["test"] = task["test"].replace("{data}", str(world.data))
    with pytest.raises(UserError, match="outside the data folder|nothing is downloaded unasked"):
        labelled_task.of_recipe({"recipe": described, "labels": []}, "", world.data)
