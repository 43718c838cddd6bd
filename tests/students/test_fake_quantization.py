"""Fake quantization: the exporter's own rounding, the exported graph's own embeddings, and gradients as if nothing was rounded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from edgedistill import graph
from edgedistill.quantization import int8, w4, w8
from edgedistill.quantization.embedding_tables import SMALLEST, quantize_rows
from edgedistill.quantization.four_bits import quantize_groups
from edgedistill.recipe.stages import LowPrecision
from edgedistill.students import fake_quantization, recurrent, rounding
from edgedistill.students.fake_quantization import RULES, FakeQuantization
from tests.graph.test_graph import make_bert, make_bilstm, make_modernbert, make_recurrent, make_static, run, some_ids

PRECISIONS = get_args(LowPrecision)
CONVERT: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {"w8": w8.convert, "int8": int8.convert, "w4": w4.convert}
STUDENTS: dict[str, Callable[[], Any]] = {
    "bert": make_bert,
    "bert with tanh": lambda: make_bert(tanh=True, hidden_act="relu"),
    "bert bottleneck": lambda: make_bert(bottleneck=24),
    "bert codes": lambda: make_bert(codes=16),
    "bert with a pooler": lambda: make_bert("cls_pooler", head=None),
    "recurrent": lambda: make_recurrent(bottleneck=24),
    "recurrent from 0": lambda: make_recurrent(positions="zero", codes=8),
    "recurrent with a relative bias": lambda: make_recurrent(relative_bias=32),
    "modernbert": lambda: make_modernbert(codes=8),
    "static": make_static,
    "static codes with a head": lambda: make_static(12, codes=8),
    "bilstm": lambda: make_bilstm(codes=5),
    "bilstm of two layers": lambda: make_bilstm("max", layers=2),
}


def some_values(*shape: int) -> Tensor:
    """Rows of very different sizes, one of zeros, one of a single value that lies between two multiples of any scale."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(3)) * torch.logspace(-6, 3, shape[0]).unsqueeze(-1)
    values[1], values[2] = 0, 0.5
    return values


def embed(student: Any, batch: int = 8, tokens: int = 20) -> np.ndarray:
    ids, mask = some_ids(batch, tokens)
    with torch.inference_mode():
        found: np.ndarray = nn.functional.normalize(student(torch.from_numpy(ids), torch.from_numpy(mask)), dim=-1).numpy()
    return found


def test_every_precision_of_a_recipe_has_rules() -> None:
    assert set(PRECISIONS) == set(RULES) == set(CONVERT)
    assert fake_quantization.SMALLEST_TABLE == SMALLEST


@pytest.mark.parametrize("width", [1, 40, 64])
def test_rows_are_rounded_as_the_exporter_rounds_them(width: int) -> None:
    values = some_values(50, width)
    stored, scale = quantize_rows(values.numpy())
    assert np.array_equal(rounding.rows_in_8_bits(values).numpy(), stored.astype(np.float32) * scale)


@pytest.mark.parametrize("width", [7, 32, 80])
def test_blocks_are_rounded_as_the_exporter_rounds_them(width: int) -> None:
    """w8's own way: pad, cut into blocks, a scale each."""
    values = some_values(50, width)
    padded = np.zeros((50, -(-width // 32) * 32), np.float32)
    padded[:, :width] = values.numpy()
    stored, scale = quantize_rows(padded.reshape(-1, 32))
    expected = (stored.astype(np.float32) * scale).reshape(50, -1)[:, :width]
    assert np.array_equal(rounding.blocks_in_8_bits(values).numpy(), expected)


@pytest.mark.parametrize("width", [1, 33, 64])
def test_int8_weights_are_rounded_as_the_exporter_rounds_them(width: int) -> None:
    values = torch.cat([some_values(50, width), some_values(50, width).abs(), -some_values(50, width).abs()])
    stored, scale = int8.quantize_weights(values.T.numpy())
    assert np.array_equal(rounding.rows_in_8_bits_without_saturation(values).numpy(), stored.T.astype(np.float32) * scale[:, None])


def test_int8_inputs_behind_an_activation_by_hand() -> None:
    """GELU: 23.1 / 231 a step, and not less than 0.17 / 24; ReLU: 25.5 / 255."""
    after_gelu = rounding.rows_after_gelu(torch.tensor([[23.1, 0.12, -0.17, -9], [0.2, 0, -0.17, 0.01]]))
    step = 0.17 / 24
    expected = [[23.1, 0.1, -0.2, -2.4], [28 * step, 0, -0.17, step]]
    assert torch.allclose(after_gelu, torch.tensor(expected))
    assert torch.allclose(rounding.rows_after_relu(torch.tensor([[25.5, 0.12, 0], [0, 0, 0]])), torch.tensor([[25.5, 0.1, 0], [0, 0, 0]]))


@pytest.mark.parametrize("width", [7, 32, 80])
def test_4_bits_are_rounded_as_the_exporter_rounds_them(width: int) -> None:
    values = torch.cat([some_values(50, width), 1e6 * some_values(50, width)])  # of scales at both ends of float16, too
    stored, scale = quantize_groups(values.numpy())
    expected = stored.astype(np.float32) * scale.astype(np.float32).repeat(32, -1)[:, :width]
    assert np.array_equal(rounding.blocks_in_4_bits(values).numpy(), expected)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", STUDENTS)
def test_the_student_embeds_as_its_exported_graph(name: str, precision: str) -> None:
    student = STUDENTS[name]()
    exported = run(CONVERT[precision](graph.build(student)), *some_ids(8, 20))
    plain = embed(student)
    fake = FakeQuantization(student, precision)
    found = embed(student)
    assert np.median(np.abs(plain - exported).max(1)) > 1e-4
    # most texts differ by 1e-7; where a number lies between two multiples of its scale, the last bit of a float32 sum decides
    assert np.median(np.abs(found - exported).max(1)) < 0.15 * np.median(np.abs(plain - exported).max(1)) + 1e-6
    fake.remove()
    assert np.array_equal(embed(student), plain)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients_are_those_of_the_rounded_values(precision: str) -> None:
    """y = q(x) q(W)ᵀ + b: the gradient of W is dyᵀ q(x), that of x is dy q(W)."""
    torch.manual_seed(0)
    layer, x, up = nn.Linear(40, 6), torch.randn(5, 40, requires_grad=True), torch.randn(5, 6)
    rules = RULES[precision]
    fake = FakeQuantization(nn.Sequential(layer), precision)
    layer(x).backward(up)
    assert layer.weight.grad is not None and x.grad is not None and layer.bias.grad is not None
    assert torch.allclose(layer.weight.grad, up.T @ rules.inputs(x.detach()))
    assert torch.allclose(x.grad, up @ rules.weights(layer.weight.detach()))
    assert torch.allclose(layer.bias.grad, up.sum(0))
    fake.remove()
    assert "forward" not in vars(layer)


@pytest.mark.parametrize("name", STUDENTS)
def test_all_that_is_trained_gets_a_gradient_and_the_state_dict_stays(name: str) -> None:
    student = STUDENTS[name]()
    before = {key: value.clone() for key, value in student.state_dict().items()}
    ids, mask = (torch.from_numpy(each) for each in some_ids(8, 20))
    (student(ids, mask) ** 3).sum().backward()
    plain = {key: parameter.grad for key, parameter in student.named_parameters() if parameter.grad is not None}
    student.zero_grad()
    FakeQuantization(student, "w8")
    (student(ids, mask) ** 3).sum().backward()
    after = student.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert {key for key, parameter in student.named_parameters() if parameter.grad is not None} == set(plain)
    for key, parameter in student.named_parameters():
        if key in plain and plain[key].norm() > 1e-4 * sum(each.norm() for each in plain.values()):
            assert nn.functional.cosine_similarity(parameter.grad.flatten(), plain[key].flatten(), dim=0) > 0.9, key


def test_a_shared_layer_is_rounded_once_a_step_and_again_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds through two layers of six matrices, and a head: each matrix once, whatever the optimizer."""
    rounded: list[tuple[int, ...]] = []

    def counting(values: Tensor) -> Tensor:
        rounded.append(tuple(values.shape))
        return rounding.blocks_in_4_bits(values)

    monkeypatch.setitem(RULES, "w4", RULES["w4"]._replace(weights=counting))
    student = make_recurrent(times=3)
    assert isinstance(student, recurrent.RecurrentStudent)
    ids, mask = (torch.from_numpy(each) for each in some_ids(4, 10))
    fake = FakeQuantization(student, "w4")
    for fused in (True, False):
        optimizer = torch.optim.AdamW(student.parameters(), lr=0.05, fused=fused)
        for _ in range(2):
            rounded.clear()
            loss = (student(ids, mask) + student(ids[:, :5], mask[:, :5])).square().sum()
            loss.backward()
            assert len(rounded) == 2 * 6 + 1
            before = embed(student)
            optimizer.step()
            fake.weights_changed()
            after = embed(student)
            assert np.abs(after - before).max() > 1e-3
            changed = copy.deepcopy(student)  # rounds its own weights
            assert np.array_equal(embed(changed), after)
            with torch.no_grad():
                changed.head.weight.mul_(-1)
                changed.head.bias.mul_(-1)
            assert np.array_equal(embed(changed), -after)
            assert np.array_equal(embed(student), after)


@pytest.mark.parametrize("name", ["bert codes", "recurrent", "static", "bilstm"])
def test_under_autocast_rounding_stays_in_float32(name: str) -> None:
    """Training in bfloat16: close to the float32 pass, with float32 gradients, also when a step is taken in two backward passes."""
    student = STUDENTS[name]()
    fake = FakeQuantization(student, "w4")
    expected = embed(student)
    ids, mask = (torch.from_numpy(each) for each in some_ids(8, 20))
    fake.weights_changed()
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            found = student(ids, mask)
        nn.functional.normalize(found.float(), dim=-1).square().mul(torch.arange(found.shape[-1])).sum().backward()
    cosines = (nn.functional.normalize(found.float(), dim=-1).detach().numpy() * expected).sum(1)
    assert cosines.min() > 0.99
    for parameter in student.parameters():
        assert parameter.grad is None or (parameter.grad.dtype == torch.float32 and parameter.grad.isfinite().all())
