"""Static tables, from their weights: six nodes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from edgedistill.graph.sheet import Sheet, after_pooling, finish, mean, rows
from edgedistill.students.static import StaticStudent
from edgedistill.students.tables import Coded


def write(student: StaticStudent) -> onnx.ModelProto:
    """Rows and their weights are one table here. Without a head: what is masked becomes the padding piece, whose row is zero, and the
    rows are summed; unit length makes the mean of that. A head needs the mean itself. Codes keep their weights beside them.
    """
    sheet, ids = Sheet(), "input_ids"
    if isinstance(student.embedding, Coded):
        weights = sheet.add("Gather", sheet.constant(student.weights, "word_weights"), ids)
        weights = sheet.add("Unsqueeze", weights, sheet.constant([2], "axis"))
        pooled = mean(sheet, sheet.add("Mul", rows(sheet, student.embedding, ids), weights), "mean")
        return finish(sheet, pooled, after_pooling(student), student.embedding.embedding_dim, None)
    table, pad = sheet.constant(student.table(), "word_table"), student.embedding.padding_idx or 0
    if student.head is None and not student.tanh:
        if pad == 0:
            ids = sheet.add("Mul", ids, "attention_mask")
        else:
            seen = sheet.add("Cast", "attention_mask", to=TensorProto.BOOL)
            ids = sheet.add("Where", seen, ids, sheet.constant(np.int64(pad), "padding"))
        pooled = sheet.add("ReduceSum", sheet.add("Gather", table, ids), sheet.constant([1], "axis"), keepdims=0)
    else:
        pooled = mean(sheet, sheet.add("Gather", table, ids), "mean")
    return finish(sheet, pooled, after_pooling(student), student.embedding.embedding_dim, None)
