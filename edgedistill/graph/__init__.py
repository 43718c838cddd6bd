"""A student module goes in, its ONNX graph comes out: `input_ids`, `attention_mask` -> `sentence_embedding` of unit length."""

from edgedistill.graph import classifier
from edgedistill.graph.checked_graph import build_checked
from edgedistill.graph.restored_weights import restored_weights
from edgedistill.graph.student_graph import before_unit, build
from edgedistill.graph.torch_parity import compare
from edgedistill.graph.writer import head_on_tokens, pools_to_embedding

__all__ = [
    "before_unit",
    "build",
    "build_checked",
    "classifier",
    "compare",
    "head_on_tokens",
    "pools_to_embedding",
    "restored_weights",
]
