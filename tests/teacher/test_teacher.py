"""Texts -> embeddings: equal to sentence-transformers, cached under their key, kept through kills and
damage."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from edgedistill import files, recipe
from edgedistill.data import corpus
from edgedistill.errors import UserError, quote
from edgedistill.session import QUIET, Session
from edgedistill.teacher import assistant, embedding_cache, encoder
from edgedistill.training import load_models, train
from tests.conftest import World, sentences

ODD = ["", "   ", "é 文 🙂 ﬁ", "x" * 3000, "the cat eats a red apple on Sunday. " * 30]


def load(folder: Path, **options: object) -> encoder.TeacherEncoder:
    return encoder.TeacherEncoder(
        recipe.Teacher.model_validate({"model": str(folder), "dtype": "fp32", **options})
    )


def test_equals_sentence_transformers(world: World):
    from sentence_transformers import SentenceTransformer

    texts = [*sentences(50, seed=2), *ODD]
    expected = SentenceTransformer(str(world.teacher), device="cpu").encode(texts)
    assert np.abs(load(world.teacher).embed(texts) - expected).max() < 1e-5


def load_plain(world: World, pooling: str) -> encoder.TeacherEncoder:
    folder = world.folder / "plain"
    if not folder.exists():
        shutil.copytree(
            world.teacher,
            folder,
            ignore=shutil.ignore_patterns("modules.json", "1_Pooling", "sentence_bert_config.json"),
        )
    return load(folder, pooling=pooling)


def test_a_plain_model_needs_a_pooling_and_the_other_brings_its_own(world: World):
    assert (
        np.abs(load_plain(world, "mean").embed(sentences(9)) - load(world.teacher).embed(sentences(9))).max()
        < 1e-6
    )
    with pytest.raises(UserError, match="a plain model does not define its pooling; add teacher.pooling"):
        load(world.folder / "plain")
    with pytest.raises(UserError, match="brings its own pooling; leave teacher.pooling out"):
        load(world.teacher, pooling="cls")


def test_prompts(world: World, tmp_path):
    folder = tmp_path / "t"
    shutil.copytree(world.teacher, folder)
    files.write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {"query": "the cat "}, "default_prompt_name": "query"},
    )
    plain, prompted = load(world.teacher), load(folder)
    assert np.allclose(prompted.embed(["eats"]), plain.embed(["the cat eats"]), atol=1e-6)
    assert plain.identity() != prompted.identity()


def count_cached(teacher: encoder.TeacherEncoder, texts: corpus.Corpus, session: Session) -> int:
    return len(texts) - embedding_cache.TeacherPass(teacher, texts, session).missing


def test_roles_share_the_cache_where_they_share_the_prompt(world: World, tmp_path):
    """Also with a teacher whose prompt for all texts is the same; keys from before there were roles stay."""
    built = corpus.build(recipe.Rows(files=["texts.txt"], held_out=40), Session(data=world.data), 0)
    session = Session(cache_folder=tmp_path)
    opened, same = load(world.teacher, query_prompt="the cat "), load(world.teacher, prompt="the cat ")

    def key(teacher: encoder.TeacherEncoder, texts: corpus.Corpus) -> Path:
        return embedding_cache.TeacherPass(teacher, texts, session).folder

    assert key(load(world.teacher), built) == key(opened, built) == key(opened.in_role("document"), built)
    assert key(opened.in_role("query"), built) == key(same, built) != key(opened, built)
    assert opened.in_role("query").in_role("text").prompt == "" and opened.in_role("document") is opened
    found = embedding_cache.TeacherPass(opened.in_role("query"), built, session).open()
    expected = load(world.teacher).embed(["the cat " + text for text in built.texts([3, 4])])
    assert np.allclose(found[np.array([3, 4])], expected, atol=1e-3)
    assert count_cached(same, built, session) == 440
    assert count_cached(opened, built, session) == 0
    with pytest.raises(UserError, match="role: no role 'querry'; did you mean 'query'"):
        opened.in_role("querry")


def test_a_prompt_that_is_not_pooled_is_refused(world: World, tmp_path):
    folder = tmp_path / "t"
    shutil.copytree(world.teacher, folder)
    pooling = folder / "1_Pooling/config.json"
    files.write_json(pooling, {**files.read_json(pooling), "include_prompt": False})
    assert np.allclose(load(folder).embed(sentences(3)), load(world.teacher).embed(sentences(3)))
    with pytest.raises(
        UserError,
        match=r"its pooling leaves the tokens of a prompt out \(include_prompt: false\), which is not "
        r"supported",
    ):
        load(folder, prompt="the cat ")
    with pytest.raises(UserError, match="include_prompt: false"):
        load(folder, query_prompt="the cat ")
    settings = folder / "config_sentence_transformers.json"
    files.write_json(settings, {"prompts": {"passage": "the cat "}})
    with pytest.raises(UserError, match="include_prompt: false"):
        load(folder)
    assert load(folder, document_prompt="").prompts == ("", "", "")


def test_a_model_that_changes_while_it_is_open_is_not_cached(world: World, built: corpus.Corpus, tmp_path):
    folder = tmp_path / "t"
    shutil.copytree(world.teacher, folder)
    loaded = load(folder)
    loaded.identity()
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(
        UserError, match="t: its files have changed since the model was opened, .*; start again"
    ):
        embedding_cache.TeacherPass(loaded, built, QUIET).open()
    assert not list((tmp_path / "cache").glob("teachers/*"))
    found = embedding_cache.TeacherPass(load(folder), built, QUIET).open()
    assert found.folder != embedding_cache.TeacherPass(load(world.teacher), built, QUIET).open().folder


def test_the_run_of_a_reduced_teacher_is_known_by_its_maps(world: World, tmp_path):
    keys = []
    for seed in (0, 1):
        targets = {"reduce": {"kind": "pca", "centre": bool(seed)}, "dims": 16}
        spec = world.spec(student={"kind": "teacher"}, targets=targets, stages=[])
        train.train(spec, tmp_path / f"reduced-{seed}", Session(data=world.data))
        keys.append(
            assistant.open_assistant(recipe.Teacher(model=str(tmp_path / f"reduced-{seed}"))).identity()
        )
    assert keys[0] != keys[1]


def test_unusable_teachers_are_refused(world: World, tmp_path):
    folder = tmp_path / "t"
    shutil.copytree(world.teacher, folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="a model without weights"):
        load(folder)
    shutil.copy(world.teacher / "model.safetensors", folder)
    config = files.read_json(folder / "config.json")
    files.write_json(folder / "config.json", {**config, "vocab_size": 50})
    with pytest.raises(
        UserError,
        match="token ids up to 199, the model's embedding table 50 rows; use the tokenizer that belongs to "
        "the model",
    ):
        load(folder)
    with pytest.raises(UserError, match="no packaged teacher 'all-minilm'; "):
        encoder.TeacherEncoder(recipe.Teacher(model="packaged:all-minilm"))
    for model, says in (
        ("nowhere", "no folder 'nowhere' here"),
        ("nano", "nano is a bundle"),
        ("./a/b", "./a/b"),
    ):
        with pytest.raises(UserError, match=f"teacher.model: .*{says}"):
            encoder.TeacherEncoder(recipe.Teacher(model=model))
    with pytest.raises(UserError, match="assistant.model: no folder 'a/b' here"):
        assistant.open_assistant(recipe.Teacher(model="a/b"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no config.json, so not a model folder"):
        load(tmp_path / "empty")


@pytest.fixture
def built(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> corpus.Corpus:
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(corpus, "SHARD", 100)
    return corpus.build(recipe.Rows(files=["texts.txt"], held_out=40), Session(data=world.data), 0)


def test_shards_hold_the_embeddings_and_are_written_once(world: World, built: corpus.Corpus):
    said: list[str] = []
    found = embedding_cache.TeacherPass(load(world.teacher), built, Session(log=said.append)).open()
    found.shard = 100
    rows = np.array([0, 399, 100, 99, 100])
    assert sum(map(len, found.parts)) == 440
    whole = embedding_cache.TeacherPass(load(world.teacher), built, QUIET)
    assert whole.rows(range(whole.shards)) == 440, "the last shard is short"
    assert np.abs(found[rows] - load(world.teacher).embed(built.texts(rows))).max() < 1e-3
    heard = len(said)
    embedding_cache.TeacherPass(load(world.teacher), built, Session(log=said.append)).open()
    assert len(said) == heard


def test_embeddings_are_kept_as_they_are_asked_for(world: World, built: corpus.Corpus):
    """Of unit length, or as the model returns them: by the values, not only by the key."""
    loaded, rows = load(world.teacher), np.arange(50)
    for unit in (True, False):
        found = embedding_cache.TeacherPass(loaded, built, QUIET, unit).open()[rows]
        assert np.abs(found - loaded.embed(built.texts(rows), unit=unit)).max() < 3e-3
        assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-2) == unit


def test_a_kill_costs_one_shard_and_a_damaged_shard_is_embedded_again(world: World, built: corpus.Corpus):
    loaded = load(world.teacher)
    embed, calls = loaded.embed, []

    def killed(texts: list[str], device: str = "cpu", unit: bool = True) -> np.ndarray:
        calls.append(len(texts))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return embed(texts, device, unit)

    loaded.embed = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        embedding_cache.TeacherPass(loaded, built, QUIET).open()
    found = embedding_cache.TeacherPass(loaded, built, QUIET).open()
    assert calls == [100, 100, 100, 100, 100, 40]
    shard = found.folder / "00001/embeddings.npy"
    before = shard.read_bytes()
    shard.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    said: list[str] = []
    embedding_cache.TeacherPass(loaded, built, Session(log=said.append)).open()
    assert any("00001/embeddings.npy: damaged or missing; making it again" in line for line in said)
    assert shard.read_bytes() == before


def test_a_text_is_not_embedded_again_for_another_corpus(world: World, built: corpus.Corpus, tmp_path):
    loaded, said = load(world.teacher), list[str]()
    embedding_cache.TeacherPass(loaded, built, QUIET).open()
    (tmp_path / "more.txt").write_text(
        "\n".join([*(f"new text {number}" for number in range(30)), *built.texts(np.arange(150))]), "utf-8"
    )
    other = corpus.build(recipe.Rows(files=["more.txt"]), Session(data=tmp_path), 0)
    assert count_cached(loaded, other, QUIET) == 150 and count_cached(loaded, built, QUIET) == 440
    assert count_cached(load(world.teacher, max_tokens=8), other, QUIET) == 0, "another reader of texts"
    found = embedding_cache.TeacherPass(loaded, other, Session(log=said.append)).open()
    assert "30 texts, 150 reused from other corpora in" in said[-1]
    assert np.abs(found[np.arange(180)] - loaded.embed(other.texts(np.arange(180)))).max() < 1e-3


def test_the_cache_key_covers_everything_that_determines_the_embeddings(world: World, built: corpus.Corpus):
    folders = {
        embedding_cache.TeacherPass(load(world.teacher, **options), built).folder
        for options in ({}, {"max_tokens": 16}, {"prompt": "x"}, {"dtype": "bf16"})
    }
    assert len(folders) == 4


def test_an_incomplete_folder_is_refused(world: World, tmp_path):
    """transformers would go on with a tokenizer of no pieces, or with a layer drawn at random."""

    def refused(says: str, change: Callable[[Path], object]):
        folder = tmp_path / says.replace(" ", "-")
        shutil.copytree(world.teacher, folder)
        change(folder)
        with pytest.raises(UserError, match=says):
            encoder.TeacherEncoder(recipe.Teacher(model=str(folder)))

    def one_layer_more(folder: Path):
        files.write_json(
            folder / "config.json", {**files.read_json(folder / "config.json"), "num_hidden_layers": 3}
        )

    refused(
        "a model without a tokenizer", lambda folder: [path.unlink() for path in folder.glob("tokenizer*")]
    )
    refused("its weights do not open: ", lambda folder: os.truncate(folder / "model.safetensors", 5_000))
    refused("16 of the tensors that config.json asks for are not in its weights", one_layer_more)


def test_a_gpu_that_is_not_used_does_not_decide_the_dtype(world: World, monkeypatch):
    on_cpu = encoder.resolve_dtype("auto", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for gpu in (torch.bfloat16, torch.float32):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda gpu=gpu: gpu == torch.bfloat16)
        spec = world.spec()
        assert encoder.resolve_dtype("auto", "cpu") == on_cpu
        assert encoder.resolve_dtype("auto") == encoder.resolve_dtype("auto", "cuda") == gpu
        assert load_models.open_models(spec, Session(data=world.data)).teacher.dtype == on_cpu
        assert load_models.open_models(spec, Session(data=world.data, device="auto")).teacher.dtype == gpu
        assert train.accelerator_for(spec, "cpu").bf16 == (on_cpu == torch.bfloat16)


def test_a_teacher_that_embeds_everything_as_zeros_is_refused(world: World, built: corpus.Corpus):
    loaded = load(world.teacher)
    loaded.embed = lambda texts, device="cpu", unit=True: np.zeros((len(texts), 32), np.float32)  # type: ignore[method-assign]
    with pytest.raises(
        UserError, match="teacher: the embeddings of .* texts are all zeros, so there is nothing to learn"
    ):
        embedding_cache.TeacherPass(loaded, built, Session(cache_folder=world.folder / "zeros")).open()


@pytest.mark.parametrize(
    ("value", "fact"),
    [(np.nan, "is not finite"), (-np.inf, "is not finite"), (7e4, "float16 ends at 65,504")],
)
def test_an_embedding_that_float16_cannot_hold_is_refused(
    world: World, built: corpus.Corpus, value: float, fact: str
):
    loaded = load(world.teacher)
    embed, text = loaded.embed, built[142]

    def odd(texts: list[str], device: str = "cpu", unit: bool = True) -> np.ndarray:
        rows = embed(texts, device, unit)
        rows[[at for at, each in enumerate(texts) if each == text], 3] = value
        return rows

    loaded.embed = odd  # type: ignore[method-assign]
    with pytest.raises(UserError, match=f"the embedding of {re.escape(quote(text))} .*{fact}"):
        embedding_cache.TeacherPass(loaded, built, QUIET).open()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("00001/embeddings.npy", "cut"),
        ("00001/hashes.npy", "garbage"),
        ("00001/hashes.npy", "deleted"),
        ("00001/files.json", "cut"),
    ],
)
def test_any_damaged_file_of_the_embeddings(
    world: World, built: corpus.Corpus, tmp_path, name: str, how: str
):
    """The embeddings stay what they were, and another corpus takes none from what does not match."""
    loaded = load(world.teacher)
    first = embedding_cache.TeacherPass(loaded, built, QUIET).open()
    before = first[np.arange(440)]
    path = first.folder / name
    del first  # what is cut while it is open is refused
    damaged = {
        "garbage": b"\x93NUMPY garbage",
        "cut": path.read_bytes()[: path.stat().st_size // 2],
        "empty": b"",
    }
    path.unlink() if how == "deleted" else path.write_bytes(damaged[how])
    (tmp_path / "more.txt").write_text("\n".join(built.texts(np.arange(150))), "utf-8")
    other = corpus.build(recipe.Rows(files=["more.txt"]), Session(data=tmp_path), 0)
    assert count_cached(loaded, other, QUIET) <= 150
    found = embedding_cache.TeacherPass(loaded, other, QUIET).open()[np.arange(150)]
    assert np.abs(found - loaded.embed(other.texts(np.arange(150)))).max() < 1e-3
    assert (
        np.abs(embedding_cache.TeacherPass(loaded, built, QUIET).open()[np.arange(440)] - before).max() < 1e-3
    )
