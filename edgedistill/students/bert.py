"""BERT students: randomly initialized, or initialized from the weights or from chosen layers of a known
encoder."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PretrainedConfig

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.students import bert_layers, embedding_tables, head, narrow_bert
from edgedistill.students.bert_layers import (
    EncoderLayers,
    LayerSource,
    first_position,
    position_ids,
    position_rows,
)
from edgedistill.students.graph_writer import MASKED
from edgedistill.students.kind import Kind, Start, build_to_train
from edgedistill.students.pooling import pool
from edgedistill.students.relative_bias import BUCKETS, RelativeBias
from edgedistill.students.shape_fields import Fields, Layers, Share, Size, StudentShape

NOT_SHAPE = ("transformers_version", "architectures", "dtype", "torch_dtype", "_name_or_path")
POSITIONS = 512  # rows of a randomly initialized position table, as in BERT


class BertStudent(nn.Module):
    """`forward(input_ids, attention_mask) -> (B, d)`: a BERT, pooling, and a head where the recipe has
    one.

    pad: the padding id, where positions are counted from pad + 1 as in RoBERTa; None: positions are counted
        from 0 as in BERT.
    relative_bias: added to the attention scores of all layers, as in MPNet.
    """

    def __init__(self, model: Any, pooling: str, head: nn.Linear | None, tanh: bool) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self.head = head
        self.tanh = tanh
        self.pad: int | None = None
        self.relative_bias: RelativeBias | None = None

    @property
    def dims(self) -> int:
        return self.head.out_features if self.head is not None else int(self.model.config.hidden_size)

    def encoded(
        self, input_ids: Tensor, attention_mask: Tensor, token_embeddings: Tensor | None = None
    ) -> Any:
        """BERT's output: token embeddings (B, T, H), then the pooler's output (B, H) where there is a
        pooler."""
        if self.relative_bias is None:
            inputs = {**_read(input_ids, token_embeddings), "position_ids": self._position_ids(input_ids)}
            return self.model(attention_mask=attention_mask, **inputs)
        masked = (1 - attention_mask[:, None, None, :]) * MASKED + self.relative_bias(input_ids.shape[1])
        tokens = self.model.encoder(
            self._embedding_layer(input_ids, token_embeddings), attention_mask=masked
        )[0]
        return tokens, None if self.model.pooler is None else self.model.pooler(tokens)

    def tokens(
        self, input_ids: Tensor, attention_mask: Tensor, token_embeddings: Tensor | None = None
    ) -> Tensor:
        """Token embeddings (B, T, H) of the last layer, before pooling."""
        return self.encoded(input_ids, attention_mask, token_embeddings)[0]

    def embedded(
        self, input_ids: Tensor, attention_mask: Tensor, token_embeddings: Tensor | None = None
    ) -> Tensor:
        """(B, H): mean-pooled output of the embedding layer (tokens, positions, segments, LayerNorm), before
        any other layer."""
        return pool(self._embedding_layer(input_ids, token_embeddings), attention_mask, "mean")

    def _embedding_layer(self, input_ids: Tensor, token_embeddings: Tensor | None) -> Tensor:
        positions = {} if self.pad is None else {"position_ids": self._position_ids(input_ids)}
        return self.model.embeddings(**_read(input_ids, token_embeddings), **positions)

    def _position_ids(self, input_ids: Tensor) -> Tensor | None:
        return None if self.pad is None else position_ids(input_ids, self.pad)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_embeddings: Tensor | None = None
    ) -> Tensor:
        """input_ids, attention_mask (B, T) int64, right-padded. Returns (B, d).

        token_embeddings (B, T, H): the rows of the embedding table, where they were looked up before.
        """
        if self.pooling == "cls_pooler":
            embeddings = self.encoded(input_ids, attention_mask, token_embeddings)[1]
        else:
            embeddings = pool(
                self.tokens(input_ids, attention_mask, token_embeddings), attention_mask, self.pooling
            )
        embeddings = embeddings if self.head is None else self.head(embeddings)
        return embeddings.tanh() if self.tanh else embeddings


def _read(input_ids: Tensor, token_embeddings: Tensor | None) -> dict[str, Tensor]:
    """What transformers' modules read: ids, or in their place the rows of the embedding table."""
    return {"input_ids": input_ids} if token_embeddings is None else {"inputs_embeds": token_embeddings}


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
    positions: Literal["pad", "zero"] = "zero"
    pad: Annotated[int, Field(ge=0, lt=2**24)] = 0
    relative_bias: Annotated[int, Field(ge=BUCKETS, le=1_024)] | None = None

    @model_validator(mode="after")
    def _in_tables(self) -> BertShape:
        first = self.pad + 1 if self.positions == "pad" else 0
        if self.max_tokens > self.config.max_position_embeddings - first:
            raise ValueError(f"{self.max_tokens} tokens for {self.config.max_position_embeddings} positions")
        if self.pad >= self.config.vocab_size:
            raise ValueError("a padding id above the vocabulary")
        return self.in_blocks(self.config.hidden_size)


def shape(
    spec: recipe.Bert,
    vocabulary_size: int,
    pad: int,
    teacher_dims: int,
    source: LayerSource | None,
    reduced: dict[str, int] | None = None,
) -> dict[str, Any]:
    """Everything needed to build the module again, as data.

    source: the encoder that the initial weights come from, if any; reduced: the values of its config that a
        narrow student replaces
    (see narrow_bert.shape). Raises UserError: a layer, or more positions, than the source has; no positions
    left behind the padding id.
    """
    own = {"vocab_size": vocabulary_size, "pad_token_id": pad}
    if source is None:
        config = _random_config(spec, own)
    else:
        config = _source_config(spec, source.config, {**own, **(reduced or {})})
    embedding_tables.check(spec.bottleneck, spec.pq_bytes, config.hidden_size)
    first = first_position(pad if source is not None and source.position_ids == "pad" else None)
    if config.max_position_embeddings - first < 3:
        fact = f"none are left behind padding id {pad} in a table of {config.max_position_embeddings}"
        raise UserError(f"student.max_positions: {fact}; give more, or a tokenizer with a smaller padding id")
    return {
        "kind": "bert",
        "config": {k: v for k, v in config.to_diff_dict().items() if k not in NOT_SHAPE},
        **(positions_and_bias(pad, source) if source is not None else {}),
        "bottleneck": spec.bottleneck,
        **embedding_tables.product_quantized(spec),
        "pooling": spec.pooling,
        **head.shape(spec, teacher_dims),
        "max_tokens": min(spec.max_tokens, config.max_position_embeddings - first),
    }


def positions_and_bias(pad: int, source: LayerSource) -> dict[str, Any]:
    """The part of a shape that a BERT does not have: positions counted from padding, and the buckets of a
    relative attention bias."""
    positions = {"positions": "pad", "pad": pad} if source.position_ids == "pad" else {}
    return {**positions, **({} if source.buckets is None else {"relative_bias": source.buckets})}


def _random_config(spec: recipe.Bert, own: dict[str, int]) -> BertConfig:
    assert isinstance(spec.layers, int) and spec.width is not None  # validated by the recipe
    heads = spec.heads or max(2, spec.width // 64)
    if spec.width % heads:
        raise UserError(
            f"student.heads: width {spec.width} is not a multiple of {heads} heads; set student.heads"
        )
    return BertConfig(
        **own,
        hidden_size=spec.width,
        num_hidden_layers=spec.layers,
        num_attention_heads=heads,
        intermediate_size=spec.intermediate or 4 * spec.width,
        max_position_embeddings=spec.max_positions or POSITIONS,
        hidden_act=spec.activation or "gelu",
        hidden_dropout_prob=spec.dropout,
        attention_probs_dropout_prob=spec.dropout,
    )


def _source_config(spec: recipe.Bert, source: PretrainedConfig, own: dict[str, int]) -> BertConfig:
    """The source's config with the student's own values."""
    positions = spec.max_positions or source.max_position_embeddings
    if positions > source.max_position_embeddings:
        most = source.max_position_embeddings
        raise UserError(
            f"student.max_positions: {positions} from weights that have {most}; ask for as many or fewer"
        )
    changed = {"num_hidden_layers": len(source_layers(spec, source)), "max_position_embeddings": positions}
    activation = {"hidden_act": spec.activation} if spec.activation else {}
    config = BertConfig(**{**source.to_dict(), **changed, **activation, **own})
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = spec.dropout
    return config


def source_layers(spec: recipe.Bert, source: PretrainedConfig) -> list[int]:
    """The source's layers that initialize the student's, counted from 0; a count selects them evenly, the
    last one included.

    Raises UserError for layers that the source does not have.
    """
    depth = source.num_hidden_layers
    if isinstance(spec.layers, list):
        for layer in spec.layers:
            if not 0 <= layer < depth:
                raise UserError(
                    f"student.layers: no layer {layer} in a model with {depth} layers; choose from 0 to "
                    f"{depth - 1}"
                )
        return spec.layers
    count = spec.layers or depth
    if count > depth:
        raise UserError(
            f"student.layers: {count} layers from weights that have {depth}; ask for {depth} or fewer"
        )
    return [round((i + 1) * depth / count) - 1 for i in range(count)]


def build(shape: dict[str, Any]) -> BertStudent:
    """The module, with weights drawn from torch's generator."""
    model = BertModel(BertConfig(**shape["config"]), add_pooling_layer=shape["pooling"] == "cls_pooler")
    config = model.config
    table = embedding_tables.build(
        shape, config.vocab_size, config.hidden_size, config.pad_token_id, config.initializer_range
    )
    if table is not None:
        model.set_input_embeddings(table)
    student = BertStudent(model, shape["pooling"], head.build(shape, config.hidden_size), shape["tanh"])
    student.pad = shape["pad"] if shape.get("positions") == "pad" else None
    student.relative_bias = (
        RelativeBias(shape["relative_bias"], config.num_attention_heads)
        if shape.get("relative_bias")
        else None
    )
    return student


def initialize(
    student: BertStudent,
    layers: list[int] | None,
    source: EncoderLayers | None,
    token_embeddings: Tensor | None,
    outputs: bool = False,
    token_weights: Tensor | None = None,
) -> None:
    """Set the initial weights in place: chosen layers of a source, and the embedding table.

    layers, source: None leaves the layers randomly initialized; behind copied layers a linear head that keeps
        the width is initialized
    as the identity. token_embeddings (V, w), None: the table stays random; they are reduced by PCA where they
    are wider, then by the truncated SVD for a factorized table or by k-means for a product-quantized one.
    outputs: the token embeddings are the teacher's outputs, so a linear head is initialized to reconstruct
    them from the reduced ones. token_weights (V,): of each token in these reductions.
    """
    if source is not None and layers is not None:
        _copy_layers(student, layers, source)
        _identity_head(student)
    if token_embeddings is None:
        return
    with torch.no_grad():
        width = student.model.config.hidden_size
        rows = embedding_tables.reduce_width(token_embeddings, width, token_weights)
        embedding_tables.initialize(student.model.get_input_embeddings(), rows, token_weights)
        if (
            outputs
            and student.head is not None
            and student.head.out_features == token_embeddings.shape[1] > width
        ):
            student.head.weight.copy_(
                embedding_tables.principal_directions(token_embeddings, width, token_weights)
            )
            if student.head.bias is not None:
                # the mean that PCA removed, scaled as the last LayerNorm scales a token embedding: to length
                # √width
                mean = token_embeddings.mean(0)
                student.head.bias.copy_(mean * width**0.5 / (token_embeddings - mean).norm(dim=1).mean())


def _copy_layers(student: BertStudent, layers: list[int], source: EncoderLayers) -> None:
    """Copy all of a source but its token embeddings."""
    mine, theirs = student.model, source.model
    for at, number in enumerate(layers):
        mine.encoder.layer[at].load_state_dict(theirs.encoder.layer[number].state_dict())
    for name in ("token_type_embeddings", "LayerNorm"):
        getattr(mine.embeddings, name).load_state_dict(getattr(theirs.embeddings, name).state_dict())
    positions = mine.embeddings.position_embeddings.weight
    positions.data.copy_(position_rows(len(positions), student.pad, theirs, source.pad))
    if student.relative_bias is not None and source.relative_bias is not None:
        student.relative_bias.load_state_dict(source.relative_bias.state_dict())
    if student.pooling == "cls_pooler" and theirs.pooler is not None:
        mine.pooler.load_state_dict(theirs.pooler.state_dict())


def _identity_head(student: BertStudent) -> None:
    """Make a linear head that keeps the width the identity."""
    if (
        student.head is not None
        and student.head.out_features == student.head.in_features
        and not student.tanh
    ):
        nn.init.eye_(student.head.weight)
        if student.head.bias is not None:
            nn.init.zeros_(student.head.bias)


def initial(spec: recipe.Bert, start: Start) -> tuple[BertStudent, dict[str, Any]]:
    """The recipe's student with its initial weights, and its shape."""
    taken = start.layers.shape_source if start.layers else None
    if taken is not None and start.tokenizer.pad_token_id is None:
        taken = taken._replace(
            position_ids="zero"
        )  # without a padding token to count from, which texts would hold too
    narrow = narrow_bert.shape(spec, taken) if taken and spec.reduced else {}
    own = shape(spec, start.vocabulary_size, start.pad_id, start.dims, taken, narrow)
    student: BertStudent = build_to_train(build, own, start.shape_only)
    layers = source_layers(spec, taken.config) if taken else None
    if not spec.reduced:
        initialize(
            student,
            layers,
            start.layers,
            start.embeddings,
            spec.embeddings.of == "outputs",
            start.token_weights,
        )
        head.copy(student.head, start.head)
    elif start.batch is not None and start.embeddings is not None:
        assert start.layers is not None and layers is not None
        narrow_bert.initialize(
            student, start.layers, layers, start.embeddings, start.batch, start.token_weights
        )
    return student, own


def parameters(student: BertStudent) -> dict[str, int]:
    """Counted as in the papers: all embedding tables and their LayerNorm; the layers; the head with BERT's
    own pooler."""
    pooler = getattr(student.model, "pooler", None)
    embedding, total = head.count(student.model.embeddings), head.count(student)
    after = head.count(student.head) + head.count(pooler if student.pooling == "cls_pooler" else None)
    return {"embedding": embedding, "encoder": total - embedding - after, "head": after, "total": total}


KIND = Kind(BertStudent, BertShape, initial, build, parameters, restore=bert_layers.restore)
