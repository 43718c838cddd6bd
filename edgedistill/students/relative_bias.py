"""MPNet's relative attention bias: what a query adds to its score for a key, by their distance in tokens; the
same in all layers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from edgedistill.students.graph_writer import GraphWriter

BUCKETS = 32  # that transformers has distances for; a table with fewer rows cannot be read
FARTHEST = 128  # tokens; a longer distance has the bias of this one


class RelativeBias(nn.Module):
    """A learned bias for each bucket of distances and each head; `forward(tokens) -> (1, heads, T, T)`,
    queries by keys.

    Distances up to 7 have a bucket each, longer ones share theirs with their neighbours on a logarithmic
    scale (Raffel et al. 2020, T5).
    """

    def __init__(self, buckets: int, heads: int) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, heads)

    def by_distance(self) -> Tensor:
        """(2 · FARTHEST + 1, heads): the bias of keys from FARTHEST tokens before the query to FARTHEST
        behind it."""
        distances = torch.arange(-FARTHEST, FARTHEST + 1, device=self.table.weight.device)
        return self.table(MPNetEncoder.relative_position_bucket(distances))

    def load_by_distance(self, biases: Tensor) -> None:
        """Set the table in place so that `by_distance` gives `biases` (2 · FARTHEST + 1, heads); buckets of
        no distance become zero."""
        buckets = MPNetEncoder.relative_position_bucket(torch.arange(-FARTHEST, FARTHEST + 1))
        with torch.no_grad():
            self.table.weight.zero_()
            self.table.weight[buckets] = biases

    def forward(self, tokens: int) -> Tensor:
        at = torch.arange(tokens, device=self.table.weight.device)
        rows = (at[None, :] - at[:, None]).clamp(-FARTHEST, FARTHEST) + FARTHEST
        return self.by_distance()[rows].permute(2, 0, 1).unsqueeze(0)


def relative_scores(writer: GraphWriter, bias: RelativeBias) -> str:
    """What a relative bias adds to the scores of queries by keys: (1, heads, T, T), looked up by their
    distance."""
    # of three dimensions, so that the quantizers leave it in float32
    table = writer.parameter(bias.table.weight, bias.by_distance()[None], "[distances]")
    far = [writer.constant(np.int64(distance), "far") for distance in (-FARTHEST, FARTHEST)]
    length = writer.add("Squeeze", writer.add("Shape", "input_ids", start=1, end=2))
    zero, one = writer.constant(np.int64(0), "zero"), writer.constant(np.int64(1), "one")
    positions = writer.add("Range", zero, length, one)
    keys, queries = (writer.add("Unsqueeze", positions, writer.constant([axis], "axis")) for axis in (0, 1))
    near = writer.add("Clip", writer.add("Sub", keys, queries), *far)
    # all heads of a distance at once: 6 × as fast
    rows = writer.add("Gather", table, writer.add("Add", near, far[1]), axis=1)
    return writer.add("Transpose", rows, perm=[0, 3, 1, 2])
