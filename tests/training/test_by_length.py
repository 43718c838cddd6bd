"""A batch embedded in parts of like length gives the embeddings and gradients of the whole batch."""

from typing import Any

import numpy as np
import pytest
import torch

from edgedistill.students import bert
from edgedistill.training.trained_module import embed_by_length, parts


def _batch(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()
    return torch.randint(5, 50, mask.shape) * mask, mask


CONFIG = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
STUDENTS: dict[str, dict[str, Any]] = {
    "bert": {},
    "pooler": {"pooling": "cls_pooler"},
    "factorized table": {"bottleneck": 4},
    "product-quantized table": {"pq_bytes": 4},
    "positions counted from padding": {"position_ids": "pad", "pad": 0},
}


@pytest.mark.parametrize("changes", STUDENTS.values(), ids=STUDENTS)
@pytest.mark.parametrize("layer", ["all", "embeddings"])
def test_same_embeddings_and_gradients_in_the_order_of_the_texts(changes: dict[str, Any], layer: str):
    torch.manual_seed(0)
    student = (
        bert.build({"config": CONFIG, "pooling": "mean", "head": None, "tanh": False, **changes})
        .double()
        .eval()
    )
    ids, mask = _batch([30, 3, 4, 29, 5, 3, 31, 4] * 16)
    embed = student if layer == "all" else student.embedded
    seen: list[tuple[int, ...]] = []
    looked_up: list[torch.Tensor] = []

    def embed_part(
        some_ids: torch.Tensor, some_mask: torch.Tensor, *token_embeddings: torch.Tensor
    ) -> torch.Tensor:
        seen.append(tuple(some_ids.shape))
        return embed(some_ids, some_mask, *token_embeddings)

    gradients = []
    table = student.model.get_input_embeddings()
    whole = embed(ids, mask)
    table.register_forward_hook(lambda _, inputs, __: looked_up.append(inputs[0]))
    in_parts = embed_by_length(embed_part, table, ids, mask)
    assert len(seen) > 1 and sum(rows for rows, _ in seen) == len(ids)
    assert len(looked_up) == 1
    torch.testing.assert_close(in_parts, whole, rtol=1e-6, atol=1e-9)
    weights = torch.randn(whole.shape, dtype=whole.dtype)
    for embeddings in (whole, in_parts):
        student.zero_grad()
        (embeddings * weights).sum().backward()
        gradients.append(
            {name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize("lengths", [[12] * 64, [7], [0, 0]])
def test_texts_of_one_length_are_one_part(lengths: list[int]):
    assert parts(np.array(lengths)) == [len(lengths)]


def test_parts_save_padding_where_few_texts_are_long():
    lengths = np.sort(np.array([10] * 120 + [100] * 8))
    assert parts(lengths) == [118, 128]  # two short ones cost less than a pass
