"""ModernBERT as a student's encoder: chosen layers of one, at its full width."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import ModernBertConfig, ModernBertModel, PretrainedConfig

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.students.bert_layers import EncoderLayers

MODEL_TYPE = "modernbert"
STEADY_ROPE = ("default",)  # types of rotary positions that are known from their base alone
NO_TOKENS = dict.fromkeys(("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id"))  # the encoder reads none of these
ARCHITECTURE = {"ModernBertModel": (MODEL_TYPE, "ModernBERT")}  # as bert_layers.ARCHITECTURES


def config(spec: recipe.Bert, source: PretrainedConfig, layers: list[int], own: dict[str, int]) -> ModernBertConfig:
    """The source's config with chosen layers, which keep their reach (the whole text, or a window), and the student's values `own`.

    `attention_norms`: whether each layer has a LayerNorm in front of its attention, which a ModernBERT's first layer has not.
    Raises UserError: `max_positions`, which has no meaning for rotary positions; transformers 4, whose layers have no types.
    """
    if spec.max_positions is not None:
        raise UserError("student.max_positions: ModernBERT's positions are rotary and have no table; leave it out")
    given: dict[str, Any] = source.to_dict()
    if "layer_types" not in given:
        raise UserError("student.weights: layers of ModernBERT need transformers 5 or newer; pip install 'transformers>=5'")
    norms = given.get("attention_norms") or [layer > 0 for layer in range(source.num_hidden_layers)]
    chosen = {"num_hidden_layers": len(layers), "layer_types": [given["layer_types"][layer] for layer in layers]}
    activation = {"hidden_activation": spec.activation} if spec.activation else {}
    dropout = dict.fromkeys(("attention_dropout", "embedding_dropout", "mlp_dropout"), spec.dropout)
    return ModernBertConfig(
        **{**given, **chosen, **activation, **dropout, **NO_TOKENS, **own, "attention_norms": [norms[layer] for layer in layers]}
    )


def build(config: dict[str, Any]) -> ModernBertModel:
    """The encoder of a config with `attention_norms`, with weights drawn from torch's generator."""
    model = ModernBertModel(ModernBertConfig(**{**config, **NO_TOKENS}))
    for layer, normed in zip(model.layers, config["attention_norms"], strict=True):
        norm = nn.LayerNorm(model.config.hidden_size, eps=model.config.norm_eps, bias=model.config.norm_bias)
        layer.attn_norm = norm if normed else nn.Identity()
    return model


def copy_layers(student: Any, layers: list[int], source: EncoderLayers) -> None:
    """Copy chosen layers and all norms of a source in place; rotary positions have no weights."""
    mine, theirs = student.model, source.model
    for at, number in enumerate(layers):
        mine.layers[at].load_state_dict(theirs.layers[number].state_dict())
    mine.embeddings.norm.load_state_dict(theirs.embeddings.norm.state_dict())
    mine.final_norm.load_state_dict(theirs.final_norm.state_dict())
