"""Names that people read for a graph's weights: `layer 3 · feed-forward out`, from the names of constants and of traced nodes."""

from __future__ import annotations

import re

import onnx

PARTS = {  # graph's names of constants, without their numbers
    "word_table": "token embeddings",
    "word_book": "token embeddings (PQ codebook)",
    "word_project": "token embeddings (projection)",
    "position_table": "position embeddings",
    "query": "attention q",
    "key": "attention k",
    "value": "attention v",
    "attention": "attention out",
    "inner": "feed-forward in",
    "gate": "feed-forward gate",
    "feed_forward": "feed-forward out",
    "reduce": "reduction",
    "hidden": "classifier hidden",
    "out": "classifier out",
}
TRACED = {  # transformers' module names
    "attention/self/query": "attention q",
    "attention/self/key": "attention k",
    "attention/self/value": "attention v",
    "attention/output/dense": "attention out",
    "intermediate/dense": "feed-forward in",
    "output/dense": "feed-forward out",
}


def layer_names(model: onnx.ModelProto) -> dict[str, str]:
    """A name for every constant with two dimensions or more; its own where nothing else is known of it."""
    matrices = {constant.name for constant in model.graph.initializer if len(constant.dims) > 1}
    names: dict[str, str] = {}
    lstms = 0
    for node in model.graph.node:
        read = [name for name in node.input if name in matrices and name not in names]
        if node.op_type == "LSTM":
            names |= dict.fromkeys(read, f"LSTM layer {lstms}")
            lstms += 1
        else:
            names |= {name: _traced(node.name) or _written(name) for name in read}
    return names


def _written(constant: str) -> str:
    """layer_3_query_weight_17 -> layer 3 · attention q."""
    found = re.fullmatch(r"(?:layer_(\d+)_)?(\w+?)(?:_weight)?_\d+", constant)
    if not found:
        return constant
    part = PARTS.get(found[2], found[2].replace("_", " "))
    return f"layer {found[1]} · {part}" if found[1] else part


def _traced(node: str) -> str:
    """/model/encoder/layer.3/attention/self/query/MatMul -> layer 3 · attention q; empty for a node that was not traced."""
    found = re.search(r"layers?\.(\d+)/(.+?)/(?:MatMul|Gemm)", node)
    if found:
        return f"layer {found[1]} · {TRACED.get(found[2], found[2].replace('/', ' '))}"
    found = re.search(r"/(?:\w+\.)*(\w+_embeddings|embed_tokens)/Gather", node)
    return found[1].replace("_", " ") if found else ""
