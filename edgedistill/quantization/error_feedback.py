"""Rounding a product's weights one input at a time, each rounding error made up for by the inputs that are still to be rounded.

Frantar et al. 2023, GPTQ. What is minimized is the error of the product, E|x·W − x·Q|², and not that of the weights; it needs E[x xᵀ] of
the product's own inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from edgedistill.quantization.four_bits import GROUP, HIGHEST, LOWEST, best_scale
from edgedistill.quantization.graph_facts import GraphFacts
from edgedistill.quantization.sample_batches import TokenIds, activations

DAMPING = 0.1  # of the mean variance, added to each input's: the texts are few, and other texts come
RANDOM_SHARE = 0.25  # of the second moments: random tokens, for texts unlike those given


def second_moments(model: onnx.ModelProto, ids: TokenIds) -> dict[str, np.ndarray]:
    """E[x xᵀ] (K, K) float32 of the inputs x of every product with a constant matrix, by the matrix's name.

    ids: the token ids of texts that this graph may meet; the rest of the moments comes from random tokens up to the largest of these ids,
    in texts of the same lengths. A graph of pairs gets each text twice.
    """
    products = [(node.input[0], node.input[1]) for node in GraphFacts(model).products]
    if not products:
        return {}
    random = np.random.default_rng(0)
    highest = max(max(row) for row in ids if len(row))
    drawn: list[list[int]] = [random.integers(0, highest + 1, len(row)).tolist() for row in ids]
    names = list(dict.fromkeys(name for name, _ in products))
    moments = _moments(model, names, ids)
    for name, extra in _moments(model, names, drawn).items():
        scale = np.trace(moments[name]) / max(np.trace(extra), 1e-30)
        moments[name] = (1 - RANDOM_SHARE) * moments[name] + RANDOM_SHARE * scale * extra
    found: dict[str, np.ndarray] = {}
    for name, matrix in products:  # the matrices of a shared layer are multiplied with several inputs
        found[matrix] = found[matrix] + moments[name] if matrix in found else moments[name]
    return found


def quantize_with_feedback(weight: np.ndarray, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """W (K, N) and E[x xᵀ] (K, K) -> values (N, K) int8 and scales (N, ⌈K / 32⌉) float16, as `four_bits.quantize_groups(W.T)`."""
    inputs, outputs = weight.shape
    rest, values = weight.astype(np.float64), np.zeros((inputs, outputs), np.int8)
    scales = np.zeros((outputs, -(-inputs // GROUP)), np.float16)
    factor = _factor(moments.astype(np.float64))
    for start in range(0, inputs, GROUP):
        end = min(start + GROUP, inputs)
        groups = np.zeros((outputs, GROUP), np.float32)
        groups[:, : end - start] = rest[start:end].T
        scale = best_scale(groups)[:, 0]
        scales[:, start // GROUP] = scale
        errors = np.zeros((end - start, outputs))
        for k in range(start, end):
            values[k] = np.clip(np.rint(rest[k] / scale), LOWEST, HIGHEST)
            errors[k - start] = (rest[k] - values[k] * scale) / factor[k, k]
            rest[k + 1 : end] -= np.outer(factor[k, k + 1 : end], errors[k - start])
        rest[end:] -= factor[start:end, end:].T @ errors
    return np.ascontiguousarray(values.T), scales


def _factor(moments: np.ndarray) -> np.ndarray:
    """The upper triangle U with Uᵀ·U = (E[x xᵀ] + damping)⁻¹."""
    variance = max(float(np.trace(moments)) / len(moments), 1e-30)
    inverse = np.linalg.inv(moments + DAMPING * variance * np.eye(len(moments)))
    return np.ascontiguousarray(np.linalg.cholesky((inverse + inverse.T) / 2).T)


def _moments(model: onnx.ModelProto, names: Sequence[str], ids: TokenIds) -> dict[str, np.ndarray]:
    """E[x xᵀ] of the values of those names over all tokens, or over all texts where a value has one row a text."""
    sums: dict[str, np.ndarray] = {}
    rows = dict.fromkeys(names, 0)
    for values in activations(model, names, ids):
        for name, x in values.items():
            sums[name] = sums.get(name, 0) + x.T @ x
            rows[name] += len(x)
    return {name: total / np.float32(max(rows[name], 1)) for name, total in sums.items()}
