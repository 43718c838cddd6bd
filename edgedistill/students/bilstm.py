"""BiLSTM students: word vectors, a bidirectional LSTM, a read-out, a head (SRA, arXiv 2004.03097)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from edgedistill import recipe
from edgedistill.students import embedding_tables, head
from edgedistill.students.pooling import pool

WORD_SCALE = 0.3  # spread of the word vectors' numbers at the start, about GloVe's; the gates saw too little below it


class BiLSTMStudent(nn.Module):
    """`forward(input_ids, attention_mask) -> (B, d)`. The backward direction starts at each text's true end."""

    def __init__(self, embedding: Any, lstm: nn.LSTM, readout: str, head: nn.Linear | None, tanh: bool, dropout: float) -> None:
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
        words = self.dropout(self.embedding(input_ids))
        lengths = attention_mask.sum(1).clamp(min=1)
        if bool((lengths == input_ids.shape[1]).all()):  # no padding: the plain kernel is faster and gives the same
            states, (final, _) = self.lstm(words)
        else:
            packed = pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
            states, (final, _) = self.lstm(packed)
            states, _ = pad_packed_sequence(states, batch_first=True, total_length=input_ids.shape[1])
        vectors = torch.cat([final[-2], final[-1]], -1) if self.readout == "last" else pool(states, attention_mask, self.readout)
        vectors = self.dropout(vectors)
        vectors = vectors if self.head is None else self.head(vectors)
        return vectors.tanh() if self.tanh else vectors


def shape(spec: recipe.BiLSTM, pieces: int, pad: int, teacher_dims: int) -> dict[str, Any]:
    """Everything needed to build the module again, as data. Raises UserError for codes that do not divide the width."""
    embedding_tables.check(None, spec.codes, spec.width)
    return {
        "kind": "bilstm",
        "pieces": pieces,
        "pad": pad,
        "width": spec.width,
        "codes": spec.codes,
        "hidden": spec.hidden,
        "layers": spec.layers,
        "readout": spec.readout,
        **head.shape(spec, teacher_dims),
        "dropout": spec.dropout,
        "max_tokens": spec.max_tokens,
    }


def build(shape: dict[str, Any]) -> BiLSTMStudent:
    """The module, with weights drawn from torch's generator."""
    embedding = embedding_tables.build(shape, shape["pieces"], shape["width"], shape["pad"], WORD_SCALE)
    if embedding is None:
        embedding = nn.Embedding(shape["pieces"], shape["width"], padding_idx=shape["pad"])
        nn.init.normal_(embedding.weight, std=WORD_SCALE)
    lstm = nn.LSTM(shape["width"], shape["hidden"], shape["layers"], batch_first=True, bidirectional=True)
    linear = head.build(shape, 2 * shape["hidden"])
    return BiLSTMStudent(embedding, lstm, shape["readout"], linear, shape["tanh"], shape["dropout"])


def start(student: BiLSTMStudent, words: Tensor | None, weights: Tensor | None = None) -> None:
    """Set the word table in place from vectors of the student's pieces (V, w), reduced by PCA where they are wider.

    `weights` (V,): what each piece counts for in it.
    """
    if words is not None:
        with torch.no_grad():
            table = embedding_tables.fitted(words, student.embedding.embedding_dim, weights)
            embedding_tables.start(student.embedding, table * (WORD_SCALE / table.std()), weights)


def parameters(student: BiLSTMStudent) -> dict[str, int]:
    """Counted as the papers do: the word table; the LSTM with both of torch's biases; the head."""
    return {
        "embedding": head.count(student.embedding),
        "encoder": head.count(student.lstm),
        "head": head.count(student.head),
        "total": head.count(student),
    }
