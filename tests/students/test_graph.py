"""student -> graph: the same vectors as torch at every shape, whatever is padded, and nothing in it that is
not needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from edgedistill.errors import CheckFailed, UserError
from edgedistill.students import bert, bilstm, graph, recurrent, static
from edgedistill.students.pooling import MODES
from edgedistill.students.sentence_transformer import Affine, PretrainedEncoder

PIECES = 90


def spread(module: nn.Module, seed: int = 0) -> Any:
    """Weights far enough from zero that texts differ and biases matter."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.15)
    for norm in (m for m in module.modules() if isinstance(m, nn.LayerNorm)):
        nn.init.normal_(norm.weight, mean=1, std=0.1)
    return module.eval()


def make_bert(
    pooling: str = "mean",
    head: int | None = 12,
    tanh: bool = False,
    bottleneck: int | None = None,
    codes: int | None = None,
    centroids: int = 256,
    **config: Any,
) -> Any:
    sizes = {
        "vocab_size": PIECES,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    shape = {
        "config": {**sizes, "max_position_embeddings": 40, "pad_token_id": 0, **config},
        "bottleneck": bottleneck,
        "pq_bytes": codes,
        "pq_centroids": centroids,
        "pooling": pooling,
        "head": head and {"dims": head, "bias": True},
        "tanh": tanh,
    }
    return spread(bert.build(shape))


def make_recurrent(times: int = 3, positions: str = "pad", pad: int = 1, **changes: Any) -> Any:
    """Two layers gone through `times` times."""
    plain = {
        "vocab_size": PIECES,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    shape = {
        "config": {**plain, "max_position_embeddings": 42, "pad_token_id": pad, "type_vocab_size": 1},
        "repeats": times,
        "position_ids": positions,
        "pad": pad,
        "bottleneck": None,
        "pooling": "mean",
        "head": {"dims": 12, "bias": True},
        "tanh": False,
    }
    return spread(recurrent.build({**shape, **changes}))


def make_bilstm(
    readout: str = "last", layers: int = 1, head: int | None = 12, codes: int | None = None
) -> Any:
    shape = {
        "vocabulary_size": PIECES,
        "pad": 0,
        "width": 20,
        "pq_bytes": codes,
        "hidden": 24,
        "layers": layers,
        "readout": readout,
        "dropout": 0.0,
    }
    return spread(
        bilstm.build({**shape, "head": head and {"dims": head, "bias": False}, "tanh": head is not None})
    )


def make_static(
    head: int | None = None, bias: bool = True, tanh: bool = False, pad: int = 0, codes: int | None = None
) -> Any:
    shape = {
        "vocabulary_size": PIECES,
        "pad": pad,
        "width": 40,
        "pq_bytes": codes,
        "head": head and {"dims": head, "bias": bias},
        "tanh": tanh,
    }
    student = spread(static.build(shape))
    if codes is None:
        student.embedding.weight.data[pad] = 0  # as it is from the start, and training leaves it
    return student


KNOWN = (
    "camembert",
    "distilbert",
    "mpnet",
    "roberta",
    "xlm-roberta",
)  # teachers whose graphs are written from weights


def make_other(kind: str, **sizes: Any) -> Any:
    """A teacher that is not a BERT, with a dense layer behind its pooling."""
    from transformers import AutoConfig, AutoModel

    layers = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    own = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48} if kind == "distilbert" else layers
    own |= (
        {"bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
        if kind == "modernbert"
        else {}
    )
    sizes = {"pad_token_id": 1, "max_position_embeddings": 44, **own, **sizes}
    model = AutoModel.from_config(AutoConfig.for_model(kind, vocab_size=PIECES, **sizes))
    return spread(PretrainedEncoder(model, ["mean"], [nn.Sequential(nn.Linear(32, 12), nn.Tanh())]))


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def run(
    model: onnx.ModelProto, ids: np.ndarray, mask: np.ndarray, output: str = "sentence_embedding"
) -> np.ndarray:
    return session(model).run([output], {"input_ids": ids, "attention_mask": mask})[0]


def some_ids(batch: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids, and a mask under which row i has i + 1 tokens (at most all)."""
    ids = np.random.default_rng(1).integers(1, PIECES, (batch, tokens))
    return ids, (np.arange(tokens) < np.arange(1, batch + 1)[:, None]).astype(np.int64)


STUDENTS = {
    **{f"bert {mode}": (lambda mode=mode: make_bert(mode)) for mode in MODES},
    "bert without a head": lambda: make_bert(head=None),
    "bert with tanh": lambda: make_bert(tanh=True),
    "bert bottleneck": lambda: make_bert(bottleneck=8),
    "bert codes": lambda: make_bert(codes=8),
    "bert codes of two bytes": lambda: make_bert(codes=8, centroids=1000),
    "bert gelu_new": lambda: make_bert(hidden_act="gelu_new"),
    "bert relu": lambda: make_bert(hidden_act="relu"),
    "recurrent": make_recurrent,
    "recurrent from 0": lambda: make_recurrent(positions="zero"),
    "recurrent bottleneck": lambda: make_recurrent(bottleneck=24, pad=0),
    "recurrent codes": lambda: make_recurrent(codes=16),
    "recurrent pooler": lambda: make_recurrent(pooling="cls_pooler"),
    "bert of no layers": lambda: make_bert(num_hidden_layers=0),
    "teacher with two poolings": lambda: spread(PretrainedEncoder(make_bert().model, ["cls", "max"], [])),
    **{
        f"bilstm {readout} {layers}": (lambda readout=readout, layers=layers: make_bilstm(readout, layers))
        for readout in ("last", "max", "mean")
        for layers in (1, 2)
    },
    "bilstm without a head": lambda: make_bilstm(head=None),
    "bilstm codes": lambda: make_bilstm(codes=5),
    "static codes": lambda: make_static(codes=10),
    "static codes with a head": lambda: make_static(12, codes=40, pad=3),
    "static": make_static,
    "static padded by piece 3": lambda: make_static(pad=3),
    "static with a head": lambda: make_static(12),
    "static with a head, no bias": lambda: make_static(12, bias=False),
    "static with tanh": lambda: make_static(12, tanh=True),
    "static with tanh alone": lambda: make_static(tanh=True),
    "teacher reduced": lambda: spread(
        PretrainedEncoder(make_bert().model, ["mean"], []).followed_by(Affine(np.eye(32, 6), np.ones(6)))
    ),
}


@pytest.mark.parametrize("name", STUDENTS)
def test_says_what_torch_says_at_every_shape(name: str):
    student = STUDENTS[name]()
    model = graph.build(student)
    assert graph.compare(student, model, 40, PIECES) > 0.999999
    assert [value.name for value in model.graph.input] == ["input_ids", "attention_mask"]
    assert model.graph.output[0].name == "sentence_embedding"
    rows = run(model, *some_ids(5, 9))
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert (rows @ rows.T)[~np.eye(5, dtype=bool)].max() < 0.9999  # texts differ


def padding_is_ignored(model: onnx.ModelProto, ids: np.ndarray, mask: np.ndarray):
    """Each row alone and short is as in the batch; the first has one token, each other one more."""
    together = run(model, ids, mask)
    for row in range(len(ids)):
        alone = run(model, ids[row : row + 1, : row + 1], mask[row : row + 1, : row + 1])
        assert np.allclose(alone, together[row], atol=2e-6)


@pytest.mark.parametrize(
    "name",
    [
        "bert mean",
        "bert max",
        "bert last",
        "recurrent",
        "bilstm last 2",
        "bilstm max 1",
        "bilstm mean 1",
        "static",
        "static padded by piece 3",
        "static with a head",
    ],
)
def test_padding_changes_nothing(name: str):
    model = graph.build(STUDENTS[name]())
    ids, mask = some_ids(6, 17)
    padding_is_ignored(model, ids, mask)


def test_a_static_graph_is_a_look_up_a_mean_and_a_length():
    model = graph.build(make_static())
    mean = ["Cast", "ReduceSum", "Clip", "Div", "Unsqueeze", "MatMul", "Squeeze"]
    length = ["ReduceL2", "Clip", "Div"]
    assert [node.op_type for node in model.graph.node] == ["Gather", *mean, *length]
    assert (
        sum(int(np.prod(constant.dims)) for constant in model.graph.initializer) == PIECES * 40 + 4
    )  # the weights are in the table
    with_head = [node.op_type for node in graph.build(make_static(12)).graph.node]
    assert with_head.count("MatMul") == 2  # the mean, and the head


def test_a_zero_vector_stays_zero():
    student = make_bert()
    nn.init.zeros_(student.head.weight)
    nn.init.zeros_(student.head.bias)
    rows = run(graph.build(student), *some_ids(3, 5))
    assert (rows == 0).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_bert(head=None),
        lambda: make_bert("cls", head=None),
        lambda: make_bert(tanh=True),
        lambda: make_recurrent(pooling="max"),
        lambda: make_other("distilbert", dim=32, n_layers=1, n_heads=4),
    ],
)
def test_token_embeddings_come_along_for_nothing(make: Any):
    student = make()
    model = graph.build(student)
    ids, mask = some_ids(4, 7)
    with torch.inference_mode():
        embed = student.encoded if isinstance(student, bert.BertStudent) else student.model
        expected = embed(torch.from_numpy(ids), torch.from_numpy(mask))[0].numpy()
    found = run(model, ids, mask, "last_hidden_state")
    assert np.allclose(found[mask == 1], expected[mask == 1], atol=1e-5)


def two_linear_layers() -> Any:
    dense = [
        nn.Sequential(nn.Linear(32, 20, bias=False), nn.Identity()),
        nn.Sequential(nn.Linear(20, 12), nn.Identity()),
    ]
    return spread(PretrainedEncoder(make_bert().model, ["mean"], dense))


def traced_with_a_linear_head() -> Any:
    student = make_other("distilbert", dim=32, n_layers=1, n_heads=4)
    return spread(
        PretrainedEncoder(student.model, ["mean"], [nn.Sequential(nn.Linear(32, 12), nn.Identity())])
    )


@pytest.mark.parametrize(
    "make",
    [lambda: make_bert(head=None), make_bert, make_recurrent, two_linear_layers, traced_with_a_linear_head],
    ids=["no head", "bert", "recurrent", "two linear layers", "traced"],
)
def test_the_mean_of_the_last_hidden_state_is_the_embedding(make: Any):
    """So that a library that pools by mean gives the student's own embedding, head included."""
    student = make()
    model, (ids, mask) = graph.build(student), some_ids(4, 7)
    assert graph.pools_to_embedding(student)
    tokens, weights = (
        run(model, ids, mask, "last_hidden_state"),
        mask[:, :, None] / mask.sum(1)[:, None, None],
    )
    pooled = (tokens * weights).sum(1)
    with torch.inference_mode():
        expected = student(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
    assert np.allclose(pooled, expected, atol=1e-5)  # bias and length included
    assert np.allclose(
        pooled / np.linalg.norm(pooled, axis=1, keepdims=True), run(model, ids, mask), atol=1e-5
    )


def test_other_token_embeddings_are_noticed():
    """Other libraries pool them, so an export compares them with torch, too."""
    student = make_bert()
    model = graph.build(student)
    next(
        node for node in model.graph.node if node.output[0] == "last_hidden_state"
    ).op_type = "Sub"  # of the bias, for Add
    assert graph.compare(student, model, 40, PIECES) < 0.999


@pytest.mark.parametrize(
    "student",
    [
        lambda: make_bert("cls"),
        lambda: make_bert("weighted_mean"),
        lambda: make_bert(tanh=True),
        lambda: make_bilstm("mean"),
        make_static,
    ],
)
def test_other_students_do_not_promise_it(student: Any):
    assert not graph.pools_to_embedding(student())


@pytest.mark.parametrize("kind", KNOWN)
def test_known_teachers_are_written(kind: str):
    """As torch at 330 tokens, node by node: one softmax a layer."""
    student = make_other(kind, max_position_embeddings=344)
    model = graph.build(student)
    assert graph.compare(student, model, 330, PIECES) > 0.999999
    ops = [node.op_type for node in model.graph.node]
    assert ops.count("Softmax") == 2 and ops.count("LayerNormalization") == 5
    ids, mask = some_ids(9, 17)
    ids[:, 4] = 1  # the padding id inside a text: RoBERTa and its relatives do not count it
    together = run(model, ids, mask)
    padding_is_ignored(model, ids, mask)
    with torch.inference_mode():
        expected = nn.functional.normalize(
            student(torch.from_numpy(ids), torch.from_numpy(mask)), dim=-1
        ).numpy()
    assert np.allclose(together, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["electra", "deberta-v2", "modernbert"])
def test_other_encoders_are_traced(kind: str):
    sizes = {"embedding_size": 32} if kind == "electra" else {}
    student = make_other(kind, max_position_embeddings=64, **sizes)
    attention = student.model.config._attn_implementation
    model = graph.build(student)
    assert student.model.config._attn_implementation == attention  # it is a copy that is traced
    assert graph.compare(student, model, 40, PIECES) > 0.999999
    ops = [node.op_type for node in model.graph.node]
    assert "Gemm" not in ops


def test_a_fixed_dimension_is_refused():
    student = make_bert()
    model = graph.build(student)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    with pytest.raises(CheckFailed, match="the graph does not run at batch 1, 1 tokens"):
        graph.compare(student, model, 40, PIECES)


def test_a_wrong_graph_is_seen():
    student = make_bert()
    assert graph.compare(student, graph.build(spread(make_bert(), seed=5)), 40, PIECES) < 0.9
    nan = make_bert()
    nn.init.constant_(nan.head.bias, float("nan"))
    assert not graph.compare(student, graph.build(nan), 40, PIECES) > 0


def test_a_graph_above_one_file_says_the_way_out(monkeypatch):
    monkeypatch.setattr(graph, "LARGEST_BYTES", 10_000)
    with pytest.raises(
        UserError,
        match=r"the graph would be 0\.0 GB: one file holds at most .* `pq_bytes` for its embedding table",
    ):
        graph.build(make_bert())


def test_an_unknown_pooling_names_the_known():
    student = make_bert()
    student.pooling = "meen"
    with pytest.raises(UserError, match=r"no pooling 'meen'; did you mean 'mean'\? \(cls, cls_pooler"):
        graph.build(student)


def test_a_padding_id_beyond_the_positions_does_not_keep_a_model_from_being_traced():
    """The last of the vocabulary, as in decoders."""
    student = make_other("electra", embedding_size=32, num_hidden_layers=1, pad_token_id=PIECES - 1)
    assert student.model.config.max_position_embeddings <= PIECES - 1
    assert graph.compare(student, graph.build(student), 20, PIECES) > 0.9999
