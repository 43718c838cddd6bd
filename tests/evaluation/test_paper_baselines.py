"""bench/reproduction/baselines.py: what papers compare with, by hand and by identities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from baselines import SECTIONS, cca, dual_l2, gaussian, mcl_bool, mcl_ce, seed, skd
from torch.nn.functional import cross_entropy, normalize

from edgedistill import objectives, recipe
from edgedistill.objectives.regression import mse
from tests.conftest import added_kinds
from tests.objectives.test_objectives import S, T, parsed, to
from tests.objectives.test_pair_objectives import ONE, OTHER, TEACHER, drawn
from tests.teacher.test_targets import DRAW, distances


def test_seed_scores_its_own_teacher_and_the_queue_only():
    queue = torch.tensor([[0.0, 1.0]])
    wanted = torch.tensor([[1.0, 0.0], [1.0, -1.0]]).softmax(1)  # [t_i·t_i, t_i·q]
    mine = torch.tensor([[0.6, 0.8], [-1.0, 1.0]]).log_softmax(1)  # [s_i·t_i, s_i·q]
    assert seed(S, T, queue, 1.0, 1.0).item() == pytest.approx(-(wanted * mine).sum(1).mean().item())


def test_two_view_regression_by_hand():
    # unit rows: s1 = (.6, .8), s2 = (0, 1); other view (1, 0), (0, 1); teacher (1, 0), (0, −1); means over 4
    # numbers
    other = torch.tensor([[2.0, 0.0], [0.0, 5.0]])
    to_text, to_view, between = (0.4**2 + 0.8**2 + 4) / 4, 4 / 4, (0.4**2 + 0.8**2) / 4
    assert dual_l2(S, other, T).item() == pytest.approx(to_text + to_view)
    assert skd(S, other, T).item() == pytest.approx(to_text + to_view + between)
    assert (
        dual_l2(S, S, T).item()
        == pytest.approx(2 * mse(S, T, unit_length=True).item())
        == pytest.approx(skd(S, S, T).item())
    )


def test_a_text_that_the_batch_holds_twice_is_its_own_translation():
    """δ(t_i, t_j) is 1 where the two are the same vector, not where i is j."""
    teacher = torch.tensor([[1.0, 0], [1, 0], [0, 1]])
    other = torch.tensor([[1.0, 0], [1, 0], [0, 1]])
    assert mcl_bool(teacher, other, teacher).item() == 0
    alone = drawn(4, 3)
    expected = (torch.eye(4) - normalize(alone, dim=1) @ normalize(alone.flip(1), dim=1).T).square().mean()
    assert mcl_bool(alone, alone.flip(1), drawn(4, 3, seed=1)).item() == pytest.approx(expected.item())


def test_a_random_projection_keeps_distances_within_the_bound():
    """Johnson-Lindenstrauss: with dims ≥ 4 ln n / (ε²/2 − ε³/3), every one of the n² distances moves by less
    than ε."""
    points, epsilon = DRAW.standard_normal((30, 500)), 0.5
    dims = int(np.ceil(4 * np.log(30) / (epsilon**2 / 2 - epsilon**3 / 3)))
    ratio = (distances(gaussian(500, dims, seed=1)(points)) / distances(points)) ** 2
    assert ratio.min() > 1 - epsilon
    assert ratio.max() < 1 + epsilon
    assert ratio.std() > 0.01, "a projection, not the points themselves"
    assert np.array_equal(gaussian(9, 4, seed=3).weight, gaussian(9, 4, seed=3).weight)
    assert not np.array_equal(gaussian(9, 4, seed=3).weight, gaussian(9, 4, seed=4).weight)
    assert np.mean(gaussian(500, 100, 0).weight ** 2) == pytest.approx(1 / 100, rel=0.02)


def test_cca_finds_what_both_sides_share():
    shared = DRAW.standard_normal((2000, 2))
    left = np.concatenate([shared, DRAW.standard_normal((2000, 6))], 1) @ DRAW.standard_normal((8, 8))
    right = np.concatenate(
        [shared + 0.01 * DRAW.standard_normal((2000, 2)), DRAW.standard_normal((2000, 3))], 1
    )
    found = cca(left, right @ DRAW.standard_normal((5, 5)), 3, 1e-9)
    mapped = found(left)
    assert np.allclose(mapped.mean(0), 0)
    assert np.allclose(mapped.T @ mapped / len(mapped), np.eye(3), atol=1e-6), "whitened"
    residue = shared - mapped[:, :2] @ np.linalg.lstsq(mapped[:, :2], shared, rcond=None)[0]
    assert residue.std() < 0.05


def test_cross_entropy_over_pairs():
    """InfoNCE where the teacher's texts have nothing in common; its reductions; built from a recipe."""
    one, other = drawn(5, 4), drawn(5, 4, seed=1)
    orthogonal = torch.eye(5, 7, dtype=torch.float64)
    infonce = cross_entropy(20 * normalize(one, dim=1) @ normalize(other, dim=1).T, torch.arange(5))
    assert mcl_ce(one, other, orthogonal, 20.0).item() == pytest.approx(infonce.item())
    rows, mean = len(ONE), mcl_ce(ONE, OTHER, TEACHER, 2.0).item()
    assert mcl_ce(ONE, OTHER, TEACHER, 2.0, "sum").item() == pytest.approx(mean * rows)
    assert mcl_ce(ONE, OTHER, TEACHER, 2.0, "pairs").item() == pytest.approx(mean / rows)
    with added_kinds(*SECTIONS):
        spec = parsed({"kind": "mcl_ce", "temperature": 0.5, "reduction": "sum"})
    built = objectives.build(spec, TEACHER.shape[1])
    assert built([ONE, OTHER], to(TEACHER, TEACHER)).item() == pytest.approx(mean * rows)
    assert "mcl_ce" not in recipe.Loss.kinds
