"""A bundle's tokenizer as an ONNX graph, and the graph that takes texts and returns embeddings."""

from __future__ import annotations

import json
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper
from tokenizers import Tokenizer

from edgedistill.mobile.string_graph import EXTENSIONS, NoSuchGraph, StringGraph
from edgedistill.mobile.wordpiece_graph import wordpiece_graph

INPUT = "texts"


@dataclass(frozen=True)
class TextTokenizer:
    """A bundle's tokenizer and what its manifest says about the texts."""

    tokenizer: Tokenizer
    prompt: str
    max_tokens: int
    pad_id: int


def tokenizer_graph(text: TextTokenizer) -> StringGraph:
    """From `texts`, (batch) strings, to `input_ids` and `attention_mask`.

    Raises NoSuchGraph for a kind of tokenizer, or a part of one, that the operators of onnxruntime-extensions
    cannot express.
    """
    kind = json.loads(text.tokenizer.to_str())["model"]["type"]
    if kind != "WordPiece":
        raise NoSuchGraph(
            f"a {kind} tokenizer; only WordPiece can be built into a graph that gives the same token ids"
        )
    if (text.tokenizer.truncation or {}).get("direction") == "left":
        raise NoSuchGraph(
            "a tokenizer that keeps the end of a long text (truncation: Left); the graph keeps its start"
        )
    return wordpiece_graph(text.tokenizer, text.prompt, text.max_tokens, text.pad_id)


def tokenizer_model(graph: StringGraph, opset: int = 17) -> onnx.ModelProto:
    """A graph of its own: texts to token ids."""
    batch = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    made = helper.make_graph(graph.nodes, "tokenizer", [_texts()], batch, list(graph.constants.values()))
    return _with_extensions(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    )


def joined(graph: StringGraph, encoder: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """The encoder behind its tokenizer: from texts, (batch) strings, to `output`."""
    model = onnx.ModelProto()
    model.CopyFrom(encoder)
    nodes = list(model.graph.node)
    for field in ("node", "input"):
        model.graph.ClearField(field)
    model.graph.node.extend([*graph.nodes, *nodes])
    model.graph.initializer.extend(graph.constants.values())
    model.graph.input.append(_texts())
    kept = [each for each in model.graph.output if each.name == output]
    model.graph.ClearField("output")
    model.graph.output.extend(kept)
    return _with_extensions(model)


def _texts() -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(INPUT, TensorProto.STRING, ["batch"])


def _with_extensions(model: onnx.ModelProto) -> onnx.ModelProto:
    known = {each.domain for each in model.opset_import}
    model.opset_import.extend(
        helper.make_opsetid(domain, 1) for domain in (EXTENSIONS, "com.microsoft") if domain not in known
    )
    return model
