"""What follows the pooling of every kind of student, and how parameters are counted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from onnx import TensorProto
from torch import Tensor, nn
from torch.nn.functional import embedding, normalize, pad

from edgedistill import recipe
from edgedistill.files import Json
from edgedistill.students.graph_writer import GraphWriter, length, lexical_channel
from edgedistill.students.pooling import mean_nodes, pool
from edgedistill.students.product_quantization import ProductQuantizedEmbedding, lookup

LEXICAL_DIMS = 128
LEXICAL_CODES = 8  # of a token's random row; few pairs of tokens share more than one code
LEXICAL_TOKENS = 16  # of a text in which words are as long as the recipe says; in longer ones they are longer
SHIFT = [0, 1, 0, 0, 0, 0]  # ONNX's paddings of (B, T − 1, d) that do what `_before` does


class Lexical(nn.Module):
    """`forward(input_ids, attention_mask) -> (B, d)`: a random projection of a text's words, which is added
    to its embedding so that texts with the same words are found (Luan et al. 2021, §3).

    A token has a row of random signs, of which those with one stem share one, times its weight. One that
    continues a word has the product of its row and the former token's, times the sum of their weights: so a
    word of several tokens has a row of its own. The mean of a text's rows, at unit length, is mapped to those
    directions that the embedding itself uses least, and is longer the longer the text is: words tell long
    texts apart, and meaning short ones. Nothing of it is trained.
    """

    token_weights: Tensor
    continues: Tensor

    def __init__(self, vocabulary_size: int, dims: int) -> None:
        super().__init__()
        width = min(LEXICAL_DIMS, dims // LEXICAL_CODES * LEXICAL_CODES)
        self.rows = ProductQuantizedEmbedding(vocabulary_size, width, LEXICAL_CODES)
        self.register_buffer("token_weights", torch.ones(vocabulary_size))
        self.register_buffer("continues", torch.zeros(vocabulary_size, dtype=torch.bool))
        self.projection = nn.Linear(width, dims, bias=False)

    @torch.no_grad()
    def initialize(self, head: nn.Linear | None, share: float) -> None:
        """Draw the signs, and map them to the directions that a head uses least, or to any where there is
        none; `share` is the length of what is added, beside an embedding of unit length."""
        book = self.rows.book.weight
        book.copy_(torch.randn(book.shape).sign())
        dims, width = self.projection.weight.shape
        used = torch.randn(dims, dims) if head is None else head.weight.detach()
        directions = torch.linalg.svd(used).U
        self.projection.weight.copy_(share * directions[:, dims - width :])

    @torch.no_grad()
    def set_words(self, stems: Sequence[str], continues: Tensor, counts: Tensor, texts: int) -> None:
        """Set the tokens' codes by their stems, which of them continue a word (V,), and their weights,
        log(texts / occurrences), in place: `counts` (V,) are their occurrences in so many texts. Stems that
        each text has on average once or more get 0."""
        digests = [hashlib.blake2b(stem.encode(), digest_size=LEXICAL_CODES).digest() for stem in stems]
        codes = torch.tensor([list(digest) for digest in digests], dtype=torch.uint8)
        self.rows.codes.copy_(codes)
        self.continues.copy_(continues)
        distinct, number = torch.unique(codes, dim=0, return_inverse=True)
        occurrences = torch.zeros(len(distinct)).index_add(0, number, counts.float())[number]
        rarity = torch.log((texts + 1) / (occurrences + 0.5))
        self.token_weights.copy_(rarity.clamp(min=0))

    @torch.no_grad()
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        signs = self.rows(input_ids)
        weights = embedding(input_ids, self.token_weights.unsqueeze(-1))
        continues = self.continues[input_ids].unsqueeze(-1)
        signs = torch.where(continues, signs * _before(signs), signs)
        weights = torch.where(continues, weights + _before(weights), weights)
        words = pool(signs * weights, attention_mask, "mean")
        longer = (attention_mask.sum(1, keepdim=True) / LEXICAL_TOKENS) ** 0.25
        return longer * self.projection(normalize(words, dim=-1))

    def write(self, writer: GraphWriter, rows: list[str]) -> list[str]:
        """Write the nodes that add it to embeddings (B, d) and, where they are given, to token embeddings
        (B, T, d), whose mean then is the same sum."""
        words = self._words(writer)
        axis = writer.constant([1], "axis")
        pooled = mean_nodes(writer, words, "mean")
        tokens = writer.add("Cast", "attention_mask", to=TensorProto.FLOAT)
        tokens = writer.add("ReduceSum", tokens, axis, keepdims=1)
        longer = writer.add("Div", tokens, writer.constant(np.float32(LEXICAL_TOKENS), "length"))
        longer = writer.add("Sqrt", writer.add("Sqrt", longer))
        norm = length(writer, rows[0])
        lexical_norm = writer.add("Div", length(writer, pooled), longer)
        unit = [writer.add("Div", rows[0], norm)]
        lexical = [writer.add("Div", pooled, lexical_norm)]
        for token_embeddings in rows[1:]:
            norm, lexical_norm = (writer.add("Unsqueeze", x, axis) for x in (norm, lexical_norm))
            unit.append(writer.add("Div", token_embeddings, norm))
            lexical.append(writer.add("Div", words, lexical_norm))
        projected = writer.linear_each(lexical, self.projection)
        return [writer.add("Add", one, other) for one, other in zip(unit, projected, strict=True)]

    def _words(self, writer: GraphWriter) -> str:
        """The rows of the texts' tokens times their weights, (B, T, width), as `forward` computes them."""
        weights = writer.of_tokens(self.token_weights)
        continues = writer.of_tokens(self.continues)
        signs = lookup(writer, self.rows, "input_ids")
        shift = writer.constant(SHIFT, "shift")
        but_last = [writer.constant([at], "at") for at in (0, -1, 1)]  # tract has no negative paddings
        former_signs = writer.add("Pad", writer.add("Slice", signs, *but_last), shift)
        former_weights = writer.add("Pad", writer.add("Slice", weights, *but_last), shift)
        signs = writer.add("Where", continues, writer.add("Mul", signs, former_signs), signs)
        weights = writer.add("Where", continues, writer.add("Add", weights, former_weights), weights)
        return writer.add("Mul", signs, weights)


def _before(rows: Tensor) -> Tensor:
    """(B, T, d): each token's place holds what the one before it had, the first 0."""
    return pad(rows, (0, 0, 1, -1))


class Headed(nn.Module):
    """A student whose pooled embedding (B, pooled_dims) goes through its head, where it has one, through a
    tanh, where it has that, and is joined with a projection of its text's words, where it has that."""

    head: nn.Linear | None
    tanh: bool
    pooled_dims: int
    lexical_channel: Lexical | None

    def __init__(self) -> None:
        super().__init__()
        self.lexical_channel = None

    @property
    def dims(self) -> int:
        return self.pooled_dims if self.head is None else self.head.out_features

    def counts(self) -> dict[str, int]:
        """Parameters {embedding, encoder, head, total} of a student with one `embedding`."""
        student: Any = self
        return counts(self, count(student.embedding), self.head)

    @property
    def layers_after_pooling(self) -> list[nn.Module]:
        head = [] if self.head is None else [self.head]
        return [*head, nn.Tanh()] if self.tanh else [*head]

    def through_head(self, pooled: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, pooled_dims), and the texts (B, T) that it is of -> (B, dims)."""
        embeddings = pooled if self.head is None else self.head(pooled)
        embeddings = embeddings.tanh() if self.tanh else embeddings
        if self.lexical_channel is None:
            return embeddings
        return normalize(embeddings, dim=-1) + self.lexical_channel(input_ids, attention_mask)


@contextmanager
def without_lexical_channel(student: nn.Module) -> Iterator[None]:
    """Let a student embed by meaning alone, which is what it is taught."""
    inner: Any = student
    channel = getattr(inner, "lexical_channel", None)
    if channel is not None:
        inner.lexical_channel = None
    try:
        yield
    finally:
        if channel is not None:
            inner.lexical_channel = channel


def shape(spec: recipe.BuiltStudent, teacher_dims: int) -> Json:
    """The head's part of a student's shape; None for a head that is only used in training."""
    kept = spec.head != "none" and spec.head_kept
    return {
        "head": {"dims": spec.dims or teacher_dims, "bias": spec.head_bias} if kept else None,
        "tanh": kept and spec.head == "linear_tanh",
    }


def build(shape: Json, width: int) -> nn.Linear | None:
    """(B, width) -> (B, dims), with weights drawn from torch's generator."""
    head = shape["head"]
    return nn.Linear(width, head["dims"], bias=head["bias"]) if head else None


def with_lexical_channel(student: Headed, shape: Json, vocabulary_size: int) -> Any:
    """The student, with the module that its shape asks for."""
    if shape.get("lexical"):
        student.lexical_channel = Lexical(vocabulary_size, student.dims)
    return student


def count(module: nn.Module | None) -> int:
    """Parameters of a module, each tensor once; a code of a product-quantized embedding table counts as one
    parameter."""
    if module is None:
        return 0
    codes = sum(
        part.codes.numel() for part in module.modules() if isinstance(part, ProductQuantizedEmbedding)
    )
    return codes + sum(p.numel() for p in module.parameters())


def counts(student: nn.Module, embedding: int, *after_pooling: nn.Module | None) -> dict[str, int]:
    """Parameters {embedding, encoder, head, total}: the head is what follows the pooling, the encoder the
    rest."""
    total = count(student)
    head = sum(count(layer) for layer in after_pooling)
    embedding += count(lexical_channel(student))
    return {"embedding": embedding, "encoder": total - embedding - head, "head": head, "total": total}


def copy(head: nn.Linear | None, source: nn.Linear | None) -> None:
    """Copy a source's head in place where the student's has the same shape."""
    if source is not None and head is not None and head.weight.shape == source.weight.shape:
        head.load_state_dict(source.state_dict())
