"""Fixed scales for the channels of activations: measured on sample texts, and divided between activations and weights.

A few channels of a transformer's activations are many times as large as the others. One scale for all of them wastes the 8 bits of the
rest, so every channel is divided by a factor of its own, which the rows of the weight behind it are multiplied by.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from edgedistill.quantization.sample_batches import TokenIds, activations

TINY = 1e-12
HEADROOM = 1.1  # over what was measured: clipping a channel costs more than a coarser step
EXPONENT = 0.75  # how much of a channel's range the activation's factor takes; the weight takes the rest. Flat between 0.7 and 0.8


def largest_values(model: onnx.ModelProto, names: Sequence[str], samples: TokenIds) -> dict[str, np.ndarray]:
    """The largest absolute value (K,) of each channel of the activations of those names, over all tokens of the samples."""
    largest = {name: np.array(TINY, np.float32) for name in names}
    for values in activations(model, names, samples) if names else ():
        for name, rows in values.items():
            largest[name] = np.maximum(largest[name], np.abs(rows).max(0))
    return {name: values * HEADROOM for name, values in largest.items()}


def factors(largest: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
    """(K,) what to divide each channel by. largest (K,): of the activations; weights: all that read them, each (K, N).

    Xiao et al. 2023, SmoothQuant, equation 4.
    """
    of_weights = np.maximum(np.max([np.abs(weight).max(1) for weight in weights], axis=0), TINY)
    return np.asarray(np.maximum(largest, TINY) ** EXPONENT / of_weights ** (1 - EXPONENT), np.float32)
