"""Recurrent students: a block of M shared layers of a BERT or XLM-R, repeated R times (Ding et al. 2022,
§3.1)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor, nn
from transformers import BertConfig, PretrainedConfig
from transformers.models.bert.modeling_bert import BertEncoder

from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.recipe import Recurrent
from edgedistill.students import bert, bert_layers, embedding_tables, head
from edgedistill.students.bert import BertShape, BertStudent
from edgedistill.students.bert_layers import EncoderLayers, first_position
from edgedistill.students.kind import Kind, Start, build_to_train

COPIED = (
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "layer_norm_eps",
    "max_position_embeddings",
)


class RepeatedEncoder(BertEncoder):
    """A shared block of M layers repeated `times` times: 1 2 3 1 2 3 …, never 1 1 2 2."""

    def __init__(self, config: BertConfig, times: int) -> None:
        super().__init__(config)
        self.times = times

    def forward(self, hidden_states: Tensor, *rest: Any, **options: Any) -> Any:
        output = None
        for _ in range(self.times):
            output = super().forward(hidden_states, *rest, **options)
            hidden_states = output[0]
        return output


class RecurrentStudent(BertStudent):
    """`forward(input_ids, attention_mask) -> (B, d)`: a BERT student whose layer block is repeated."""

    def __init__(self, plain: BertStudent, times: int) -> None:
        super().__init__(plain.model, plain.pooling, plain.head, plain.tanh)
        self.model.encoder = RepeatedEncoder(self.model.config, times)
        self.pad = plain.pad
        self.relative = plain.relative
        self.lexical_channel = plain.lexical_channel

    def counts(self) -> dict[str, int]:
        """Counted as a BERT's, each weight once however often it is applied. `words` counts the token
        embedding table with its projection.

        The paper's embedding column is `embedding` for its XLM-R students and `words` for its MiniLM
        students."""
        return {**super().counts(), "words": head.count(self.model.embeddings.word_embeddings)}


class RecurrentShape(BertShape):
    """A recurrent student's shape."""

    kind: Literal["recurrent"]  # type: ignore[assignment]
    repeats: Annotated[int, Field(ge=1, le=1_000)]


def shape(spec: Recurrent, vocabulary_size: int, pad: int, teacher_dims: int, source: EncoderLayers) -> Json:
    """Everything needed to build the module again, as data: M is `num_hidden_layers`, R is `repeats`, B is
    `bottleneck`.

    Raises UserError for a bottleneck wider than the layers, for layers that the source lacks, for a layer
    block that does not divide its depth, and where no positions are left behind the padding id.
    """
    config_of_source = source.model.config
    layers = len(source_layers(spec, config_of_source))
    rows = config_of_source.max_position_embeddings
    counted_from = spec.position_ids
    if counted_from == "source":
        counted_from = "zero" if source.pad is None else "pad"
    most = rows - first_position(pad if counted_from == "pad" else None)
    if most < 3:
        raise UserError(
            f"student.position_ids: none are left behind padding id {pad} in a table of {rows}; set "
            "position_ids: zero"
        )
    copied = {name: getattr(config_of_source, name) for name in COPIED}
    config = BertConfig(
        **copied,
        vocab_size=vocabulary_size,
        num_hidden_layers=layers,
        # all text is segment 0; the paper's new table has one row
        type_vocab_size=1 if spec.bottleneck else config_of_source.type_vocab_size,
        hidden_dropout_prob=spec.dropout,
        attention_probs_dropout_prob=spec.dropout,
    )
    config.pad_token_id = pad
    positions = {"position_ids": counted_from, "pad": pad}
    positions |= {} if source.relative is None else {"relative_positions": True}
    times = spec.repeats or source.repeats * config_of_source.num_hidden_layers // layers
    return {**bert.layers_shape(spec, config, positions, most, teacher_dims), "repeats": times}


def source_layers(spec: Recurrent, source: PretrainedConfig) -> list[int]:
    """The source's layers that form the shared block, counted from 0: those named, or the first M.

    Raises UserError for layers that the source lacks, and where M does not divide the source's depth.
    """
    depth = source.num_hidden_layers
    if isinstance(spec.layers, list):
        layers = bert.known_layers(spec.layers, depth)
    else:
        layers = list(range(spec.layers))
    if depth % len(layers):
        known = ", ".join(str(count) for count in range(1, depth + 1) if depth % count == 0)
        raise UserError(
            f"student.layers: a block of {len(layers)} does not divide the source's {depth} layers; choose "
            f"one of ({known})"
        )
    return layers


def build(shape: Json) -> RecurrentStudent:
    """The module, with weights drawn from torch's generator."""
    return RecurrentStudent(bert.build(shape), shape["repeats"])


def initialize(
    student: RecurrentStudent,
    layers: list[int],
    source: EncoderLayers,
    token_embeddings: Tensor | None,
    token_weights: Tensor | None = None,
) -> None:
    """Set the initial weights in place: chosen layers of a source encoder, and all embedding tables.

    token_embeddings (V, H) are the source's, for the student's vocabulary; a factorized table takes their
    truncated SVD, a product-quantized one their k-means, both with token_weights (V,). Without them all
    tables are randomly initialized as in the paper's code, N(0, 1), and the projection as torch draws it.
    """
    bert.copy_layers(student, layers, source)
    if token_embeddings is not None:
        embedding_tables.initialize(student.model.get_input_embeddings(), token_embeddings, token_weights)
        return
    for part in student.model.embeddings.modules():
        if isinstance(part, nn.Embedding | nn.Linear | nn.LayerNorm):
            part.reset_parameters()


def initial(spec: Recurrent, start: Start) -> tuple[RecurrentStudent, Json]:
    """The recipe's student with its initial weights, and its shape."""
    source: Any = start.layers  # a recurrent student always has one
    student_shape = shape(spec, start.vocabulary_size, start.pad_id, start.dims, source)
    if student_shape["position_ids"] == "pad" and start.tokenizer.pad_token_id is None:
        raise UserError(
            "student.position_ids: positions are counted from padding, and the tokenizer names no padding "
            "token; set position_ids: zero"
        )
    student: RecurrentStudent = build_to_train(build, student_shape, start.shape_only)
    initialize(
        student, source_layers(spec, source.model.config), source, start.embeddings, start.token_weights
    )
    head.copy(student.head, start.head)
    return student, student_shape


KIND = Kind(RecurrentShape, initial, build, bert_layers.restore)
