"""A graph beside the module it was made of."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state
from torch import nn

from edgedistill.errors import AnswerIsNo

SHAPES = ((1, 1), (1, 0), (3, 7), (17, 33))  # (batch, tokens) every graph is run at; 0 stands for the longest
ORT_ERRORS = (ort_state.Fail, ort_state.RuntimeException, ort_state.InvalidArgument, ort_state.InvalidGraph, ort_state.NotImplemented)


def compare(student: nn.Module, model: onnx.ModelProto, longest: int, pieces: int) -> float:
    """The smallest cosine between torch and the graph over SHAPES, padded rows included.

    `longest` tokens, ids below `pieces`. Raises AnswerIsNo where the graph holds a dimension fixed or gives the wrong shape.
    """
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    random, worst = np.random.default_rng(0), 1.0
    for batch, tokens in ((batch, tokens or longest) for batch, tokens in SHAPES):
        tokens = min(tokens, longest)
        ids = random.integers(0, pieces, (batch, tokens))
        mask = (np.arange(tokens) < random.integers(1, tokens + 1, (batch, 1))).astype(np.int64)
        with torch.inference_mode():
            expected = torch.nn.functional.normalize(student(torch.from_numpy(ids), torch.from_numpy(mask)), dim=-1).numpy()
        try:
            rows = session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0]
        except ORT_ERRORS as error:
            raise AnswerIsNo(f"the graph does not run at batch {batch}, {tokens} tokens: {error}") from None
        if rows.shape != expected.shape:
            raise AnswerIsNo(f"the graph gives {rows.shape} at batch {batch}, {tokens} tokens; torch gives {expected.shape}")
        worst = float(np.minimum(worst, (rows * expected).sum(-1).min()))  # keeps NaN, where min() may drop it
    return worst
