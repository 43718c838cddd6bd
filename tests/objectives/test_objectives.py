"""Losses by hand on 2×2 cases, against independent formulas, and their gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgedistill import objectives, recipe
from edgedistill.objectives import Targets
from edgedistill.objectives import contrastive as queues
from edgedistill.objectives.contrastive import Queue, ckd, info_nce
from edgedistill.objectives.regression import cosine, mse, softcos
from edgedistill.objectives.relational import congen, mcl

S = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
T = torch.tensor([[1.0, 0.0], [0.0, -1.0]])


def to(*embeddings: Tensor) -> Targets:
    """What a loss compares with: the teacher's embeddings of each column."""
    return Targets(embeddings)


def newest_first(queue: Queue) -> torch.Tensor:
    """The rows in use (n, d), newest first."""
    return queue.ring[(int(queue.at) - 1 - torch.arange(len(queue))) % max(1, len(queue.ring))]


def test_mse_by_hand():
    # (3−1)² + (4−0)² + 0 + (2+1)² = 29, over 4 numbers
    assert mse(S, T).item() == pytest.approx(29 / 4)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, mse(S, 2**0.5 * T)),
        ({"normalize": True}, mse(S, T, unit_length=True)),
    ],
)
def test_mse_brings_unit_rows_to_numbers_around_one(asked: dict[str, object], expected: Tensor):
    assert objectives.of_unit_length(T.half().numpy()) and not objectives.of_unit_length(S.numpy())
    assert objectives.build(parsed({"kind": "mse", **asked}), 2, unit_length=True)(
        [S], to(T)
    ).item() == pytest.approx(expected.item())
    assert objectives.build(parsed({"kind": "mse"}), 2)([S], to(T)).item() == pytest.approx(
        mse(S, T).item()
    ), "others stay as they are"


def test_mse_of_unit_rows_is_four_over_d_cosine():
    assert mse(S, T, unit_length=True).item() == pytest.approx(4 / 2 * cosine(S, T).item())


def test_cosine_by_hand():
    # cosines 3/5 and −1: ½(1 − .6) = .2 and ½(1 + 1) = 1
    assert cosine(S, T).item() == pytest.approx((0.2 + 1.0) / 2)
    assert cosine(7 * S, T).item() == pytest.approx(cosine(S, T).item())


def test_softcos_by_hand():
    # cosines 3/5 and −1: 2 − √3.2 and 2 − √0
    assert softcos(S, T).item() == pytest.approx((2 - math.sqrt(3.2) + 2) / 2, abs=1e-3)
    half = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # a right angle: 2 − √2 either way
    assert softcos(half, half.flip(0)).item() == pytest.approx(2 - math.sqrt(2))
    assert softcos(5 * S, T).item() == softcos(S, T).item()


def test_softcos_between_opposite_vectors_is_finite():
    student = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = softcos(student, -student.detach())
    assert loss.item() == pytest.approx(2, abs=2e-3)
    (gradient,) = torch.autograd.grad(loss, student)
    assert gradient.isfinite().all()


def test_sum_weighs_its_terms():
    spec = recipe.Sum.model_validate(
        {
            "kind": "sum",
            "terms": [
                {"weight": 1.0, "objective": {"kind": "cosine"}},
                {"weight": 5.0, "objective": {"kind": "mse", "normalize": True}},
            ],
        }
    )
    assert objectives.build(spec, 2)([S], to(T)).item() == pytest.approx(
        0.6 + 5 * mse(S, T, unit_length=True).item()
    )


def test_matryoshka_by_hand():
    # over one number: cosines of 3 with 1, of 0 with 0: losses 0 and ½; over two, .6 as above
    spec = parsed(
        {"kind": "matryoshka", "dims": [1, 2], "weights": [4.0, 1.0], "objective": {"kind": "cosine"}}
    )
    assert objectives.build(spec, 2)([S], to(T)).item() == pytest.approx(4 * 0.25 + 0.6)
    assert spec.cuts == [1, 2]
    # relations among texts follow the whole teacher
    equal, both = parsed({"kind": "matryoshka", "dims": [1, 2], "objective": {"kind": "mcl"}}), T
    assert objectives.build(equal, 2)([S, S], to(both)).item() == pytest.approx(
        mcl(S[:, :1], S[:, :1], T).item() + mcl(S, S, T).item()
    )
    inside = parsed({"kind": "sum", "terms": [{"weight": 3.0, "objective": spec.model_dump()}]})
    assert objectives.build(inside, 2)([S], to(T)).item() == pytest.approx(3 * (4 * 0.25 + 0.6))
    assert inside.cuts == [1, 2]


def test_queues_of_cut_objectives_hold_their_own_numbers():
    teacher = unit(5, 6)
    objective: Any = objectives.build(
        parsed({"kind": "matryoshka", "dims": [2, 6], "objective": {"kind": "ckd", "queue": 4}}), 6
    )
    objectives.update_queues(objective, to(teacher))
    for at, width in enumerate((2, 6)):
        expected = torch.nn.functional.normalize(teacher[:, :width], dim=-1).flip(0)[:4]
        assert torch.allclose(newest_first(objective.parts[at].part.queue), expected)


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.nn.functional.normalize(
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1
    )


def test_ckd_without_a_queue_is_cross_entropy_over_the_batch():
    student, teacher = torch.randn(5, 4), unit(5, 4)
    expected = -torch.stack(
        [(20 * unit_row(student[i]) @ teacher.T).log_softmax(0)[i] for i in range(5)]
    ).mean()
    assert ckd(student, teacher, torch.zeros(0, 4), 20.0).item() == pytest.approx(expected.item(), rel=1e-5)
    assert ckd(3 * student, 7 * teacher, torch.zeros(0, 4), 20.0).item() == pytest.approx(
        expected.item(), rel=1e-5
    )


def unit_row(row: torch.Tensor) -> torch.Tensor:
    return row / row.norm()


def test_ckd_by_hand():
    # s1 = (.6, .8), t1 = (1, 0), t2 = (0, −1), queue (0, 1), κ = 1: logits .6, −.8, .8; s2 = (0, 1): 0, −1, 1
    queue = torch.tensor([[0.0, 1.0]])
    first = -math.log(math.exp(0.6) / (math.exp(0.6) + math.exp(-0.8) + math.exp(0.8)))
    second = -math.log(math.exp(-1) / (1 + math.exp(-1) + math.exp(1)))
    assert ckd(S, T, queue, 1.0).item() == pytest.approx((first + second) / 2)


def test_congen_by_hand():
    # teacher over [queue (0, 1); t1; t2] at τ 1: t1 → softmax(0, 1, 0), t2 → softmax(−1, 0, 1)
    queue = torch.tensor([[0.0, 1.0]])
    wanted = torch.tensor([[0.0, 1.0, 0.0], [-1.0, 0.0, 1.0]]).softmax(1)
    mine = torch.tensor([[0.8, 0.6, -0.8], [1.0, 0.0, -1.0]]).mul(2).log_softmax(1)  # τ 1/2
    assert congen([S], [1.0], T, queue, 0.5, 1.0).item() == pytest.approx(
        -(wanted * mine).sum(1).mean().item()
    )
    both = congen([S, T], [0.25, 0.75], T, queue, 0.5, 1.0)
    assert both.item() == pytest.approx(
        0.25 * congen([S], [1.0], T, queue, 0.5, 1.0).item()
        + 0.75 * congen([T], [1.0], T, queue, 0.5, 1.0).item()
    )


def test_a_student_equal_to_its_teacher_has_only_the_entropy_left():
    teacher, queue = unit(6, 5), unit(20, 5, seed=1)
    student = teacher.clone().requires_grad_()
    wanted = (teacher @ torch.cat([queue, teacher]).T / 0.1).softmax(1)
    loss = congen([student], [1.0], teacher, queue, 0.1, 0.1)
    assert loss.item() == pytest.approx(-(wanted * wanted.log()).sum(1).mean().item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, student)
    assert (
        gradient.abs().max().item() < 1e-6
    )  # rows are scaled to unit length inside, so what is left is tangential


def test_info_nce_by_hand_and_with_hard_negatives():
    first = -math.log(math.exp(0.6) / (math.exp(0.6) + math.exp(-0.8)))
    second = -math.log(math.exp(-1) / (1 + math.exp(-1)))
    own, twice = torch.tensor([0, 1]), torch.cat([T, T])
    assert info_nce(S, T, own, 1.0).item() == pytest.approx((first + second) / 2)
    assert info_nce(S, twice, own, 1.0).item() == pytest.approx((first + second) / 2 + math.log(2))
    assert info_nce(S, T.flip(0), own.flip(0), 1.0).item() == pytest.approx((first + second) / 2)
    others = torch.tensor([[False, False, True, True], [False, False, True, True]])  # answers, no negatives
    assert info_nce(S, twice, own, 1.0, others).item() == pytest.approx((first + second) / 2)


@pytest.mark.parametrize("size", [1, 3, 4, 7, 11])
def test_a_queue_holds_the_last_vectors_newest_first(size: int):
    queue = Queue(7, 3)
    given = torch.empty(0, 3)
    for step in range(9):
        batch = torch.randn(size, 3, requires_grad=True)
        queue.push(batch)
        given = torch.cat([given, batch.detach()])
        expected = torch.nn.functional.normalize(given, dim=-1).flip(0)[:7]
        assert len(queue) == min(7, (step + 1) * size)
        assert torch.allclose(newest_first(queue), expected)
        assert not queue.vectors.requires_grad
    other = Queue(7, 3)
    other.load_state_dict(queue.state_dict())
    assert torch.equal(newest_first(other), newest_first(queue))


def test_what_is_remembered_and_when():
    """A batch is scored to the batches before it, and only training tells the queue."""
    spec = parsed({"kind": "sum", "terms": [{"weight": 1, "objective": {"kind": "ckd", "queue": 8}}]})
    objective = objectives.build(spec, 4)
    teacher = unit(3, 4)
    before = objective([teacher], to(teacher)).item()
    assert objective([teacher], to(teacher)).item() == before
    objectives.update_queues(objective, to(teacher))
    assert objective([teacher], to(teacher)).item() > before
    assert [name for name in objective.state_dict() if "ring" in name]
    assert spec.prefilled == 0
    full = parsed({"kind": "congen", "queue": 5, "alpha": 1})
    assert full.prefilled == 5
    objective = objectives.build(full, 4)
    objectives.fill_queues(objective, to(unit(5, 4)))
    objectives.update_queues(objective, to(unit(2, 4, seed=3)))
    assert torch.allclose(newest_first(objective.queue)[:2], unit(2, 4, seed=3).flip(0))  # type: ignore[union-attr, operator]


def parsed(spec: dict[str, object]) -> recipe.Objective:
    return recipe.Term.model_validate({"weight": 1.0, "objective": spec}).objective


SPECS: dict[str, dict[str, object]] = {
    "mse": {"normalize": True},
    "cosine": {},
    "softcos": {},
    "ckd": {"queue": 6},
    "congen": {"queue": 6},
}


@pytest.mark.parametrize("kind", [*SPECS, "mse-raw", "matryoshka"])
def test_gradients(kind: str):
    torch.manual_seed(1)
    spec: dict[str, object] = {"kind": kind.split("-")[0], **SPECS.get(kind, {})}
    if kind == "matryoshka":
        spec = {"kind": "matryoshka", "dims": [1, 3], "objective": {"kind": "softcos"}}
    loss = objectives.build(parsed(spec), 3).double()
    student, teacher = (
        torch.randn(4, 3, dtype=torch.float64, requires_grad=True),
        torch.randn(4, 3, dtype=torch.float64),
    )
    objectives.update_queues(loss, to(torch.randn(6, 3, dtype=torch.float64)))
    assert torch.autograd.gradcheck(lambda s: loss([s, s * s], to(teacher)), student)


def test_every_kind_has_a_loss_that_notices():
    """Least where student and teacher agree, and not where they differ."""
    teacher = unit(5, 4, seed=2)
    of_pairs = {"each_side", "mcl"}  # test_pair_objectives.py
    of_tuples = {"info_nce", "listwise", "margin_mse"}  # test_ranking.py
    assert {*SPECS, "sum", "matryoshka", *of_pairs, *of_tuples} == set(recipe.Loss.kinds)
    for kind, options in SPECS.items():
        loss = objectives.build(parsed({"kind": kind, **options}), 4)
        objectives.update_queues(loss, to(unit(6, 4, seed=3)))
        least = loss([teacher, teacher], to(teacher)).item()
        if kind in ("mse", "cosine", "softcos"):
            assert least == pytest.approx(0, abs=1e-6)
        moved = teacher.roll(1, 1)
        assert loss([moved, moved], to(teacher)).item() > least + 0.01
        assert loss([teacher, moved], to(teacher)).item() > least + 0.01 or kind in (
            "mse",
            "cosine",
            "softcos",
            "ckd",
        )
        assert math.isfinite(loss([torch.zeros_like(teacher)] * 2, to(teacher)).item())


def test_congen_with_alpha_one_is_blind_to_the_other_view():
    teacher, queue = unit(4, 3), unit(9, 3, seed=1)
    for alpha, same in ((1.0, True), (0.5, False)):
        loss = objectives.build(parsed({"kind": "congen", "queue": 9, "alpha": alpha}), 3)
        objectives.fill_queues(loss, to(queue))
        one, other = (loss([unit(4, 3, seed=2), unit(4, 3, seed=at)], to(teacher)).item() for at in (3, 4))
        assert (one == other) is same


def test_congens_columns_are_the_queue_and_the_batch_and_the_queue_keeps_its_length():
    loss = objectives.build(parsed({"kind": "congen", "queue": 9, "alpha": 0.5}), 3)
    objectives.fill_queues(loss, to(unit(9, 3, seed=1)))
    queue = unit(9, 3, seed=1)
    for step in range(4):
        teacher, one, other = (unit(4, 3, seed=10 * step + at) for at in (2, 3, 4))
        columns = torch.cat([queue, teacher])  # oldest first, the batch last: K + B of them
        wanted = (teacher @ columns.T / 0.05).softmax(1)
        expected = sum(
            0.5 * -(wanted * (view @ columns.T / 0.05).log_softmax(1)).sum(1).mean().item()
            for view in (one, other)
        )
        assert loss([one, other], to(teacher)).item() == pytest.approx(expected, rel=1e-4)
        objectives.update_queues(loss, to(teacher))
        queue = columns[4:]  # the batch's length of the oldest goes
        assert torch.allclose(newest_first(loss.queue).flip(0), queue, atol=1e-6)  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("queued", [0, 1, 7])
def test_both_blocks_are_columns_of_one_softmax(queued: int):
    torch.manual_seed(0)
    rows = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    queue, own = torch.randn(queued, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    keys, wanted = torch.cat([own, queue]), torch.rand(5, queued + 5, dtype=torch.float64).softmax(-1)
    assert torch.allclose(queues.probabilities(own, queue, own), (own @ keys.T).softmax(-1))
    for found, expected in (
        (
            queues.one_positive(rows[0], queue, own),
            cross_entropy(rows[0] @ keys.T, torch.arange(5)),
        ),
        (
            queues.soft_targets(rows, wanted, queue, own)[1],
            cross_entropy(rows[1] @ keys.T, wanted),
        ),
        (
            queues.soft_targets(rows, wanted, queue, own) @ rows.new_tensor([0.3, 2.0]),
            0.3 * cross_entropy(rows[0] @ keys.T, wanted) + 2 * cross_entropy(rows[1] @ keys.T, wanted),
        ),
    ):
        assert found.item() == pytest.approx(expected.item())
        mine, theirs = (torch.autograd.grad(loss, rows)[0] for loss in (found, expected))
        assert torch.allclose(mine, theirs, atol=1e-12)


@pytest.mark.parametrize("kind", ["ckd", "congen"])
def test_a_queue_in_bf16_gives_nearly_the_same_loss_and_gradient(kind: str):
    torch.manual_seed(0)
    whole, half = (objectives.build(parsed({"kind": kind, "queue": 512}), 64) for _ in range(2))
    half.load_state_dict(whole.state_dict())
    objectives.queues_to_bfloat16(half)
    teacher, earlier = torch.randn(16, 64), torch.randn(512, 64)
    views = [teacher + torch.randn(16, 64) for _ in range(2)]
    found = []
    for objective in (whole, half):
        objectives.update_queues(objective, to(earlier))
        one, other = (view.clone().requires_grad_() for view in views)
        loss = objective([one, other], to(teacher))
        found.append((loss.item(), torch.autograd.grad(loss, one)[0]))
    assert half.queue.ring.dtype == torch.bfloat16
    assert found[0][0] != found[1][0]
    assert found[1][0] == pytest.approx(found[0][0], rel=0.01)
    assert torch.nn.functional.cosine_similarity(found[0][1], found[1][1]).min() > 0.999
    assert found[1][1].dtype == torch.float32


def test_softmaxes_neither_overflow_nor_vanish():
    """Scores of ±2,000: far columns weigh nothing, the loss is their distance."""
    rows, queue, own = (
        torch.tensor([[2000.0, 0.0]], requires_grad=True),
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([[-1.0, 0.0]]),
    )
    loss = queues.one_positive(rows, queue, own)
    assert loss.item() == 4000
    assert torch.autograd.grad(loss, rows)[0].tolist() == [[2, 0]]
    assert queues.soft_targets(rows[None], torch.tensor([[0.5, 0.5]]), queue, own).item() == 2000
