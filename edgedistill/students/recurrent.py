"""Recurrent students: M layers of a BERT or XLM-R applied R times, behind a narrow word table (Ding et al. 2022, §3.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, PretrainedConfig
from transformers.models.bert.modeling_bert import BertEncoder

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.students import bert, embedding_tables, head
from edgedistill.students.pooling import pool

SOURCES = {"BertModel": "bert", "RobertaModel": "roberta", "XLMRobertaModel": "xlm-roberta", "CamembertModel": "camembert"}  # of one layout
SAME = ("hidden_size", "num_attention_heads", "intermediate_size", "hidden_act", "layer_norm_eps", "max_position_embeddings")


class Recurring(BertEncoder):
    """The unit of M layers, gone through `times` times: 1 2 3 1 2 3 …, never 1 1 2 2."""

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
    """`forward(input_ids, attention_mask) -> (B, d)`: as a BERT student, its layers applied again and again.

    `pad`: the id that positions are counted from behind, as XLM-R does; None: from 0, as BERT does.
    """

    def __init__(self, plain: bert.BertStudent, times: int, pad: int | None) -> None:
        super().__init__(plain.model, plain.pooling, plain.head, plain.tanh)
        self.model.encoder = Recurring(self.model.config, times)
        self.pad = pad

    def encoded(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, position_ids=self._at(input_ids))

    def embedded(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, H), the mean of the embedding layer's vectors."""
        return pool(self.model.embeddings(input_ids=input_ids, position_ids=self._at(input_ids)), attention_mask, "mean")

    def _at(self, input_ids: Tensor) -> Tensor | None:
        return None if self.pad is None else positions(input_ids, self.pad)


def positions(input_ids: Tensor, pad: int) -> Tensor:
    """(B, T) -> (B, T): pad + 1, pad + 2, … over the tokens that are not padding; pad for those that are."""
    seen = (input_ids != pad).long()
    return seen.cumsum(1) * seen + pad


def shape(
    spec: recipe.Recurrent, pieces: int, pad: int, teacher_dims: int, source: PretrainedConfig, counted: str, applied: int = 1
) -> dict[str, Any]:
    """Everything needed to build the module again, as data: M is `num_hidden_layers`, R is `times`, B is `bottleneck`.

    source: the config of the encoder the layers come from; counted: from where it counts positions (`pad` or `zero`); applied: how
    often it goes through its layers itself.
    Raises UserError: a bottleneck wider than the layers, layers that the source lacks, a unit that does not divide its depth, no
    positions behind the padding id.
    """
    width, places = source.hidden_size, source.max_position_embeddings
    embedding_tables.check(spec.bottleneck, spec.codes, width)
    unit = len(chosen(spec, source))
    counted = counted if spec.positions == "source" else spec.positions
    first = pad + 1 if counted == "pad" else 0
    if places - first < 3:
        raise UserError(f"student.positions: none are left behind padding id {pad} in a table of {places}; set positions: zero")
    config = BertConfig(
        **{name: getattr(source, name) for name in SAME},
        vocab_size=pieces,
        num_hidden_layers=unit,
        type_vocab_size=1 if spec.bottleneck else source.type_vocab_size,  # all text is segment 0; the paper's fresh table has one row
        hidden_dropout_prob=spec.dropout,
        attention_probs_dropout_prob=spec.dropout,
    )
    config.pad_token_id = pad
    return {
        "kind": "recurrent",
        "config": {key: value for key, value in config.to_diff_dict().items() if key not in bert.NOT_SHAPE},
        "times": spec.times or applied * source.num_hidden_layers // unit,
        "bottleneck": spec.bottleneck,
        "codes": spec.codes,
        "positions": counted,
        "pad": pad,
        "pooling": spec.pooling,
        **head.shape(spec, teacher_dims),
        "max_tokens": min(spec.max_tokens, places - first),
    }


def chosen(spec: recipe.Recurrent, source: PretrainedConfig) -> list[int]:
    """The source's layers that make the unit, counted from 0: those named, or the first M. M must divide the source's depth."""
    depth = source.num_hidden_layers
    layers = list(spec.layers) if isinstance(spec.layers, list) else list(range(spec.layers))
    for layer in layers if isinstance(spec.layers, list) else []:
        if not 0 <= layer < depth:
            raise UserError(f"student.layers: layer {layer} of a source with {depth} layers (0 to {depth - 1})")
    if depth % len(layers):
        known = ", ".join(str(unit) for unit in range(1, depth + 1) if depth % unit == 0)
        raise UserError(f"student.layers: a unit of {len(layers)} does not divide the source's {depth} layers; choose one of ({known})")
    return layers


def build(shape: dict[str, Any]) -> RecurrentStudent:
    """The module, with weights drawn from torch's generator."""
    return RecurrentStudent(bert.build(shape), shape["times"], shape["pad"] if shape["positions"] == "pad" else None)


def start(
    student: RecurrentStudent, layers: list[int], source: Any, counted: str, words: Tensor | None, weights: Tensor | None = None
) -> None:
    """Set the first weights in place: the source's layers, and its tables where `words` is given, its rows (V, H) of the student's pieces.

    Without `words` all tables are drawn anew as the paper's code does: N(0, 1), the projection as torch draws it. A bottleneck starts
    from the truncated SVD of the rows, codes from their k-means, in which a piece counts for its `weights` (V,).
    """
    for mine, theirs in enumerate(layers):
        student.model.encoder.layer[mine].load_state_dict(source.encoder.layer[theirs].state_dict())
    if student.pooling == "cls_pooler" and source.pooler is not None:
        student.model.pooler.load_state_dict(source.pooler.state_dict())
    embeddings = student.model.embeddings
    if words is None:
        for table in embeddings.modules():
            if isinstance(table, nn.Embedding | nn.Linear):
                table.reset_parameters()
        return
    bert.start(student, None, None, words, weights=weights)
    embeddings.LayerNorm.load_state_dict(source.embeddings.LayerNorm.state_dict())
    with torch.no_grad():
        segments = embeddings.token_type_embeddings.weight
        segments.copy_(source.embeddings.token_type_embeddings.weight[: len(segments)])
        mine = embeddings.position_embeddings.weight
        theirs = source.embeddings.position_embeddings.weight
        to = 0 if student.pad is None else student.pad + 1
        come = int(source.config.pad_token_id or 0) + 1 if counted == "pad" else 0
        back = 1 if to and come else 0  # where both count from padding, its own row too
        count = min(len(mine) - to, len(theirs) - come) + back
        mine.zero_()
        mine[to - back : to - back + count] = theirs[come - back : come - back + count]


def parameters(student: RecurrentStudent) -> dict[str, int]:
    """Counted as a BERT's, each weight once however often it is used; `words`: the word table and its projection alone.

    The paper's embedding column is `embedding` for its XLM-R students and `words` for its MiniLM students.
    """
    return {**bert.parameters(student), "words": head.count(student.model.embeddings.word_embeddings)}
