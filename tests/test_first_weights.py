"""What a student starts from: word tables reduced by what each piece counts for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgedistill import corpus, prepare, recipe
from edgedistill.students import bert
from tests.conftest import World


def test_a_weighted_factorisation_by_hand() -> None:
    """Rank 1 of rows (3, 0), (0, 2), (1, 1): equal weights keep the first direction, weights 1, 5, 0 the second (9 < 20)."""
    rows = torch.tensor([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    narrow, wide = bert.factors(rows[:2], 1)
    assert torch.allclose(narrow @ wide.T, torch.tensor([[3.0, 0.0], [0.0, 0.0]]), atol=1e-6)
    narrow, wide = bert.factors(rows, 1, torch.tensor([1.0, 5.0, 0.0]))
    assert torch.allclose(narrow @ wide.T, torch.tensor([[0.0, 0.0], [0.0, 2.0], [0.0, 1.0]]), atol=1e-6)


def test_a_weighted_factorisation_is_the_best_of_its_rank() -> None:
    """Against numpy's SVD of √weight · row; with equal weights it is the plain one."""
    torch.manual_seed(0)
    rows, weights = torch.randn(60, 12), torch.rand(60) ** 3 + 1e-3
    narrow, wide = bert.factors(rows, 5, weights)
    error = (weights * (rows - narrow @ wide.T).square().sum(1)).sum().item()
    least = np.linalg.svd((weights.sqrt().unsqueeze(1) * rows).numpy(), compute_uv=False)[5:]
    assert error == pytest.approx((least**2).sum(), rel=1e-4)
    plain, same = bert.factors(rows, 5), bert.factors(rows, 5, torch.full((60,), 7.0))
    assert torch.allclose(plain[0] @ plain[1].T, same[0] @ same[1].T, atol=1e-4)
    assert error < (weights * (rows - plain[0] @ plain[1].T).square().sum(1)).sum().item()


def test_a_weighted_pca_is_that_of_repeated_rows() -> None:
    torch.manual_seed(0)
    rows, times = torch.randn(20, 6), torch.arange(1, 21)
    repeated = rows.repeat_interleave(times, 0)
    assert torch.allclose(bert.fitted(rows, 3, times).repeat_interleave(times, 0), bert.fitted(repeated, 3), atol=1e-4)


@pytest.mark.parametrize(
    "student",
    [
        {"kind": "bert", "weights": "teacher", "bottleneck": 6},
        {"kind": "bert", "layers": 1, "width": 16, "heads": 2},
        {"kind": "bert", "layers": 1, "width": 16, "heads": 2, "head": "linear", "embeddings": {"of": "outputs"}},
        {"kind": "recurrent", "layers": 1, "bottleneck": 6},
        {"kind": "bilstm", "width": 8, "hidden": 8},
        {"kind": "static", "width": 8, "head": "linear"},
    ],
    ids=lambda student: student["kind"],
)
def test_every_reduced_table_can_be_weighed(world: World, student: dict[str, object]) -> None:
    """The counts are those of the training texts, and the table differs from that of equal weights."""
    own = student.get("embeddings", {"of": "outputs"} if student["kind"] == "static" else {})
    assert isinstance(own, dict)
    weighed = {**student, "embeddings": {**own, "weigh": "counts", "power": 1.0}}
    specs = [recipe.parse(world.recipe(student=each), "test") for each in (student, weighed)]
    teacher = prepare.open_teacher(specs[0].teacher, world.data)
    assert specs[0].corpus is not None
    texts = corpus.build(specs[0].corpus, world.data, 0)
    words = prepare.own_tokenizer(specs[0], teacher, texts, None)
    weights = [prepare.row_weights(spec, words, texts, print) for spec in specs]
    assert weights[0] is None and weights[1] is not None
    number = words.get_vocab()
    assert weights[1][number["[CLS]"]] == texts.trained + 1 and weights[1][number["[MASK]"]] == 1
    modules = [prepare.untrained(spec, teacher, words, world.data, each)[0] for spec, each in zip(specs, weights, strict=True)]
    plain, heeded = (
        next(part.weight for part in module.modules() if type(part).__name__ in ("Factorised", "Embedding")) for module in modules
    )
    assert isinstance(plain, torch.Tensor) and isinstance(heeded, torch.Tensor)
    assert plain.shape == heeded.shape and not torch.allclose(plain, heeded, atol=1e-3)
