"""Embedding tables: full, factorized or product-quantized; and how other token embeddings are reduced to a
table's width."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.students import product_quantization
from edgedistill.students.graph_writer import GraphWriter
from edgedistill.students.product_quantization import CENTROIDS, ProductQuantizedEmbedding


class FactorizedEmbedding(nn.Module):
    """An embedding table (V, H) as a product of a table (V, r) and a projection r → H: V·r + r·H parameters
    instead of V·H."""

    def __init__(self, vocabulary_size: int, rank: int, width: int, pad: int) -> None:
        super().__init__()
        self.embedding_dim = width
        self.table = nn.Embedding(vocabulary_size, rank, padding_idx=pad)
        self.project = nn.Linear(rank, width, bias=False)

    @property
    def weight(self) -> Tensor:
        """The full table that the product stands for, (V, H)."""
        return self.table.weight @ self.project.weight.T

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.project(self.table(input_ids))


def check(bottleneck: int | None, pq_bytes: int | None, width: int) -> None:
    """Raise UserError for a bottleneck wider than the layers, or PQ bytes that do not divide their width into
    blocks."""
    if bottleneck is not None and bottleneck > width:
        raise UserError(
            f"student.bottleneck: {bottleneck} is wider than the layers ({width}); give less, or leave it out"
        )
    if pq_bytes is not None and width % pq_bytes:
        known = ", ".join(str(count) for count in range(width, 0, -1) if width % count == 0)
        raise UserError(
            f"student.pq_bytes: {pq_bytes} blocks do not divide a width of {width}; choose one of ({known})"
        )


def product_quantized(spec: recipe.BuiltStudent) -> Json:
    """The part of a shape that is about PQ codes: how many per token, and centroids per code where they are
    not the usual 256."""
    return {
        "pq_bytes": spec.pq_bytes,
        **({} if spec.pq_centroids == CENTROIDS else {"pq_centroids": spec.pq_centroids}),
    }


def build(shape: Json, vocabulary_size: int, width: int, pad: int, std: float = 1.0) -> Any:
    """The table of a shape (`bottleneck`, `pq_bytes`, `pq_centroids`), drawn from a normal distribution.

    A full table of standard deviation 1 keeps the row of padding at zero.
    """
    table: Any
    if shape.get("bottleneck"):
        table = FactorizedEmbedding(vocabulary_size, shape["bottleneck"], width, pad)
        parts = [table.table, table.project]
    elif shape.get("pq_bytes"):
        centroids = shape.get("pq_centroids", CENTROIDS)
        table = ProductQuantizedEmbedding(vocabulary_size, width, shape["pq_bytes"], centroids)
        parts = [table.book]
    else:
        table = nn.Embedding(vocabulary_size, width, padding_idx=pad)
        parts = [] if std == 1 else [table]
    for part in parts:
        nn.init.normal_(part.weight, std=std)
    return table


@torch.no_grad()
def initialize(table: Any, token_embeddings: Tensor, token_weights: Tensor | None = None) -> None:
    """Set a table in place to token embeddings (V, w), or to the nearest that it can represent.

    They are reduced to its width where they are wider. token_weights (V,) weight the errors.
    """
    rows = reduce_width(token_embeddings, table.embedding_dim, token_weights)
    if isinstance(table, FactorizedEmbedding):
        narrow, wide = factors(rows, table.table.embedding_dim, token_weights)
        table.table.weight.copy_(narrow)
        table.project.weight.copy_(wide)
    elif isinstance(table, ProductQuantizedEmbedding):
        table.fit(rows, token_weights)
    else:
        table.weight.copy_(rows)


def factors(table: Tensor, rank: int, token_weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Factorize (V, H) ≈ (V, rank) · (H, rank)ᵀ with the least squared error, by the directions of the
    largest second moments (Eckart-Young).

    With `token_weights` (V,) it minimizes Σ_v weight_v ‖row_v − its product‖². Most rows of an embedding
    table belong to rare tokens, and with equal weights most of the rank is spent on those.
    """
    rows = table.double()
    weighted = rows if token_weights is None else token_weights.double().unsqueeze(-1) * rows
    directions = _largest(rows.T @ weighted, rank)
    return (rows @ directions).float(), directions.float()


def reduce_width(token_embeddings: Tensor, width: int, token_weights: Tensor | None = None) -> Tensor:
    """(V, w) -> (V, width): unchanged where w is the width, else the first principal components, with fixed
    signs.

    Raises UserError where the token embeddings are narrower than the table.
    """
    if token_embeddings.shape[1] == width:
        return token_embeddings
    if token_embeddings.shape[1] < width:
        raise UserError(
            f"student.embeddings: token embeddings of {token_embeddings.shape[1]} dimensions for a width of "
            f"{width}; lower the width"
        )
    centred = token_embeddings - _mean(token_embeddings, token_weights)
    return (centred.double() @ principal_directions(token_embeddings, width, token_weights)).float()


def principal_directions(vectors: Tensor, width: int, weights: Tensor | None = None) -> Tensor:
    """The first principal directions of vectors (V, w), as columns (w, width) float64; `weights` (V,) are
    those of the vectors."""
    centred = vectors - _mean(vectors, weights)
    weighted = centred if weights is None else weights.float().unsqueeze(-1) * centred
    return _largest((centred.T @ weighted).double(), width)


def _largest(moments: Tensor, count: int) -> Tensor:
    """The eigenvectors of the largest eigenvalues, as columns, with fixed signs."""
    directions = torch.linalg.eigh(moments)[1].flip(1)[:, :count]
    return directions * directions.sum(0).sign()


def _mean(vectors: Tensor, weights: Tensor | None) -> Tensor:
    return (
        vectors.mean(0) if weights is None else (weights.double() @ vectors.double() / weights.sum()).float()
    )


def lookup(writer: GraphWriter, table: Any, ids: str) -> str:
    """Write the lookup of ids (A, B) in a table: (A, B, H)."""
    if isinstance(table, ProductQuantizedEmbedding):
        return product_quantization.lookup(writer, table, ids)
    if isinstance(table, FactorizedEmbedding):
        return writer.linear(writer.add("Gather", writer.parameter(table.table.weight), ids), table.project)
    return writer.add("Gather", writer.parameter(table.weight), ids)
