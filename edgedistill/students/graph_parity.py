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
from edgedistill.runtime.manifest import INPUTS
from edgedistill.runtime.onnx_session import open_in_memory
from edgedistill.runtime.similarity import COSINE, unit_rows
from edgedistill.students.graph_writer import pools_to_embedding

SHAPES = (
    (1, 1),
    (1, 0),
    (3, 7),
    (17, 33),
)  # (batch, tokens) that every graph is run at; 0 stands for max_tokens
ORT_ERRORS = (
    ort_state.Fail,
    ort_state.RuntimeException,
    ort_state.InvalidArgument,
    ort_state.InvalidGraph,
    ort_state.NotImplemented,
)


def compare(module: nn.Module, model: onnx.ModelProto, max_tokens: int, vocabulary_size: int) -> float:
    """The smallest cosine of a graph's embeddings to a student's in torch, over all shapes and padded rows.

    Where the mean of `last_hidden_state` is to be the embedding, it is compared too: other libraries read it.
    Raises CheckFailed where the graph does not run, as with a fixed dimension, or gives another shape than
    torch.
    """
    session = open_in_memory(model.SerializeToString())
    random, worst = np.random.default_rng(0), np.ones(1)
    for batch, length in SHAPES:
        ids, mask = _random_text(random, batch, min(length or max_tokens, max_tokens), vocabulary_size)
        with torch.inference_mode():
            embeddings = module(torch.from_numpy(ids), torch.from_numpy(mask))
            expected = torch.nn.functional.normalize(embeddings, dim=-1).numpy()
        inputs = dict(zip(INPUTS, (ids, mask), strict=False))
        found = [_run(session, "sentence_embedding", inputs)]
        if pools_to_embedding(module):
            found.append(_pooled(_run(session, "last_hidden_state", inputs), mask))
        for rows in found:
            if rows.shape != expected.shape:
                raise CheckFailed(
                    f"the graph gives {rows.shape} at {_shape(inputs)}; torch gives {expected.shape}"
                )
            worst = np.append(worst, COSINE.between(rows, expected))
    return float(worst.min())  # NaN is the worst of all


def _pooled(tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The mean of each text's token embeddings (B, T, d), at unit length: (B, d)."""
    return unit_rows((tokens * mask[:, :, None]).sum(1))


def _random_text(
    random: np.random.Generator, batch: int, tokens: int, vocabulary_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Random ids (B, T) and the mask of right-padded rows, each with a random length of at least 1."""
    ids = random.integers(0, vocabulary_size, (batch, tokens))
    return ids, (np.arange(tokens) < random.integers(1, tokens + 1, (batch, 1))).astype(np.int64)


def _run(session: InferenceSession, output: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """What a graph gives. Raises CheckFailed where it does not run."""
    try:
        found: np.ndarray = session.run([output], inputs)[0]
    except ORT_ERRORS as error:
        raise CheckFailed(f"the graph does not run at {_shape(inputs)}: {error}") from None
    return found


def _shape(inputs: dict[str, np.ndarray]) -> str:
    batch, tokens = inputs["input_ids"].shape
    return f"batch {batch}, {tokens} tokens"
