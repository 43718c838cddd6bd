"""BiLSTM students: token embeddings, a bidirectional LSTM, a readout, a head (SRA, arXiv 2004.03097)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import torch
from onnx import ModelProto, TensorProto
from pydantic import Field
from torch import Tensor, nn

from edgedistill.files import Json
from edgedistill.recipe import BiLSTM
from edgedistill.students import embedding_tables, head
from edgedistill.students.embedding_tables import lookup
from edgedistill.students.graph_writer import GraphWriter, finish
from edgedistill.students.head import Headed
from edgedistill.students.kind import (
    Kind,
    Share,
    Size,
    Start,
    TableShape,
    build_to_train,
    table_shape,
)
from edgedistill.students.pooling import pool, pool_nodes

# standard deviation of the initial token embeddings, about GloVe's; smaller values leave the gates
# insensitive
TOKEN_STD = 0.3


class BidirectionalLSTM(nn.LSTM):
    """`forward(tokens, lengths) -> (states, final)`: the backward direction starts at the last token of each
    text, not at its padding.

    It gives what packed sequences give, by the plain kernel over the padding, which is up to four times as
    fast on a CPU. For the backward direction each text is reversed and its padding left behind it, where it
    changes no state before it.
    """

    def __init__(self, width: int, hidden: int, layers: int) -> None:
        super().__init__(width, hidden, layers, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """tokens (B, T, w), right-padded, lengths (B,) at least 1. Returns (states (B, T, 2h), the two
        directions' last states (B, 2h)).

        States of padding are undefined.
        """
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        last = lengths[:, None] - 1
        backwards = torch.where(places <= last, last - places, places)  # its own inverse
        # of each layer and direction: input, recurrent, and their biases
        weights = self._flat_weights
        size = len(weights) // (2 * self.num_layers)
        states = tokens
        final = tokens
        for layer in range(self.num_layers):
            ahead, behind = (weights[size * way : size * (way + 1)] for way in (2 * layer, 2 * layer + 1))
            forward = self._one_way(states, ahead)
            backward = self._one_way(states[rows, backwards], behind)
            states = torch.cat([forward, backward[rows, backwards]], -1)
            final = torch.cat([one_way[rows, last] for one_way in (forward, backward)], -1)[:, 0]
        return states, final

    def _one_way(self, inputs: Tensor, weights: list[Any]) -> Tensor:
        """One direction of one layer: (B, T, w) -> (B, T, h)."""
        start = inputs.new_zeros(1, len(inputs), self.hidden_size)
        return torch.lstm(inputs, (start, start), weights, self.bias, 1, 0.0, self.training, False, True)[0]


class BiLSTMStudent(Headed):
    """`forward(input_ids, attention_mask) -> (B, d)`."""

    def __init__(
        self,
        embedding: Any,
        lstm: BidirectionalLSTM,
        readout: str,
        head: nn.Linear | None,
        tanh: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.lstm = lstm
        self.readout = readout
        self.head = head
        self.tanh = tanh
        self.pooled_dims = 2 * lstm.hidden_size
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids, attention_mask (B, T) int64, right-padded. Returns (B, d)."""
        tokens = self.dropout(self.embedding(input_ids))
        states, final = self.lstm(tokens, attention_mask.sum(1).clamp(min=1))
        pooled = final if self.readout == "last" else pool(states, attention_mask, self.readout)
        return self.through_head(self.dropout(pooled), input_ids, attention_mask)

    def write(self) -> ModelProto:
        """Write the graph: time first (layout 0, the only one of DynamicQuantizeLSTM), with `sequence_lens`,
        so that the backward direction starts at the last token of each text.
        """
        writer = GraphWriter(self)
        lstm = self.lstm
        mask = writer.add("Cast", "attention_mask", to=TensorProto.INT32)
        lengths = writer.add("ReduceSum", mask, writer.constant([1], "axis"), keepdims=0)
        lengths = writer.add("Max", lengths, writer.constant(np.int32(1), "one"))
        x = lookup(writer, self.embedding, writer.add("Transpose", "input_ids", perm=[1, 0]))  # (T, B, width)
        last = ""
        shape = writer.constant([0, 0, -1], "shape")
        options: Json = {"hidden_size": lstm.hidden_size, "direction": "bidirectional"}
        for layer in range(lstm.num_layers):
            weights = _lstm_weights(writer, lstm, layer)
            states = f"lstm_{layer}"
            last = f"lstm_{layer}_last"
            writer.add("LSTM", x, *weights, lengths, outputs=[states, last], **options)
            # (T, 2, B, h) -> (T, B, 2h)
            x = writer.add("Reshape", writer.add("Transpose", states, perm=[0, 2, 1, 3]), shape)
        if self.readout == "last":
            flat = writer.constant([0, -1], "shape")
            # (2, B, h) -> (B, 2h)
            pooled = writer.add("Reshape", writer.add("Transpose", last, perm=[1, 0, 2]), flat)
        else:
            pooled = pool_nodes(writer, writer.add("Transpose", x, perm=[1, 0, 2]), self.readout)
        return finish(writer, pooled, self)


class BiLSTMShape(TableShape):
    """A BiLSTM's shape."""

    kind: Literal["bilstm"]
    hidden: Size
    layers: Annotated[int, Field(ge=1, le=64)]
    readout: Literal["last", "max", "mean"]
    dropout: Share


def shape(spec: BiLSTM, vocabulary_size: int, pad: int, teacher_dims: int) -> Json:
    """Everything needed to build the module again, as data."""
    layers = spec.model_dump(include={"hidden", "layers", "readout", "dropout"})
    return {**table_shape(spec, vocabulary_size, pad, teacher_dims), **layers}


def build(shape: Json) -> BiLSTMStudent:
    """The module, with weights drawn from torch's generator."""
    embedding = embedding_tables.build(
        shape, shape["vocabulary_size"], shape["width"], shape["pad"], TOKEN_STD
    )
    lstm = BidirectionalLSTM(shape["width"], shape["hidden"], shape["layers"])
    linear = head.build(shape, 2 * shape["hidden"])
    student = BiLSTMStudent(embedding, lstm, shape["readout"], linear, shape["tanh"], shape["dropout"])
    return head.with_lexical_channel(student, shape, shape["vocabulary_size"])


def initial(spec: BiLSTM, start: Start) -> tuple[BiLSTMStudent, Json]:
    """The recipe's student with its initial weights, and its shape: a table of token embeddings is scaled to
    the standard deviation of a random one."""
    student_shape = shape(spec, start.vocabulary_size, start.pad_id, start.dims)
    student = build_to_train(build, student_shape, start.shape_only)
    if start.embeddings is not None:
        rows = embedding_tables.reduce_width(start.embeddings, spec.width, start.token_weights)
        embedding_tables.initialize(student.embedding, rows * (TOKEN_STD / rows.std()), start.token_weights)
    return student, student_shape


def _lstm_weights(writer: GraphWriter, lstm: nn.LSTM, layer: int) -> list[str]:
    """Write W (2, 4h, in), R (2, 4h, h) and B (2, 8h) of one layer under the names of the forward direction's
    parameters; returns those.

    Torch's gates i, f, g, o are reordered to ONNX's i, o, f, c.
    """

    def read(kind: str, suffix: str) -> Tensor:
        i, f, g, o = getattr(lstm, f"{kind}_l{layer}{suffix}").detach().chunk(4)
        return torch.cat([i, o, f, g])

    ways = ("", "_reverse")
    bias = torch.stack([torch.cat([read("bias_ih", way), read("bias_hh", way)]) for way in ways])
    inputs, states = (torch.stack([read(kind, way) for way in ways]) for kind in ("weight_ih", "weight_hh"))
    arrays = {"weight_ih": inputs, "weight_hh": states, "bias_ih": bias}
    return [
        writer.parameter(getattr(lstm, f"{kind}_l{layer}"), array, "[onnx]") for kind, array in arrays.items()
    ]


def restore(weights: dict[str, np.ndarray]) -> None:
    """Give the LSTM's parameters their own names and torch's order of gates, in place: `_lstm_weights`
    undone."""
    for name in [name for name in weights if name.endswith("[onnx]")]:
        both = weights.pop(name)
        plain = name.removesuffix("[onnx]")
        kinds = {plain: both}
        if both.ndim == 2:
            inputs, states = np.split(both, 2, 1)
            kinds = {plain: inputs, plain.replace("bias_ih", "bias_hh"): states}
        for kind, directions in kinds.items():
            for direction, suffix in zip(directions, ("", "_reverse"), strict=True):
                i, o, f, c = np.split(direction, 4)
                weights[kind + suffix] = np.concatenate([i, f, c, o])


KIND = Kind(BiLSTMShape, initial, build, restore)
