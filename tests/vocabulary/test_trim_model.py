"""A trimmed model folder: kept texts keep their embeddings, other libraries open it, and nothing is half
written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from edgedistill import files, recipe
from edgedistill.errors import CheckFailed, UserError
from edgedistill.session import Session
from edgedistill.teacher import encoder as teachers
from edgedistill.vocabulary import trim_model
from tests.conftest import World, sentences
from tests.students.test_graph import spread
from tests.vocabulary.test_trim_tokenizer import unigram

KEPT = trim_model.TrimCorpus(["kept.txt"])


def quiet(line: str) -> None:
    pass


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """kept.txt, and others.tsv with the columns en and de."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "kept.txt").write_text("\n".join(sentences(12, seed=2)) + "\n", encoding="utf-8")
    rows = [f"{text}\tdie Katze {number}" for number, text in enumerate(sentences(30, seed=4))]
    (folder / "others.tsv").write_text("en\tde\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return folder


def vectors(folder: Path, given: list[str], pooling: str | None = None) -> np.ndarray:
    return teachers.TeacherEncoder(
        recipe.Teacher(model=str(folder), pooling=pooling, max_tokens=32, dtype="fp32")
    ).embed(given)  # type: ignore[arg-type]


def test_a_sentence_transformers_folder(world: World, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    found = trim_model.trim(
        str(world.teacher),
        trim_model.TrimCorpus(["kept.txt"], ["others.tsv:de"]),
        out,
        Session(data=texts, log=quiet),
    )
    kept = sentences(12, seed=2)
    assert np.abs(vectors(out, kept) - vectors(world.teacher, kept)).max() < 1e-6
    assert vectors(out, kept)[0] @ vectors(out, kept)[1] < 0.999
    tokens = found["tokens"]
    assert tokens["after"] < tokens["before"] == files.read_json(world.teacher / "config.json")["vocab_size"]
    assert files.read_json(out / "config.json")["vocab_size"] == tokens["after"]
    tensors = [load_file(folder / "model.safetensors") for folder in (world.teacher, out)]
    assert tensors[1]["embeddings.word_embeddings.weight"].shape == (tokens["after"], 32)
    left_out = {name for name in tensors[0] if name not in tensors[1]}
    assert all(name.startswith("pooler.") for name in left_out)
    rows = 4 * 32 * (tokens["before"] - tokens["after"])
    rows += sum(4 * tensors[0][name].numel() for name in left_out)
    size = found["size_bytes"]
    assert size["before"] - size["after"] == pytest.approx(rows, abs=400)  # the header names tensors
    assert [source["name"] for source in found["sources"]] == ["kept.txt", "others.tsv:de"]
    assert found["sources"][0]["identical"] == 1
    assert found["max_difference"] < 1e-6 and found["compared"] >= 12
    assert {path.name for path in out.rglob("*") if path.is_file()} == {
        *{path.name for path in world.teacher.rglob("*") if path.is_file()},
        *{"special_tokens_map.json", "trim.json"},
    }
    assert "of 200 tokens" in trim_model.summary(found) and "others.tsv:de: 30 texts, " in trim_model.summary(
        found
    )


def test_others_open_it(world: World, texts: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    trim_model.trim(str(world.teacher), KEPT, tmp_path / "small", Session(data=texts, log=quiet))
    kept = sentences(12, seed=2)
    before, after = (
        SentenceTransformer(str(folder), device="cpu").encode(kept)
        for folder in (world.teacher, tmp_path / "small")
    )
    assert np.abs(before - after).max() < 1e-6


def plain(folder: Path, kind: str, words: Any, **sizes: Any) -> Path:
    """A plain AutoModel folder, its tensors named as a checkpoint with a head names them."""
    from transformers import AutoConfig, AutoModel

    own = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 40,
    }
    config = AutoConfig.for_model(
        kind, vocab_size=len(words), pad_token_id=words.pad_token_id, **{**own, **sizes}
    )
    model = spread(AutoModel.from_config(config, add_pooling_layer=False))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    tensors = {f"roberta.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    tensors |= {
        "lm_head.decoder.weight": torch.randn(len(words), 16),
        "lm_head.bias": torch.arange(len(words)).float(),
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", ["xlm-roberta", "roberta"])
def test_a_plain_model_that_counts_positions_from_padding(kind: str, texts: Path, tmp_path: Path) -> None:
    source, out, kept = plain(tmp_path / "model", kind, unigram()), tmp_path / "small", sentences(12, seed=2)
    found = trim_model.trim(str(source), KEPT, out, Session(data=texts, log=quiet))
    assert np.abs(vectors(out, kept, "mean") - vectors(source, kept, "mean")).max() < 1e-6
    before, after = (
        {name.removeprefix("roberta."): value for name, value in load_file(each).items()}
        for each in (source / "model.safetensors", out / "model.safetensors")
    )
    assert set(after) == {name for name in before if "lm_head" not in name}
    assert len(after["embeddings.word_embeddings.weight"]) == found["tokens"]["after"]
    assert torch.equal(
        after["embeddings.position_embeddings.weight"], before["embeddings.position_embeddings.weight"]
    )
    assert files.read_json(out / "config.json")["pad_token_id"] == 1


def test_weights_of_an_old_format_become_safetensors(texts: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "model", "roberta", unigram())
    torch.save(
        {name: value.half() for name, value in load_file(source / "model.safetensors").items()},
        source / "pytorch_model.bin",
    )
    (source / "model.safetensors").unlink()
    config = files.read_json(source / "config.json")
    files.write_json(source / "config.json", {**config, "dtype": "float16"})
    trim_model.trim(str(source), KEPT, tmp_path / "small", Session(data=texts, log=quiet))
    assert {value.dtype for value in load_file(tmp_path / "small" / "model.safetensors").values()} == {
        torch.float16
    }
    assert not (tmp_path / "small" / "pytorch_model.bin").exists()


def test_prompts_are_kept_too(world: World, texts: Path, tmp_path: Path) -> None:
    source = tmp_path / "prompted"
    shutil.copytree(world.teacher, source)
    files.write_json(
        source / "config_sentence_transformers.json",
        {"prompts": {"query": "zebra: "}, "default_prompt_name": "query"},
    )
    trim_model.trim(str(source), KEPT, tmp_path / "small", Session(data=texts, log=quiet))
    kept = sentences(4, seed=2)
    assert np.abs(vectors(tmp_path / "small", kept) - vectors(source, kept)).max() < 1e-6


def test_what_is_refused_and_that_nothing_is_left(
    world: World, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(
        message: str,
        corpus: trim_model.TrimCorpus = KEPT,
        kind: type[Exception] = UserError,
        model: str = str(world.teacher),
        out: Path = tmp_path / "x",
        data: Path | None = texts,
    ) -> None:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(kind, match=message):
            trim_model.trim(model, corpus, out, Session(data=data))
        assert sorted(tmp_path.rglob("*")) == before

    refused("exists already; choose another --out", out=texts)
    refused("--corpus: no file matches 'lost.txt'", trim_model.TrimCorpus(["lost.txt"]))
    absolute = trim_model.TrimCorpus([str(texts / "kept.txt")], ["kept.txt"])
    refused("--report: no file matches 'kept.txt' in .; check the pattern and --data", absolute, data=None)
    refused(
        r"no column 'fr'; .*\(de, en\); set --corpus GLOB:COLUMN", trim_model.TrimCorpus(["others.tsv:fr"])
    )
    refused("nowhere/at: no such folder; if it is a hub id, add --revision", model="nowhere/at")
    refused("nano: a bundle; trim needs a model folder or a hub id", model="nano")
    refused("min_count: no token occurs 5,000 times", trim_model.TrimCorpus(["kept.txt"], min_count=5000))
    (texts / "empty.txt").write_text("")
    refused("corpus: no texts", trim_model.TrimCorpus(["empty.txt"]))
    write = trim_model._write_model
    monkeypatch.setattr(
        trim_model, "_write_model", lambda opened, ids, to: write(opened, np.arange(len(ids)), to)
    )
    refused("was not written: token embeddings of an unchanged text differ by", kind=CheckFailed)


def test_runs_and_bundles_are_refused_with_a_way_out(world: World, texts: Path, tmp_path: Path) -> None:
    for name, message in (
        ("run.json", "a run, which a recipe trims: student: "),
        ("manifest.json", "a bundle; trim needs a model folder"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("{}", encoding="utf-8")
        with pytest.raises(UserError, match=message):
            trim_model.trim(str(tmp_path / name), KEPT, tmp_path / "x", Session(data=texts, log=quiet))


def test_weights_that_are_not_there(world: World, texts: Path, tmp_path: Path) -> None:
    source = tmp_path / "bare"
    shutil.copytree(world.teacher, source)
    (source / "model.safetensors").unlink()
    with pytest.raises(UserError, match="a model without weights"):
        trim_model.trim(str(source), KEPT, tmp_path / "x", Session(data=texts, log=quiet))


def test_files_are_found_from_here_and_those_of_a_pattern_reported_together(
    world: World, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a data folder, as adapt and fit do; and one line for a pattern."""
    monkeypatch.chdir(texts)
    (texts / "many").mkdir()
    for number, text in enumerate(sentences(25, seed=4)):
        (texts / "many" / f"{number}.txt").write_text(text, encoding="utf-8")
    lines: list[str] = []
    corpus = trim_model.TrimCorpus(["*.txt", "others.tsv:de"], ["many/*.txt"])
    found = trim_model.trim(str(world.teacher), corpus, tmp_path / "small", Session(log=lines.append))
    assert [source["name"] for source in found["sources"]] == [
        "*.txt",
        "others.tsv:de",
        "many/*.txt",
    ]
    assert found["sources"][2]["texts"] == 25 and trim_model.summary(found).count("\n") == 3
    assert lines == [f"{world.teacher}: counting the tokens of 2 file(s)"]


def test_a_module_that_does_not_open_is_not_copied(world: World, texts: Path, tmp_path: Path) -> None:
    """trim changes the transformer alone; what it copies beside it has to be whole too."""
    source = tmp_path / "source"
    shutil.copytree(world.teacher, source)
    modules = files.read_json(source / "modules.json")
    dense = {
        "idx": len(modules),
        "name": "dense",
        "path": "9_Dense",
        "type": "sentence_transformers.models.Dense",
    }
    files.write_json(
        source / "modules.json",
        [*[each for each in modules if not each["type"].endswith("Normalize")], dense],
    )
    files.write_json(
        source / "9_Dense" / "config.json", {"in_features": 32, "out_features": 32, "bias": True}
    )
    (source / "9_Dense" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserError, match="model.safetensors is a pointer of Git LFS"):
        trim_model.trim(str(source), KEPT, tmp_path / "x", Session(data=texts, log=quiet))
    assert not (tmp_path / "x").exists()
