"""A product-quantized embedding table: a code of one or two bytes per token and block, and a codebook that
all tokens share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from onnx import TensorProto
from torch import Tensor, nn

from edgedistill.students.graph_writer import GraphWriter

CENTROIDS = 256  # per block, unless more are asked for: the values of one byte
ITERATIONS = 25  # of k-means; more of them lower the error by less than a hundredth


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
        self.num_embeddings = vocabulary_size
        self.embedding_dim = width
        self.centroids = centroids
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


def lookup(writer: GraphWriter, table: ProductQuantizedEmbedding, ids: str) -> str:
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
