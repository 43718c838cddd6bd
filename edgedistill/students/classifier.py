"""A student with a classifier head: texts, or pairs of texts, -> logits (SRA, arXiv 2004.03097, §3.2)."""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from edgedistill.runtime.manifest import INPUTS
from edgedistill.students import head
from edgedistill.students.graph import build as graph_of
from edgedistill.students.graph_writer import GraphWriter


class Classifier(nn.Module):
    """`forward(ids, mask) -> (B, C)`, for pairs `forward(ids, mask, ids_2, mask_2) -> (B, C)`: x → hidden,
    ReLU → C.

    x is the student's embedding u (B, d), not scaled to unit length; for pairs it is [u; v; |u − v|; u ⊙ v]
    (B, 4d), with one encoder for both texts.
    """

    def __init__(
        self, encoder: nn.Module, dims: int, labels: int, pair: bool, hidden: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pair = pair
        self.hidden = nn.Linear(4 * dims if pair else dims, hidden)
        self.out = nn.Linear(hidden, labels)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, ids: Tensor, mask: Tensor, ids_2: Tensor | None = None, mask_2: Tensor | None = None
    ) -> Tensor:
        """All (B, T) int64, right-padded; T may differ for the second text. Returns logits (B, C)."""
        x = self.encoder(ids, mask)
        if self.pair:
            assert ids_2 is not None and mask_2 is not None
            x = pair_features(x, self.encoder(ids_2, mask_2))
        return self.out(self.dropout(self.hidden(self.dropout(x)).relu()))

    def head_state(self) -> dict[str, Tensor]:
        """The state dict of the classifier head, without the encoder."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith("encoder.")}


def pair_features(u: Tensor, v: Tensor) -> Tensor:
    """[u; v; |u − v|; u ⊙ v]: (B, d) twice -> (B, 4d)."""
    return torch.cat([u, v, (u - v).abs(), u * v], -1)


def parameters(encoder: dict[str, int], classifier: Classifier) -> dict[str, int]:
    """An encoder's counts, with the classifier's layers added to the head."""
    more = head.count(classifier.hidden) + head.count(classifier.out)
    return {**encoder, "head": encoder["head"] + more, "total": encoder["total"] + more}


def write(classifier: Classifier, pad: int) -> onnx.ModelProto:
    """Write the graph of logits. pad: the id that fills the shorter text of a pair."""
    encoder = graph_of(classifier.encoder)
    writer = GraphWriter(classifier, first=2_000_000)  # far from the encoder's names
    joining = _join_pairs(writer, encoder.graph, pad) if classifier.pair else []
    _head(writer, classifier, _embedding_before_unit_length(encoder.graph))
    nodes = _needed([*joining, *encoder.graph.node, *writer.nodes], "logits")
    used = {name for node in nodes for name in node.input}
    constants = [
        constant for constant in [*encoder.graph.initializer, *writer.constants] if constant.name in used
    ]
    names = INPUTS[: 4 if classifier.pair else 2]
    inputs = [
        helper.make_tensor_value_info(
            name, TensorProto.INT64, ["batch", "sequence" + name[-2:] * (name[-1] == "2")]
        )
        for name in names
    ]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classifier.out.out_features])
    ]
    graph = helper.make_graph(nodes, "classifier", inputs, outputs, constants)
    opsets = {(entry.domain, entry.version) for entry in encoder.opset_import}
    imports = [helper.make_opsetid(domain, version) for domain, version in sorted(opsets)]
    model = helper.make_model(
        graph, opset_imports=imports, ir_version=encoder.ir_version, producer_name="edgedistill"
    )
    onnx.checker.check_model(model)
    return model


def _embedding_before_unit_length(encoder: onnx.GraphProto) -> str:
    unit = next(node for node in encoder.node if "sentence_embedding" in node.output)
    assert unit.op_type == "Div", "the last node scales rows to unit length"
    return str(unit.input[0])


def _head(writer: GraphWriter, classifier: Classifier, rows: str) -> None:
    """The classifier head; for pairs it reads [u; v; |u − v|; u ⊙ v] of the two halves of the batch."""
    if classifier.pair:
        u, v = writer.add("Split", rows, outputs=["first_text", "second_text"], axis=0), "second_text"
        parts = [u, v, writer.add("Abs", writer.add("Sub", u, v)), writer.add("Mul", u, v)]
        rows = writer.add("Concat", *parts, axis=-1)
    hidden = writer.add("Relu", writer.linear(rows, classifier.hidden))
    writer.add("Identity", writer.linear(hidden, classifier.out), outputs=["logits"])


def _join_pairs(writer: GraphWriter, encoder: onnx.GraphProto, pad: int) -> list[onnx.NodeProto]:
    """Make the encoder read both texts in one batch (2B, max(T, T₂)); returns the nodes that join them, which
    run first."""
    lengths = [writer.add("Shape", name, start=1, end=2) for name in ("input_ids", "input_ids_2")]
    longest, joined = writer.add("Max", *lengths), {}
    for first, second, filler in (
        ("input_ids", "input_ids_2", pad),
        ("attention_mask", "attention_mask_2", 0),
    ):
        parts = []
        for name, length in ((first, lengths[0]), (second, lengths[1])):
            padding = writer.add(
                "Concat", writer.constant([0, 0, 0], "none"), writer.add("Sub", longest, length), axis=0
            )
            parts.append(writer.add("Pad", name, padding, writer.constant(np.int64(filler), "filler")))
        joined[first] = writer.add("Concat", *parts, axis=0)
    nodes = list(writer.nodes)
    writer.nodes.clear()
    for node in encoder.node:
        for at, name in enumerate(node.input):
            node.input[at] = joined.get(name, name)
    return nodes


def _needed(nodes: list[onnx.NodeProto], output: str) -> list[onnx.NodeProto]:
    """The nodes that lead to an output, in order."""
    wanted, kept = {output}, []
    for node in reversed(nodes):
        if wanted & set(node.output):
            wanted |= set(node.input)
            kept.append(node)
    return kept[::-1]
