"""BERT students: randomly initialized, or initialized from a model's weights or from chosen layers of the teacher."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.students import embedding_tables, head
from edgedistill.students.pooling import pool

NOT_SHAPE = ("transformers_version", "architectures", "dtype", "torch_dtype", "_name_or_path")
POSITIONS = 512  # rows of a randomly initialized position table, as in BERT


class BertStudent(nn.Module):
    """`forward(input_ids, attention_mask) -> (B, d)`: BERT, pooling, and a head where the recipe has one."""

    def __init__(self, model: BertModel, pooling: str, head: nn.Linear | None, tanh: bool) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self.head = head
        self.tanh = tanh

    @property
    def dims(self) -> int:
        return self.head.out_features if self.head is not None else int(self.model.config.hidden_size)

    def encoded(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        """BERT's output: token embeddings (B, T, H), then the pooler's output (B, H) where there is a pooler."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask)

    def tokens(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Token embeddings (B, T, H) of the last layer, before pooling."""
        return self.encoded(input_ids, attention_mask)[0]

    def embedded(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, H): mean-pooled output of the embedding layer (tokens, positions, segments, LayerNorm), before any other layer."""
        return pool(self.model.embeddings(input_ids=input_ids), attention_mask, "mean")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids, attention_mask (B, T) int64, right-padded. Returns (B, d)."""
        if self.pooling == "cls_pooler":
            embeddings = self.encoded(input_ids, attention_mask)[1]
        else:
            embeddings = pool(self.tokens(input_ids, attention_mask), attention_mask, self.pooling)
        embeddings = embeddings if self.head is None else self.head(embeddings)
        return embeddings.tanh() if self.tanh else embeddings


def shape(
    spec: recipe.Bert,
    vocabulary_size: int,
    pad: int,
    teacher_dims: int,
    source: BertConfig | None,
    reduced: dict[str, int] | None = None,
) -> dict[str, Any]:
    """Everything needed to build the module again, as data.

    source: the config of the model that the initial weights come from, if any; reduced: the values of it that a narrow student
    replaces (see narrow_bert.shape). Raises UserError: a layer, or more positions, than the source has.
    """
    if source is None:
        assert isinstance(spec.layers, int) and spec.width is not None  # validated by the recipe
        heads = spec.heads or max(2, spec.width // 64)
        if spec.width % heads:
            raise UserError(f"student.heads: width {spec.width} is not a multiple of {heads} heads; set student.heads")
        config = BertConfig(
            vocab_size=vocabulary_size,
            hidden_size=spec.width,
            num_hidden_layers=spec.layers,
            num_attention_heads=heads,
            intermediate_size=spec.intermediate or 4 * spec.width,
            max_position_embeddings=spec.max_positions or POSITIONS,
            hidden_act=spec.activation or "gelu",
        )
    else:
        positions = spec.max_positions or source.max_position_embeddings
        if positions > source.max_position_embeddings:
            most = source.max_position_embeddings
            raise UserError(f"student.max_positions: {positions} from weights that have {most}; ask for as many or fewer")
        own = {"vocab_size": vocabulary_size, "num_hidden_layers": len(source_layers(spec, source)), "max_position_embeddings": positions}
        activation = {"hidden_act": spec.activation} if spec.activation else {}
        config = BertConfig(**{**source.to_dict(), **own, **activation, **(reduced or {})})
    embedding_tables.check(spec.bottleneck, spec.pq_bytes, config.hidden_size)
    config.pad_token_id = pad
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = spec.dropout
    return {
        "kind": "bert",
        "config": {k: v for k, v in config.to_diff_dict().items() if k not in NOT_SHAPE},
        "bottleneck": spec.bottleneck,
        "codes": spec.pq_bytes,
        "pooling": spec.pooling,
        **head.shape(spec, teacher_dims),
        "max_tokens": min(spec.max_tokens, config.max_position_embeddings),
    }


def source_layers(spec: recipe.Bert, source: BertConfig) -> list[int]:
    """The source's layers that initialize the student's, counted from 0; a count selects them evenly, the last one included.

    Raises UserError for layers that the source does not have.
    """
    depth = source.num_hidden_layers
    if isinstance(spec.layers, list):
        for layer in spec.layers:
            if not 0 <= layer < depth:
                raise UserError(f"student.layers: no layer {layer} in a model with {depth} layers; choose from 0 to {depth - 1}")
        return spec.layers
    count = spec.layers or depth
    if count > depth:
        raise UserError(f"student.layers: {count} layers from weights that have {depth}; ask for {depth} or fewer")
    return [round((i + 1) * depth / count) - 1 for i in range(count)]


def build(shape: dict[str, Any]) -> BertStudent:
    """The module, with weights drawn from torch's generator."""
    config = BertConfig(**shape["config"])
    model = BertModel(config, add_pooling_layer=shape["pooling"] == "cls_pooler")
    table = embedding_tables.build(shape, config.vocab_size, config.hidden_size, config.pad_token_id, config.initializer_range)
    if table is not None:
        model.embeddings.word_embeddings = table
    linear = head.build(shape, config.hidden_size)
    return BertStudent(model, shape["pooling"], linear, shape["tanh"])


def initialize(
    student: BertStudent,
    layers: list[int] | None,
    source: BertModel | None,
    token_embeddings: Tensor | None,
    outputs: bool = False,
    token_weights: Tensor | None = None,
) -> None:
    """Set the initial weights in place: chosen layers of a source, and the embedding table.

    layers, source: None leaves the layers randomly initialized; behind copied layers a linear head that keeps the width is initialized
    as the identity. token_embeddings (V, w), None: the table stays random; they are reduced by PCA where they are wider, then by the
    truncated SVD for a factorized table or by k-means for a product-quantized one. outputs: the token embeddings are the teacher's
    outputs, so a linear head is initialized to reconstruct them from the reduced ones. token_weights (V,): of each token in these
    reductions.
    """
    if source is not None and layers is not None:
        _copy_layers(student, layers, source)
    if token_embeddings is None:
        return
    with torch.no_grad():
        width = student.model.config.hidden_size
        rows = embedding_tables.reduce_width(token_embeddings, width, token_weights)
        embedding_tables.initialize(student.model.embeddings.word_embeddings, rows, token_weights)
        if outputs and student.head is not None and student.head.out_features == token_embeddings.shape[1] > width:
            student.head.weight.copy_(embedding_tables.principal_directions(token_embeddings, width, token_weights))
            if student.head.bias is not None:
                # the mean that PCA removed, scaled as the last LayerNorm scales a token embedding: to length √width
                mean = token_embeddings.mean(0)
                student.head.bias.copy_(mean * width**0.5 / (token_embeddings - mean).norm(dim=1).mean())


def _copy_layers(student: BertStudent, layers: list[int], source: BertModel) -> None:
    """Copy all of a source but its token embeddings; a linear head that keeps the width becomes the identity."""
    embeddings = student.model.embeddings
    for mine, theirs in enumerate(layers):
        student.model.encoder.layer[mine].load_state_dict(source.encoder.layer[theirs].state_dict())
    for name in ("token_type_embeddings", "LayerNorm"):
        getattr(embeddings, name).load_state_dict(getattr(source.embeddings, name).state_dict())
    positions = student.model.config.max_position_embeddings
    embeddings.position_embeddings.weight.data.copy_(source.embeddings.position_embeddings.weight[:positions])
    if student.pooling == "cls_pooler" and source.pooler is not None:
        student.model.pooler.load_state_dict(source.pooler.state_dict())
    if student.head is not None and student.head.out_features == student.head.in_features and not student.tanh:
        nn.init.eye_(student.head.weight)
        if student.head.bias is not None:
            nn.init.zeros_(student.head.bias)


def parameters(student: BertStudent) -> dict[str, int]:
    """Counted as in the papers: all embedding tables and their LayerNorm; the layers; the head with BERT's own pooler."""
    pooler = student.model.pooler
    return {
        "embedding": head.count(student.model.embeddings),
        "encoder": head.count(student.model.encoder),
        "head": head.count(student.head) + head.count(pooler if student.pooling == "cls_pooler" else None),
        "total": head.count(student),
    }
