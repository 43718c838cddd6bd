"""Parameter counts of the papers' tables, and the pooling by hand."""

from __future__ import annotations

import pytest
import torch

from edgedistill import recipe
from edgedistill.students import bert, bilstm, embedding_tables, kind, kinds, static
from edgedistill.students.pooling import pool

PIECES = 30_522


@pytest.mark.parametrize(
    ("width", "layers", "heads", "intermediate", "embedding", "encoder", "pooler"),
    [  # BERT-Tiny, Mini, Small, TinyBERT-L4-312, MiniLM-L3
        (128, 2, 2, 512, 3_972_864, 396_544, 16_512),
        (256, 4, 4, 1024, 7_945_728, 3_159_040, 65_792),
        (512, 4, 8, 2048, 15_891_456, 12_609_536, 262_656),
        (312, 4, 12, 1200, 9_683_856, 4_568_736, 97_656),
        (384, 3, 12, 1536, 11_918_592, 5_323_392, 147_840),
    ],
)
def test_bert_counts(
    width: int, layers: int, heads: int, intermediate: int, embedding: int, encoder: int, pooler: int
):
    spec = recipe.Bert(
        kind="bert", layers=layers, width=width, heads=heads, intermediate=intermediate, pooling="cls_pooler"
    )
    with torch.device("meta"):
        counted = kinds.parameters(bert.build(bert.shape(spec, PIECES, 0, 384, None)))
    assert counted == {
        "embedding": embedding,
        "encoder": encoder,
        "head": pooler,
        "total": embedding + encoder + pooler,
    }


def test_sra_counts():
    """§3.4: BiLSTM 300 → 512×2, FC 1024 → 768 without bias: 4,120,576 without the embedding table."""
    spec = recipe.BiLSTM(kind="bilstm", width=300, hidden=512, dims=768)
    counted = kinds.parameters(bilstm.build(bilstm.shape(spec, PIECES, 0, 768)))
    assert (counted["encoder"], counted["head"]) == (3_334_144, 786_432)
    assert counted["encoder"] + counted["head"] == 4_120_576
    spec = recipe.BiLSTM(kind="bilstm", width=300, hidden=300, dims=400, head_bias=True)
    assert kinds.parameters(bilstm.build(bilstm.shape(spec, PIECES, 0, 400)))["encoder"] == 2 * (
        4 * 300 * 600 + 8 * 300
    )


def test_static_counts():
    spec = recipe.Static(kind="static", width=64)
    counted = kinds.parameters(static.build(kind.table_shape(spec, PIECES, 0, 384)))
    assert counted == {"embedding": PIECES * 65, "encoder": 0, "head": 0, "total": PIECES * 65}
    spec = recipe.Static(kind="static", width=64, head="linear")
    assert kinds.parameters(static.build(kind.table_shape(spec, PIECES, 0, 384)))["head"] == 64 * 384
    spec = recipe.Static(kind="static", width=64, head="linear", head_kept=False)
    assert static.build(kind.table_shape(spec, PIECES, 0, 384)).dims == 64


def make_static() -> static.StaticStudent:
    student = static.build({"vocabulary_size": 4, "pad": 0, "width": 2, "head": None, "tanh": False})
    student.embedding.weight.data = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, -1.0], [5.0, 5.0]])
    return student


def test_a_static_student_by_hand():
    student = make_static()
    student.weights.data = torch.tensor([9.0, 2.0, 0.5, 7.0])
    ids, mask = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 1, 0]])
    assert torch.allclose(student(ids, mask), torch.tensor([[1.75, 1.75]]))  # (2·(1, 2) + ½·(3, −1)) / 2
    assert torch.allclose(
        student(torch.tensor([[2, 1, 0]]), mask), student(ids, mask)
    )  # no order, no padding
    assert (student.embedding.weight * student.weights.unsqueeze(-1)).tolist() == [
        [0, 0],
        [2, 4],
        [1.5, -0.5],
        [35, 35],
    ]


def test_a_static_students_gradient_is_the_same_bytes_each_time():
    """Enough tokens that torch sums in several threads; those of an index come in any order."""
    torch.manual_seed(0)
    student = static.build({"vocabulary_size": 50, "pad": 0, "width": 8, "head": None, "tanh": False})
    ids, threads = torch.randint(1, 50, (512, 128)), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        found = []
        for _ in range(5):
            student.zero_grad()
            student(ids, torch.ones_like(ids)).square().sum().backward()
            found.append((student.weights.grad.clone(), student.embedding.weight.grad.clone()))  # type: ignore[union-attr]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for pair in found[1:] for a, b in zip(found[0], pair, strict=True))


def test_sif_weights_by_hand():
    student = make_static()
    static.set_sif_weights(student, torch.tensor([0, 999, 1, 0]))
    assert torch.allclose(student.weights, torch.tensor([1, 0.001 / 1.0, 0.001 / 0.002, 1]))
    static.set_sif_weights(student, torch.zeros(4, dtype=torch.long))  # an empty corpus says nothing
    assert student.weights.tolist() == [1, 1, 1, 1]


def test_a_static_head_leads_reduced_rows_back():
    torch.manual_seed(0)
    words = torch.randn(30, 3) @ torch.randn(3, 8) + 2.0
    spec = recipe.Static(kind="static", width=3, head="linear", head_bias=True)
    student = static.build(kind.table_shape(spec, 30, 0, 8))
    static.initialize(student, words, outputs=True)
    one = student(torch.arange(1, 30)[:, None], torch.ones(29, 1, dtype=torch.long))
    assert torch.allclose(one, (words - words.mean(0))[1:], atol=1e-4)


def test_even_layers():
    from transformers import BertConfig

    twelve = BertConfig(num_hidden_layers=12)
    layers = {
        n: bert.source_layers(recipe.Bert(kind="bert", weights="teacher", layers=n), twelve)
        for n in (1, 2, 4, 12)
    }
    assert layers == {1: [11], 2: [5, 11], 4: [2, 5, 8, 11], 12: list(range(12))}


def test_pca_of_a_table_keeps_its_inner_products_best():
    torch.manual_seed(0)
    words = torch.randn(200, 4) @ torch.randn(4, 10)
    reduced, centred = embedding_tables.reduce_width(words, 4), words - words.mean(0)
    assert torch.allclose(reduced @ reduced.T, centred @ centred.T, atol=1e-3)


TOKENS = torch.tensor([[[1.0, -5.0], [3.0, -1.0], [100.0, 100.0]]])
MASK = torch.tensor([[1, 1, 0]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("mean", [2.0, -3.0]),
        ("cls", [1.0, -5.0]),
        ("max", [3.0, -1.0]),
        ("last", [3.0, -1.0]),
        ("mean_sqrt_len", [4 / 2**0.5, -6 / 2**0.5]),
        ("weighted_mean", [7 / 3, -7 / 3]),
    ],
)
def test_pooling_by_hand(mode: str, expected: list[float]):
    assert torch.allclose(pool(TOKENS, MASK, mode), torch.tensor([expected]))
