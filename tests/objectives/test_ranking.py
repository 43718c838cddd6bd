"""Ranking losses against cases worked by hand."""

import math

import pytest
import torch

from edgedistill import objectives
from edgedistill.objectives import Targets
from edgedistill.objectives.ranking import listwise, margin_mse
from tests.objectives.test_objectives import parsed, to, unit

# Unit rows on a circle: cosines of the query with the three documents are 1, 0 and −1, of the second 0, 1, 0.
QUERIES = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
DOCUMENTS = torch.tensor([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
COSINES = torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
NAN = math.nan


def ranking(scores: list[list[float]], positives: tuple[int, int] = (0, 1)) -> Targets:
    return Targets(positives=torch.tensor(positives), scores=torch.tensor(scores))


def divergence(wanted: list[float], found: list[float]) -> float:
    total = math.fsum(map(math.exp, wanted)), math.fsum(map(math.exp, found))
    pairs = [(math.exp(w) / total[0], math.exp(f) / total[1]) for w, f in zip(wanted, found, strict=True)]
    return math.fsum(p * math.log(p / q) for p, q in pairs)


def test_listwise_by_hand():
    scores = ranking([[2.0, 0.0, 1.0], [0.5, 1.0, 0.0]])
    expected = (divergence([6, 0, 3], [2, 0, -2]) + divergence([1.5, 3, 0], [0, 2, 0])) / 2
    assert listwise(QUERIES, DOCUMENTS, scores, 2.0, 3.0).item() == pytest.approx(expected, rel=1e-4)
    others = (divergence([0, 3], [0, -2]) + divergence([1.5, 0], [0, 0])) / 2
    assert listwise(QUERIES, DOCUMENTS, scores, 2.0, 3.0, own=False).item() == pytest.approx(others, rel=1e-4)


def test_listwise_leaves_out_what_has_no_score():
    scores = ranking([[2.0, NAN, 1.0], [NAN, 1.0, NAN]])  # one document alone is ranked anyhow
    queries = QUERIES.clone().requires_grad_()
    found = listwise(queries, DOCUMENTS, scores, 2.0, 1.0)
    assert found.item() == pytest.approx(divergence([2, 1], [2, -2]))
    found.backward()
    assert queries.grad is not None and torch.isfinite(queries.grad).all()
    nothing = listwise(queries, DOCUMENTS, ranking([[NAN] * 3] * 2), 2.0, 1.0)
    assert nothing.item() == 0 and nothing.requires_grad


def test_listwise_is_least_where_the_order_is_the_teachers():
    agreed = ranking(COSINES.tolist())
    assert listwise(QUERIES, DOCUMENTS, agreed, 2.0, 2.0).item() == pytest.approx(0, abs=1e-6)
    assert listwise(QUERIES, DOCUMENTS.flip(0), agreed, 2.0, 2.0).item() > 0.5


def test_margin_mse_by_hand():
    scores = ranking([[3.0, 1.0, NAN], [0.0, 4.0, 2.0]])
    # margins of cosines: 1 − 0; 1 − 0, 1 − 0. Of scores, halved: 1; 2, 1.
    assert margin_mse(QUERIES, DOCUMENTS, scores, 0.5).item() == pytest.approx(((0) + 1 + 0) / 3)
    unknown = ranking([[NAN, 1.0, 2.0], [0.0, 4.0, 2.0]])  # without the positive's score there is no margin
    assert margin_mse(QUERIES, DOCUMENTS, unknown, 0.5).item() == pytest.approx((1 + 0) / 2)
    assert margin_mse(QUERIES, DOCUMENTS, ranking([[NAN] * 3] * 2), 0.5).item() == 0


@pytest.mark.parametrize("kind", ["info_nce", "listwise", "margin_mse"])
def test_a_ranking_objective_has_a_gradient_and_notices(kind: str):
    queries, documents = unit(4, 5, seed=1).double().requires_grad_(), unit(6, 5, seed=2).double()
    scores = queries.detach() @ documents.T
    given = Targets(positives=scores.argmax(1), scores=scores)
    loss = objectives.build(parsed({"kind": kind}), 5)
    assert torch.autograd.gradcheck(lambda q: loss([q, documents], given), queries)
    assert loss([queries.roll(1, 0), documents], given).item() > loss([queries, documents], given).item()


def test_a_sum_joins_rankings_with_the_teachers_embeddings():
    queries, documents = unit(4, 5, seed=1), unit(6, 5, seed=2)
    given = Targets((unit(4, 5, seed=3), unit(6, 5, seed=4)), torch.arange(4), torch.randn(4, 6))
    both = {"kind": "each_side", "objective": {"kind": "cosine"}}
    terms = [{"weight": 2.0, "objective": both}, {"weight": 0.5, "objective": {"kind": "listwise"}}]
    loss = objectives.build(parsed({"kind": "sum", "terms": terms}), 5)
    cosine = objectives.build(parsed({"kind": "cosine"}), 5)
    expected = 2 * (cosine([queries], to(given.embeddings[0])) + cosine([documents], to(given.embeddings[1])))
    expected = expected + 0.5 * listwise(queries, documents, given, 20.0, 20.0)
    assert loss([queries, documents], given).item() == pytest.approx(expected.item(), rel=1e-5)


def test_matryoshka_cuts_the_students_ranking_and_the_teachers_embeddings():
    queries, documents = unit(4, 6, seed=1), unit(5, 6, seed=2)
    given = Targets((unit(4, 6, seed=3), unit(5, 6, seed=4)), torch.arange(4), torch.randn(4, 5))
    spec = {"kind": "matryoshka", "dims": [3, 6], "objective": {"kind": "listwise"}}
    cut = [listwise(queries[:, :d], documents[:, :d], given, 20.0, 20.0).item() for d in (3, 6)]
    found = objectives.build(parsed(spec), 6)([queries, documents], given).item()
    assert found == pytest.approx(sum(cut), rel=1e-5)
