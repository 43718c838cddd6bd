"""Prompts of queries and documents: from the student's shape through export, golden texts and runners to
whoever asks."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedistill import bundle_run, files, recipe, run
from edgedistill.errors import CheckFailed, UserError
from edgedistill.export import bundle_writer
from edgedistill.export.bundle_writer import seal
from edgedistill.runtime import bundle, verify
from edgedistill.session import Session
from edgedistill.training import train
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from tests.conftest import World, sentences
from tests.export.test_export import make_run, quiet
from tests.export.test_pair_bundle import DOCUMENT, EMBED, QUERY, TEXTS

ROLES = {"query_prompt": QUERY, "document_prompt": DOCUMENT}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a prompt for each role."""
    root = tmp_path_factory.mktemp("roles")
    bundle_writer.export(make_run(root / "run", **ROLES), ["fp32", "w8"], root / "bundle", quiet)
    return root / "bundle"


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "bundle")
    return tmp_path / "bundle"


def edit(folder: Path, **changes: Any):
    """Change the manifest, and sign it again; None takes a field away."""
    manifest = {**files.read_json(folder / "manifest.json"), **changes}
    del manifest["digest"]
    seal(folder, {name: value for name, value in manifest.items() if value is not None})


def test_each_role_has_its_prompt(folder: Path):
    opened = bundle.load(folder, "fp32")
    assert opened.prompts == ("", QUERY, DOCUMENT)
    for encode, prompt in ((opened.encode_query, QUERY), (opened.encode_document, DOCUMENT)):
        expected = opened.encode([prompt + text for text in TEXTS])
        assert np.array_equal(encode(TEXTS), expected)
        assert np.array_equal(encode(TEXTS[0], batch_tokens=64), expected[0])
        assert np.abs(expected - opened.encode(TEXTS)).max() > 1e-3
    assert opened.tokenize(["a"], role="query")[0].tolist() == opened.tokenize([QUERY + "a"])[0].tolist()
    with pytest.raises(UserError, match=r"^role: no role 'querry'; did you mean 'query'\?"):
        opened.encode([], role="querry")


def test_sentence_transformers_is_told_the_prompts(folder: Path):
    settings = files.read_json(folder / "config_sentence_transformers.json")
    assert settings["prompts"] == {"query": QUERY, "document": DOCUMENT}
    assert settings["default_prompt_name"] is None


def test_golden_texts_notice_a_lost_prompt(copy: Path, capsys):
    golden = files.read_json(copy / "parity.json")
    assert golden["roles"] == ["text"] * 32 + ["query"] * 2 + ["document"] * 2
    assert verify.verify(copy)["texts"] == 36
    for name, at in (("query_prompt", 33), ("document_prompt", 35)):
        edit(copy, **{name: None})
        with pytest.raises(CheckFailed, match=f"text {at} of 36 .*: token ids differ"):
            verify.verify(copy)
        edit(copy, **ROLES)
    assert verify.verify(copy)["texts"] == 36


def test_the_smallest_runner(copy: Path, monkeypatch, capsys):
    main, opened = runpy.run_path(str(EMBED))["main"], bundle.load(copy, "fp32")
    for role in ("text", "query", "document"):
        monkeypatch.setattr("sys.argv", ["embed.py", str(copy), "fp32", "--as", role])
        monkeypatch.setattr("sys.stdin", [f"{text}\n" for text in TEXTS])
        assert main() == 0
        rows = np.array([json.loads(line) for line in capsys.readouterr().out.splitlines()])
        assert np.abs(rows - opened.encode(TEXTS, role=role)).max() < 1e-5
    monkeypatch.setattr("sys.argv", ["embed.py", str(copy), "fp32", "--check"])
    assert main() == 0
    assert json.loads(capsys.readouterr().out)["texts"] == 36
    edit(copy, query_prompt=None)
    assert main() == 1
    assert json.loads(capsys.readouterr().out)["other_token_ids"] == 2


@pytest.mark.parametrize(("name", "value"), [("query_prompt", 3), ("document_prompt", "\ud800")])
def test_prompts_in_a_manifest_are_checked(copy: Path, name: str, value: Any):
    manifest = {**files.read_json(copy / "manifest.json"), name: value}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=f"manifest.json: {name}: "):
        bundle.load(copy)


@pytest.mark.parametrize("roles", [["text"] * 35, ["text"] * 35 + ["querry"], "query"])
def test_roles_of_golden_texts_are_checked(copy: Path, roles: Any):
    files.write_json(copy / "parity.json", {**files.read_json(copy / "parity.json"), "roles": roles})
    edit(copy)
    with pytest.raises(UserError, match=r"parity.json: roles"):
        verify.verify(copy)


def stages(world: World) -> list[dict[str, Any]]:
    """One stage over queries and documents."""
    rows = [f"{text[:20]}\t{text}" for text in sentences(40, seed=9)]
    (world.data / "asked.tsv").write_text("\n".join(["query\tanswer", *rows]) + "\n", encoding="utf-8")
    tuples = {"files": ["asked.tsv"], "columns": ["query", "answer"]}
    objective = {"kind": "each_side", "objective": {"kind": "cosine"}}
    return [{"name": "search", "objective": objective, "rows": tuples, "steps": 4, "batch": 8}]


def trained(world: World, out: Path, **student: Any) -> run.Run:
    given = {"kind": "static", "width": 32, **student}
    spec = world.spec(student=given, stages=stages(world))
    train.train(spec, out, Session(data=world.data))
    return run.open_run(out)


def test_prompts_that_no_stage_teaches_are_refused(world: World):
    with pytest.raises(UserError) as caught:
        recipe.parse(world.recipe(student={"kind": "static", "width": 32, "document_prompt": "a "}), "test")
    fact = "no stage reads queries and documents, so the student would never learn it"
    assert str(caught.value) == f"test: student.document_prompt: {fact}; add such `rows`, or leave it out"


def test_a_student_learns_and_keeps_its_prompts(world: World, tmp_path):
    """From the recipe to the run, through a bundle to the student that goes on, whose recipe may change
    them."""
    first = trained(world, tmp_path / "a", **ROLES)
    assert first.prompts == ("", QUERY, DOCUMENT)
    bundle_writer.export(tmp_path / "a", ["fp32"], tmp_path / "b", quiet)
    assert bundle_run.open_finished(str(tmp_path / "b"), "x").prompts == first.prompts
    changes = {"weights": str(tmp_path / "b"), "document_prompt": ""}
    spec = world.spec(student=changes)
    train.train(spec, tmp_path / "c", Session(data=world.data))
    assert run.open_run(tmp_path / "c").prompts == ("", QUERY, "")
    prepared = PreparedStudent(first.student(), first.shape, first.tokenizer())
    by_role, opened = prepared.encoder, bundle.load(tmp_path / "b")
    for found, role in zip(by_role[:3], ("text", "query", "document"), strict=True):
        assert np.abs(found(TEXTS) - opened.encode(TEXTS, role=role)).max() < 1e-5
