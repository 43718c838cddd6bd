"""BiLSTM students: token embeddings, a bidirectional LSTM, a readout, a head (SRA, arXiv 2004.03097)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from edgedistill import recipe
from edgedistill.students import embedding_tables, head
from edgedistill.students.lstm import BidirectionalLSTM
from edgedistill.students.pooling import pool

TOKEN_STD = 0.3  # standard deviation of the initial token embeddings, about GloVe's; smaller values leave the gates insensitive


class BiLSTMStudent(nn.Module):
    """`forward(input_ids, attention_mask) -> (B, d)`."""

    def __init__(self, embedding: Any, lstm: BidirectionalLSTM, readout: str, head: nn.Linear | None, tanh: bool, dropout: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.lstm = lstm
        self.readout = readout
        self.head = head
        self.tanh = tanh
        self.dropout = nn.Dropout(dropout)

    @property
    def dims(self) -> int:
        return self.head.out_features if self.head is not None else 2 * self.lstm.hidden_size

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids, attention_mask (B, T) int64, right-padded. Returns (B, d)."""
        tokens = self.dropout(self.embedding(input_ids))
        lengths = attention_mask.sum(1).clamp(min=1)
        states, final = self.lstm(tokens, lengths)
        embeddings = final if self.readout == "last" else pool(states, attention_mask, self.readout)
        embeddings = self.dropout(embeddings)
        embeddings = embeddings if self.head is None else self.head(embeddings)
        return embeddings.tanh() if self.tanh else embeddings


def shape(spec: recipe.BiLSTM, vocabulary_size: int, pad: int, teacher_dims: int) -> dict[str, Any]:
    """Everything needed to build the module again, as data. Raises UserError for PQ bytes that do not divide the width."""
    embedding_tables.check(None, spec.pq_bytes, spec.width)
    return {
        "kind": "bilstm",
        "pieces": vocabulary_size,
        "pad": pad,
        "width": spec.width,
        **embedding_tables.product_quantized(spec),
        "hidden": spec.hidden,
        "layers": spec.layers,
        "readout": spec.readout,
        **head.shape(spec, teacher_dims),
        "dropout": spec.dropout,
        "max_tokens": spec.max_tokens,
    }


def build(shape: dict[str, Any]) -> BiLSTMStudent:
    """The module, with weights drawn from torch's generator."""
    embedding = embedding_tables.build(shape, shape["pieces"], shape["width"], shape["pad"], TOKEN_STD)
    if embedding is None:
        embedding = nn.Embedding(shape["pieces"], shape["width"], padding_idx=shape["pad"])
        nn.init.normal_(embedding.weight, std=TOKEN_STD)
    lstm = BidirectionalLSTM(shape["width"], shape["hidden"], shape["layers"])
    linear = head.build(shape, 2 * shape["hidden"])
    return BiLSTMStudent(embedding, lstm, shape["readout"], linear, shape["tanh"], shape["dropout"])


def initialize(student: BiLSTMStudent, token_embeddings: Tensor | None, token_weights: Tensor | None = None) -> None:
    """Set the embedding table in place from token embeddings (V, w), reduced by PCA where they are wider.

    None: it stays randomly initialized. token_weights (V,): of each token in the PCA.
    """
    if token_embeddings is not None:
        with torch.no_grad():
            rows = embedding_tables.reduce_width(token_embeddings, student.embedding.embedding_dim, token_weights)
            embedding_tables.initialize(student.embedding, rows * (TOKEN_STD / rows.std()), token_weights)


def parameters(student: BiLSTMStudent) -> dict[str, int]:
    """Counted as in the papers: the embedding table; the LSTM with both of torch's biases; the head."""
    return {
        "embedding": head.count(student.embedding),
        "encoder": head.count(student.lstm),
        "head": head.count(student.head),
        "total": head.count(student),
    }
