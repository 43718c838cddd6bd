"""Product-quantized embedding tables: what the PQ codes stand for, how they are fitted, what they cost."""

from __future__ import annotations

import pytest
import torch

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.students import bert, bilstm, head, kind, kinds, product_quantization, static


def made(
    vocabulary_size: int, width: int, blocks: int, centroids: int = 256
) -> product_quantization.ProductQuantizedEmbedding:
    torch.manual_seed(0)
    return product_quantization.ProductQuantizedEmbedding(vocabulary_size, width, blocks, centroids)


def error(table: product_quantization.ProductQuantizedEmbedding, words: torch.Tensor) -> torch.Tensor:
    """Of each row, squared."""
    return (table.weight.detach() - words).square().sum(1)


def test_a_row_by_hand():
    """Four dimensions in two blocks: 0 and 2 belong to block 0, 1 and 3 to block 1."""
    table = made(2, 4, 2)
    table.codes.copy_(torch.tensor([[3, 0], [255, 7]]))
    with torch.no_grad():
        table.book.weight.copy_(torch.arange(2 * 256).unsqueeze(1) + torch.tensor([0.0, 0.5]))
    assert table(torch.tensor([[0, 1]])).tolist() == [
        [[3.0, 256.0, 3.5, 256.5], [255.0, 263.0, 255.5, 263.5]]
    ]
    assert table.weight.tolist() == [[3.0, 256.0, 3.5, 256.5], [255.0, 263.0, 255.5, 263.5]]


def test_few_rows_come_back_as_they_are():
    words = torch.randn(200, 12)
    table = made(200, 12, 3)
    table.fit(words)
    assert torch.equal(table.weight, words)


def test_a_quantized_table_comes_back_as_it_is():
    """Trimmed, or read from a finished run: no second loss."""
    words = made(3000, 12, 4).weight.detach()
    table = made(2000, 12, 4)
    table.fit(words[500:2500], torch.rand(2000))
    assert torch.equal(table.weight, words[500:2500])


def test_every_code_is_the_nearest_block_and_more_codes_are_nearer():
    torch.manual_seed(1)
    words = torch.randn(2000, 8)
    errors = []
    for blocks in (2, 4, 8):
        table = made(2000, 8, blocks)
        table.fit(words)
        errors.append(error(table, words).mean().item())
        for block in range(blocks):
            own = table.book.weight[256 * block : 256 * (block + 1)]
            away = (words[:, None, block::blocks] - own).square().sum(-1)
            assert torch.allclose(
                away.gather(1, table.codes[:, block : block + 1].long())[:, 0], away.amin(1), atol=1e-4
            )
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01 * 8 < errors[0]  # a number alone among 256 is almost exact


def test_codes_of_two_bytes():
    """More centroids than a byte numbers: all of them are used, the error falls, and a table of as many rows
    comes back as it is."""
    torch.manual_seed(1)
    words = torch.randn(3000, 8)
    one, two, exact = made(3000, 8, 2), made(3000, 8, 2, 1000), made(3000, 8, 2, 3000)
    for table in (one, two, exact):
        table.fit(words)
    assert (one.codes.dtype, two.codes.dtype) == (torch.uint8, torch.int16)
    assert int(two.codes.max()) == 999 and two.book.weight.shape == (2000, 4)
    assert error(two, words).mean() < 0.6 * error(one, words).mean()
    assert torch.equal(exact.weight, words)
    assert torch.equal(two(torch.tensor([[5, 7]])), two.weight[[5, 7]].unsqueeze(0))


def test_tokens_with_more_weight_are_nearer():
    torch.manual_seed(1)
    words, weights = torch.randn(2000, 8), torch.ones(2000)
    weights[:300] = 50
    plain, weighed = made(2000, 8, 2), made(2000, 8, 2)
    plain.fit(words)
    weighed.fit(words, weights)
    assert error(weighed, words)[:300].mean() < 0.5 * error(plain, words)[:300].mean()
    assert error(weighed, words)[300:].mean() > error(plain, words)[300:].mean()


def test_a_code_counts_as_a_number():
    spec = recipe.Bert(kind="bert", layers=1, width=384, heads=12, pq_bytes=64)
    counted = kinds.parameters(bert.build(bert.shape(spec, 30_522, 0, 384, None)))
    assert counted["embedding"] == 30_522 * 64 + 256 * 384 + 512 * 384 + 2 * 384 + 2 * 384
    assert counted["total"] == counted["embedding"] + 1_774_464
    more = kinds.parameters(
        bert.build(bert.shape(spec.model_copy(update={"pq_centroids": 1024}), 30_522, 0, 384, None))
    )
    assert more["embedding"] == counted["embedding"] + (1024 - 256) * 384
    still = static.build(kind.table_shape(recipe.Static(kind="static", width=256, pq_bytes=64), 1000, 0, 384))
    assert kinds.parameters(still)["total"] == 1000 * 64 + 256 * 256 + 1000


def test_only_the_book_learns():
    table = made(300, 8, 4)
    table(torch.tensor([[1, 2, 2]])).sum().backward()
    touched = table.book.weight.grad.abs().sum(1).nonzero().flatten().tolist()
    assert sorted(touched) == sorted(
        {int(code) + 256 * block for row in table.codes[[1, 2]] for block, code in enumerate(row)}
    )
    assert [name for name, _ in table.named_parameters()] == ["book.weight"]
    assert head.count(table) == 300 * 4 + 256 * 8


def test_codes_that_do_not_divide_the_width():
    shapes = (
        lambda: bert.shape(
            recipe.Bert(kind="bert", layers=1, width=24, heads=2, pq_bytes=5), 300, 0, 384, None
        ),
        lambda: bilstm.shape(recipe.BiLSTM(kind="bilstm", width=24, pq_bytes=48), 300, 0, 384),
        lambda: kind.table_shape(recipe.Static(kind="static", width=24, pq_bytes=7), 300, 0, 384),
    )
    for shape in shapes:
        with pytest.raises(
            UserError,
            match=r"student.pq_bytes: \d+ blocks do not divide a width of 24; choose one of \(24, 12, 8, 6, "
            r"4, 3, 2, 1\)",
        ):
            shape()
