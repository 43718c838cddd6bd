"""What a graph computes inside for sample texts, given as token ids. Batches have one length: padding would
count as input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import helper

from edgedistill.runtime.onnx_session import open_in_memory

BATCH_TOKENS = 1_024

TokenIds = Sequence[Sequence[int]]  # of texts, unpadded, with their special tokens


def same_length(ids: TokenIds) -> Iterator[tuple[list[int], np.ndarray]]:
    """(the indices of B texts of T tokens each, their ids (B, T) int64); texts without tokens are left
    out."""
    by_length: dict[int, list[int]] = {}
    for at, row in enumerate(ids):
        by_length.setdefault(len(row), []).append(at)
    for length, texts in sorted(by_length.items()):
        size = max(1, BATCH_TOKENS // max(length, 1))
        for start in range(0, len(texts) if length else 0, size):
            batch = texts[start : start + size]
            yield batch, np.array([ids[at] for at in batch], np.int64)


def activations(
    model: onnx.ModelProto, names: Sequence[str], ids: TokenIds
) -> Iterator[dict[str, np.ndarray]]:
    """For each batch, the values of those names as rows of their last dimension. A graph of pairs gets each
    text twice."""
    for values in values_of(model, names, ids):
        yield {name: value.reshape(-1, value.shape[-1]) for name, value in values.items()}


def values_of(model: onnx.ModelProto, names: Sequence[str], ids: TokenIds) -> Iterator[dict[str, np.ndarray]]:
    """For each batch, the values of those names. A graph of pairs gets each text twice."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    watched.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = open_in_memory(watched.SerializeToString())
    for _, batch in same_length(ids):
        inputs = {
            each.name: batch if each.name.startswith("input_ids") else np.ones_like(batch)
            for each in session.get_inputs()
        }
        yield dict(zip(names, session.run(list(names), inputs), strict=True))
