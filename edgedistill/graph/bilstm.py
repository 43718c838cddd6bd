"""BiLSTM students as ONNX nodes, from their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import Tensor, nn

from edgedistill.graph.embedding_tables import lookup
from edgedistill.graph.pooling import pool
from edgedistill.graph.writer import GraphWriter, after_pooling, finish


def write(student: Any) -> onnx.ModelProto:
    """Write the graph: time first (layout 0, the only one of DynamicQuantizeLSTM), with `sequence_lens`, so that the backward direction
    starts at the last token of each text.
    """
    writer = GraphWriter()
    lengths = writer.add("ReduceSum", writer.add("Cast", "attention_mask", to=TensorProto.INT32), writer.constant([1], "axis"), keepdims=0)
    lengths = writer.add("Max", lengths, writer.constant(np.int32(1), "one"))
    ids = writer.add("Transpose", "input_ids", perm=[1, 0])
    x = lookup(writer, student.embedding, ids)  # (T, B, width)
    lstm, last = student.lstm, ""
    directions, shape = 2 if lstm.bidirectional else 1, writer.constant([0, 0, -1], "shape")
    for layer in range(lstm.num_layers):
        weights = [writer.constant(array, name) for array, name in zip(_lstm_weights(lstm, layer), ("W", "R", "B"), strict=True)]
        y, last = f"lstm_{layer}", f"lstm_{layer}_last"
        direction = "bidirectional" if directions == 2 else "forward"
        writer.add("LSTM", x, *weights, lengths, outputs=[y, last], hidden_size=lstm.hidden_size, direction=direction)
        x = writer.add("Reshape", writer.add("Transpose", y, perm=[0, 2, 1, 3]), shape)  # (T, D, B, h) -> (T, B, D·h)
    if student.readout == "last":
        flat = writer.constant([0, -1], "shape")
        pooled = writer.add("Reshape", writer.add("Transpose", last, perm=[1, 0, 2]), flat)  # (D, B, h) -> (B, D·h)
    else:
        pooled = pool(writer, writer.add("Transpose", x, perm=[1, 0, 2]), student.readout)
    return finish(writer, pooled, after_pooling(student), directions * lstm.hidden_size, None)


def _lstm_weights(lstm: nn.LSTM, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """W (D, 4h, in), R (D, 4h, h), B (D, 8h) of one layer; torch's gates i, f, g, o are reordered to ONNX's i, o, f, c."""

    def read(kind: str, suffix: str) -> Tensor:
        name = f"{kind}_l{layer}{suffix}"
        if not hasattr(lstm, name):  # bias=False
            return torch.zeros(4 * lstm.hidden_size)
        i, f, g, o = getattr(lstm, name).detach().chunk(4)
        return torch.cat([i, o, f, g])

    suffixes = ("", "_reverse") if lstm.bidirectional else ("",)
    bias = [torch.cat([read("bias_ih", s), read("bias_hh", s)]) for s in suffixes]
    return torch.stack([read("weight_ih", s) for s in suffixes]), torch.stack([read("weight_hh", s) for s in suffixes]), torch.stack(bias)
