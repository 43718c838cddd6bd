"""Initial weights: embedding tables reduced with token weights, and layers projected to a smaller width."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edgedistill.data import corpus
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.session import QUIET, Session
from edgedistill.students import embedding_tables, narrow_bert
from edgedistill.teacher.embedder import open_teacher
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student import initial_weights, student_tokenizer
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.load_models import Models
from tests.conftest import World


def test_a_weighted_factorisation_is_the_best_of_its_rank():
    """Against numpy's SVD of √weight · row; with equal weights it is the plain one."""
    torch.manual_seed(0)
    rows, weights = torch.randn(60, 12), torch.rand(60) ** 3 + 1e-3
    narrow, wide = embedding_tables.factors(rows, 5, weights)
    error = (weights * (rows - narrow @ wide.T).square().sum(1)).sum().item()
    least = np.linalg.svd((weights.sqrt().unsqueeze(1) * rows).numpy(), compute_uv=False)[5:]
    assert error == pytest.approx((least**2).sum(), rel=1e-4)
    plain, same = embedding_tables.factors(rows, 5), embedding_tables.factors(rows, 5, torch.full((60,), 7.0))
    assert torch.allclose(plain[0] @ plain[1].T, same[0] @ same[1].T, atol=1e-4)
    assert error < (weights * (rows - plain[0] @ plain[1].T).square().sum(1)).sum().item()


def test_a_weighted_pca_is_that_of_repeated_rows():
    torch.manual_seed(0)
    rows, times = torch.randn(20, 6), torch.arange(1, 21)
    repeated = rows.repeat_interleave(times, 0)
    assert torch.allclose(
        embedding_tables.reduce_width(rows, 3, times).repeat_interleave(times, 0),
        embedding_tables.reduce_width(repeated, 3),
        atol=1e-4,
    )


@pytest.mark.parametrize(
    "student",
    [
        {"kind": "bert", "weights": "teacher", "bottleneck": 6},
        {"kind": "bert", "layers": 1, "width": 16, "heads": 2},
        {
            "kind": "bert",
            "layers": 1,
            "width": 16,
            "heads": 2,
            "head": "linear",
            "embeddings": {"of": "outputs"},
        },
        {"kind": "recurrent", "layers": 1, "bottleneck": 6},
        {"kind": "bilstm", "width": 8, "hidden": 8},
        {"kind": "static", "width": 8, "head": "linear"},
    ],
    ids=lambda student: student["kind"],
)
def test_every_reduced_table_can_be_weighed(world: World, student: dict[str, object]):
    """The counts are those of the training texts, and the table differs from that of equal weights."""
    table: Any = student.get("embeddings", {"of": "outputs"} if student["kind"] == "static" else {})
    weighed = {**student, "embeddings": {**table, "weighting": "frequency", "count_exponent": 1.0}}
    tables = []
    for changed in (student, weighed):
        module = started(world, **changed)[0].module
        parts = [
            part for part in module.modules() if type(part).__name__ in ("FactorizedEmbedding", "Embedding")
        ]
        tables.append(parts[0].weight)
    plain, by_counts = tables
    assert isinstance(plain, torch.Tensor) and isinstance(by_counts, torch.Tensor)
    assert plain.shape == by_counts.shape and not torch.allclose(plain, by_counts, atol=1e-3)


def test_directions_are_orthonormal_and_the_mean_is_the_least_of_them():
    """States that vary in 5 of 12 directions: 4 of them are kept whole, and LayerNorm's mean is the
    fourth."""
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(12, 5))[0]
    states = [
        torch.randn(400, 5) * torch.tensor([5.0, 4.0, 3.0, 2.0, 0.01]) @ basis.T + 3.0 for _ in range(2)
    ]
    found = narrow_bert.projection(states, 4)
    assert torch.allclose(found.T @ found, torch.eye(4), atol=1e-5)
    assert torch.linalg.matrix_norm(basis[:, :4] - found @ found.T @ basis[:, :4]) < 0.02
    assert abs(found.mean(1) @ basis[:, 3]) * 4**0.5 > 0.98  # the mean of Pᵀx is x along the fourth


def test_a_folded_matrix_reads_projected_states_as_it_read_wide_ones():
    torch.manual_seed(0)
    space, wide, small = torch.linalg.qr(torch.randn(10, 4))[0], torch.nn.Linear(10, 6), torch.nn.Linear(4, 6)
    state = torch.randn(7, 4) @ space.T + torch.randn(10)  # all they vary in is kept
    with torch.no_grad():
        narrow_bert._fold(small, wide.weight, wide.bias, space, state.mean(0))
    assert torch.allclose(small(state @ space), wide(state), atol=1e-5)


def started(world: World, **student: object) -> tuple[PreparedStudent, list[str], np.ndarray]:
    """An untrained student of the tiny world; texts, and the teacher's vectors of them."""
    spec = world.spec(student={"kind": "bert", "head": "linear", **student})
    teacher = open_teacher(spec.teacher, Session(data=world.data))
    assert spec.rows is not None and isinstance(teacher, TeacherEncoder)
    texts = Rows.of_texts(corpus.build(spec.rows, Session(data=world.data), 0))
    words = student_tokenizer.build(spec, Models(teacher), texts, QUIET)
    prepared = initial_weights.build(spec, Models(teacher), words, Session(data=world.data), texts)
    prepared.module.eval()
    read = texts.sides[0].texts(texts.held_out)
    return prepared, read, teacher.embed(read)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"bottleneck": 20, "embeddings": {"weighting": "frequency"}},
        {"heads": 3},
        {"pooling": "mean", "trim": {}},
    ],
    ids=str,
)
def test_a_narrow_start_is_near_its_teacher(world: World, more: dict[str, object]):
    """24 of 32 wide: on held-out texts far nearer than random layers behind the same PCA; the same bytes each
    time."""
    student, texts, wanted = started(world, weights="teacher", width=24, **more)
    near = (student.embed(texts) * wanted).sum(1).mean()
    config = student.module.model.config  # type: ignore[union-attr]
    assert (config.hidden_size, config.num_attention_heads) == (24, 3)
    other = started(world, layers=2, width=24, heads=3)[0]
    far = (other.embed(texts) * wanted).sum(1).mean()
    assert near > 0.9 > 0.5 > far, (near, far)
    again = started(world, weights="teacher", width=24, **more)[0]
    assert all(
        torch.equal(a, b)
        for a, b in zip(student.module.state_dict().values(), again.module.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("more", [{"head": "none"}, {"width": 24}], ids=str)
def test_positions_that_no_text_reaches_can_be_left_out(world: World, more: dict[str, object]):
    some = {"weights": "teacher", "max_tokens": 20, **more}
    student, texts, _ = started(world, **some)
    fewer = started(world, max_positions=20, **some)[0]
    assert len(fewer.module.model.embeddings.position_embeddings.weight) == 20  # type: ignore[union-attr]
    whole, cut = (each.embed(texts) for each in (student, fewer))
    assert np.allclose(whole, cut, atol=1e-5)


@pytest.mark.parametrize(
    ("student", "says"),
    [
        ({"width": 32}, "student.width: 32"),
        ({"width": 20}, "student.width: 20 .* multiple of 8"),
        ({"width": 24, "heads": 2}, "student.heads: 2 "),
        ({"max_positions": 900}, "student.max_positions: 900"),
        ({"width": 24, "intermediate": 99}, "student.intermediate: 99"),
    ],
    ids=str,
)
def test_widths_that_cannot_be(world: World, student: dict[str, object], says: str):
    with pytest.raises(UserError, match=says):
        started(world, weights="teacher", **student)
