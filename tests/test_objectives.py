"""Losses by hand on 2×2 cases, against independent formulas, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch

from edgedistill import objectives, recipe
from edgedistill.errors import UserError
from edgedistill.objectives.regression import cosine, mse
from edgedistill.objectives.relational import gram

S = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
T = torch.tensor([[1.0, 0.0], [0.0, -1.0]])


def test_mse_by_hand() -> None:
    # (3−1)² + (4−0)² + 0 + (2+1)² = 29, over 4 numbers
    assert mse(S, T).item() == pytest.approx(29 / 4)


def test_mse_of_unit_rows_is_four_over_d_cosine() -> None:
    assert mse(S, T, unit=True).item() == pytest.approx(4 / 2 * cosine(S, T).item())


def test_cosine_by_hand() -> None:
    # cosines 3/5 and −1: ½(1 − .6) = .2 and ½(1 + 1) = 1
    assert cosine(S, T).item() == pytest.approx((0.2 + 1.0) / 2)
    assert cosine(7 * S, T).item() == pytest.approx(cosine(S, T).item())


def test_gram_by_hand() -> None:
    # s1·s2 = 4/5, t1·t2 = 0: both off-diagonal places give .64
    assert gram(S, T).item() == pytest.approx(0.64)


def test_gram_is_blind_to_rotation_and_width() -> None:
    torch.manual_seed(0)
    teacher = torch.randn(9, 6)
    rotation, _ = torch.linalg.qr(torch.randn(6, 6))
    assert gram(teacher @ rotation, teacher).item() == pytest.approx(0, abs=1e-10)
    wide = torch.cat([teacher, torch.zeros(9, 3)], 1)
    assert gram(wide, teacher).item() == pytest.approx(0, abs=1e-10)


def test_gram_needs_two_rows() -> None:
    with pytest.raises(UserError, match="a batch of 1 has no pairs"):
        gram(S[:1], T[:1])


def test_sum_weighs_its_terms() -> None:
    spec = recipe.Sum.model_validate(
        {"kind": "sum", "terms": [{"weight": 1.0, "objective": {"kind": "cosine"}}, {"weight": 5.0, "objective": {"kind": "gram"}}]}
    )
    assert objectives.build(spec)(S, T).item() == pytest.approx(0.6 + 5 * 0.64)


@pytest.mark.parametrize("spec", [{"kind": "mse"}, {"kind": "mse", "unit": True}, {"kind": "cosine"}, {"kind": "gram"}], ids=str)
def test_gradients(spec: dict[str, object]) -> None:
    loss = objectives.build(recipe.Term.model_validate({"weight": 1.0, "objective": spec}).objective)
    torch.manual_seed(1)
    student, teacher = torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.randn(4, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: loss(s, teacher), student)


def test_every_kind_has_a_loss_that_notices() -> None:
    """Zero where student and teacher agree, and not where they differ."""
    torch.manual_seed(2)
    teacher = torch.nn.functional.normalize(torch.randn(5, 4), dim=-1)
    for kind in ("mse", "cosine", "gram"):
        loss = objectives.build(recipe.KINDS["objective"][kind](kind=kind))
        assert loss(teacher, teacher).item() == pytest.approx(0, abs=1e-6)
        assert loss(teacher.roll(1, 1), teacher).item() > 0.01 or kind == "gram"
        assert math.isfinite(loss(torch.zeros_like(teacher), teacher).item())
    assert set(recipe.KINDS["objective"]) == {"mse", "cosine", "gram", "sum"}
