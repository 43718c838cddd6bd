"""Losses over pairs: 2×2 cases worked by hand, other formulas for the same, gradients, and which weights they
reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss, normalize

from edgedistill import objectives, recipe
from edgedistill.errors import UserError
from edgedistill.objectives.relational import mcl
from tests.objectives.test_objectives import to
from tests.students.test_recurrent import made as student_of
from tests.students.test_recurrent import some, tiny

MSE = {"kind": "each_side", "objective": {"kind": "mse"}}


def spec(data: dict[str, Any]) -> recipe.Objective:
    return recipe.Stage.model_validate({"name": "x", "objective": data}).objective


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# S(s) = e1, 2·e2; S(t) = e1, e1 + e2; T(s) = e1, e1 + √3 e2, so that cos T = [[1, 1/2], [1/2, 1]], cos S =
# [[1, 1/√2], [0, 1/√2]]
ONE, OTHER = torch.tensor([[1.0, 0], [0, 2]]), torch.tensor([[1.0, 0], [1, 1]])
TEACHER = torch.tensor([[1.0, 0], [1, 3**0.5]])
ROOT = 0.5**0.5


def test_two_pairs_by_hand():
    assert mcl(ONE, OTHER, TEACHER).item() == pytest.approx(
        (0 + (0.5 - ROOT) ** 2 + 0.25 + (1 - ROOT) ** 2) / 4
    )
    both = objectives.build(spec(MSE), 2)
    targets = to(TEACHER, ONE)
    assert both([ONE, OTHER], targets).item() == pytest.approx(
        (1 + (2 - 3**0.5) ** 2) / 4 + (0 + 0 + 1 + 1) / 4
    )


def test_both_sides_matching_the_teacher_leave_nothing():
    teacher = drawn(6, 5)
    assert mcl(teacher, 3 * teacher, teacher).item() == pytest.approx(0, abs=1e-15)  # lengths do not count
    assert mcl(teacher, teacher.flip(0), teacher).item() > 1e-2
    source = to(teacher, teacher)
    assert objectives.build(spec(MSE), 5)([teacher, teacher], source).item() == 0
    assert objectives.build(spec(MSE), 5)([teacher, teacher + 1], source).item() == pytest.approx(1)


def test_the_teacher_is_the_optimum_of_mcl():
    teacher = normalize(drawn(6, 5), dim=1)
    source, target = teacher.clone().requires_grad_(), teacher.clone().requires_grad_()
    objectives.build(spec({"kind": "mcl"}), 5)([source, target], to(teacher, teacher)).backward()
    assert source.grad is not None
    assert source.grad.norm().item() < 1e-9


def test_gradients():
    """Against differences; a translation turned towards its text lowers the loss."""
    one, other, teacher = (
        drawn(3, 4).requires_grad_(),
        drawn(3, 4, seed=1).requires_grad_(),
        drawn(3, 5, seed=2),
    )
    loss = objectives.build(spec({"kind": "mcl"}), 5)
    targets = to(teacher, teacher)
    assert torch.autograd.gradcheck(lambda a, b: loss([a, b], targets), (one, other))
    value = loss([one, other], targets)
    value.backward()
    assert other.grad is not None
    assert loss([one, other - 1e-3 * other.grad], targets) < value


def test_stage_four_is_the_sum_of_its_two_losses():
    one, other, teacher = drawn(4, 6), drawn(4, 6, seed=1), drawn(4, 6, seed=2)
    whole = objectives.build(
        spec(
            {
                "kind": "sum",
                "terms": [{"weight": 1.0, "objective": {"kind": "mcl"}}, {"weight": 1.0, "objective": MSE}],
            }
        ),
        6,
    )
    targets = to(teacher, teacher)
    expected = mcl(one, other, teacher) + mse_loss(one, teacher) + mse_loss(other, teacher)
    assert whole([one, other], targets).item() == pytest.approx(expected.item())


def test_each_side_has_a_memory_of_its_own():
    both = objectives.build(spec({"kind": "each_side", "objective": {"kind": "ckd", "queue": 4}}), 3)
    targets = to(*drawn(2, 2, 3).float())
    objectives.update_queues(both, targets)
    sides = [part.part.queue.vectors.flip(0) for part in both.parts]  # type: ignore[union-attr]
    for at, held in enumerate(sides):
        assert torch.allclose(held, normalize(targets.embeddings[at].flip(0), dim=1))


def test_widths_that_do_not_fit():
    with pytest.raises(UserError, match="compares coordinates"):
        objectives.check_dimensions(spec(MSE), 8, 16, "stages[0].objective")
    objectives.check_dimensions(spec({"kind": "mcl"}), 8, 16, "stages[0].objective")


def test_stage_two_reaches_the_embedding_layer_alone():
    """The mean of the embedding layer by hand, and no gradient behind it."""
    source, (ids, mask) = tiny("xlm-roberta", 1), some(1)
    student = student_of(source, 1, "pad", layers=2, bottleneck=4)
    found = student.embedded(ids, mask)
    tables = student.model.embeddings
    at = torch.tensor(
        [[2, 3, 4, 1, 5, 6, 7, 8, 9], [2, 3, 4, 5, 6, 1, 1, 1, 1]]
    )  # the first text has the padding id at its fourth place
    tokens = tables.LayerNorm(
        tables.word_embeddings(ids)
        + tables.position_embeddings(at)
        + tables.token_type_embeddings(torch.zeros_like(ids))
    )
    expected = torch.stack([tokens[0].mean(0), tokens[1, :5].mean(0)])
    assert torch.allclose(found, expected, atol=1e-6)
    found.square().sum().backward()
    reached = {name for name, parameter in student.named_parameters() if parameter.grad is not None}
    assert reached == {name for name, _ in student.named_parameters() if name.startswith("model.embeddings.")}


@pytest.mark.parametrize(
    ("objective", "says"),
    [
        (
            {"kind": "each_side", "objective": {"kind": "congen"}},
            "it takes no objective of pairs or of second views",
        ),
        (
            {"kind": "each_side", "objective": {"kind": "mcl"}},
            "it takes no objective of pairs or of second views",
        ),
        ({"kind": "each_side", "objective": MSE}, "it takes no objective of pairs or of second views"),
    ],
)
def test_what_cannot_be_put_to_both_sides(objective: dict[str, Any], says: str):
    with pytest.raises(ValueError, match=says):
        spec(objective)
