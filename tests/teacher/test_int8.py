"""A teacher in int8: near its fp32 embeddings for every chain of modules, made once, cached by what decides
it, refused where it loses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file

from edgedistill import files, recipe
from edgedistill.data import corpus
from edgedistill.errors import UserError
from edgedistill.planning import cost
from edgedistill.precisions import PRECISIONS
from edgedistill.quantization import sample_texts
from edgedistill.session import Session
from edgedistill.teacher import assistant, embedding_cache, encoder
from edgedistill.training import load_models, train
from tests.conftest import World, make_tokenizer, sentences

CHAINS = {
    "mean": {"pooling_mode_mean_tokens": True},
    "cls": {"pooling_mode_cls_token": True},
    "last": {"pooling_mode_lasttoken": True},
}


def opened(folder: Path, dtype: str = "int8", **options: Any) -> encoder.TeacherEncoder:
    return encoder.TeacherEncoder(
        recipe.Teacher.model_validate({"model": str(folder), "dtype": dtype, "max_tokens": 32, **options})
    )


def chained(world: World, folder: Path, pooling: str) -> Path:
    """The tiny teacher with another pooling, a Dense layer with tanh behind it, and a prompt."""
    shutil.copytree(world.teacher, folder)
    files.write_json(
        folder / "1_Pooling/config.json",
        {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": False, **CHAINS[pooling]},
    )
    layer = {"in_features": 32, "out_features": 24, "activation_function": "torch.nn.modules.activation.Tanh"}
    files.write_json(folder / "2_Dense/config.json", layer)
    torch.manual_seed(1)
    save_file(
        {"linear.weight": torch.randn(24, 32) / 6, "linear.bias": torch.randn(24) / 6},
        folder / "2_Dense/model.safetensors",
    )
    chain = files.read_json(folder / "modules.json")
    chain.insert(
        2, {"idx": 2, "name": "dense", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    )
    files.write_json(folder / "modules.json", chain)
    files.write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "the cat "}})
    return folder


def plain(folder: Path, model: Any) -> Path:
    """A transformers folder of this model with the tiny tokenizer."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.asarray((one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1))


def near(quantized: encoder.TeacherEncoder, exact: encoder.TeacherEncoder):
    """Unit and raw embeddings of texts of several lengths, in the order of the texts, are near and not the
    same."""
    texts = [*sentences(20, seed=4), "a", "the old man " * 40]
    for unit in (True, False):
        found, expected = quantized.embed(texts, unit=unit), exact.embed(texts, unit=unit)
        assert found.shape == expected.shape == (22, exact.dims)
        assert cosines(found, expected).min() > 0.98
        assert np.abs(found - expected).max() > 1e-4, "not float32"
        lengths = np.linalg.norm(found, axis=1)
        assert lengths == pytest.approx(np.linalg.norm(expected, axis=1), rel=0.1)
        assert unit == bool(np.allclose(lengths, 1, atol=1e-5))
    each = [np.linalg.norm(expected - row, axis=1).argmin() for row in found]
    assert np.mean(np.array(each) == np.arange(22)) > 0.8, "each text's is nearest to its own"


@pytest.mark.parametrize("pooling", CHAINS)
def test_every_chain_is_near_fp32(world: World, tmp_path, pooling: str):
    folder = chained(world, tmp_path / "t", pooling)
    near(opened(folder, prompt="the cat "), opened(folder, "fp32", prompt="the cat "))


def test_a_traced_decoder_with_rms_norm_is_near_fp32_and_pools_its_last_token(tmp_path):
    from transformers import Qwen3Config, Qwen3Model

    config = Qwen3Config(
        vocab_size=200,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        pad_token_id=0,
    )
    folder = plain(tmp_path / "t", Qwen3Model(config))
    whole = opened(folder, "fp32", pooling="last")
    near(opened(folder, pooling="last"), whole)
    rows = [np.array([5, 6, 7], np.int32), np.array([9, 8, 7, 6, 5], np.int32)]
    assert np.allclose(whole.embed_ids(rows)[:1], whole.embed_ids(rows[:1]), atol=1e-5), (
        "the last token, not the last column"
    )


def test_the_encoder_of_a_t5_teaches_as_transformers_has_it(tmp_path):
    from transformers import T5Config, T5EncoderModel

    model = T5EncoderModel(T5Config(vocab_size=200, num_layers=1))
    whole = opened(plain(tmp_path / "t", model), "fp32", pooling="mean")
    ids = np.array([5, 6, 7])
    expected = model.eval()(torch.from_numpy(ids)[None])[0].mean(1).detach()
    assert np.allclose(whole.embed_ids([ids], unit=False), expected, atol=1e-5)


def test_a_run_as_an_int8_teacher(world: World, tmp_path):
    spec = world.spec(stages=[{"name": "a", "objective": {"kind": "cosine"}, "steps": 2, "batch": 8}])
    train.train(spec, tmp_path / "run", Session(data=world.data))
    given = {"model": str(tmp_path / "run"), "max_tokens": 32}
    near(
        *(
            assistant.open_assistant(recipe.Teacher.model_validate({**given, "dtype": dtype}))
            for dtype in ("int8", "fp32")
        )
    )


def test_the_graph_is_made_once_and_again_where_it_is_damaged(world: World, tmp_path):
    lines: list[str] = []
    session = Session(cache_folder=tmp_path / "cache", log=lines.append)
    for _ in range(2):
        teacher = opened(world.teacher)
        teacher.prepare(session)
        teacher.prepare(session)
    assert len(lines) == 2 and "making the int8 graph" in lines[0] and "cosine to torch 0.9" in lines[1]
    (path,) = (tmp_path / "cache" / "graphs").glob("*/graph.onnx")
    before = teacher.embed(sentences(3))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    again = opened(world.teacher)
    again.prepare(session)
    assert len(lines) == 5 and "graph.onnx: damaged or missing; making it again" in lines[2]
    assert np.array_equal(again.embed(sentences(3)), before)


def test_the_key_has_what_decides_the_bytes(world: World, tmp_path, monkeypatch):
    first = opened(world.teacher).identity()
    assert first["dtype"] == "torch.int8" and first == opened(world.teacher).identity()
    assert first["int8"].keys() == {"format", "onnxruntime", "samples"}
    assert opened(world.teacher, "fp32").identity()["int8"] is None
    other = tmp_path / "sentences.txt"
    other.write_text("another text to measure on\n", encoding="utf-8")
    monkeypatch.setattr(sample_texts, "SENTENCES", other)
    assert opened(world.teacher).identity()["int8"]["samples"] != first["int8"]["samples"]
    monkeypatch.setattr(onnxruntime, "__version__", "9.8.7")
    assert opened(world.teacher).identity()["int8"]["onnxruntime"] == "9.8"


def test_all_roles_share_a_graph(world: World, tmp_path):
    """It takes minutes for twelve layers; the embeddings have keys of their own."""
    teacher = opened(world.teacher, query_prompt="the cat ")
    asked, session = teacher.in_role("query"), Session(device="cpu", cache_folder=tmp_path)
    asked.prepare(session)
    teacher.prepare(session)
    assert len([*(tmp_path / "graphs").iterdir()]) == 1
    texts = sentences(8, seed=4)
    assert np.array_equal(asked.embed(texts), teacher.embed(["the cat " + text for text in texts]))
    assert asked.identity() == {**teacher.identity(), "prompt": "the cat "}


def test_a_teacher_that_loses_too_much_is_refused(world: World, tmp_path, monkeypatch):
    monkeypatch.setitem(PRECISIONS, "int8", PRECISIONS["int8"]._replace(single_cosine=0.99999))
    texts = corpus.build(recipe.Rows(files=["texts.txt"]), Session(data=world.data, cache_folder=tmp_path), 0)
    says = (
        r"teacher.dtype: .*teacher in int8 has a cosine of 0\.9\d+ on a text, 0.99999 is required; "
        r"set it to auto"
    )
    with pytest.raises(UserError, match=says):
        embedding_cache.TeacherPass(opened(world.teacher), texts, Session(cache_folder=tmp_path)).open()
    assert not list(tmp_path.rglob("*.onnx")) and not list((tmp_path / "teachers").glob("*"))


def test_a_teacher_without_a_graph_runs_in_torch_and_is_refused_in_int8(tmp_path):
    from transformers import Gemma3TextConfig, Gemma3TextModel

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    rest = {"intermediate_size": 16, "max_position_embeddings": 64, "use_bidirectional_attention": True}
    config = Gemma3TextConfig(vocab_size=200, pad_token_id=0, **sizes, **rest)
    folder = plain(tmp_path / "t", Gemma3TextModel(config))
    with pytest.raises(
        UserError,
        match=r"teacher.dtype: int8 needs a graph of .*t, and it cannot be written as a graph \(.*\); set it "
        r"to auto",
    ):
        opened(folder, pooling="mean").prepare(Session(cache_folder=tmp_path / "cache"))
    lines: list[str] = []
    exact = opened(folder, "fp32", pooling="mean")
    exact.prepare(Session(log=lines.append))
    assert (
        len(lines) == 1
        and "runs in torch, at about half the speed: it cannot be written as a graph" in lines[0]
    )
    ids = np.array([[5, 6, 7]])
    with torch.inference_mode():
        expected = exact.module(torch.from_numpy(ids), torch.ones(1, 3, dtype=torch.long)).numpy()
    assert cosines(exact.embed_ids([ids[0]]), expected)[0] > 0.99999


def test_cuda_is_refused_before_anything_is_embedded(world: World, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    other = {"model": str(world.teacher), "max_tokens": 5, "dtype": "int8"}
    own = {**world.recipe()["teacher"], "dtype": "int8"}
    spec = world.spec(teacher=own, assistant=other)
    for device in ("auto", "cuda"):
        with pytest.raises(UserError) as caught:
            load_models.open_models(spec, Session(data=world.data, device=device))
        assert caught.value.problems == tuple(
            f"{place}.dtype: int8 is for processors, and this device is cuda; set it to auto, or --device cpu"
            for place in ("teacher", "assistant")
        )
    load_models.open_models(spec, Session(data=world.data, device="cpu"))
    with pytest.raises(UserError, match="int8 is for processors"):
        cost.costs([spec], Session(data=world.data, device="cuda"))
