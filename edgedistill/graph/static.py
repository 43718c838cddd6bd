"""Static students as ONNX nodes, from their weights: six nodes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from edgedistill.graph.embedding_tables import lookup
from edgedistill.graph.pooling import mean
from edgedistill.graph.writer import GraphWriter, after_pooling, finish
from edgedistill.students.product_quantization import ProductQuantizedEmbedding
from edgedistill.students.static import StaticStudent


def write(student: StaticStudent) -> onnx.ModelProto:
    """Write the graph. Rows and token weights are multiplied into one table; a product-quantized table keeps its weights apart.

    Without a head, masked tokens become the padding token, whose row is zero, and the rows are summed: at unit length the sum equals the
    mean. A head needs the mean itself.
    """
    writer, ids = GraphWriter(), "input_ids"
    if isinstance(student.embedding, ProductQuantizedEmbedding):
        weights = writer.add("Gather", writer.constant(student.weights, "word_weights"), ids)
        weights = writer.add("Unsqueeze", weights, writer.constant([2], "axis"))
        pooled = mean(writer, writer.add("Mul", lookup(writer, student.embedding, ids), weights), "mean")
        return finish(writer, pooled, after_pooling(student), student.embedding.embedding_dim, None)
    table, pad = writer.constant(student.weighted_table(), "word_table"), student.embedding.padding_idx or 0
    if student.head is None and not student.tanh:
        if pad == 0:
            ids = writer.add("Mul", ids, "attention_mask")
        else:
            is_token = writer.add("Cast", "attention_mask", to=TensorProto.BOOL)
            ids = writer.add("Where", is_token, ids, writer.constant(np.int64(pad), "padding"))
        pooled = writer.add("ReduceSum", writer.add("Gather", table, ids), writer.constant([1], "axis"), keepdims=0)
    else:
        pooled = mean(writer, writer.add("Gather", table, ids), "mean")
    return finish(writer, pooled, after_pooling(student), student.embedding.embedding_dim, None)
