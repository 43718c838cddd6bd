"""Recurrent students: a block of M shared layers of a BERT or XLM-R, repeated R times (Ding et al. 2022, §3.1)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import BertConfig, PretrainedConfig
from transformers.models.bert.modeling_bert import BertEncoder

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.students import bert, embedding_tables, head
from edgedistill.students.pooling import pool

# model classes that share BERT's layer layout, with their model_type
SOURCES = {"BertModel": "bert", "RobertaModel": "roberta", "XLMRobertaModel": "xlm-roberta", "CamembertModel": "camembert"}
COPIED = ("hidden_size", "num_attention_heads", "intermediate_size", "hidden_act", "layer_norm_eps", "max_position_embeddings")


class RepeatedEncoder(BertEncoder):
    """A shared block of M layers repeated `times` times: 1 2 3 1 2 3 …, never 1 1 2 2."""

    def __init__(self, config: BertConfig, times: int) -> None:
        super().__init__(config)
        self.times = times

    def forward(self, hidden_states: Tensor, *rest: Any, **options: Any) -> Any:
        output: Any = None
        for _ in range(self.times):
            output = super().forward(hidden_states, *rest, **options)
            hidden_states = output[0]
        return output


class RecurrentStudent(bert.BertStudent):
    """`forward(input_ids, attention_mask) -> (B, d)`: a BERT student whose layer block is repeated.

    pad: the padding id, where positions are counted from pad + 1 as in XLM-R; None: positions are counted from 0 as in BERT.
    """

    def __init__(self, plain: bert.BertStudent, times: int, pad: int | None) -> None:
        super().__init__(plain.model, plain.pooling, plain.head, plain.tanh)
        self.model.encoder = RepeatedEncoder(self.model.config, times)
        self.pad = pad

    def encoded(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, position_ids=self._position_ids(input_ids))

    def embedded(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, H): mean-pooled output of the embedding layer."""
        return pool(self.model.embeddings(input_ids=input_ids, position_ids=self._position_ids(input_ids)), attention_mask, "mean")

    def _position_ids(self, input_ids: Tensor) -> Tensor | None:
        return None if self.pad is None else position_ids(input_ids, self.pad)


def position_ids(input_ids: Tensor, pad: int) -> Tensor:
    """XLM-R's positions, (B, T) -> (B, T): pad + 1, pad + 2, … for tokens that are not padding, pad for padding."""
    is_token = (input_ids != pad).long()
    return is_token.cumsum(1) * is_token + pad


class LayerSource(NamedTuple):
    """The encoder that a recurrent student's layers come from.

    config: of the encoder; position_ids: counted from behind the padding id (`pad`) or from 0 (`zero`); repeats: how often the encoder
    applies its own layers, 1 unless it is a recurrent student itself.
    """

    config: PretrainedConfig
    position_ids: str
    repeats: int = 1


def shape(spec: recipe.Recurrent, vocabulary_size: int, pad: int, teacher_dims: int, source: LayerSource) -> dict[str, Any]:
    """Everything needed to build the module again, as data: M is `num_hidden_layers`, R is `times`, B is `bottleneck`.

    Raises UserError: a bottleneck wider than the layers, layers that the source lacks, a layer block that does not divide its depth,
    no positions left behind the padding id.
    """
    width, positions = source.config.hidden_size, source.config.max_position_embeddings
    embedding_tables.check(spec.bottleneck, spec.pq_bytes, width)
    layers = len(source_layers(spec, source.config))
    counted_from = source.position_ids if spec.position_ids == "source" else spec.position_ids
    first = pad + 1 if counted_from == "pad" else 0
    if positions - first < 3:
        raise UserError(f"student.position_ids: none are left behind padding id {pad} in a table of {positions}; set position_ids: zero")
    config = BertConfig(
        **{name: getattr(source.config, name) for name in COPIED} | ({"hidden_act": spec.activation} if spec.activation else {}),
        vocab_size=vocabulary_size,
        num_hidden_layers=layers,
        type_vocab_size=1 if spec.bottleneck else source.config.type_vocab_size,  # all text is segment 0; the paper's new table has one row
        hidden_dropout_prob=spec.dropout,
        attention_probs_dropout_prob=spec.dropout,
    )
    config.pad_token_id = pad
    return {
        "kind": "recurrent",
        "config": {key: value for key, value in config.to_diff_dict().items() if key not in bert.NOT_SHAPE},
        "times": spec.repeats or source.repeats * source.config.num_hidden_layers // layers,
        "bottleneck": spec.bottleneck,
        "codes": spec.pq_bytes,
        "positions": counted_from,
        "pad": pad,
        "pooling": spec.pooling,
        **head.shape(spec, teacher_dims),
        "max_tokens": min(spec.max_tokens, positions - first),
    }


def source_layers(spec: recipe.Recurrent, source: PretrainedConfig) -> list[int]:
    """The source's layers that form the shared block, counted from 0: those named, or the first M.

    Raises UserError for layers that the source lacks, and where M does not divide the source's depth.
    """
    depth = source.num_hidden_layers
    layers = list(spec.layers) if isinstance(spec.layers, list) else list(range(spec.layers))
    for layer in layers if isinstance(spec.layers, list) else []:
        if not 0 <= layer < depth:
            raise UserError(f"student.layers: layer {layer} of a source with {depth} layers (0 to {depth - 1})")
    if depth % len(layers):
        known = ", ".join(str(count) for count in range(1, depth + 1) if depth % count == 0)
        raise UserError(f"student.layers: a block of {len(layers)} does not divide the source's {depth} layers; choose one of ({known})")
    return layers


def build(shape: dict[str, Any]) -> RecurrentStudent:
    """The module, with weights drawn from torch's generator."""
    return RecurrentStudent(bert.build(shape), shape["times"], shape["pad"] if shape["positions"] == "pad" else None)


def initialize(
    student: RecurrentStudent,
    layers: list[int],
    source: Any,
    counted_from: str,
    token_embeddings: Tensor | None,
    token_weights: Tensor | None = None,
) -> None:
    """Set the initial weights in place: chosen layers of a source encoder, and all embedding tables.

    counted_from: where the source counts positions from, `pad` or `zero`. token_embeddings (V, H): the source's, for the student's
    vocabulary; a factorized table takes their truncated SVD, a product-quantized one their k-means, both with token_weights (V,).
    None: all tables are randomly initialized as in the paper's code, N(0, 1), and the projection as torch draws it.
    """
    for mine, theirs in enumerate(layers):
        student.model.encoder.layer[mine].load_state_dict(source.encoder.layer[theirs].state_dict())
    if student.pooling == "cls_pooler" and source.pooler is not None:
        student.model.pooler.load_state_dict(source.pooler.state_dict())
    embeddings = student.model.embeddings
    if token_embeddings is None:
        for table in embeddings.modules():
            if isinstance(table, nn.Embedding | nn.Linear):
                table.reset_parameters()
        return
    bert.initialize(student, None, None, token_embeddings, token_weights=token_weights)
    embeddings.LayerNorm.load_state_dict(source.embeddings.LayerNorm.state_dict())
    with torch.no_grad():
        segments = embeddings.token_type_embeddings.weight
        segments.copy_(source.embeddings.token_type_embeddings.weight[: len(segments)])
        own = embeddings.position_embeddings.weight
        theirs = source.embeddings.position_embeddings.weight
        own_first = 0 if student.pad is None else student.pad + 1
        their_first = int(source.config.pad_token_id or 0) + 1 if counted_from == "pad" else 0
        padding_row = 1 if own_first and their_first else 0  # where both count from padding, its row is copied too
        count = min(len(own) - own_first, len(theirs) - their_first) + padding_row
        own_first, their_first = own_first - padding_row, their_first - padding_row
        own.zero_()
        own[own_first : own_first + count] = theirs[their_first : their_first + count]


def parameters(student: RecurrentStudent) -> dict[str, int]:
    """Counted as a BERT's, each weight once however often it is applied; `words`: the token embedding table with its projection.

    The paper's embedding column is `embedding` for its XLM-R students and `words` for its MiniLM students.
    """
    return {**bert.parameters(student), "words": head.count(student.model.embeddings.word_embeddings)}
