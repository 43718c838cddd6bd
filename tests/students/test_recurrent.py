"""A unit of layers applied again and again: the papers' columns, the encoder it comes from, and one copy of
its weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from transformers import AutoConfig, AutoModel, PretrainedConfig

from edgedistill import files, precisions, quantization, recipe, run
from edgedistill.errors import UserError
from edgedistill.export import bundle_writer
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.students import bert, bert_layers, graph, kinds, recurrent
from edgedistill.training import train
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from tests.conftest import World, sentences
from tests.students.test_graph import PIECES, make_recurrent, spread
from tests.vocabulary.test_trim_tokenizer import plain_model, unigram

XLM_R = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 514,
}
MINILM = {
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
}
SOURCES: dict[
    str, tuple[PretrainedConfig, int, int, str]
] = {  # config, pieces, padding id, where positions are counted from
    "XLM-R": (
        AutoConfig.for_model("xlm-roberta", vocab_size=250_002, type_vocab_size=1, pad_token_id=1, **XLM_R),
        250_002,
        1,
        "pad",
    ),
    "MiniLM": (
        AutoConfig.for_model("bert", vocab_size=250_037, type_vocab_size=2, pad_token_id=0, **MINILM),
        250_037,
        1,
        "zero",
    ),
}


def of_shape(config: PretrainedConfig, counted: str) -> bert_layers.EncoderLayers:
    """A source as a shape reads it: without weights."""
    return bert_layers.EncoderLayers(SimpleNamespace(config=config), 0 if counted == "pad" else None)


def columns(source: str, **spec: Any) -> dict[str, int]:
    config, pieces, pad, counted = SOURCES[source]
    shape = recurrent.shape(
        recipe.Recurrent(kind="recurrent", **spec), pieces, pad, 768, of_shape(config, counted)
    )
    with torch.device("meta"):
        return kinds.parameters(recurrent.build(shape))


@pytest.mark.parametrize(
    ("source", "bottleneck", "embedding", "words"),
    # Ding et al. 2022: the paper prints `embedding` for XLM-R (192.40, 32.49, 64.59) and for MiniLM `words`
    # (32.05, 64.10; whole: 96.21)
    [
        ("XLM-R", None, 192_398_592, 250_002 * 768),
        ("XLM-R", 128, 32_495_616, 250_002 * 128 + 128 * 768),
        ("XLM-R", 256, 64_594_176, 250_002 * 256 + 256 * 768),
        ("MiniLM", None, 96_212_352, 250_037 * 384),
        ("MiniLM", 128, 32_251_648, 32_053_888),
        ("MiniLM", 256, 64_305_536, 64_107_776),
    ],
)
def test_embedding_columns(source: str, bottleneck: int | None, embedding: int, words: int):
    counted = columns(source, bottleneck=bottleneck)
    assert (counted["embedding"], counted["words"]) == (embedding, words)


@pytest.mark.parametrize("layers", [3, 6, 12])
@pytest.mark.parametrize("times", [None, 1, 4])
def test_encoder_columns_do_not_know_how_often(layers: int, times: int | None):
    assert columns("XLM-R", layers=layers, repeats=times)["encoder"] == 7_087_872 * layers
    counted = columns("MiniLM", layers=layers, repeats=times, bottleneck=128)
    assert counted["encoder"] == 1_774_464 * layers
    assert counted["total"] == 32_251_648 + 1_774_464 * layers


def tiny(kind: str, pad: int, depth: int = 4) -> Any:
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": depth,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 42,
    }
    config = AutoConfig.for_model(kind, vocab_size=PIECES, pad_token_id=pad, hidden_dropout_prob=0.0, **sizes)
    return spread(AutoModel.from_config(config, add_pooling_layer=True))


def made(source: Any, pad: int, counted: str, **spec: Any) -> recurrent.RecurrentStudent:
    """A student started from a source whose pieces it shares."""
    wanted = recipe.Recurrent(kind="recurrent", **spec)
    student = recurrent.build(recurrent.shape(wanted, PIECES, pad, 16, of_shape(source.config, counted)))
    words = None if wanted.embeddings.source == "random" else source.get_input_embeddings().weight.detach()
    layers = bert_layers.convert(source)
    assert layers is not None and counted == ("zero" if layers.pad is None else "pad")
    recurrent.initialize(student, recurrent.source_layers(wanted, source.config), layers, words)
    return student.eval()


def some(pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two texts of 9 and 5 tokens; the first has the padding id among its own."""
    ids = torch.randint(pad + 1, PIECES, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(9) < torch.tensor([[9], [5]])).long()
    ids[0, 3] = pad
    return torch.where(mask == 1, ids, pad), mask


@pytest.mark.parametrize(
    ("kind", "pad", "counted"), [("xlm-roberta", 1, "pad"), ("roberta", 0, "pad"), ("bert", 0, "zero")]
)
@pytest.mark.parametrize("pooling", ["mean", "cls_pooler"])
def test_all_the_layers_once_is_the_source(kind: str, pad: int, counted: str, pooling: str):
    source = tiny(kind, pad)
    student = made(source, pad, counted, layers=4, pooling=pooling)
    ids, mask = some(pad)
    with torch.inference_mode():
        theirs = source(input_ids=ids, attention_mask=mask)
        mine = student.encoded(ids, mask)[0]
        assert torch.allclose(mine[mask == 1], theirs[0][mask == 1], atol=1e-6)
        if pooling == "cls_pooler":
            assert torch.allclose(student(ids, mask), theirs[1], atol=1e-6)
    full = made(source, pad, counted, layers=4, bottleneck=16)  # a factorization of full rank is the table
    with torch.inference_mode():
        assert torch.allclose(full.encoded(ids, mask)[0][mask == 1], theirs[0][mask == 1], atol=1e-4)


def test_the_unit_cycles():
    """1 2 1 2, not 1 1 2 2; counted by hand over the source's own layers."""
    source, (ids, mask) = tiny("bert", 0), some(0)
    student = made(source, 0, "zero", layers=[3, 1])
    with torch.inference_mode():
        expected = source.embeddings(input_ids=ids[:1])
        for layer in (3, 1, 3, 1):
            expected = source.encoder.layer[layer](expected)
            expected = expected[0] if isinstance(expected, tuple) else expected
        assert student.model.encoder.times == 2
        assert torch.allclose(student.encoded(ids[:1], mask[:1])[0], expected, atol=1e-6)


def test_positions_by_hand():
    ids = torch.tensor([[7, 8, 1, 9, 1], [7, 1, 1, 1, 1]])
    assert bert_layers.position_ids(ids, 1).tolist() == [[2, 3, 1, 4, 1], [2, 1, 1, 1, 1]]
    assert bert_layers.position_ids(ids - 1, 0).tolist() == [[1, 2, 0, 3, 0], [1, 0, 0, 0, 0]]


def test_fresh_tables_are_the_papers():
    source = tiny("xlm-roberta", 1)
    torch.manual_seed(0)
    student = made(
        source, 1, "pad", layers=2, bottleneck=4, embeddings=recipe.Embeddings(**{"from": "random"})
    )
    tables = student.model.embeddings
    assert tables.word_embeddings.table.weight.std().item() == pytest.approx(1, abs=0.15)
    assert tables.position_embeddings.weight.std().item() == pytest.approx(1, abs=0.15)
    assert tables.token_type_embeddings.weight.shape == (1, 16)
    assert tables.word_embeddings.project.weight.abs().max().item() <= 0.5  # torch's own: 1/√B
    layer = student.model.encoder.layer[1].state_dict()
    assert all(
        torch.equal(value, source.encoder.layer[1].state_dict()[name]) for name, value in layer.items()
    )


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"layers": 5}, "student.layers: a block of 5"),
        ({"layers": [0, 12]}, "student.layers: no layer 12"),
        ({"bottleneck": 769}, "student.bottleneck: 769"),
    ],
)
def test_what_cannot_be(spec: dict[str, Any], says: str):
    with pytest.raises(UserError, match=says):
        columns("XLM-R", **spec)


def test_no_positions_behind_the_padding_id():
    spec = recipe.Recurrent(kind="recurrent")
    with pytest.raises(UserError, match="padding id 600 in a table of 514"):
        recurrent.shape(spec, 900, 600, 768, of_shape(SOURCES["XLM-R"][0], "pad"))


@pytest.mark.parametrize("precision", precisions.PRECISIONS)
def test_a_graph_holds_the_unit_once(precision: str):
    def bytes_of(model: onnx.ModelProto) -> int:
        return sum(numpy_helper.to_array(constant).nbytes for constant in model.graph.initializer)

    once, often = (quantization.convert(graph.build(make_recurrent(times)), precision) for times in (1, 8))
    # one shift more: the block's last norm carries a bias where the block comes again
    assert len(often.graph.initializer) <= len(once.graph.initializer) + 1
    assert 10_000 < bytes_of(often) <= bytes_of(once) + 32 * 4
    # what grows are nodes: names, those of parameters too, and attributes, some kilobytes whatever the width
    more = (often.ByteSize() - once.ByteSize()) / (2 * 7)
    assert more < 7_500
    names = [constant.name for constant in often.graph.initializer]
    assert len(set(names)) == len(names)


def test_a_run_and_its_bundle_from_an_xlm_r(world: World, tmp_path):
    """Trained from an assistant that counts positions from padding, behind a trimmed and narrow table;
    exported in all precisions."""
    assistant = plain_model(tmp_path / "assistant", "xlm-roberta", unigram(), num_hidden_layers=4)
    student = {
        "kind": "recurrent",
        "weights": str(assistant),
        "tokenizer": str(assistant),
        "layers": 2,
        "bottleneck": 8,
        "trim": {},
        "head": "linear",
    }
    spec = world.spec(student=student)
    info = train.train(spec, tmp_path / "run", Session(data=world.data, log=lambda line: None))
    shape = files.read_json(tmp_path / "run" / "student.json")
    pieces = shape["config"]["vocab_size"]
    stated = {"repeats": 2, "bottleneck": 8, "position_ids": "pad", "pad": 1}
    assert stated.items() <= shape.items() and shape["config"]["num_hidden_layers"] == 2
    assert info["parameters"]["words"] == pieces * 8 + 8 * 16
    assert info["parameters"]["embedding"] == pieces * 8 + 8 * 16 + 40 * 16 + 16 + 2 * 16
    bundle_writer.export(tmp_path / "run", ["fp32", "w8", "int8"], tmp_path / "bundle", lambda line: None)
    texts = [*sentences(8, seed=4), "", "<pad> жar 🙂"]
    opened = run.open_run(tmp_path / "run")
    expected = PreparedStudent.of(opened).embed(texts)
    found = bundle.load(tmp_path / "bundle", precision="fp32").encode(texts)
    assert np.abs(found - expected).max() < 1e-5
    assert isinstance(opened.student(), bert.BertStudent)
    assert opened.student().model.encoder.times == 2
