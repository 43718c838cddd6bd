"""Encoders made of BERT's layers under other names or with other positions: their weights as a BertModel, and what it lacks."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from edgedistill.students.relative_bias import RelativeBias
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
BIAS = "encoder.relative_attention_bias.weight"


class EncoderLayers(NamedTuple):
    """An encoder whose layers a student can take, and what it computes besides.

    model: a BertModel, or a ModernBERT as it is. pad: the padding id where positions are counted from pad + 1, as in RoBERTa; None
    where they are counted from 0, as in BERT. relative_bias: added to the attention scores of all layers, as in MPNet; or None.
    """

    model: Any
    pad: int | None = None
    relative_bias: RelativeBias | None = None


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
