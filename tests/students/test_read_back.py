"""A graph's constants -> weights: what is refused. tests/quantization/test_dequantize.py has what comes
back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from edgedistill.errors import CheckFailed, UserError
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.students import graph
from tests.students.test_graph import make_bert

SIZES = {
    "vocab_size": 90,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
SHAPE: dict[str, Any] = {
    "kind": "bert",
    "config": {**SIZES, "max_position_embeddings": 40, "pad_token_id": 0},
    "bottleneck": None,
    "pq_bytes": None,
    "pooling": "mean",
    "head": {"dims": 12, "bias": True},
    "tanh": False,
}


def constants(student: Any) -> dict[str, np.ndarray]:
    return {each.name: numpy_helper.to_array(each) for each in graph.build(student).graph.initializer}


def test_a_graph_that_names_no_weights_is_refused():
    with pytest.raises(UserError) as caught:
        graph.read_back({"parameter_1": np.zeros((90, 32), np.float32)}, SHAPE, "bundles/x")
    fact = "its graph has no model.embeddings.word_embeddings.weight, so its weights cannot be read back"
    assert caught.value.problems == (f"bundles/x: {fact}; give the run it was exported from",)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"config": {**SHAPE["config"], "hidden_size": 64}},
            "model.embeddings.word_embeddings.weight has the shape (90, 32), its student's has (90, 64)",
        ),
        (
            {"config": {**SHAPE["config"], "vocab_size": 91}},
            "model.embeddings.word_embeddings.weight has the shape (90, 32), its student's has (91, 32)",
        ),
        (
            {"head": {"dims": 13, "bias": True}},
            "head.weight has the shape (12, 32), its student's has (13, 32)",
        ),
    ],
)
def test_constants_of_other_sizes_are_refused(change: dict[str, Any], says: str):
    with pytest.raises(CheckFailed) as caught:
        graph.read_back(constants(make_bert()), {**SHAPE, **change}, "bundles/x")
    assert str(caught.value) == f"bundles/x: {says}; {GET_AGAIN}"


def test_a_layer_too_many_is_not_there():
    with pytest.raises(UserError, match="cannot be read back"):
        graph.read_back(
            constants(make_bert()),
            {**SHAPE, "config": {**SHAPE["config"], "num_hidden_layers": 3}},
            "bundles/x",
        )
