"""Encoders made of BERT's layers under other names or with other positions: their weights as a BertModel, and what it lacks."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PretrainedConfig

from edgedistill.students.embedding_tables import lookup
from edgedistill.students.graph_writer import (
    ACTIVATIONS,
    MICROSOFT,
    GraphWriter,
    Shared,
    after_pooling,
    attend,
    integer_mask,
    last_tokens,
    pool_and_finish,
    shared,
)
from edgedistill.students.relative_bias import RelativeBias, relative_scores
from edgedistill.students.sentence_transformer import quiet

# Classes of transformers: model_type in config.json, and how errors call them.
ARCHITECTURES = {
    "BertModel": ("bert", "BERT"),
    "CamembertModel": ("camembert", "CamemBERT"),
    "DistilBertModel": ("distilbert", "DistilBERT"),
    "MPNetModel": ("mpnet", "MPNet"),
    "RobertaModel": ("roberta", "RoBERTa"),
    "XLMRobertaModel": ("xlm-roberta", "XLM-R"),
}
COUNTED_FROM_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta")  # model types whose positions start after the pad id
RENAMED = {  # parameters of DistilBERT and MPNet -> of BERT
    r"^transformer\.": "encoder.",
    r"\.attention\.q_lin\.|\.attention\.attn\.q\.": ".attention.self.query.",
    r"\.attention\.k_lin\.|\.attention\.attn\.k\.": ".attention.self.key.",
    r"\.attention\.v_lin\.|\.attention\.attn\.v\.": ".attention.self.value.",
    r"\.attention\.out_lin\.|\.attention\.attn\.o\.": ".attention.output.dense.",
    r"\.sa_layer_norm\.|\.attention\.LayerNorm\.": ".attention.output.LayerNorm.",
    r"\.ffn\.lin1\.": ".intermediate.dense.",
    r"\.ffn\.lin2\.": ".output.dense.",
    r"\.output_layer_norm\.": ".output.LayerNorm.",
}
SEGMENTS = "embeddings.token_type_embeddings.weight"
GELUS = {"gelu": "Gelu", "gelu_new": "FastGelu", "gelu_pytorch_tanh": "FastGelu", "gelu_fast": "FastGelu"}
BIAS = "encoder.relative_attention_bias.weight"


class LayerSource(NamedTuple):
    """What the shape of a student takes from the encoder that its layers come from.

    position_ids: counted from behind the padding id (`pad`) or from 0 (`zero`); buckets: of a relative attention bias; repeats: how
    often the encoder applies its own layers, 1 unless it is a recurrent student itself.
    """

    config: PretrainedConfig
    position_ids: str = "zero"
    buckets: int | None = None
    repeats: int = 1


class EncoderLayers(NamedTuple):
    """An encoder whose layers a student can take, and what it computes besides.

    model: a BertModel, or a ModernBERT as it is. pad: the padding id where positions are counted from pad + 1, as in RoBERTa; None
    where they are counted from 0, as in BERT. relative_bias: added to the attention scores of all layers, as in MPNet; or None.
    """

    model: Any
    pad: int | None = None
    relative_bias: RelativeBias | None = None

    @property
    def shape_source(self) -> LayerSource:
        """What a student's shape takes from it."""
        buckets = self.relative_bias.table.num_embeddings if self.relative_bias else None
        repeats = getattr(getattr(self.model, "encoder", None), "times", 1)
        return LayerSource(self.model.config, "zero" if self.pad is None else "pad", buckets, repeats)


def convert(model: Any) -> EncoderLayers | None:
    """An encoder's weights, shared and not copied, as a BertModel; None for an architecture whose layers are not BERT's.

    Encoders without segments get one that adds nothing. The BertModel alone computes what the encoder does only where `pad` and
    `relative_bias` are None.
    """
    name = type(model).__name__
    if name not in ARCHITECTURES:
        return None
    if name == "BertModel":
        return EncoderLayers(model)
    pad = int(model.embeddings.padding_idx) if ARCHITECTURES[name][0] in COUNTED_FROM_PADDING else None
    weights = {_renamed(key): value.detach() for key, value in model.state_dict().items()}
    table = weights.pop(BIAS, None)
    bias = None if table is None else RelativeBias(*table.shape)
    if bias is not None:
        bias.load_state_dict({"table.weight": table})
    weights.setdefault(SEGMENTS, torch.zeros(1, model.config.hidden_size))
    sizes = _config(model.config, len(weights[SEGMENTS]))
    with quiet():
        converted = BertModel.from_pretrained(None, config=sizes, state_dict=weights, add_pooling_layer="pooler.dense.weight" in weights)
    return EncoderLayers(converted, pad, bias)


def _renamed(name: str) -> str:
    for pattern, replacement in RENAMED.items():
        name = re.sub(pattern, replacement, name)
    return name


def _config(source: Any, segments: int) -> BertConfig:
    """The BertConfig of another encoder's sizes; DistilBERT does not name its activation and its epsilon as the others do."""
    return BertConfig(
        vocab_size=source.vocab_size,
        hidden_size=source.hidden_size,
        num_hidden_layers=source.num_hidden_layers,
        num_attention_heads=source.num_attention_heads,
        intermediate_size=getattr(source, "intermediate_size", None) or source.hidden_dim,
        hidden_act=getattr(source, "hidden_act", None) or source.activation,
        layer_norm_eps=getattr(source, "layer_norm_eps", 1e-12),
        max_position_embeddings=source.max_position_embeddings,
        type_vocab_size=segments,
        initializer_range=source.initializer_range,
        pad_token_id=source.pad_token_id,
    )


def position_ids(input_ids: Tensor, pad: int) -> Tensor:
    """XLM-R's positions, (B, T) -> (B, T): pad + 1, pad + 2, … for tokens that are not padding, pad for padding."""
    is_token = (input_ids != pad).long()
    return is_token.cumsum(1) * is_token + pad


def position_rows(rows: int, pad: int | None, source: Any, source_pad: int | None) -> Tensor:
    """A position table (rows, H) whose tokens have the positions of a source's table, where either may count from its padding id.

    Where both count from padding, the row of padding is taken too. Rows that the source does not have are zero.
    """
    table = source.embeddings.position_embeddings.weight.detach()
    padding_row = 1 if pad is not None and source_pad is not None else 0
    mine, theirs = first_position(pad) - padding_row, first_position(source_pad) - padding_row
    count = min(rows - mine, len(table) - theirs)
    found = torch.zeros(rows, table.shape[1])
    found[mine : mine + count] = table[theirs : theirs + count]
    return found


def first_position(pad: int | None) -> int:
    """The row of a position table that belongs to the first token."""
    return 0 if pad is None else pad + 1


def layers_of(student: Any) -> EncoderLayers | None:
    """The layers of a student or a pretrained encoder whose graph can be written from its weights; None: it has to be traced."""
    model: Any = getattr(student, "model", None)
    if type(model).__name__ not in ARCHITECTURES or getattr(model.config, "is_decoder", False):
        return None
    if not all(isinstance(layer, nn.Linear | nn.Identity) or type(layer) in ACTIVATIONS for layer in after_pooling(student)):
        return None
    own = hasattr(student, "relative_bias")  # a student, whose model is a BertModel already
    layers = EncoderLayers(model, student.pad, student.relative_bias) if own else convert(model)
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
