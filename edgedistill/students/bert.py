"""BERT students: from random, from a model's own weights, or from chosen layers of the teacher."""

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
POSITIONS = 512  # of a student from random, BERT's own


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
        """Token vectors (B, T, H) first; behind them what BERT's pooler makes of the first token, where there is one."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask)

    def tokens(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Token vectors (B, T, H), before pooling."""
        return self.encoded(input_ids, attention_mask)[0]

    def embedded(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, H), the mean of the embedding layer's vectors: words, positions, segments and their norm, before any other layer."""
        return pool(self.model.embeddings(input_ids=input_ids), attention_mask, "mean")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids, attention_mask (B, T) int64, right-padded. Returns (B, d)."""
        if self.pooling == "cls_pooler":
            vectors = self.encoded(input_ids, attention_mask)[1]
        else:
            vectors = pool(self.tokens(input_ids, attention_mask), attention_mask, self.pooling)
        vectors = vectors if self.head is None else self.head(vectors)
        return vectors.tanh() if self.tanh else vectors


def shape(
    spec: recipe.Bert, pieces: int, pad: int, teacher_dims: int, source: BertConfig | None, smaller: dict[str, int] | None = None
) -> dict[str, Any]:
    """Everything needed to build the module again, as data. `source`: the config of the weights it starts from, if any; `smaller`:
    what of it is not taken over.

    Raises UserError: a layer, or more positions, that the source does not have.
    """
    if source is None:
        assert isinstance(spec.layers, int) and spec.width is not None  # the recipe has made sure
        heads = spec.heads or max(2, spec.width // 64)
        if spec.width % heads:
            raise UserError(f"student.heads: width {spec.width} is not a multiple of {heads} heads; set student.heads")
        config = BertConfig(
            vocab_size=pieces,
            hidden_size=spec.width,
            num_hidden_layers=spec.layers,
            num_attention_heads=heads,
            intermediate_size=spec.intermediate or 4 * spec.width,
            max_position_embeddings=spec.positions or POSITIONS,
        )
    else:
        places = spec.positions or source.max_position_embeddings
        if places > source.max_position_embeddings:
            most = source.max_position_embeddings
            raise UserError(f"student.positions: {places} from weights that have {most}; ask for as many or fewer")
        own = {"vocab_size": pieces, "num_hidden_layers": len(chosen(spec, source)), "max_position_embeddings": places, **(smaller or {})}
        config = BertConfig(**{**source.to_dict(), **own})
    embedding_tables.check(spec.bottleneck, spec.codes, config.hidden_size)
    config.pad_token_id = pad
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = spec.dropout
    return {
        "kind": "bert",
        "config": {k: v for k, v in config.to_diff_dict().items() if k not in NOT_SHAPE},
        "bottleneck": spec.bottleneck,
        "codes": spec.codes,
        "pooling": spec.pooling,
        **head.shape(spec, teacher_dims),
        "max_tokens": min(spec.max_tokens, config.max_position_embeddings),
    }


def chosen(spec: recipe.Bert, source: BertConfig) -> list[int]:
    """The source's layers that the student starts from, counted from 0; a count takes them evenly, the last included."""
    depth = source.num_hidden_layers
    if isinstance(spec.layers, list):
        for layer in spec.layers:
            if not 0 <= layer < depth:
                raise UserError(f"student.layers: layer {layer} of a teacher with {depth} layers (0 to {depth - 1})")
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


def start(
    student: BertStudent,
    layers: list[int] | None,
    source: BertModel | None,
    words: Tensor | None,
    outputs: bool = False,
    weights: Tensor | None = None,
) -> None:
    """Set the first weights in place: the source's layers where there is one, and the word table. Behind those layers a linear head that
    keeps the width starts as the identity.

    `words` (V, w): vectors of the student's pieces, any width; wider ones are reduced by PCA, then by what the table
    can hold: the truncated SVD where it is factorised (the best product of that rank, Eckart-Young), k-means where it is codes.
    `outputs`: they live in the teacher's output space, so a linear head starts by leading the reduced ones back there. `weights` (V,):
    what each piece counts for where they are reduced.
    """
    embeddings = student.model.embeddings
    if source is not None and layers is not None:
        for mine, theirs in enumerate(layers):
            student.model.encoder.layer[mine].load_state_dict(source.encoder.layer[theirs].state_dict())
        for name in ("token_type_embeddings", "LayerNorm"):
            getattr(embeddings, name).load_state_dict(getattr(source.embeddings, name).state_dict())
        places = student.model.config.max_position_embeddings
        embeddings.position_embeddings.weight.data.copy_(source.embeddings.position_embeddings.weight[:places])
        if student.pooling == "cls_pooler" and source.pooler is not None:
            student.model.pooler.load_state_dict(source.pooler.state_dict())
        if student.head is not None and student.head.out_features == student.head.in_features and not student.tanh:
            nn.init.eye_(student.head.weight)
            if student.head.bias is not None:
                nn.init.zeros_(student.head.bias)
    if words is None:
        return
    with torch.no_grad():
        width = student.model.config.hidden_size
        embedding_tables.start(embeddings.word_embeddings, embedding_tables.fitted(words, width, weights), weights)
        if outputs and student.head is not None and student.head.out_features == words.shape[1] > width:
            student.head.weight.copy_(embedding_tables.principal(words, width, weights))
            if student.head.bias is not None:  # the mean that PCA took away, as long as it is beside a token vector of a LayerNorm
                student.head.bias.copy_(words.mean(0) * width**0.5 / (words - words.mean(0)).norm(dim=1).mean())


def parameters(student: BertStudent) -> dict[str, int]:
    """Counted as the papers do: all tables and their norm; the layers; the head with BERT's own pooler."""
    pooler = student.model.pooler
    return {
        "embedding": head.count(student.model.embeddings),
        "encoder": head.count(student.model.encoder),
        "head": head.count(student.head) + head.count(pooler if student.pooling == "cls_pooler" else None),
        "total": head.count(student),
    }
