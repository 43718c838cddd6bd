"""Encoders of BERT's layers, recurrent students among them, as ONNX nodes: about eight nodes per layer and ten around them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto
from torch import Tensor, nn

from edgedistill.graph.attention import Shared, attend, integer_mask, relative_scores, shared
from edgedistill.graph.embedding_tables import lookup
from edgedistill.graph.pooling import last_tokens, pool_and_finish
from edgedistill.graph.writer import ACTIVATIONS, MICROSOFT, GraphWriter, after_pooling
from edgedistill.students.bert import BertStudent
from edgedistill.students.bert_layers import ARCHITECTURES, EncoderLayers, convert

GELUS = {"gelu": "Gelu", "gelu_new": "FastGelu", "gelu_pytorch_tanh": "FastGelu", "gelu_fast": "FastGelu"}


def layers_of(student: Any) -> EncoderLayers | None:
    """The layers of a student or a pretrained encoder whose graph can be written from its weights; None: it has to be traced."""
    model: Any = getattr(student, "model", None)
    if type(model).__name__ not in ARCHITECTURES or getattr(model.config, "is_decoder", False):
        return None
    if not all(isinstance(layer, nn.Linear | nn.Identity) or type(layer) in ACTIVATIONS for layer in after_pooling(student)):
        return None
    layers = EncoderLayers(model, student.pad, student.relative_bias) if isinstance(student, BertStudent) else convert(model)
    assert layers is not None
    config = layers.model.config
    absolute = getattr(config, "position_embedding_type", "absolute") == "absolute"
    return layers if absolute and config.hidden_act in (*GELUS, "relu") else None


def write(student: Any, layers: EncoderLayers) -> onnx.ModelProto:
    """Write the graph; `last_hidden_state` is the last layer's output (B, T, H), or the embeddings where there are no layers.

    Behind a linear head it is (B, T, d), see `head_on_tokens`. layers: the student's, see `layers_of`.
    """
    writer, model, config = GraphWriter(), layers.model, layers.model.config
    mask, final = integer_mask(writer), last_tokens(student)
    constants = [_layer(writer, layer, number) for number, layer in enumerate(model.encoder.layer)]
    repeated = constants * getattr(model.encoder, "times", 1)  # the constants of a shared layer block are written once
    biases = [layer.bias for layer in repeated] + [np.zeros(config.hidden_size, np.float32)]
    tokens = _embeddings(writer, model.embeddings, config, layers.pad, biases[0])
    if repeated:
        read = shared(writer, config.num_attention_heads, config.hidden_size, mask, tokens)
        scores = "" if layers.relative_bias is None else relative_scores(writer, layers.relative_bias)
        rows, shifts = writer.add("Reshape", tokens, read.to_rows), dict[tuple[int, bool], str]()
        for number, (layer, carried) in enumerate(zip(repeated, biases[1:], strict=True)):
            key = (number % len(constants), number == len(repeated) - 1)
            if key not in shifts:
                shifts[key] = writer.constant(_array(layer.module.output.LayerNorm.bias) + carried, "norm_bias")
            rows = _layer_nodes(writer, layer, _Shared(config, read, scores), rows, shifts[key])
        tokens = writer.add("Reshape", rows, read.to_sequences, outputs=[final])
    else:
        tokens = writer.add("Identity", tokens, outputs=[final])
    return pool_and_finish(writer, student, model, tokens)


def _embeddings(writer: GraphWriter, embeddings: Any, config: Any, pad: int | None, carried: np.ndarray) -> str:
    """Token, position and segment embeddings -> (B, T, H). All text is segment 0: its row is added to the position table here.

    pad: the padding id, where positions are counted from pad + 1 (XLM-R); None: they are counted from 0. carried (H,): what the
    rows carry besides, see `_layer`.
    """
    tokens = lookup(writer, embeddings.word_embeddings, "input_ids")
    table = writer.constant(embeddings.position_embeddings.weight + embeddings.token_type_embeddings.weight[0], "position_table")
    if pad is None:
        length, zero = writer.add("Shape", "input_ids", start=1, end=2), writer.constant([0], "zero")
        summed = writer.add("Add", tokens, writer.add("Slice", table, zero, length, zero))
    else:
        summed = writer.add("Add", tokens, writer.add("Gather", table, _position_ids(writer, pad)))
        # as rows: onnxruntime fuses a sum of equal shapes and its LayerNormalization into one operator, which takes three times as long
        summed = writer.add("Reshape", summed, writer.constant([-1, config.hidden_size], "rows"))
    norm = embeddings.LayerNorm
    scale, shift = writer.constant(norm.weight, "norm_weight"), writer.constant(_array(norm.bias) + carried, "norm_bias")
    normed = writer.add("LayerNormalization", summed, scale, shift, axis=-1, epsilon=config.layer_norm_eps)
    return normed if pad is None else writer.add("Reshape", normed, writer.add("Shape", tokens))


def _position_ids(writer: GraphWriter, pad: int) -> str:
    """XLM-R's positions (B, T): pad + 1, pad + 2, … for tokens that are not padding, pad for padding."""
    pad_id = writer.constant(np.int64(pad), "pad")
    is_token = writer.add("Cast", writer.add("Not", writer.add("Equal", "input_ids", pad_id)), to=TensorProto.INT64)
    counted = writer.add("Mul", writer.add("CumSum", is_token, writer.constant(np.int64(1), "axis")), is_token)
    return writer.add("Add", counted, pad_id)


class _Layer(NamedTuple):
    """What a layer's nodes read: names of constants, and its module."""

    module: Any
    query: tuple[str, str]  # weight, bias
    key: str
    value: tuple[str, str]
    attention: str
    attention_norm: tuple[str, str]  # scale, shift
    inner: tuple[str, str]
    feed_forward: str
    norm_scale: str

    @property
    def bias(self) -> np.ndarray:
        """The bias of the attention's output, which the layer's input carries."""
        return _array(self.module.attention.output.dense.bias)


def _array(value: Tensor) -> np.ndarray:
    return np.asarray(value.detach().cpu().numpy(), np.float32)


def _layer(writer: GraphWriter, layer: Any, number: int) -> _Layer:
    """Write a layer's constants. Three of its biases cost nothing at run time:

    The bias in front of a residual sum is carried by the residual, that is, added to the shift of the LayerNorm that writes it. Products
    that read the residual have it subtracted in their own bias. A bias of the keys adds the same to all scores of a query, which softmax
    ignores: it is left out.
    """
    attention, output, inner, out = layer.attention.self, layer.attention.output, layer.intermediate.dense, layer.output
    name = f"layer_{number}_"

    def weight(dense: nn.Linear, part: str) -> str:
        return writer.constant(dense.weight.T, f"{name}{part}_weight")

    def bias(dense: nn.Linear, carried: Tensor, part: str) -> str:
        return writer.constant(dense.bias - dense.weight @ carried, f"{name}{part}_bias")

    def with_bias(dense: nn.Linear, carried: Tensor, part: str) -> tuple[str, str]:
        return weight(dense, part), bias(dense, carried, part)

    shift = output.LayerNorm.bias + out.dense.bias
    return _Layer(
        module=layer,
        query=with_bias(attention.query, output.dense.bias, "query"),
        key=weight(attention.key, "key"),
        value=with_bias(attention.value, output.dense.bias, "value"),
        attention=weight(output.dense, "attention"),
        attention_norm=(
            writer.constant(output.LayerNorm.weight, f"{name}attention_norm_weight"),
            writer.constant(shift, f"{name}attention_norm_bias"),
        ),
        inner=with_bias(inner, out.dense.bias, "inner"),
        feed_forward=weight(out.dense, "feed_forward"),
        norm_scale=writer.constant(out.LayerNorm.weight, f"{name}norm_weight"),
    )


class _Shared(NamedTuple):
    """What all layers read. scores: added to the scores of attention, empty for nothing."""

    config: Any
    attention: Shared
    scores: str


def _layer_nodes(writer: GraphWriter, layer: _Layer, shared: _Shared, rows: str, shift: str) -> str:
    """Write attention and feed-forward: rows (B·T, H), which carry `layer.bias`, -> rows (B·T, H). shift: of the last LayerNorm."""
    config = shared.config

    def product(x: str, weight: str, bias: str | None = None) -> str:
        y = writer.add("MatMul", x, weight)
        return y if bias is None else writer.add("Add", y, bias)

    def norm(x: str, scale: str, shift: str) -> str:
        return writer.add("LayerNormalization", x, scale, shift, axis=-1, epsilon=config.layer_norm_eps)

    parts = (product(rows, *layer.query), product(rows, layer.key), product(rows, *layer.value))
    sequences = [writer.add("Reshape", part, shared.attention.to_sequences) for part in parts]
    context = attend(writer, shared.attention, sequences, shared.scores)
    rows = norm(writer.add("Add", product(context, layer.attention), rows), *layer.attention_norm)
    inner = product(rows, *layer.inner)
    inner = writer.add("Relu", inner) if config.hidden_act == "relu" else writer.add(GELUS[config.hidden_act], inner, domain=MICROSOFT)
    return norm(writer.add("Add", product(inner, layer.feed_forward), rows), layer.norm_scale, shift)
