"""Static tables, from their weights: six nodes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from edgedistill.graph.pooling import mean
from edgedistill.graph.writer import GraphWriter, after_pooling, finish, rows
from edgedistill.students.embedding_tables import Coded
from edgedistill.students.static import StaticStudent


def write(student: StaticStudent) -> onnx.ModelProto:
    """Rows and their weights are one table here. Without a head: what is masked becomes the padding piece, whose row is zero, and the
    rows are summed; unit length makes the mean of that. A head needs the mean itself. Codes keep their weights beside them.
    """
    writer, ids = GraphWriter(), "input_ids"
    if isinstance(student.embedding, Coded):
        weights = writer.add("Gather", writer.constant(student.weights, "word_weights"), ids)
        weights = writer.add("Unsqueeze", weights, writer.constant([2], "axis"))
        pooled = mean(writer, writer.add("Mul", rows(writer, student.embedding, ids), weights), "mean")
        return finish(writer, pooled, after_pooling(student), student.embedding.embedding_dim, None)
    table, pad = writer.constant(student.table(), "word_table"), student.embedding.padding_idx or 0
    if student.head is None and not student.tanh:
        if pad == 0:
            ids = writer.add("Mul", ids, "attention_mask")
        else:
            seen = writer.add("Cast", "attention_mask", to=TensorProto.BOOL)
            ids = writer.add("Where", seen, ids, writer.constant(np.int64(pad), "padding"))
        pooled = writer.add("ReduceSum", writer.add("Gather", table, ids), writer.constant([1], "axis"), keepdims=0)
    else:
        pooled = mean(writer, writer.add("Gather", table, ids), "mean")
    return finish(writer, pooled, after_pooling(student), student.embedding.embedding_dim, None)
