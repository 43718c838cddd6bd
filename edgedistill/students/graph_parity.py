"""Whether an ONNX graph gives what its torch module gives, on random ids at several batch and sequence lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from onnxruntime import InferenceSession
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state
from torch import nn

from edgedistill.errors import CheckFailed
from edgedistill.runtime.bundle import INPUTS
from edgedistill.runtime.classification import probability_difference
from edgedistill.runtime.onnx_session import open_in_memory
from edgedistill.students.graph_writer import pools_to_embedding

SHAPES = ((1, 1), (1, 0), (3, 7), (17, 33))  # (batch, tokens) that every graph is run at; 0 stands for max_tokens
PAIR_SHAPES = ((1, 1, 0), (1, 0, 3), (3, 7, 7), (17, 33, 5))  # of a classifier: (batch, tokens, tokens of the second text)
ORT_ERRORS = (ort_state.Fail, ort_state.RuntimeException, ort_state.InvalidArgument, ort_state.InvalidGraph, ort_state.NotImplemented)


def compare(student: nn.Module, model: onnx.ModelProto, max_tokens: int, vocabulary_size: int) -> float:
    """The smallest cosine between torch's embeddings and the graph's over SHAPES, padded rows included.

    Where the mean of `last_hidden_state` is to be the embedding, it is compared too: other libraries read it.
    Raises CheckFailed where the graph does not run, as with a fixed dimension, or gives another shape than torch.
    """
    session = open_in_memory(model.SerializeToString())
    random, worst = np.random.default_rng(0), 1.0
    for batch, length in SHAPES:
        tokens = min(length or max_tokens, max_tokens)
        ids = random.integers(0, vocabulary_size, (batch, tokens))
        mask = _mask(random, batch, tokens)
        with torch.inference_mode():
            expected = torch.nn.functional.normalize(student(torch.from_numpy(ids), torch.from_numpy(mask)), dim=-1).numpy()
        inputs = {"input_ids": ids, "attention_mask": mask}
        found = [_run(session, "sentence_embedding", inputs)]
        if pools_to_embedding(student):
            found.append(_pooled(_run(session, "last_hidden_state", inputs), mask))
        for rows in found:
            if rows.shape != expected.shape:
                raise CheckFailed(f"the graph gives {rows.shape} at batch {batch}, {tokens} tokens; torch gives {expected.shape}")
            worst = float(np.minimum(worst, (rows * expected).sum(-1).min()))  # keeps NaN, where min() may drop it
    return worst


def _pooled(tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The mean of each text's token embeddings (B, T, d), at unit length: (B, d)."""
    rows = (tokens * mask[:, :, None]).sum(1)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def compare_probabilities(classifier: Any, model: onnx.ModelProto, max_tokens: int, vocabulary_size: int) -> float:
    """The largest difference of a probability between torch and a classifier's graph over PAIR_SHAPES, padded rows included.

    Raises CheckFailed where the graph does not run.
    """
    session = open_in_memory(model.SerializeToString())
    random, worst = np.random.default_rng(0), 0.0
    for batch, *lengths in PAIR_SHAPES:
        inputs: list[np.ndarray] = []
        for tokens in (min(each or max_tokens, max_tokens) for each in lengths[: 1 + classifier.pair]):
            mask = _mask(random, batch, tokens)
            inputs += [random.integers(0, vocabulary_size, (batch, tokens)), mask]
        with torch.inference_mode():
            expected = classifier(*(torch.from_numpy(each) for each in inputs)).numpy()
        logits = _run(session, "logits", dict(zip(INPUTS, inputs, strict=False)))
        worst = float(np.maximum(worst, probability_difference(logits, expected).max()))  # keeps NaN
    return worst


def _mask(random: np.random.Generator, batch: int, tokens: int) -> np.ndarray:
    """An attention mask (B, T) of right-padded rows, each with a random length of at least 1."""
    return (np.arange(tokens) < random.integers(1, tokens + 1, (batch, 1))).astype(np.int64)


def _run(session: InferenceSession, output: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    try:
        found: np.ndarray = session.run([output], inputs)[0]
    except ORT_ERRORS as error:
        batch, tokens = inputs["input_ids"].shape
        raise CheckFailed(f"the graph does not run at batch {batch}, {tokens} tokens: {error}") from None
    return found
