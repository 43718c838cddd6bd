"""A student's weights from encoders of other architectures: all layers are the encoder itself, some are those
layers of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerBase

from edgedistill import recipe, run
from edgedistill.data import corpus
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.export import bundle_writer
from edgedistill.runtime import bundle
from edgedistill.runtime.batching import pad
from edgedistill.session import Session
from edgedistill.students import graph, kinds, model_folder
from edgedistill.students.pooling import pool
from edgedistill.students.sentence_transformer import load_model
from edgedistill.teacher import tokenizer_files
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.teacher.tokenizer_files import encode_ids
from edgedistill.training import train
from edgedistill.training.initial_student import initial_weights, student_tokenizer
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.load_models import open_models
from tests.conftest import World, sentences
from tests.students.test_graph import spread
from tests.vocabulary.test_trim_tokenizer import byte_bpe, unigram, wordpiece

KINDS = {
    "bert": wordpiece,
    "distilbert": wordpiece,
    "mpnet": unigram,
    "roberta": byte_bpe,
    "xlm-roberta": unigram,
}
LONG = "word after word, and no end. " * 40  # beyond the positions
TEXTS = ["", "a", "<pad> and [PAD] </s> inside", "naïve 🙂 北京", LONG, *sentences(6, seed=3)]
WIDTH = 40  # the teacher of the tiny world is 32 wide


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """From an architecture to a folder with three layers of it, and its tokenizer."""
    folder = tmp_path_factory.mktemp("sources")
    return cache(lambda kind: encoder(folder / kind, kind))


def encoder(folder: Path, kind: str, words: Any = None, **sizes: Any) -> Path:
    words = words or KINDS[kind]()
    layers = {"hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    own = {"dim": WIDTH, "n_layers": 3, "n_heads": 4, "hidden_dim": 48} if kind == "distilbert" else layers
    given = {
        "vocab_size": len(words),
        "pad_token_id": words.pad_token_id,
        "max_position_embeddings": 200,
        **own,
        **sizes,
    }
    model = spread(AutoModel.from_config(AutoConfig.for_model(kind, **given)))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


class Started:
    """An untrained student, built as training builds it, and its source as transformers opens it."""

    def __init__(self, world: World, source: Path, **student: Any):
        head = {"head": "linear", "dims": WIDTH}  # keeps the width, so it starts as the identity
        given = {
            "kind": "bert",
            "weights": str(source),
            "tokenizer": str(source),
            "max_tokens": 180,
            **head,
            **student,
        }
        spec = world.spec(student=given)
        assert spec.rows is not None and isinstance(spec.student, recipe.Bert | recipe.Recurrent)
        self.models = open_models(spec, Session(data=world.data))
        texts = Rows.of_texts(corpus.build(spec.rows, Session(data=world.data), 0))
        self.tokenizer = student_tokenizer.build(spec, self.models, texts, Session(log=print))
        session = Session(data=world.data, log=print)
        self.prepared = initial_weights.build(spec, self.models, self.tokenizer, session, texts)
        self.module: Any = self.prepared.module.eval()

    def embed(self, texts: list[str] = TEXTS) -> np.ndarray:
        return self.prepared.embed(texts)


def batch(tokenizer: PreTrainedTokenizerBase, texts: list[str] = TEXTS) -> tuple[Tensor, Tensor]:
    ids, mask = pad(encode_ids(tokenizer, texts, 180), tokenizer.pad_token_id or 0)
    return torch.from_numpy(ids), torch.from_numpy(mask)


def opened(folder: Path) -> tuple[Any, PreTrainedTokenizerBase]:
    read = model_folder.read(folder)
    return load_model(read, pooler=True).eval(), tokenizer_files.load_tokenizer(read)


def pooled(model: Any, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """The mean-pooled embeddings of TEXTS, as transformers computes them."""
    ids, mask = batch(tokenizer)
    with torch.inference_mode():
        return nn.functional.normalize(
            pool(model(input_ids=ids, attention_mask=mask)[0], mask, "mean"), dim=-1
        ).numpy()


def least_cosine(found: np.ndarray, expected: np.ndarray) -> float:
    assert (expected @ expected.T)[~np.eye(len(expected), dtype=bool)].max() < 0.9999  # texts differ
    return float((found * expected).sum(1).min())


@pytest.mark.parametrize("kind", KINDS)
def test_all_layers_are_the_source_itself(world: World, sources: Any, kind: str):
    """In torch and in the graph; a text alone gives what it gives in a batch; the embedding layer is the
    source's too."""
    started, (model, tokenizer) = Started(world, sources(kind)), opened(sources(kind))
    expected = pooled(model, tokenizer)
    assert least_cosine(started.embed(), expected) > 0.999999
    written = graph.build(started.module)
    counts, total = (
        kinds.parameters(started.module),
        sum(parameter.numel() for parameter in started.module.parameters()),
    )
    assert (
        counts["total"] == total == counts["embedding"] + counts["encoder"] + counts["head"]
        and min(counts.values()) > 0
    )
    assert graph.compare(started.module, written, 180, len(tokenizer)) > 0.99999
    runner = graph_runner(written)
    assert least_cosine(runner(*batch(tokenizer)), expected) > 0.99999
    alone = np.concatenate([runner(*batch(tokenizer, [text])) for text in TEXTS])
    assert least_cosine(alone, expected) > 0.99999
    ids, mask = batch(tokenizer)
    with torch.inference_mode():
        theirs = pool(model.embeddings(input_ids=ids), mask, "mean")
        assert torch.allclose(started.module.embedded(ids, mask), theirs, atol=1e-5)


def graph_runner(model: Any) -> Any:
    from tests.students.test_graph import session

    found = session(model)
    return lambda ids, mask: found.run(
        ["sentence_embedding"], {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
    )[0]


@pytest.mark.parametrize("kind", KINDS)
def test_chosen_layers_are_those_layers(world: World, sources: Any, kind: str):
    """The third, then the first."""
    started, (model, tokenizer) = Started(world, sources(kind), layers=[2, 0]), opened(sources(kind))
    owner = model.transformer if kind == "distilbert" else model.encoder
    owner.layer = nn.ModuleList([owner.layer[2], owner.layer[0]])
    assert least_cosine(started.embed(), pooled(model, tokenizer)) > 0.999999
    assert graph.compare(started.module, graph.build(started.module), 180, len(tokenizer)) > 0.99999


@pytest.mark.parametrize("kind", KINDS)
def test_codes_and_a_trimmed_vocabulary(world: World, sources: Any, kind: str):
    """Codes are exact for up to 256 tokens; texts of kept tokens are embedded as before."""
    kept, whole = sentences(40, seed=0), KINDS[kind] is byte_bpe
    started = Started(world, sources(kind), pq_bytes=20, **({} if whole else {"trim": {}}))
    model, tokenizer = opened(sources(kind))
    assert whole or 40 < len(started.tokenizer) < min(len(tokenizer), 257)
    ids, mask = batch(tokenizer, kept)
    with torch.inference_mode():
        expected = nn.functional.normalize(
            pool(model(input_ids=ids, attention_mask=mask)[0], mask, "mean"), dim=-1
        ).numpy()
    assert least_cosine(started.embed(kept), expected) > (0.99 if whole else 0.9999)
    factorized = Started(world, sources(kind), bottleneck=WIDTH)
    assert least_cosine(factorized.embed(), pooled(model, tokenizer)) > 0.9999


def test_a_narrow_start_keeps_relative_positions(world: World, sources: Any, tmp_path):
    """Three of MPNet's four heads, the same ones in all layers, with what they add by distance."""
    model, tokenizer = opened(sources("mpnet"))
    model.encoder.relative_attention_bias.weight.data *= 30
    model.save_pretrained(tmp_path / "near")
    tokenizer.save_pretrained(tmp_path / "near")
    started, expected = Started(world, tmp_path / "near", width=30), pooled(model, tokenizer)
    near = (started.embed() * expected).sum(1)
    started.module.relative.weight.data.zero_()
    far = (started.embed() * expected).sum(1)
    assert near.min() > 0.8 and near.mean() > far.mean() + 0.01, (near, far)


def test_layers_of_one_encoder_taught_by_another(world: World, sources: Any, tmp_path):
    """Two layers of an XLM-R, 40 wide and with its own trimmed tokenizer, learn from a BERT of 32; then its
    run is a source itself."""
    xlmr = str(sources("xlm-roberta"))
    student = {
        "kind": "bert",
        "weights": xlmr,
        "tokenizer": xlmr,
        "layers": [0, 2],
        "pq_bytes": 8,
        "trim": {},
        "head": "linear",
    }
    stage = {
        "name": "distil",
        "objective": {"kind": "cosine"},
        "steps": 30,
        "batch": 16,
        "learning_rate": 3e-3,
    }
    session = Session(data=world.data, log=lambda line: None)
    train.train(world.spec(student=student, stages=[stage]), tmp_path / "run", session)
    finished = run.open_run(tmp_path / "run")
    assert (finished.dims, finished.shape["position_ids"]) == (32, "pad")
    teacher, texts = TeacherEncoder(recipe.Teacher(model=str(world.teacher))), sentences(20, seed=30)
    before = Started(world, sources("xlm-roberta"), layers=[0, 2], dims=None)
    after = PreparedStudent.of(finished).embed(texts)
    assert (after * teacher.embed(texts)).sum(1).mean() > 0.2 + (
        before.embed(texts) * teacher.embed(texts)
    ).sum(1).mean()
    bundle_writer.export(tmp_path / "run", ["fp32"], tmp_path / "bundle", lambda line: None)
    assert np.abs(bundle.load(tmp_path / "bundle", precision="fp32").encode(texts) - after).max() < 1e-5
    repeated = Started(world, tmp_path / "run", kind="recurrent", layers=2, repeats=1, dims=None)
    assert np.abs(repeated.embed(texts) - after).max() < 1e-5


ERRORS: dict[str, tuple[str, dict[str, Any], str]] = {
    "layers": ("roberta", {"layers": [0, 3]}, "student.layers: no layer 3"),
    "more layers": ("distilbert", {"layers": 4}, "student.layers: 4 layers"),
    "pooler": ("distilbert", {"pooling": "cls_pooler"}, "student.pooling: cls_pooler"),
    "packaged": ("bert", {"weights": "packaged:none"}, "student.weights: no packaged teacher 'none'"),
    "bundle": ("bert", {"weights": "nano"}, "student.weights: nano is a bundle"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be(world: World, sources: Any, name: str):
    kind, student, says = ERRORS[name]
    with pytest.raises(UserError, match=says):
        Started(world, sources(kind), **student)


def test_an_unknown_architecture_names_the_known(world: World, tmp_path):
    folder = encoder(tmp_path / "albert", "albert", wordpiece(), embedding_size=16)
    with pytest.raises(UserError, match="student.weights: .* is albert, and .* BERT, .*XLM-R"):
        Started(world, folder)


@pytest.mark.parametrize("rows", [150, 2_000])
def test_a_vocabulary_that_is_not_the_tokenizers(world: World, tmp_path, rows: int):
    """Fewer rows than tokens, or many more; weights whose tokenizer lies elsewhere too. A few spare rows are
    fine."""
    words = wordpiece()
    folder = encoder(tmp_path / "model", "distilbert", words, vocab_size=rows)
    with pytest.raises(UserError, match=f"{folder}.* {rows:,} rows"):
        Started(world, folder)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    fits = encoder(tmp_path / "fits", "distilbert", words, vocab_size=len(words) + 24)
    with pytest.raises(UserError, match=f"{rows:,} rows and a tokenizer of {len(words)} tokens"):
        Started(world, folder, tokenizer=str(fits))
    assert least_cosine(Started(world, fits).embed(), pooled(*opened(fits))) > 0.999999
