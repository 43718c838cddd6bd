"""Static students: a vector and a weight for each piece, summed and averaged; no layer sees two pieces at once (model2vec; SIF)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from edgedistill import recipe
from edgedistill.students import embedding_tables, head
from edgedistill.students.pooling import pool

SIF = 1e-3  # a of a / (a + p): pieces rarer than this keep most of their weight (Arora et al. 2017, §3)


class StaticStudent(nn.Module):
    """`forward(input_ids, attention_mask) -> (B, d)`: the mean of a text's rows, each times its piece's learned weight.

    The padding piece's row of a whole table is zero and stays zero. Rows start in PCA's order, so that first numbers say most (Matryoshka).
    """

    def __init__(self, embedding: Any, head: nn.Linear | None, tanh: bool) -> None:
        super().__init__()
        self.embedding = embedding
        self.weights = nn.Parameter(torch.ones(embedding.num_embeddings))
        self.head = head
        self.tanh = tanh

    @property
    def dims(self) -> int:
        return self.head.out_features if self.head is not None else self.embedding.embedding_dim

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids, attention_mask (B, T) int64, right-padded. Returns (B, d)."""
        # a look-up, not an index: the gradient of an index is summed by threads in any order, and resuming must give the same bytes
        weights = nn.functional.embedding(input_ids, self.weights.unsqueeze(-1))
        vectors = pool(self.embedding(input_ids) * weights, attention_mask, "mean")
        vectors = vectors if self.head is None else self.head(vectors)
        return vectors.tanh() if self.tanh else vectors

    def table(self) -> Tensor:
        """The rows times their weights (V, width): all that a device needs to look up."""
        return self.embedding.weight.detach() * self.weights.detach().unsqueeze(-1)


def shape(spec: recipe.Static, pieces: int, pad: int, teacher_dims: int) -> dict[str, Any]:
    """Everything needed to build the module again, as data. Raises UserError for codes that do not divide the width."""
    embedding_tables.check(None, spec.codes, spec.width)
    return {
        "kind": "static",
        "pieces": pieces,
        "pad": pad,
        "width": spec.width,
        "codes": spec.codes,
        **head.shape(spec, teacher_dims),
        "max_tokens": spec.max_tokens,
    }


def build(shape: dict[str, Any]) -> StaticStudent:
    """The module, with weights drawn from torch's generator; all pieces weigh 1."""
    embedding = embedding_tables.build(shape, shape["pieces"], shape["width"], shape["pad"], 1.0)
    if embedding is None:
        embedding = nn.Embedding(shape["pieces"], shape["width"], padding_idx=shape["pad"])
    linear = head.build(shape, shape["width"])
    return StaticStudent(embedding, linear, shape["tanh"])


def start(student: StaticStudent, words: Tensor | None, outputs: bool, weights: Tensor | None = None) -> None:
    """Set the table in place from vectors of the student's pieces (V, w), reduced by PCA where they are wider.

    `outputs`: they live in the teacher's output space, so a linear head starts by leading the reduced ones back there. A head's
    bias starts at zero: PCA took the mean of all pieces away, as SIF takes away what all texts have in common. `weights` (V,): what
    each piece counts for in the PCA.
    """
    if words is None:
        return
    with torch.no_grad():
        table = student.embedding
        embedding_tables.start(table, embedding_tables.fitted(words, table.embedding_dim, weights), weights)
        if isinstance(table, nn.Embedding):
            table.weight[table.padding_idx] = 0
        if outputs and student.head is not None and student.head.out_features == words.shape[1] > table.embedding_dim:
            student.head.weight.copy_(embedding_tables.principal(words, table.embedding_dim, weights))
        if student.head is not None and student.head.bias is not None:
            student.head.bias.zero_()


def weigh(student: StaticStudent, counts: Tensor) -> None:
    """Set each piece's weight in place to a / (a + p), p its share of the corpus' tokens (SIF, Arora et al. 2017, Eq. 4).

    counts (V,): how often each piece occurs; one that never does weighs 1.
    """
    with torch.no_grad():
        share = counts.double() / counts.sum().clamp(min=1)
        student.weights.copy_(SIF / (SIF + share))


def parameters(student: StaticStudent) -> dict[str, int]:
    """The table with its weights; no encoder; the head."""
    embedding = head.count(student.embedding) + student.weights.numel()
    return {"embedding": embedding, "encoder": 0, "head": head.count(student.head), "total": head.count(student)}
