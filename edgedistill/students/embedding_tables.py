"""Embedding tables: full, factorized or product-quantized; and how other token embeddings are reduced to a
table's width."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from onnx import TensorProto
from torch import Tensor, nn

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.students.graph_writer import GraphWriter

CENTROIDS = 256  # per block, unless more are asked for: the values of one byte
ITERATIONS = 25  # of k-means; more of them lower the error by less than a hundredth


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


class ProductQuantizedEmbedding(nn.Module):
    """An embedding table (V, H) stored as PQ codes (Jégou et al. 2011): a row has M blocks, each one of K
    centroids of that block.

    codes (V, M) hold the centroids' indices, book (M·K, H/M) the centroids: V·M codes and K·H parameters
    instead of V·H parameters. A code is uint8, above 256 centroids int16. Codes are fixed once fitted; the
    codebook is trained. Dimension h belongs to block h mod M: rows from a PCA have their largest variance in
    the first dimensions, and this spreads it over all blocks.
    """

    codes: Tensor
    offsets: Tensor

    def __init__(self, vocabulary_size: int, width: int, blocks: int, centroids: int = CENTROIDS) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.centroids = vocabulary_size, width, centroids
        self.register_buffer(
            "codes",
            torch.randint(
                centroids,
                (vocabulary_size, blocks),
                dtype=torch.uint8 if centroids <= CENTROIDS else torch.int16,
            ),
        )
        self.register_buffer("offsets", centroids * torch.arange(blocks, dtype=torch.int32), persistent=False)
        self.book = nn.Embedding(centroids * blocks, width // blocks)

    @property
    def weight(self) -> Tensor:
        """The full table that the codes stand for, (V, H)."""
        return self._rows(self.codes)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self._rows(nn.functional.embedding(input_ids, self.codes))

    def _rows(self, codes: Tensor) -> Tensor:
        """(…, M) uint8 -> (…, H)."""
        return self.book(codes + self.offsets).transpose(-1, -2).flatten(-2)

    @torch.no_grad()
    def fit(self, table: Tensor, token_weights: Tensor | None = None) -> None:
        """Set codes and codebook in place to approximate a table (V, H) with a small squared error, block by
        block (k-means).

        `token_weights` (V,) weight each token's error. A block with at most K distinct values is
        reproduced exactly, as with a small vocabulary, or a table that was product-quantized before.
        """
        from sklearn.cluster import KMeans
        from threadpoolctl import threadpool_limits

        blocks = self.codes.shape[1]
        parts = table.detach().float().unflatten(-1, (-1, blocks)).transpose(-1, -2).numpy()  # (V, M, H / M)
        weights = None if token_weights is None else (token_weights / token_weights.mean()).numpy()

        def fit_block(block: int) -> tuple[np.ndarray, np.ndarray]:
            centroids, codes = np.unique(parts[:, block], axis=0, return_inverse=True)
            if len(centroids) <= self.centroids:
                return centroids, codes
            means = KMeans(self.centroids, init="random", n_init=1, max_iter=ITERATIONS, random_state=0)
            means.fit(parts[:, block], sample_weight=weights)
            return means.cluster_centers_, means.labels_

        # one thread per block: several threads within a block would sum in any order, and a recipe must
        # always give the same weights
        with threadpool_limits(1), ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for block, (centroids, codes) in enumerate(pool.map(fit_block, range(blocks))):
                self.codes[:, block] = torch.from_numpy(codes)
                self.book.weight[block * self.centroids : block * self.centroids + len(centroids)] = (
                    torch.from_numpy(centroids)
                )


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


def product_quantized(spec: recipe.BuiltStudent) -> dict[str, Any]:
    """The part of a shape that is about PQ codes: how many per token, and centroids per code where they are
    not the usual 256."""
    return {
        "pq_bytes": spec.pq_bytes,
        **({} if spec.pq_centroids == CENTROIDS else {"pq_centroids": spec.pq_centroids}),
    }


def build(shape: dict[str, Any], vocabulary_size: int, width: int, pad: int, std: float = 1.0) -> Any:
    """The table of a shape (`bottleneck`, `codes`, `centroids`), drawn from a normal distribution.

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


@torch.no_grad()
def reconstruct(
    head: nn.Linear | None, token_embeddings: Tensor, width: int, token_weights: Tensor | None
) -> bool:
    """Set a head's matrix in place to give back the teacher's outputs (V, w), which were reduced to a table's
    width; returns whether there is a head for that."""
    if head is None or not head.out_features == token_embeddings.shape[1] > width:
        return False
    head.weight.copy_(principal_directions(token_embeddings, width, token_weights))
    return True


def factors(table: Tensor, rank: int, token_weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Factorize (V, H) ≈ (V, rank) · (H, rank)ᵀ with the least squared error: the truncated SVD
    (Eckart-Young).

    With `token_weights` (V,) it minimizes Σ_v weight_v ‖row_v − its product‖², by the SVD of √weight_v ·
    row_v. Most rows of an embedding table belong to rare tokens, and with equal weights most of the rank is
    spent on those.
    """
    if token_weights is None:
        left, values, right = torch.linalg.svd(table, full_matrices=False)
        return left[:, :rank] * values[:rank], right[:rank].T
    rows = table.double()
    _, directions = torch.linalg.eigh(rows.T @ (token_weights.double().unsqueeze(-1) * rows))
    directions = directions.flip(1)[:, :rank]
    directions = directions * directions.sum(0).sign()
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
    _, directions = torch.linalg.eigh(
        (centred.T @ (centred if weights is None else weights.float().unsqueeze(-1) * centred)).double()
    )
    directions = directions.flip(1)[:, :width]
    return directions * directions.sum(0).sign()


def _mean(vectors: Tensor, weights: Tensor | None) -> Tensor:
    return (
        vectors.mean(0) if weights is None else (weights.double() @ vectors.double() / weights.sum()).float()
    )


def lookup(writer: GraphWriter, table: Any, ids: str) -> str:
    """Write the lookup of ids (A, B) in a table: (A, B, H)."""
    if isinstance(table, ProductQuantizedEmbedding):
        return _product_quantized(writer, table, ids)
    if isinstance(table, FactorizedEmbedding):
        return writer.linear(writer.add("Gather", writer.parameter(table.table.weight), ids), table.project)
    return writer.add("Gather", writer.parameter(table.weight), ids)


def _product_quantized(writer: GraphWriter, table: ProductQuantizedEmbedding, ids: str) -> str:
    """Gather the PQ codes, then their centroids from the codebook, and interleave the blocks' dimensions."""
    codes = writer.add("Gather", writer.parameter(table.codes), ids)
    indices = writer.add(
        "Add", writer.add("Cast", codes, to=TensorProto.INT32), writer.constant(table.offsets, "block")
    )
    size = table.book.embedding_dim
    # one row per block: in 8 bits every row gets its own scale
    book = writer.parameter(table.book.weight, table.book.weight.view(table.codes.shape[1], -1))
    parts = writer.add("Gather", writer.add("Reshape", book, writer.constant([-1, size], "shape")), indices)
    return writer.add(
        "Reshape", writer.add("Transpose", parts, perm=[0, 1, 3, 2]), writer.constant([0, 0, -1], "shape")
    )
