"""Whether an ONNX graph gives what its torch module gives, on random ids at several batch and sequence
lengths."""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnxruntime import InferenceSession
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state
from torch import nn

from edgedistill.errors import CheckFailed
from edgedistill.runtime.golden_file import COSINE, PROBABILITY
from edgedistill.runtime.manifest import INPUTS
from edgedistill.runtime.onnx_session import open_in_memory
from edgedistill.runtime.similarity import unit_rows
from edgedistill.students.graph_writer import pools_to_embedding

SHAPES = (
    (1, 1),
    (1, 0),
    (3, 7),
    (17, 33),
)  # (batch, tokens) that every graph is run at; 0 stands for max_tokens
PAIR_SHAPES = (
    (1, 1, 0),
    (1, 0, 3),
    (3, 7, 7),
    (17, 33, 5),
)  # of a classifier: (batch, tokens, tokens of the second text)
ORT_ERRORS = (
    ort_state.Fail,
    ort_state.RuntimeException,
    ort_state.InvalidArgument,
    ort_state.InvalidGraph,
    ort_state.NotImplemented,
)


def compare(module: nn.Module, model: onnx.ModelProto, max_tokens: int, vocabulary_size: int) -> float:
    """The worst value of a graph's rows to torch's, over all shapes and padded rows: the smallest cosine of a
    student's embeddings, or the largest difference of a classifier's probabilities.

    Where the mean of `last_hidden_state` is to be the embedding, it is compared too: other libraries read it.
    Raises CheckFailed where the graph does not run, as with a fixed dimension, or gives another shape than
    torch.
    """
    pair = getattr(module, "pair", None)  # whether a classifier reads two texts; no student has it
    classifier = pair is not None
    measure, shapes = (PROBABILITY, PAIR_SHAPES) if classifier else (COSINE, SHAPES)
    session = open_in_memory(model.SerializeToString())
    random, worst = np.random.default_rng(0), np.array([measure.best], float)
    for batch, *lengths in shapes:
        arrays: list[np.ndarray] = []
        for length in lengths[: 1 + bool(pair)]:
            tokens = min(length or max_tokens, max_tokens)
            arrays += [random.integers(0, vocabulary_size, (batch, tokens)), _mask(random, batch, tokens)]
        with torch.inference_mode():
            expected = module(*map(torch.from_numpy, arrays))
            expected = (expected if classifier else torch.nn.functional.normalize(expected, dim=-1)).numpy()
        inputs = dict(zip(INPUTS, arrays, strict=False))
        found = [_run(session, "logits" if classifier else "sentence_embedding", inputs)]
        if not classifier and pools_to_embedding(module):
            found.append(_pooled(_run(session, "last_hidden_state", inputs), arrays[1]))
        for rows in found:
            if rows.shape != expected.shape:
                raise CheckFailed(
                    f"the graph gives {rows.shape} at {_shape(inputs)}; torch gives {expected.shape}"
                )
            worst = np.append(worst, measure.between(rows, expected))
    return float(worst[measure.worst_of(worst)])


def _pooled(tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The mean of each text's token embeddings (B, T, d), at unit length: (B, d)."""
    return unit_rows((tokens * mask[:, :, None]).sum(1))


def _mask(random: np.random.Generator, batch: int, tokens: int) -> np.ndarray:
    """An attention mask (B, T) of right-padded rows, each with a random length of at least 1."""
    return (np.arange(tokens) < random.integers(1, tokens + 1, (batch, 1))).astype(np.int64)


def _run(session: InferenceSession, output: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    try:
        found: np.ndarray = session.run([output], inputs)[0]
    except ORT_ERRORS as error:
        raise CheckFailed(f"the graph does not run at {_shape(inputs)}: {error}") from None
    return found


def _shape(inputs: dict[str, np.ndarray]) -> str:
    batch, tokens = inputs["input_ids"].shape
    return f"batch {batch}, {tokens} tokens"
