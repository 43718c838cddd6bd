"""Static students: the weighted mean of token embeddings, with no layer that mixes tokens (model2vec;
SIF)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from onnx import ModelProto
from torch import Tensor, nn

from edgedistill import recipe
from edgedistill.files import Json
from edgedistill.students import embedding_tables
from edgedistill.students import head as heads
from edgedistill.students.embedding_tables import lookup
from edgedistill.students.graph_writer import GraphWriter, finish
from edgedistill.students.head import Headed
from edgedistill.students.kind import Kind, Start, TableShape, build_to_train, table_shape
from edgedistill.students.pooling import mean_nodes, pool
from edgedistill.students.product_quantization import ProductQuantizedEmbedding

SIF = 1e-3  # a of a / (a + p): tokens rarer than this keep most of their weight (Arora et al. 2017, §3)


class StaticStudent(Headed):
    """`forward(input_ids, attention_mask) -> (B, d)`: the mean of a text's token embeddings, each times its
    token's learned weight.

    In a full table the padding token's row is zero and stays zero. Initial rows come from a PCA, so the first
    dimensions hold the largest variance (Matryoshka).
    """

    def __init__(self, embedding: Any, head: nn.Linear | None, tanh: bool) -> None:
        super().__init__()
        self.embedding = embedding
        self.weights = nn.Parameter(torch.ones(embedding.num_embeddings))
        self.head = head
        self.tanh = tanh
        self.pooled_dims = embedding.embedding_dim

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids, attention_mask (B, T) int64, right-padded. Returns (B, d)."""
        # F.embedding, not indexing: threads sum the gradient of indexing in any order, and a resumed run must
        # give the same bytes
        weights = nn.functional.embedding(input_ids, self.weights.unsqueeze(-1))
        rows = self.embedding(input_ids) * weights
        return self.through_head(pool(rows, attention_mask, "mean"), input_ids, attention_mask)

    def counts(self) -> dict[str, int]:
        """The embedding table with the token weights; no encoder; the head."""
        return heads.counts(self, heads.count(self.embedding) + self.weights.numel(), self.head)

    def write(self) -> ModelProto:
        """Write the graph. Rows and token weights are multiplied into one table; a product-quantized table
        keeps its weights apart."""
        writer = GraphWriter(self)
        table = self.embedding
        if isinstance(table, ProductQuantizedEmbedding):
            weights = writer.of_tokens(self.weights)
            rows = writer.add("Mul", lookup(writer, table, "input_ids"), weights)
        else:
            whole = writer.parameter(table.weight, table.weight * self.weights.unsqueeze(-1))
            rows = writer.add("Gather", whole, "input_ids")
        return finish(writer, mean_nodes(writer, rows, "mean"), self)


class StaticShape(TableShape):
    """A static student's shape."""

    kind: Literal["static"]


def build(shape: Json) -> StaticStudent:
    """The module, with weights drawn from torch's generator and token weights of 1."""
    count = shape["vocabulary_size"]
    width = shape["width"]
    embedding = embedding_tables.build(shape, count, width, shape["pad"])
    student = StaticStudent(embedding, heads.build(shape, width), shape["tanh"])
    return heads.with_lexical_channel(student, shape, count)


def initialize(
    student: StaticStudent, token_embeddings: Tensor, outputs: bool, token_weights: Tensor | None = None
) -> None:
    """Set the table in place from token embeddings (V, w), reduced by PCA where they are wider.

    `outputs` says that they are the teacher's outputs: a head that gives as many dimensions starts with the
    directions of the PCA, and so gives them back. A head's bias is set to zero: the PCA removed the mean of
    all tokens, as SIF removes what all texts have in common. `token_weights` (V,) weight each token in the
    PCA.
    """
    table = student.embedding
    head = student.head
    width = student.pooled_dims
    embedding_tables.initialize(table, token_embeddings, token_weights)
    with torch.no_grad():
        if isinstance(table, nn.Embedding):
            table.weight[table.padding_idx] = 0
        if outputs and head is not None and head.out_features == token_embeddings.shape[1] > width:
            head.weight.copy_(embedding_tables.principal_directions(token_embeddings, width, token_weights))
        if head is not None and head.bias is not None:
            head.bias.zero_()


def set_sif_weights(student: StaticStudent, counts: Tensor) -> None:
    """Set each token's weight in place to a / (a + p), p its share of the corpus' tokens (SIF, Arora et al.
    2017, Eq. 4).

    `counts` (V,) says how often each token occurs; a token that never occurs gets weight 1.
    """
    with torch.no_grad():
        share = counts.double() / counts.sum().clamp(min=1)
        student.weights.copy_(SIF / (SIF + share))


def initial(spec: recipe.Static, start: Start) -> tuple[StaticStudent, Json]:
    """The recipe's student with its initial weights, and its shape."""
    student_shape = table_shape(spec, start.vocabulary_size, start.pad_id, start.dims)
    student = build_to_train(build, student_shape, start.shape_only)
    if start.embeddings is not None:
        initialize(student, start.embeddings, spec.embeddings.of == "outputs", start.token_weights)
    return student, student_shape


def restore(weights: dict[str, np.ndarray]) -> None:
    """Token weights are 1 where a graph holds them as part of its table; in place."""
    if "embedding.weight" in weights:
        weights["weights"] = np.ones(len(weights["embedding.weight"]), np.float32)


KIND = Kind(StaticShape, initial, build, restore)
