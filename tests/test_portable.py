"""What is made on a machine names no folder of it: no run, bundle, report or page."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter
from typer.testing import CliRunner

from edgedistill import cli, files
from edgedistill.recipe.students import Student
from tests.conftest import World, sentences


def run(*arguments: str):
    result = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output


def naming(folder: Path, machine: Path) -> list[str]:
    """The files below a folder that hold the path of another."""
    found = [path for path in folder.rglob("*") if path.is_file() and bytes(machine) in path.read_bytes()]
    return [path.relative_to(folder).as_posix() for path in found]


def test_what_is_made_names_no_folder_of_its_machine(world: World, tmp_path, monkeypatch):
    work, own = tmp_path / "work", tmp_path / "own"
    own.mkdir()
    work.mkdir()
    monkeypatch.chdir(work)
    (own / "texts.txt").write_text("\n".join(sentences(90, seed=5)), encoding="utf-8")
    rows = (f"{text}\t{text[:9]} {at}" for at, text in enumerate(sentences(40, seed=6)))
    (own / "pairs.tsv").write_text("\n".join(["text\tquery", *rows]), encoding="utf-8")
    spec = world.recipe(rows={"files": [str(world.data / "texts.txt")], "held_out": 40})
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    run("train", str(tmp_path / "tiny.yaml"), "--out", str(work / "run"))
    run("export", str(work / "run"), "--out", str(work / "bundle"), "--precision", "int8")
    shutil.copytree(work / "bundle", work / "again" / "bundle")
    run("export", str(world.teacher), "--out", str(work / "teacher"), "--precision", "fp32")
    adapt = f"adapt {work}/bundle --texts {own}/*.txt --pairs {own}/pairs.tsv --teacher {world.teacher}"
    run(*adapt.split(), "--steps", "20", "--out", str(work / "mine"))
    bench = (
        f"bench {work}/bundle {work}/again/bundle --quick --threads 1 --suite {files.find('suite', 'mini')}"
    )
    run(*bench.split(), "--out", "report.json", "--html", "report.html")
    assert {"run", "bundle", "mine", "runs", "report.json", "report.html"} <= set(os.listdir(work))
    assert naming(work, tmp_path) == [] and naming(work, world.folder) == []
    assert naming(work, Path.home()) == [] or Path.home() == Path("/")


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("/opt/me/texts.txt", "texts.txt"),
        ("/opt/me/docs/**/*.md", "**/*.md"),
        ("C:\\texts\\me\\texts.txt", "texts.txt"),
        ("/opt/me/bundle:int8", "bundle:int8"),
        ("docs/a.txt", "docs/a.txt"),
        ("s3://bucket/a.txt", "s3://bucket/a.txt"),
        ("packaged:all-MiniLM-L6-v2", "packaged:all-MiniLM-L6-v2"),
    ],
)
def test_the_name_that_is_recorded(name: str, recorded: str):
    assert files.portable(name) == recorded


@pytest.mark.parametrize("name", ["teacher", "assistant", "random"])
def test_a_folder_named_as_a_keyword_stays_a_folder(tmp_path, name: str):
    student = {"kind": "bert", "weights": str(tmp_path / name), "tokenizer": name}
    kept = TypeAdapter(Student).validate_python(student).model_dump(mode="json")
    assert (kept["weights"], kept["tokenizer"]) == (f"./{name}", name)
