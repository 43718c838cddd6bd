"""Encoders made of BERT's layers under other names or with other positions: their weights as a BertModel, and
what it lacks."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from onnx import ModelProto, TensorProto
from torch import Tensor, nn
from transformers import BertConfig, BertModel
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, create_position_ids_from_input_ids

from edgedistill.students.embedding_tables import lookup
from edgedistill.students.graph_writer import (
    ACTIVATIONS,
    MASKED,
    GraphWriter,
    UnitLength,
    finish,
    head_on_tokens,
)
from edgedistill.students.pooling import pool_nodes
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
# model types whose positions start after the pad id
COUNTED_FROM_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta")
RENAMED = {  # parameters of DistilBERT and MPNet -> of BERT
    r"^transformer\.": "encoder.",
    r"\.attention\.q_lin\.": ".attention.self.query.",
    r"\.attention\.k_lin\.": ".attention.self.key.",
    r"\.attention\.v_lin\.": ".attention.self.value.",
    r"\.attention\.out_lin\.": ".attention.output.dense.",
    r"\.sa_layer_norm\.": ".attention.output.LayerNorm.",
    r"\.ffn\.lin1\.": ".intermediate.dense.",
    r"\.ffn\.lin2\.": ".output.dense.",
    r"\.output_layer_norm\.": ".output.LayerNorm.",
    r"\.attention\.attn\.q\.": ".attention.self.query.",
    r"\.attention\.attn\.k\.": ".attention.self.key.",
    r"\.attention\.attn\.v\.": ".attention.self.value.",
    r"\.attention\.attn\.o\.": ".attention.output.dense.",
    r"\.attention\.LayerNorm\.": ".attention.output.LayerNorm.",
}
RELATIVE = "encoder.relative_attention_bias.weight"
BUCKETS = 32  # of relative positions, as in MPNet
# the row of a table of relative positions for the distance from a query to a key (Raffel et al. 2020, §2.1)
relative_bucket = MPNetEncoder.relative_position_bucket
# of texts (B, T), (B, T): pad + 1, pad + 2, … for tokens that are not padding, pad for padding
position_ids = create_position_ids_from_input_ids
FOLDED = np.empty(
    0, np.float32
)  # of a parameter that a graph holds as part of others: what is left of it is zero
SEGMENTS = "embeddings.token_type_embeddings.weight"
GELUS = {
    "gelu": "none",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
}  # approximations


class EncoderLayers(NamedTuple):
    """An encoder whose layers a student can take, and what it computes besides.

    `model` is a BertModel. `pad` is the padding id where positions are counted from pad + 1, as in RoBERTa,
    and None where they are counted from 0, as in BERT. `relative` (BUCKETS, heads) is what MPNet adds to the
    scores of attention in all layers, by the distance of the two tokens; None in other encoders.
    """

    model: Any
    pad: int | None = None
    relative: Tensor | None = None

    @property
    def repeats(self) -> int:
        """How often the encoder applies its own layers: 1 unless it is a recurrent student itself."""
        return int(getattr(getattr(self.model, "encoder", None), "times", 1))


def convert(model: Any) -> EncoderLayers | None:
    """An encoder's weights, shared and not copied, as a BertModel; None for an architecture whose layers are
    not BERT's.

    Encoders without segments get one that adds nothing. The BertModel alone computes what the encoder does
    only where `pad` is None.
    """
    name = type(model).__name__
    if name not in ARCHITECTURES:
        return None
    if name == "BertModel":
        return EncoderLayers(model)
    pad = int(model.embeddings.padding_idx) if ARCHITECTURES[name][0] in COUNTED_FROM_PADDING else None
    weights = {_renamed(key): value.detach() for key, value in model.state_dict().items()}
    weights.setdefault(SEGMENTS, torch.zeros(1, model.config.hidden_size))
    relative = weights.pop(RELATIVE, None)
    if relative is not None and len(relative) != BUCKETS:
        return None
    sizes = _config(model.config, len(weights[SEGMENTS]))
    with quiet():
        converted = BertModel.from_pretrained(
            None, config=sizes, state_dict=weights, add_pooling_layer="pooler.dense.weight" in weights
        )
    return EncoderLayers(converted, pad, relative)


def scores_mask(relative: Tensor | None, mask: Tensor) -> Tensor:
    """What attention takes as its mask of texts (B, T): which are tokens (B, 1, 1, T), or with relative
    positions what is added to scores (B, heads, T, T)."""
    if relative is None:
        return mask[:, None, None].bool()
    places = torch.arange(mask.shape[1], device=mask.device)
    buckets = relative_bucket(places - places.unsqueeze(1))
    added = nn.functional.embedding(buckets, relative).permute(2, 0, 1)
    return added + (1 - mask[:, None, None].to(added.dtype)) * MASKED


def _renamed(name: str) -> str:
    for pattern, replacement in RENAMED.items():
        name = re.sub(pattern, replacement, name)
    return name


def _config(source: Any, segments: int) -> BertConfig:
    """The BertConfig of another encoder's sizes; DistilBERT does not name its activation and its epsilon as
    the others do."""
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


def position_rows(rows: int, pad: int | None, source: Any, source_pad: int | None) -> Tensor:
    """A position table (rows, H) whose tokens have the positions of a source's table, where either may count
    from its padding id.

    Where both count from padding, the row of padding is taken too. Rows that the source does not have are
    zero.
    """
    table = source.embeddings.position_embeddings.weight.detach()
    padding_row = 1 if pad is not None and source_pad is not None else 0
    mine = first_position(pad) - padding_row
    theirs = first_position(source_pad) - padding_row
    count = min(rows - mine, len(table) - theirs)
    positions = torch.zeros(rows, table.shape[1])
    positions[mine : mine + count] = table[theirs : theirs + count]
    return positions


@torch.no_grad()
def copy_tables(student: Any, source: EncoderLayers, space: Tensor | None = None) -> None:
    """Copy the tables of positions and segments in place; `space` (H, w) projects the rows. A student with
    fewer segments takes the first of them. Relative positions are copied where heads are."""
    mine = student.model.embeddings
    theirs = source.model.embeddings
    positions = mine.position_embeddings.weight
    segments = mine.token_type_embeddings.weight
    position_table = position_rows(len(positions), student.pad, source.model, source.pad)
    segment_table = theirs.token_type_embeddings.weight[: len(segments)]
    for table, rows in ((positions, position_table), (segments, segment_table)):
        table.copy_(rows if space is None else rows @ space)


def first_position(pad: int | None) -> int:
    """The row of a position table that belongs to the first token."""
    return 0 if pad is None else pad + 1


def layers_of(student: Any) -> EncoderLayers | None:
    """The layers of a student or a pretrained encoder whose graph can be written from its weights; None: it
    has to be traced."""
    model: Any = getattr(student, "model", None)
    if type(model).__name__ not in ARCHITECTURES or getattr(model.config, "is_decoder", False):
        return None
    if not all(
        isinstance(layer, nn.Linear | nn.Identity | UnitLength) or type(layer) in ACTIVATIONS
        for layer in student.layers_after_pooling
    ):
        return None
    is_student = hasattr(student, "pad")  # a student, whose model is a BertModel already
    layers = of_student(student) if is_student else convert(model)
    if layers is None or layers.model.config.hidden_act not in (*GELUS, "relu"):
        return None
    absolute = getattr(layers.model.config, "position_embedding_type", "absolute") == "absolute"
    return layers if absolute else None


def of_student(student: Any) -> EncoderLayers:
    """The layers of a BERT student."""
    relative = student.relative.weight if student.relative is not None else None
    return EncoderLayers(student.model, student.pad, relative)


def write(student: Any, layers: EncoderLayers) -> ModelProto:
    """Write the graph; `last_hidden_state` is the last layer's output (B, T, H), or the embeddings where
    there are no layers.

    Behind a linear head it is (B, T, d), see `head_on_tokens`. `layers` are the student's, see `layers_of`.
    """
    writer = GraphWriter(student, layers.model)
    model = layers.model
    tokens = _encoded(writer, layers, "encoded" if head_on_tokens(student) else "last_hidden_state")
    if student.poolings == ["cls_pooler"]:
        pooled = writer.add("Tanh", writer.linear(pool_nodes(writer, tokens, "cls"), model.pooler.dense))
    else:
        parts = [pool_nodes(writer, tokens, pooling) for pooling in student.poolings]
        pooled = writer.add("Concat", *parts, axis=-1) if len(parts) > 1 else parts[0]
    return finish(writer, pooled, student, tokens)


def _encoded(writer: GraphWriter, layers: EncoderLayers, output: str) -> str:
    """Write the embeddings and all layers; `output` (B, T, H) is what the last one gives."""
    model = layers.model
    config = layers.model.config
    constants = [_layer(writer, layer) for layer in model.encoder.layer]
    # the constants of a shared layer block are written once
    repeated = list(zip(model.encoder.layer, constants, strict=True)) * layers.repeats
    biases = [_array(layer.attention.output.dense.bias) for layer, _ in repeated]
    biases.append(np.zeros(config.hidden_size, np.float32))
    tokens = _embeddings(writer, model.embeddings, config, layers.pad, biases[0])
    if not repeated:
        return writer.add("Identity", tokens, outputs=[output])
    read = _read_by_layers(writer, tokens, layers)
    rows = writer.add("Reshape", tokens, read.to_rows)
    for number, ((layer, names), carried) in enumerate(zip(repeated, biases[1:], strict=True), 1):
        shift = layer.output.LayerNorm.bias
        ending = "[again]" if number % len(constants) == 0 and number < len(repeated) else ""
        shift = writer.parameter(shift, _array(shift) + carried, ending)
        rows = _layer_nodes(writer, names, read, rows, shift)
    return writer.add("Reshape", rows, writer.add("Shape", tokens), outputs=[output])


def _embeddings(writer: GraphWriter, embeddings: Any, config: Any, pad: int | None, carried: ndarray) -> str:
    """Token, position and segment embeddings -> (B, T, H). All text is segment 0: its row is added to the
    position table here.

    `pad` is the padding id where positions are counted from pad + 1 (XLM-R), and None where they are counted
    from 0. `carried` (H,) is what the rows carry besides, see `_layer`.
    """
    tokens = lookup(writer, embeddings.word_embeddings, "input_ids")
    table = embeddings.position_embeddings.weight
    table = writer.parameter(table, table + embeddings.token_type_embeddings.weight[0], "[segments]")
    if pad is None:
        length = writer.add("Shape", "input_ids", start=1, end=2)
        zero = writer.constant([0], "zero")
        summed = writer.add("Add", tokens, writer.add("Slice", table, zero, length, zero))
    else:
        summed = writer.add("Add", tokens, writer.add("Gather", table, _position_ids(writer, pad)))
        # as rows: onnxruntime fuses a sum of equal shapes and its LayerNormalization into one operator, which
        # takes three times as long
        summed = writer.add("Reshape", summed, writer.constant([-1, config.hidden_size], "rows"))
    norm = embeddings.LayerNorm
    scale = writer.parameter(norm.weight)
    shift = writer.parameter(norm.bias, _array(norm.bias) + carried)
    normed = writer.add("LayerNormalization", summed, scale, shift, axis=-1, epsilon=config.layer_norm_eps)
    return normed if pad is None else writer.add("Reshape", normed, writer.add("Shape", tokens))


def _position_ids(writer: GraphWriter, pad: int) -> str:
    """XLM-R's positions (B, T): pad + 1, pad + 2, … for tokens that are not padding, pad for padding."""
    pad_id = writer.constant(np.int64(pad), "pad")
    is_token = writer.add(
        "Cast", writer.add("Not", writer.add("Equal", "input_ids", pad_id)), to=TensorProto.INT64
    )
    counted = writer.add(
        "Mul", writer.add("CumSum", is_token, writer.constant(np.int64(1), "axis")), is_token
    )
    return writer.add("Add", counted, pad_id)


def _array(value: Tensor) -> ndarray:
    return np.asarray(value.detach().cpu().numpy(), np.float32)


def _layer(writer: GraphWriter, layer: Any) -> dict[str, list[str]]:
    """Write a layer's constants: the names of each product's weight and bias, and of each norm's scale and
    shift. Three of its biases cost nothing at run time:

    The bias in front of a residual sum is carried by the residual, that is, added to the shift of the
    LayerNorm that writes it. Products that read the residual have it subtracted in their own bias. A bias of
    the keys adds the same to all scores of a query, which softmax ignores: it is left out.
    """
    attention = layer.attention.self
    output = layer.attention.output
    out = layer.output

    def product(dense: nn.Linear, carried: Tensor | None = None) -> list[str]:
        weight = writer.parameter(dense.weight, dense.weight.T, ".T")
        if carried is None:
            return [weight]
        return [weight, writer.parameter(dense.bias, dense.bias - dense.weight @ carried)]

    norm = output.LayerNorm
    return {
        "query": product(attention.query, output.dense.bias),
        "key": product(attention.key),
        "value": product(attention.value, output.dense.bias),
        "attention": product(output.dense),
        "norm": [writer.parameter(norm.weight), writer.parameter(norm.bias, norm.bias + out.dense.bias)],
        "inner": product(layer.intermediate.dense, out.dense.bias),
        "feed_forward": product(out.dense),
        "last_norm": [writer.parameter(out.LayerNorm.weight)],
    }


def restore(weights: dict[str, ndarray]) -> None:
    """Undo in place what `write` does to the parameters of a student with these layers; a traced graph has
    none of the endings.

    The LayerNorm in front of a repeated block carries the output bias of the block's first layer, and so does
    the block's last LayerNorm unless it is the graph's last: that bias is their difference.
    """
    embeddings = "model.embeddings"
    first = "model.encoder.layer.0.attention"
    for name in [name for name in weights if name.endswith("[segments]")]:
        weights[name.removesuffix("[segments]")] = weights.pop(name)
        weights[f"{embeddings}.token_type_embeddings.weight"] = FOLDED
        for key in [key for key in weights if key.endswith("attention.self.key.weight")]:
            layer = key.removesuffix("attention.self.key.weight")
            folded = ("attention.self.key", "attention.output.dense", "output.dense")
            weights |= dict.fromkeys([f"{layer}{part}.bias" for part in folded], FOLDED)
    for name in [name for name in weights if name.endswith("[again]")]:
        carried = weights.pop(name) - weights[name.removesuffix("[again]")]
        weights[f"{first}.output.dense.bias"] = carried
        weights[f"{embeddings}.LayerNorm.bias"] = weights[f"{embeddings}.LayerNorm.bias"] - carried
        for part in ("query", "value"):
            weights[f"{first}.self.{part}.bias"] = (
                weights[f"{first}.self.{part}.bias"] + weights[f"{first}.self.{part}.weight"] @ carried
            )


class _Read(NamedTuple):
    """What all layers read. Token embeddings are rows (B·T, H) for products and norms, and (B, T, heads, H /
    heads) for attention. `hidden` (B, 1, 1, T), with relative positions (B, heads, T, T), is added to scores,
    `scale` multiplies queries."""

    config: Any
    to_rows: str
    to_heads: str
    hidden: str
    scale: str


def _read_by_layers(writer: GraphWriter, tokens: str, layers: EncoderLayers) -> _Read:
    config = layers.model.config
    width = config.hidden_size
    heads = config.num_attention_heads
    leading = writer.add("Shape", tokens, start=0, end=2)
    to_heads = writer.add("Concat", leading, writer.constant([heads, width // heads], "heads"), axis=0)
    mask = writer.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    padding = writer.add("Sub", writer.constant(np.float32(1), "one"), mask)
    padding = writer.add("Mul", padding, writer.constant(np.float32(MASKED), "masked"))
    hidden = writer.add("Unsqueeze", padding, writer.constant([1, 2], "axes"))
    if layers.relative is not None:
        hidden = writer.add("Add", hidden, _relative_nodes(writer, layers, layers.relative))
    scale = writer.constant(np.float32((width // heads) ** -0.5), "scale")
    return _Read(config, writer.constant([-1, width], "rows"), to_heads, hidden, scale)


def _relative_nodes(writer: GraphWriter, layers: EncoderLayers, relative: Tensor) -> str:
    """Write what relative positions add to scores, (heads, T, T)."""
    most = layers.model.config.max_position_embeddings - first_position(layers.pad)
    buckets = relative_bucket(torch.arange(1 - most, most))
    rows = writer.add("Gather", writer.parameter(relative), writer.constant(buckets, "buckets"))
    zero, one, middle = (writer.constant(np.int64(value), "number") for value in (0, 1, most - 1))
    length = writer.add("Squeeze", writer.add("Shape", "input_ids", start=1, end=2))
    places = writer.add("Range", zero, length, one)
    distances = writer.add("Sub", places, writer.add("Unsqueeze", places, writer.constant([1], "axis")))
    added = writer.add("Gather", rows, writer.add("Add", distances, middle))
    return writer.add("Transpose", added, perm=[2, 0, 1])


def _layer_nodes(writer: GraphWriter, names: dict[str, list[str]], read: _Read, rows: str, shift: str) -> str:
    """Write attention and feed-forward: rows (B·T, H), which carry the bias of the attention's output, ->
    rows (B·T, H). `names` are those of `_layer`, and `shift` is the last LayerNorm's."""
    config = read.config

    def product(x: str, name: str) -> str:
        weight, *biases = names[name]
        y = writer.add("MatMul", x, weight)
        return writer.add("Add", y, *biases) if biases else y

    def heads(name: str, order: list[int]) -> str:
        return writer.add("Transpose", writer.add("Reshape", product(rows, name), read.to_heads), perm=order)

    def norm(x: str, *constants: str) -> str:
        return writer.add("LayerNormalization", x, *constants, axis=-1, epsilon=config.layer_norm_eps)

    query = writer.add("Mul", heads("query", [0, 2, 1, 3]), read.scale)
    scores = writer.add("Add", writer.add("MatMul", query, heads("key", [0, 2, 3, 1])), read.hidden)
    context = writer.add("MatMul", writer.add("Softmax", scores, axis=-1), heads("value", [0, 2, 1, 3]))
    context = writer.add("Reshape", writer.add("Transpose", context, perm=[0, 2, 1, 3]), read.to_rows)
    rows = norm(writer.add("Add", product(context, "attention"), rows), *names["norm"])
    inner = product(rows, "inner")
    if config.hidden_act == "relu":
        inner = writer.add("Relu", inner)
    else:
        inner = writer.add("Gelu", inner, approximate=GELUS[config.hidden_act])
    return norm(writer.add("Add", product(inner, "feed_forward"), rows), *names["last_norm"], shift)
