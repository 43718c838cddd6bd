"""A model's folder goes straight to a bundle: what a run of it without stages gives; what is no encoder is
refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedistill import files, recipe
from edgedistill.errors import UserError
from edgedistill.export import bundle_writer, model_source
from edgedistill.export.model_source import Source
from edgedistill.runtime import bundle, verify
from edgedistill.teacher import encoder
from tests.conftest import World, sentences
from tests.export.test_export import make_run


def quiet(line: str):
    pass


def by_teacher(folder: Path, **options: Any) -> np.ndarray:
    return encoder.TeacherEncoder(recipe.Teacher(model=str(folder), dtype="fp32", **options)).embed(
        sentences(10, seed=2)
    )


def plain_model(world: World, folder: Path) -> Path:
    """The tiny teacher without sentence-transformers' files."""
    shutil.copytree(world.teacher, folder)
    (folder / "modules.json").unlink()
    return folder


def test_a_sentence_transformers_folder_goes_straight_to_a_bundle(world: World, tmp_path):
    found = bundle_writer.export(world.teacher, ["fp32", "w8"], tmp_path / "b", quiet)
    assert (found["name"], found["dims"]) == ("teacher", [32])
    manifest = files.read_json(tmp_path / "b" / "manifest.json")
    assert (manifest["kind"], manifest["max_tokens"], manifest["teacher"]) == (
        "teacher",
        48,
        world.teacher.name,
    )
    assert verify.verify(tmp_path / "b")["texts"] == 32
    opened = bundle.load(tmp_path / "b", precision="fp32")
    assert np.allclose(opened.encode(sentences(10, seed=2)), by_teacher(world.teacher), atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b"]


def test_a_plain_model_needs_a_pooling(world: World, tmp_path):
    folder = plain_model(world, tmp_path / "My Model")
    with pytest.raises(UserError) as caught:
        bundle_writer.export(folder, ["fp32"], tmp_path / "b", quiet)
    way_out = "add --pooling (mean, cls, cls_pooler, max or last)"
    assert str(caught.value) == f"{folder}: a plain model does not define its pooling; {way_out}"
    with pytest.raises(
        UserError,
        match=r"^--pooling: no pooling 'meen'; did you mean 'mean'\? \(cls, cls_pooler, last, max, mean\)$",
    ):
        bundle_writer.export(Source(str(folder), "meen"), ["fp32"], tmp_path / "b", quiet)
    bundle_writer.export(Source(str(folder), "max"), ["fp32"], tmp_path / "b", quiet)
    assert files.read_json(tmp_path / "b" / "manifest.json")["name"] == "my-model"
    found = bundle.load(tmp_path / "b", precision="fp32").encode(sentences(10, seed=2))
    assert np.allclose(found, by_teacher(folder, pooling="max"), atol=1e-5)


def edit(path: Path, **values: Any):
    files.write_json(path, {**files.read_json(path), **values})


def without_tokenizer(folder: Path):
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)


def unknown_module(folder: Path):
    modules = files.read_json(folder / "modules.json")
    modules[1]["type"] = "sentence_transformers.models.CNN"
    files.write_json(folder / "modules.json", modules)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: edit(folder / "config.json", model_type="gpt2", architectures=["GPT2LMHeadModel"]),
            "model_type gpt2: models whose family generates texts cannot be exported; fit it, as a teacher",
        ),
        (lambda folder: edit(folder / "config.json", is_decoder=True), "model_type bert: models"),
        (
            lambda folder: edit(folder / "config.json", model_type="t5", architectures=["T5EncoderModel"]),
            "model_type t5: models whose family",
        ),
        (without_tokenizer, "a model without a tokenizer (none of tokenizer.json, "),
        (
            unknown_module,
            "the modules Transformer, CNN, Normalize in this order; supported are a Transformer, one Pooling",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "a model without weights"),
        (
            lambda folder: files.write_json(folder / "manifest.json", {}),
            "no schema number",
        ),
    ],
)
def test_what_is_no_sentence_encoder_is_refused(world: World, tmp_path, change: Any, message: str):
    folder = tmp_path / "model"
    shutil.copytree(world.teacher, folder)
    change(folder)
    with pytest.raises(UserError) as caught:
        bundle_writer.export(folder, ["fp32"], tmp_path / "bundles" / "x", quiet)
    assert str(caught.value).startswith(str(folder)) and f": {message}" in str(caught.value)
    assert not (tmp_path / "bundles").exists()


def test_the_pooling_of_a_sentence_transformers_model_is_its_own(world: World, tmp_path):
    with pytest.raises(UserError, match="brings its own pooling; leave --pooling out"):
        bundle_writer.export(Source(str(world.teacher), "cls"), ["fp32"], tmp_path / "b", quiet)


def test_a_bundle_is_exported_again_in_other_precisions(tmp_path):
    bundle_writer.export(make_run(tmp_path / "tiny"), ["int8"], tmp_path / "a", quiet)
    bundle_writer.export(tmp_path / "a", ["fp32", "qdq"], tmp_path / "b", quiet)
    before, again = bundle.load(tmp_path / "a"), bundle.load(tmp_path / "b", "fp32")
    texts = sentences(9, seed=1)
    assert (before.encode(texts) * again.encode(texts)).sum(1).min() > 0.99
    assert again.space == before.space is not None
    assert before.tokenize(texts[:1])[0].tolist() == again.tokenize(texts[:1])[0].tolist()


def test_a_hub_id_needs_a_revision(tmp_path):
    with pytest.raises(UserError, match="^owner/name: no such folder here; .*a hub id with --revision$"):
        bundle_writer.export("owner/name", ["fp32"], tmp_path / "b", quiet)


@pytest.mark.parametrize(
    ("source", "name"),
    [("packaged:all-MiniLM-L6-v2", "all-minilm-l6-v2"), ("owner/A Name_2", "a-name_2"), ("…", "model")],
)
def test_names_of_bundles(source: str, name: str):
    assert model_source.name_of(source) == name
