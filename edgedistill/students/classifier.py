"""A student with a classifier head: texts, or pairs of texts, -> logits (SRA, arXiv 2004.03097, §3.2)."""

from __future__ import annotations

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.utils import Extractor
from torch import Tensor, nn

from edgedistill.objectives import ClassifierHead
from edgedistill.runtime.manifest import INPUTS
from edgedistill.students import graph, head
from edgedistill.students.graph_writer import GraphWriter


class Classifier(ClassifierHead):
    """`forward(ids, mask) -> (B, C)`, for pairs `forward(ids, mask, ids_2, mask_2) -> (B, C)`: a student and
    its head, with one encoder for both texts."""

    def __init__(self, encoder: nn.Module, dims: int, labels: int, pair: bool, hidden: int) -> None:
        super().__init__(dims, labels, pair, hidden)
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


def write(classifier: Classifier) -> ModelProto:
    """Write the graph of logits. For pairs it holds the encoder's nodes twice, and its weights once."""
    encoder = graph.build(classifier.encoder)
    embedding = graph.before_unit(encoder)
    part = Extractor(encoder).extract_model(list(INPUTS[:2]), [embedding]).graph
    writer = GraphWriter(classifier, first=2_000_000)  # numbers far from the encoder's
    nodes = [*part.node]
    rows = embedding
    if classifier.pair:
        computed = [name for node in part.node for name in node.output]
        names = {name: f"{name}_2" for name in (*INPUTS[:2], *computed)}
        for node in part.node:
            inputs = [names.get(name, name) for name in node.input]
            outputs = [names[name] for name in node.output]
            twin = NodeProto(name=f"{node.name}_2", input=inputs, output=outputs, attribute=node.attribute)
            twin.op_type = node.op_type
            twin.domain = node.domain
            nodes.append(twin)
        u = embedding
        v = names[embedding]
        parts = [u, v, writer.add("Abs", writer.add("Sub", u, v)), writer.add("Mul", u, v)]
        rows = writer.add("Concat", *parts, axis=-1)
    hidden = writer.add("Relu", writer.linear(rows, classifier.hidden))
    writer.add("Identity", writer.linear(hidden, classifier.out), outputs=["logits"])
    lengths = ("sequence", "sequence", "sequence_2", "sequence_2")
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", length])
        for name, length in zip(INPUTS, lengths, strict=True)
    ]
    shape = ["batch", classifier.out.out_features]
    model = helper.make_model(
        helper.make_graph(
            [*nodes, *writer.nodes],
            "classifier",
            inputs[: 4 if classifier.pair else 2],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)],
            [*part.initializer, *writer.constants],
        ),
        opset_imports=sorted(encoder.opset_import, key=lambda entry: entry.domain),
        ir_version=encoder.ir_version,
        producer_name="edgedistill",
    )
    onnx.checker.check_model(model)
    return model
