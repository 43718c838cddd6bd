"""Names that people read for a graph's weights: `layer 3 · feed-forward out`, from the names of the parameters that they are."""

from __future__ import annotations

import re

import onnx

PARTS = {  # the ends of parameters' names, after the layer's number where there is one
    "word_embeddings": "token embeddings",
    "tok_embeddings": "token embeddings",
    "embedding": "token embeddings",
    "book": "token embeddings (PQ codebook)",
    "project": "token embeddings (projection)",
    "position_embeddings": "position embeddings",
    "attention.self.query": "attention q",
    "attention.self.key": "attention k",
    "attention.self.value": "attention v",
    "attention.output.dense": "attention out",
    "intermediate.dense": "feed-forward in",
    "output.dense": "feed-forward out",
    "attn.Wqkv[0]": "attention q",
    "attn.Wqkv[1]": "attention k",
    "attn.Wqkv[2]": "attention v",
    "attn.Wo": "attention out",
    "mlp.Wi[0]": "feed-forward in",
    "mlp.Wi[1]": "feed-forward gate",
    "mlp.Wo": "feed-forward out",
    "linear": "reduction",
    "hidden": "classifier hidden",
    "out": "classifier out",
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
            names |= {name: _label(name) for name in read}
    return names


def _label(constant: str) -> str:
    """model.encoder.layer.3.attention.self.query.weight.T -> layer 3 · attention q."""
    found = re.fullmatch(r"(.+?)(?:\.table)?\.(?:weight|codes)(\[\d\])?(?:\[[a-z]+\])?(?:\.T)?", constant)
    if not found:
        return constant
    numbered = re.fullmatch(r".*?layers?\.(\d+)\.(.+)", found[1])
    name = numbered[2] if numbered else found[1].rsplit(".", 1)[-1]
    part = PARTS.get(name + (found[2] or ""), name.replace(".", " ").replace("_", " "))
    return f"layer {numbered[1]} · {part}" if numbered else part
