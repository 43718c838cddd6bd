"""A graph of every kind of student, and what converted graphs are compared by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgedistill.students import graph
from tests.students.test_graph import PIECES, make_bert, make_bilstm, make_other, make_recurrent, make_static

MAKE: dict[str, Callable[[], Any]] = {
    "bert": make_bert,
    "bert bottleneck": lambda: make_bert(bottleneck=24),
    "bert codes": lambda: make_bert(codes=16),
    "recurrent": lambda: make_recurrent(bottleneck=24),
    "bilstm": make_bilstm,
    "bilstm of two layers": lambda: make_bilstm("max", layers=2),
    "static": make_static,
    "static codes": lambda: make_static(codes=8),
    "static with a head": lambda: make_static(48),
    "traced": lambda: make_other("electra", embedding_size=32, num_hidden_layers=1),
}

RANDOM = np.random.default_rng(5)
SAMPLES = [RANDOM.integers(0, PIECES, length).tolist() for length in (1, 2, 5, 10, 20, 30) for _ in range(40)]


@pytest.fixture(scope="session")
def graphs() -> dict[str, onnx.ModelProto]:
    return {name: graph.build(make()) for name, make in MAKE.items()}


@pytest.fixture(scope="session")
def ids() -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(2, 90, length).tolist() for length in random.integers(1, 20, 24)]


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.float64) * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def arrays(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {constant.name: numpy_helper.to_array(constant) for constant in model.graph.initializer}


def product_alone(weight: np.ndarray) -> onnx.ModelProto:
    sizes = zip(("x", "y"), weight.shape, strict=True)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", d]) for name, d in sizes)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="p")
    plain = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(plain, opset_imports=opsets, ir_version=9)
