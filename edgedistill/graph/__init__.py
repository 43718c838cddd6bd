"""A student module goes in, its ONNX graph comes out: `input_ids`, `attention_mask` -> `sentence_embedding` of unit length."""

from edgedistill.graph.parity import ORT_ERRORS, compare
from edgedistill.graph.student_graph import before_unit, build
from edgedistill.graph.writer import GraphWriter

__all__ = ["ORT_ERRORS", "GraphWriter", "before_unit", "build", "compare"]
