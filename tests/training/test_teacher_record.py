"""Several teachers: recorded with revisions and licences, named on the card, and the same when a run
is resumed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedistill import recipe, resolve, run
from edgedistill.errors import UserError
from edgedistill.export import bundle_writer
from edgedistill.export.model_source import Source
from edgedistill.session import QUIET, Session
from edgedistill.training import record, resume, train
from edgedistill.training.load_models import open_models
from edgedistill.training.open_recipe import open_recipe
from tests.conftest import World, make_encoder, make_tokenizer

BARE = {"kind": "bert", "layers": 1, "width": 16, "heads": 2}
SHORT = [{"name": "a", "objective": {"kind": "cosine"}, "steps": 2, "batch": 8}]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another teacher: of 48 dimensions, pooled at its first token, with a card of its own."""
    folder = tmp_path_factory.mktemp("wide") / "wide"
    sizes = {"hidden_size": 48, "num_hidden_layers": 1, "intermediate_size": 64}
    make_encoder(folder, make_tokenizer(), chain=False, **sizes)
    (folder / "README.md").write_text(
        "---\nlanguage: en\nlicense: apache-2.0\n---\n# wide\n", encoding="utf-8"
    )
    return folder


def joined(world: World, wide: Path, **changes: Any) -> dict[str, Any]:
    other = {"model": str(wide), "pooling": "cls", "max_tokens": 32}
    student = {
        "kind": "bert",
        "weights": "assistant",
        "layers": 1,
        "tokenizer": "assistant",
        "head": "linear",
    }
    own = {**world.recipe()["teacher"], "licence": "CC0 | public\ndomain"}
    return world.recipe(
        **{"teacher": own, "assistant": other, "student": student, "stages": SHORT, **changes}
    )


def test_the_card_names_each_teacher(world: World, wide: Path, tmp_path):
    train.train(recipe.parse(joined(world, wide), "test"), tmp_path / "run", Session(data=world.data))
    recorded = run.open_run(tmp_path / "run").info["teachers"]
    assert recorded[0]["sha256"] != recorded[1]["sha256"]
    bundle_writer.export(tmp_path / "run", ["fp32"], tmp_path / "bundle", lambda line: None)
    card = (tmp_path / "bundle" / "README.md").read_text(encoding="utf-8")
    assert "distilled from `teacher`." in card
    assert "| teacher | revision | licence, as stated by the recipe or by the model's card |\n| --- |" in card
    assert "\n| `teacher` | — | CC0 \\| public domain |\n| `wide` | — | apache-2.0 |\n" in card
    bundle_writer.export(Source(str(wide), "cls"), ["fp32"], tmp_path / "itself", lambda line: None)
    card = (tmp_path / "itself" / "README.md").read_text(encoding="utf-8")
    assert "| `wide` | — | apache-2.0 |\n" in card


def test_the_record_knows_revisions_files_and_runs(world: World, wide: Path, tmp_path):
    (tmp_path / "e.txt").write_text("a text\n", encoding="utf-8")
    np.save(tmp_path / "e.npy", np.ones((1, 8), np.float32))
    precomputed = {"embeddings": str(tmp_path / "e.npy"), "licence": "MIT"}
    revised = {"model": str(wide), "revision": "v1", "pooling": "cls"}
    own = {"tokenizer": str(wide), **BARE}
    spec = world.spec(teacher=precomputed, assistant=revised, student=own)
    found = record.teachers(spec, open_models(spec, Session(data=tmp_path)))
    assert [(each["revision"], each["licence"]) for each in found] == [
        (None, "MIT"),
        ("v1", "apache-2.0"),
    ]
    train.train(recipe.parse(joined(world, wide), "test"), tmp_path / "run", Session(data=world.data))
    of_run = world.spec(teacher={"model": str(tmp_path / "run"), "max_tokens": 32})
    assert (
        record.teachers(of_run, open_models(of_run, QUIET))[0]["licence"]
        == "CC0 | public\ndomain, apache-2.0"
    ), "those of its own teachers"


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nlicense: mit\n---\n", "mit"),
        ("---\nlicense: other\nlicense_name: gemma\n---\n", "gemma"),
        ("---\nlicense: [mit, apache-2.0]\n---\n", "mit, apache-2.0"),
        ("---\nlanguage: en\n---\n", None),
        ("---\nlicense: [\n---\n", None),
        ("# no front matter\nlicense: mit\n", None),
        (None, None),
    ],
)
def test_the_licence_that_a_card_states(tmp_path, card: str | None, expected: str | None):
    if card is not None:
        (tmp_path / "README.md").write_text(card, encoding="utf-8")
    assert record.stated_licence(tmp_path) == expected


def test_a_resumed_run_needs_the_same_teachers(world: World, wide: Path, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(wide, copied)
    spec = recipe.parse(joined(world, copied), "test")
    partial = resolve.unfinished_run(tmp_path / "run")
    partial.mkdir()
    (partial / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
    opened = open_recipe(spec, Session(data=world.data))
    for _ in range(2):  # as it was
        resume.check_inputs(opened, {"teachers": record.teachers(spec, opened.models)}, partial)
    weights = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    (partial / "checkpoints").mkdir()
    with pytest.raises(
        UserError,
        match="run.partial: .*copied has changed since this run was started, .*; restore the files, or",
    ):
        train.train(spec, tmp_path / "run", Session(data=world.data), resume=True)
    assert partial.exists() and not (tmp_path / "run").exists()


def test_a_missing_teacher_is_named_by_its_place(world: World, wide: Path):
    spec = recipe.parse(joined(world, wide, assistant={"model": "./nowhere"}), "test")
    with pytest.raises(
        UserError, match=r"^assistant\.model: no such folder: './nowhere'; give packaged:NAME"
    ):
        open_recipe(spec, Session(data=world.data))


def test_stages_over_pairs_match_models_of_the_same_dimensions(world: World, wide: Path, tmp_path):
    rows = [f"the cat eats {number}\tdie Katze {number}" for number in range(40)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["en\tde", *rows]) + "\n", encoding="utf-8")
    objective = {"kind": "each_side", "objective": {"kind": "mse"}}
    stages = [
        {"name": name, "objective": objective, "steps": 2, "batch": 8, "match": {"of": name}}
        for name in ("teacher", "assistant")
    ]
    spec = world.spec(
        assistant={"model": str(wide), "pooling": "cls", "max_tokens": 32},
        rows={"tables": [{"files": ["pairs.tsv"], "columns": ["en", "de"], "languages": ["en", "de"]}]},
        stages=stages,
    )
    with pytest.raises(UserError) as caught:
        open_recipe(spec, Session(data=tmp_path))
    fact = "stages[1].objective: each_side compares coordinates, the student has 32 and the teacher 48"
    assert any(
        each.startswith(f"{fact}; give the student `head: linear`, or match models")
        for each in caught.value.problems
    )
