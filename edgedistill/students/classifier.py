"""A student with a classifier head: texts, or pairs of texts, -> logits (SRA, arXiv 2004.03097, §3.2)."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.utils import Extractor
from torch import Tensor, nn

from edgedistill.objectives import ClassifierHead
from edgedistill.runtime.manifest import INPUTS
from edgedistill.students import graph, head
from edgedistill.students.graph_writer import GraphWriter


class Classifier(ClassifierHead):
    """`forward(ids, mask) -> (B, C)`, for pairs `forward(ids, mask, ids_2, mask_2) -> (B, C)`: a student and
    its head, with one encoder for both texts."""

    def __init__(
        self, encoder: nn.Module, dims: int, labels: int, pair: bool, hidden: int, dropout: float = 0.0
    ) -> None:
        super().__init__(dims, labels, pair, hidden, dropout)
        self.encoder = encoder

    def forward(self, *columns: Tensor) -> Tensor:
        """ids and mask of each text, all (B, T) int64, right-padded; T may differ for the second text.
        Returns logits (B, C)."""
        texts = zip(columns[::2], columns[1::2], strict=True)
        return self.logits(*(self.encoder(ids, mask) for ids, mask in texts))


def parameters(encoder: dict[str, int], classifier: ClassifierHead) -> dict[str, int]:
    """An encoder's counts, with the classifier's layers added to the head."""
    added = head.count(classifier.hidden) + head.count(classifier.out)
    return {**encoder, "head": encoder["head"] + added, "total": encoder["total"] + added}


def write(classifier: Classifier, pad: int) -> ModelProto:
    """Write the graph of logits; the id `pad` fills the shorter text of a pair."""
    encoder = graph.build(classifier.encoder)
    embedding = graph.before_unit(encoder)
    part = Extractor(encoder).extract_model(list(INPUTS[:2]), [embedding]).graph
    writer = GraphWriter(classifier, first=2_000_000)  # far from the encoder's names
    joining = _join_pairs(writer, part, pad) if classifier.pair else []
    rows = embedding
    if classifier.pair:
        halves = ["first_text", "second_text"]
        u, v = halves
        writer.add("Split", rows, outputs=halves, axis=0, num_outputs=2)
        parts = [u, v, writer.add("Abs", writer.add("Sub", u, v)), writer.add("Mul", u, v)]
        rows = writer.add("Concat", *parts, axis=-1)
    hidden = writer.add("Relu", writer.linear(rows, classifier.hidden))
    writer.add("Identity", writer.linear(hidden, classifier.out), outputs=["logits"])
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", length])
        for name, length in zip(INPUTS, ("sequence", "sequence", "sequence_2", "sequence_2"), strict=True)
    ]
    output = helper.make_tensor_value_info(
        "logits", TensorProto.FLOAT, ["batch", classifier.out.out_features]
    )
    model = helper.make_model(
        helper.make_graph(
            [*joining, *part.node, *writer.nodes],
            "classifier",
            inputs[: 4 if classifier.pair else 2],
            [output],
            [*part.initializer, *writer.constants],
        ),
        opset_imports=sorted(encoder.opset_import, key=lambda entry: entry.domain),
        ir_version=encoder.ir_version,
        producer_name="edgedistill",
    )
    onnx.checker.check_model(model)
    return model


def _join_pairs(writer: GraphWriter, encoder: GraphProto, pad: int) -> list[NodeProto]:
    """Make the encoder read both texts in one batch (2B, max(T, T₂)); returns the nodes that join them, which
    run first."""
    lengths = [writer.add("Shape", name, start=1, end=2) for name in ("input_ids", "input_ids_2")]
    longest, joined = writer.add("Max", *lengths), {}
    for name, filler in (("input_ids", pad), ("attention_mask", 0)):
        texts = []
        for text, length in zip((name, f"{name}_2"), lengths, strict=True):
            missing = writer.add("Sub", longest, length)
            padding = writer.add("Concat", writer.constant([0, 0, 0], "none"), missing, axis=0)
            texts.append(writer.add("Pad", text, padding, writer.constant(np.int64(filler), "filler")))
        joined[name] = writer.add("Concat", *texts, axis=0)
    nodes = list(writer.nodes)
    writer.nodes.clear()
    for node in encoder.node:
        for at, name in enumerate(node.input):
            node.input[at] = joined.get(name, name)
    return nodes
