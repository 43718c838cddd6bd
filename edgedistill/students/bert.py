"""BERT students: randomly initialized, or initialized from the weights or from chosen layers of a known
encoder."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PretrainedConfig

from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.recipe import Bert, Recurrent
from edgedistill.students import bert_layers, embedding_tables, head, narrow_bert
from edgedistill.students.bert_layers import (
    EncoderLayers,
    first_position,
    position_ids,
)
from edgedistill.students.head import Headed
from edgedistill.students.kind import Fields, Kind, Layers, Share, Size, Start, StudentShape, build_to_train
from edgedistill.students.pooling import pool

NOT_SHAPE = ("transformers_version", "architectures", "dtype", "torch_dtype", "_name_or_path")
POSITIONS = 512  # rows of a randomly initialized position table, as in BERT


class BertStudent(Headed):
    """`forward(input_ids, attention_mask) -> (B, d)`: a BERT, pooling, and a head where the recipe has one.

    `pad` is the padding id where positions are counted from pad + 1, as in RoBERTa; None where they are
    counted from 0, as in BERT. `relative` is the table of relative positions, as in MPNet, where it has one.
    """

    def __init__(self, model: Any, pooling: str, head: nn.Linear | None, tanh: bool) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self.head = head
        self.tanh = tanh
        self.pooled_dims = int(model.config.hidden_size)
        self.pad: int | None = None
        self.relative: nn.Embedding | None = None

    @property
    def poolings(self) -> list[str]:
        return [self.pooling]

    def encoded(
        self, input_ids: Tensor, attention_mask: Tensor, token_embeddings: Tensor | None = None
    ) -> Any:
        """BERT's output: token embeddings (B, T, H), then the pooler's output (B, H) where there is a
        pooler."""
        if self.relative is not None:
            attention_mask = bert_layers.scores_mask(self.relative.weight, attention_mask)
        return self.model(attention_mask=attention_mask, **self._inputs(input_ids, token_embeddings))

    def embedded(
        self, input_ids: Tensor, attention_mask: Tensor, token_embeddings: Tensor | None = None
    ) -> Tensor:
        """(B, H): mean-pooled output of the embedding layer (tokens, positions, segments, LayerNorm), before
        any other layer."""
        return pool(
            self.model.embeddings(**self._inputs(input_ids, token_embeddings)), attention_mask, "mean"
        )

    def _inputs(self, input_ids: Tensor, token_embeddings: Tensor | None) -> dict[str, Tensor | None]:
        """What BERT reads: ids, or in their place the rows of the embedding table, and their positions where
        these are not counted from 0."""
        positions = None if self.pad is None else position_ids(input_ids, self.pad)
        inputs = {"position_ids": positions, "inputs_embeds": token_embeddings}
        return inputs if token_embeddings is not None else {**inputs, "input_ids": input_ids}

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_embeddings: Tensor | None = None
    ) -> Tensor:
        """input_ids, attention_mask (B, T) int64, right-padded. Returns (B, d).

        `token_embeddings` (B, T, H) are the rows of the embedding table, where they were looked up before.
        """
        tokens, *pooler = self.encoded(input_ids, attention_mask, token_embeddings)[:2]
        if self.pooling == "cls_pooler":
            return self.through_head(pooler[0], input_ids, attention_mask)
        return self.through_head(pool(tokens, attention_mask, self.pooling), input_ids, attention_mask)

    def counts(self) -> dict[str, int]:
        """Counted as in the papers: all embedding tables and their LayerNorm; the layers; the head with
        BERT's own pooler."""
        pooler = self.model.pooler if self.pooling == "cls_pooler" else None
        return head.counts(self, head.count(self.model.embeddings), self.head, pooler)


class BertSizes(Fields):
    """The keys of a BertConfig that our graphs read; other keys are ignored."""

    model_config = ConfigDict(extra="ignore")

    vocab_size: Size = 30_522
    hidden_size: Size = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3_072
    hidden_act: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu"] = "gelu"
    hidden_dropout_prob: Share = 0.1
    attention_probs_dropout_prob: Share = 0.1
    max_position_embeddings: Size = 512
    type_vocab_size: Annotated[int, Field(ge=1, le=64)] = 2
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.02
    layer_norm_eps: Annotated[float, Field(gt=0, le=1)] = 1e-12
    pad_token_id: Annotated[int, Field(ge=0)] | None = 0
    model_type: Literal["bert"] = "bert"

    @model_validator(mode="after")
    def _fits(self) -> BertSizes:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"{self.num_attention_heads} heads do not divide a width of {self.hidden_size}")
        if (self.pad_token_id or 0) >= self.vocab_size:
            raise ValueError("a padding id above the vocabulary")
        return self


class BertShape(StudentShape):
    """The shape of a student of BERT's layers."""

    kind: Literal["bert"]
    config: BertSizes
    bottleneck: Size | None = None
    pooling: Literal["mean", "cls", "cls_pooler", "max", "last"]
    position_ids: Literal["pad", "zero"] = "zero"
    pad: Annotated[int, Field(ge=0, lt=2**24)] = 0
    relative_positions: bool = False

    @model_validator(mode="after")
    def _in_tables(self) -> BertShape:
        first = self.pad + 1 if self.position_ids == "pad" else 0
        if self.max_tokens > self.config.max_position_embeddings - first:
            raise ValueError(f"{self.max_tokens} tokens for {self.config.max_position_embeddings} positions")
        if self.pad >= self.config.vocab_size:
            raise ValueError("a padding id above the vocabulary")
        return self.in_blocks(self.config.hidden_size)


def shape(
    spec: Bert,
    vocabulary_size: int,
    pad: int,
    teacher_dims: int,
    source: EncoderLayers | None,
) -> Json:
    """Everything needed to build the module again, as data.

    `source` is the encoder that the initial weights come from, if any. Raises UserError for a layer, or for
    more positions, than the source has, and where no positions are left behind the padding id.
    """
    vocabulary = {"vocab_size": vocabulary_size, "pad_token_id": pad}
    if source is None:
        config = _random_config(spec, vocabulary)
        positions: Json = {}
    else:
        reduced = narrow_bert.shape(spec, source.model.config) if spec.reduced else {}
        config = _source_config(spec, source.model.config, {**vocabulary, **reduced})
        positions = {} if source.pad is None else {"position_ids": "pad", "pad": pad}
        positions |= {} if source.relative is None else {"relative_positions": True}
    first = first_position(positions.get("pad"))
    if config.max_position_embeddings - first < 3:
        raise UserError(
            f"student.max_positions: none are left behind padding id {pad} in a table of "
            f"{config.max_position_embeddings}; give more, or a tokenizer with a smaller padding id"
        )
    return layers_shape(spec, config, positions, config.max_position_embeddings - first, teacher_dims)


def layers_shape(
    spec: Bert | Recurrent,
    config: BertConfig,
    positions: Json,
    most_tokens: int,
    teacher_dims: int,
) -> Json:
    """The fields of a `BertShape`. Raises UserError for a bottleneck or PQ bytes that do not fit."""
    embedding_tables.check(spec.bottleneck, spec.pq_bytes, config.hidden_size)
    return {
        "kind": spec.kind,
        "config": {k: v for k, v in config.to_diff_dict().items() if k not in NOT_SHAPE},
        **positions,
        "bottleneck": spec.bottleneck,
        **embedding_tables.product_quantized(spec),
        "pooling": spec.pooling,
        **head.shape(spec, teacher_dims),
        "max_tokens": min(spec.max_tokens, most_tokens),
    }


def _random_config(spec: Bert, vocabulary: dict[str, int]) -> BertConfig:
    width: Any = spec.width  # a number, and so are the layers, as the recipe says
    heads = spec.heads or max(2, width // 64)
    if width % heads:
        raise UserError(f"student.heads: width {width} is not a multiple of {heads} heads; set student.heads")
    return BertConfig(
        **vocabulary,
        hidden_size=width,
        num_hidden_layers=spec.layers,
        num_attention_heads=heads,
        intermediate_size=spec.intermediate or 4 * width,
        max_position_embeddings=spec.max_positions or POSITIONS,
        hidden_dropout_prob=spec.dropout,
        attention_probs_dropout_prob=spec.dropout,
    )


def _source_config(spec: Bert, source: PretrainedConfig, replaced: dict[str, int]) -> BertConfig:
    """The source's config with the student's own values."""
    most = source.max_position_embeddings
    positions = spec.max_positions or most
    if positions > most:
        raise UserError(
            f"student.max_positions: {positions} from weights that have {most}; ask for as many or fewer"
        )
    changed = {"num_hidden_layers": len(source_layers(spec, source)), "max_position_embeddings": positions}
    config = BertConfig(**source.to_dict() | changed | replaced)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = spec.dropout
    return config


def source_layers(spec: Bert, source: PretrainedConfig) -> list[int]:
    """The source's layers that initialize the student's, counted from 0; a count selects them evenly, the
    last one included.

    Raises UserError for layers that the source does not have.
    """
    depth = source.num_hidden_layers
    if isinstance(spec.layers, list):
        return known_layers(spec.layers, depth)
    count = spec.layers or depth
    if count > depth:
        raise UserError(
            f"student.layers: {count} layers from weights that have {depth}; ask for {depth} or fewer"
        )
    return [round((i + 1) * depth / count) - 1 for i in range(count)]


def known_layers(layers: list[int], depth: int) -> list[int]:
    """The layers. Raises UserError for one that a source of this depth does not have."""
    for layer in layers:
        if not 0 <= layer < depth:
            raise UserError(
                f"student.layers: no layer {layer} in a model with {depth} layers; choose from 0 to "
                f"{depth - 1}"
            )
    return layers


def build(shape: Json) -> BertStudent:
    """The module, with weights drawn from torch's generator."""
    model = BertModel(BertConfig(**shape["config"]), add_pooling_layer=shape["pooling"] == "cls_pooler")
    config = model.config
    if shape.get("bottleneck") or shape.get("pq_bytes"):
        sizes = (config.vocab_size, config.hidden_size, config.pad_token_id, config.initializer_range)
        model.set_input_embeddings(embedding_tables.build(shape, *sizes))
    student = BertStudent(model, shape["pooling"], head.build(shape, config.hidden_size), shape["tanh"])
    if shape.get("position_ids") == "pad":
        student.pad = shape["pad"]
    if shape.get("relative_positions"):
        student.relative = nn.Embedding(bert_layers.BUCKETS, config.num_attention_heads)
    return head.with_lexical_channel(student, shape, config.vocab_size)


@torch.no_grad()
def copy_layers(student: BertStudent, layers: list[int], source: EncoderLayers) -> None:
    """Copy all of a source but its token embeddings; a student with fewer segments takes the first."""
    mine = student.model
    theirs = source.model
    for at, number in enumerate(layers):
        mine.encoder.layer[at].load_state_dict(theirs.encoder.layer[number].state_dict())
    mine.embeddings.LayerNorm.load_state_dict(theirs.embeddings.LayerNorm.state_dict())
    bert_layers.copy_tables(student, source)
    if student.relative is not None and source.relative is not None:
        student.relative.weight.copy_(source.relative)
    if student.pooling == "cls_pooler" and theirs.pooler is not None:
        mine.pooler.load_state_dict(theirs.pooler.state_dict())


def _identity_head(student: BertStudent) -> None:
    """Make a linear head that keeps the width the identity."""
    head = student.head
    if head is not None and head.out_features == head.in_features and not student.tanh:
        nn.init.eye_(head.weight)
        if head.bias is not None:
            nn.init.zeros_(head.bias)


def initial(spec: Bert, start: Start) -> tuple[BertStudent, Json]:
    """The recipe's student with its initial weights, and its shape."""
    source = start.layers
    embeddings = start.embeddings
    weights = start.token_weights
    shaping = source
    if source is not None and start.tokenizer.pad_token_id is None:
        # without a padding token to count from, which texts would hold too
        shaping = source._replace(pad=None)
    student_shape = shape(spec, start.vocabulary_size, start.pad_id, start.dims, shaping)
    student = build_to_train(build, student_shape, start.shape_only)
    layers = [] if source is None else source_layers(spec, source.model.config)
    if spec.reduced:
        if start.batch is not None and embeddings is not None and source is not None:
            narrow_bert.initialize(student, source, layers, embeddings, start.batch, weights)
        return student, student_shape
    if source is not None:
        copy_layers(student, layers, source)
        _identity_head(student)
    if embeddings is not None:
        embedding_tables.initialize(student.model.get_input_embeddings(), embeddings, weights)
    head.copy(student.head, start.head)
    return student, student_shape


KIND = Kind(BertShape, initial, build, bert_layers.restore)
