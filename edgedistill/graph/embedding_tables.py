"""Embedding tables as ONNX nodes: token ids -> token embeddings, for full, factorized and product-quantized tables."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from edgedistill.graph.writer import GraphWriter
from edgedistill.students.embedding_tables import FactorizedEmbedding
from edgedistill.students.product_quantization import ProductQuantizedEmbedding


def lookup(writer: GraphWriter, table: Any, ids: str) -> str:
    """Write the lookup of ids (A, B) in a table: (A, B, H)."""
    if isinstance(table, ProductQuantizedEmbedding):
        return _product_quantized(writer, table, ids)
    if isinstance(table, FactorizedEmbedding):
        return writer.linear(writer.add("Gather", writer.constant(table.table.weight, "word_table"), ids), table.project, "word_project")
    return writer.add("Gather", writer.constant(table.weight, "word_table"), ids)


def _product_quantized(writer: GraphWriter, table: ProductQuantizedEmbedding, ids: str) -> str:
    """Gather the PQ codes, then their centroids from the codebook, and interleave the blocks' dimensions."""
    codes = writer.add("Gather", writer.constant(table.codes, "word_codes"), ids)
    indices = writer.add("Add", writer.add("Cast", codes, to=TensorProto.INT32), writer.constant(table.offsets, "block"))
    size = table.book.embedding_dim
    # one row per block: in 8 bits every row gets its own scale
    book = writer.constant(table.book.weight.view(table.codes.shape[1], -1), "word_book")
    parts = writer.add("Gather", writer.add("Reshape", book, writer.constant([-1, size], "shape")), indices)
    return writer.add("Reshape", writer.add("Transpose", parts, perm=[0, 1, 3, 2]), writer.constant([0, 0, -1], "shape"))
