"""What is told of a graph from its nodes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from edgedistill.quantization.graph_editor import GraphFacts


def test_a_graph_of_many_residual_layers_is_looked_at_once_per_node() -> None:
    layers = 3_000  # a walk back from the output doubles with each, and is deeper than Python's stack
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["h0"])]
    for at in range(layers):
        nodes.append(helper.make_node("MatMul", [f"h{at}", "weight"], [f"y{at}"]))
        nodes.append(helper.make_node("Add", [f"h{at}", f"y{at}"], [f"h{at + 1}"]))
    constants = [numpy_helper.from_array(np.ones((4, 4), np.float32), name) for name in ("table", "weight")]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    output = helper.make_tensor_value_info(f"h{layers}", TensorProto.FLOAT, None)
    facts = GraphFacts(helper.make_model(helper.make_graph(nodes, "deep", [ids], [output], constants)))

    assert facts.rank("input_ids") == 2
    assert facts.rank("weight") == 2
    assert facts.rank(f"h{layers}") == 3
    assert facts.rank("unknown") is None
    assert facts.rows_of("h1") == "h0"
