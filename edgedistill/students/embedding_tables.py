"""Word tables: whole, factorised, or product-quantized; and how vectors of pieces come to a table's width."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from edgedistill.errors import UserError

CENTROIDS = 256  # of a block: what one byte tells apart
ITERATIONS = 25  # of k-means; the error falls by less than a hundredth after them


class Factorised(nn.Module):
    """A word table of V pieces × r numbers, and r → H: V·r + r·H numbers in place of V·H."""

    def __init__(self, pieces: int, rank: int, width: int, pad: int) -> None:
        super().__init__()
        self.table = nn.Embedding(pieces, rank, padding_idx=pad)
        self.project = nn.Linear(rank, width, bias=False)

    @property
    def weight(self) -> Tensor:
        """The full table this stands for, (V, H)."""
        return self.table.weight @ self.project.weight.T

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.project(self.table(input_ids))


class Coded(nn.Module):
    """A product-quantized word table (Jégou et al. 2011): H numbers a piece in M blocks, each block one of 256 that all pieces share.

    codes (V, M) uint8 say which; book (M·256, H/M) has the blocks' numbers. V·M bytes and 256·H numbers in place of V·H. Codes are
    fixed once they are fitted, the book learns. Number h belongs to block h mod M, so that rows in PCA's order, whose first numbers
    say most, load all blocks alike.
    """

    codes: Tensor
    offsets: Tensor

    def __init__(self, pieces: int, width: int, blocks: int) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = pieces, width
        self.register_buffer("codes", torch.randint(CENTROIDS, (pieces, blocks), dtype=torch.uint8))
        self.register_buffer("offsets", CENTROIDS * torch.arange(blocks, dtype=torch.int32), persistent=False)
        self.book = nn.Embedding(CENTROIDS * blocks, width // blocks)

    @property
    def weight(self) -> Tensor:
        """The full table this stands for, (V, H)."""
        return self._rows(self.codes)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self._rows(embedding(input_ids, self.codes))

    def _rows(self, codes: Tensor) -> Tensor:
        """(…, M) uint8 -> (…, H)."""
        return self.book(codes + self.offsets).transpose(-1, -2).flatten(-2)

    @torch.no_grad()
    def fit(self, words: Tensor, weights: Tensor | None = None) -> None:
        """Set codes and book so that rows (V, H) come back with a small squared error, block by block (k-means).

        `weights` (V,): what each piece's error counts for. A block of at most 256 different values comes back exactly: few pieces, or
        rows of a table like this one.
        """
        from sklearn.cluster import KMeans
        from threadpoolctl import threadpool_limits

        blocks = self.codes.shape[1]
        parts = words.detach().float().unflatten(-1, (-1, blocks)).transpose(-1, -2).numpy()  # (V, M, H / M)
        counted = None if weights is None else (weights / weights.mean()).numpy()

        def coded(block: int) -> tuple[np.ndarray, np.ndarray]:
            values, codes = np.unique(parts[:, block], axis=0, return_inverse=True)
            if len(values) <= CENTROIDS:
                return values, codes
            means = KMeans(CENTROIDS, init="random", n_init=1, max_iter=ITERATIONS, random_state=0)
            means.fit(parts[:, block], sample_weight=counted)
            return means.cluster_centers_, means.labels_

        # one thread a block: threads within one would add up in any order, and the same recipe must give the same weights
        with threadpool_limits(1), ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for block, (values, codes) in enumerate(pool.map(coded, range(blocks))):
                self.codes[:, block] = torch.from_numpy(codes)
                self.book.weight[block * CENTROIDS : block * CENTROIDS + len(values)] = torch.from_numpy(values)


def check(bottleneck: int | None, codes: int | None, width: int) -> None:
    """Raises UserError: a bottleneck wider than the layers, codes that do not divide their width into blocks."""
    if bottleneck is not None and bottleneck > width:
        raise UserError(f"student.bottleneck: {bottleneck} is wider than the layers ({width}); give less, or leave it out")
    if codes is not None and width % codes:
        known = ", ".join(str(count) for count in range(width, 0, -1) if width % count == 0)
        raise UserError(f"student.codes: {codes} codes do not divide a width of {width}; choose one of ({known})")


def build(shape: dict[str, Any], pieces: int, width: int, pad: int, std: float) -> nn.Module | None:
    """The table that a student's shape asks for (`bottleneck`, `codes`), from a normal distribution; None: a whole one."""
    table: Any = None
    if shape.get("bottleneck"):
        table = Factorised(pieces, shape["bottleneck"], width, pad)
        parts = [table.table, table.project]
    elif shape.get("codes"):
        table = Coded(pieces, width, shape["codes"])
        parts = [table.book]
    for part in parts if table is not None else []:
        nn.init.normal_(part.weight, std=std)
    return table


@torch.no_grad()
def start(table: Any, words: Tensor, weights: Tensor | None = None) -> None:
    """Set a table in place to vectors of its pieces (V, H), or the nearest it can hold; `weights` (V,): what each piece counts for."""
    if isinstance(table, Factorised):
        narrow, wide = factors(words, table.table.embedding_dim, weights)
        table.table.weight.copy_(narrow)
        table.project.weight.copy_(wide)
    elif isinstance(table, Coded):
        table.fit(words, weights)
    else:
        table.weight.copy_(words)


def factors(words: Tensor, rank: int, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(V, H) as a product (V, rank) · (H, rank)ᵀ that is nearest in squares: the truncated SVD.

    `weights` (V,): Σ_v weight_v ‖row_v − its product‖² is least, which is the SVD of √weight_v · row_v, undone. Most rows of a word
    table are hardly ever read; equal weights spend most of the rank on those.
    """
    if weights is None:
        left, values, right = torch.linalg.svd(words, full_matrices=False)
        return left[:, :rank] * values[:rank], right[:rank].T
    rows = words.double()
    _, directions = torch.linalg.eigh(rows.T @ (weights.double().unsqueeze(-1) * rows))
    directions = directions.flip(1)[:, :rank]
    directions = directions * directions.sum(0).sign()
    return (rows @ directions).float(), directions.float()


def fitted(words: Tensor, width: int, weights: Tensor | None = None) -> Tensor:
    """(V, w) -> (V, width): as they are, or their first principal components, signs fixed so that all machines agree."""
    if words.shape[1] == width:
        return words
    if words.shape[1] < width:
        raise UserError(f"student.embeddings: word vectors of {words.shape[1]} numbers for a width of {width}; lower the width")
    return ((words - _mean(words, weights)).double() @ principal(words, width, weights)).float()


def _mean(words: Tensor, weights: Tensor | None) -> Tensor:
    return words.mean(0) if weights is None else (weights.double() @ words.double() / weights.sum()).float()


def principal(words: Tensor, width: int, weights: Tensor | None = None) -> Tensor:
    """The first principal directions of vectors (V, w), as columns (w, width) float64; `weights` (V,): what each counts for."""
    centred = words - _mean(words, weights)
    _, directions = torch.linalg.eigh((centred.T @ (centred if weights is None else weights.float().unsqueeze(-1) * centred)).double())
    directions = directions.flip(1)[:, :width]
    return directions * directions.sum(0).sign()
