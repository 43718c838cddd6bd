"""A student computed as its bundle computes it: weights, table rows and activations rounded to a precision, with gradients as if not.

Only the forward pass changes: parameters stay float32 and are what is trained, and the state dict has the same keys. Rounding has no
useful gradient, so the straight-through estimator passes it on unchanged (Bengio et al. 2013; Jacob et al. 2018 for networks).
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear
from transformers.models.bert.modeling_bert import BertLayer

from edgedistill.students import rounding
from edgedistill.students.output import own
from edgedistill.students.product_quantization import ProductQuantizedEmbedding
from edgedistill.students.static import StaticStudent

Rule = Callable[[Tensor], Tensor]
SMALLEST_TABLE = 1024  # elements; the exporter leaves smaller embedding tables in float32


class Rules(NamedTuple):
    """How a precision rounds the weights (out, in) of linear layers, the inputs of these, rows of embedding tables, weights of LSTMs.

    after_gelu, after_relu: for inputs that come from these. Tables are looked up by token, or by XLM-R's positions; other position
    tables and PQ codebooks are in 8 bits in every precision.
    """

    weights: Rule
    inputs: Rule
    after_gelu: Rule
    after_relu: Rule
    tables: Rule
    lstm: Rule


RULES: dict[str, Rules] = {
    "w8": Rules(
        weights=rounding.blocks_in_8_bits,
        inputs=rounding.blocks_in_8_bits,
        after_gelu=rounding.blocks_in_8_bits,
        after_relu=rounding.blocks_in_8_bits,
        tables=rounding.rows_in_8_bits,
        lstm=rounding.rows_in_8_bits,
    ),
    # a scale for each row stands in for those that the exporter measures for each channel behind a LayerNorm
    "int8": Rules(
        weights=rounding.rows_in_8_bits_without_saturation,
        inputs=rounding.rows_in_8_bits,
        after_gelu=rounding.rows_after_gelu,
        after_relu=rounding.rows_after_relu,
        tables=rounding.rows_in_8_bits,
        lstm=rounding.rows_in_8_bits,
    ),
    "w4": Rules(
        weights=rounding.blocks_in_4_bits,
        inputs=rounding.blocks_in_8_bits,
        after_gelu=rounding.blocks_in_8_bits,
        after_relu=rounding.blocks_in_8_bits,
        tables=rounding.blocks_in_4_bits,
        lstm=rounding.blocks_in_4_bits,
    ),
}


class FakeQuantization:
    """A student's forward pass in a precision, from construction until `remove`; parameters and state dict are left as they are.

    `weights_changed` must be called after each optimizer step.
    """

    def __init__(self, student: nn.Module, precision: str) -> None:
        rules = RULES[precision]
        self._replaced, self._weights = list[nn.Module](), list[Rounded]()
        inputs = _inputs(student, rules)
        for part in student.modules():
            if isinstance(part, nn.Linear):
                read = inputs.get(part) or Input(Rounded(rules.inputs))
                self._replace(part, partial(_linear, part, self._weight(rules.weights), read))
            elif isinstance(part, nn.LSTM):
                self._replace(part, partial(_lstm, part, [self._weight(rules.lstm) for _ in part._flat_weights]))
        for table, lookup in _lookups(student, rules).items():
            if table.weight.numel() >= SMALLEST_TABLE:
                self._replace(table, lookup)

    def weights_changed(self) -> None:
        """Round all weights again when they are next used."""
        for each in self._weights:
            each.forget()

    def remove(self) -> None:
        """Give the student its own forward pass back."""
        for module in self._replaced:
            del module.__dict__["forward"]
        self._replaced.clear()

    def _replace(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        module.__dict__["forward"] = forward  # found before the class' own
        self._replaced.append(module)

    def _weight(self, rule: Rule) -> Rounded:
        self._weights.append(Rounded(rule))
        return self._weights[-1]


class Rounded:
    """A tensor rounded by a rule, once for as long as the same tensor is asked for.

    A weight is rounded once a step, however many views there are and however often a shared layer is applied; activations once for all
    layers that read them. Changes in place are noticed, but for those of fused optimizers: `forget` is for these.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.forget()

    def forget(self) -> None:
        self._of: tuple[Any, ...] = ()
        self._result: Tensor | None = None

    def __call__(self, values: Tensor) -> Tensor:
        version = None if values.is_inference() else values._version
        seen = (version, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        if self._result is None or self._of[0]() is not values or self._of[1:] != seen:
            self._result = straight_through(values, self.rule)
            self._of = (weakref.ref(values), *seen)
        return self._result

    def __deepcopy__(self, memo: dict[int, Any]) -> Rounded:
        return Rounded(copy.deepcopy(self.rule, memo))


class _StraightThrough(torch.autograd.Function):
    """rule(x), with the gradient of x."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rule: Rule) -> Tensor:
        return rule(values.float()).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def straight_through(values: Tensor, rule: Rule) -> Tensor:
    """rule(values), with the gradient of `values` itself; the rule works in float32."""
    rounded: Tensor = _StraightThrough.apply(values, rule)
    return rounded


class Input(NamedTuple):
    """What a linear layer reads: its input rounded. residual: another layer, whose bias the input carries.

    The exporter adds a bias before a residual sum to the residual itself, so that is what is rounded, see graph.bert.
    """

    rounded: Rounded
    residual: nn.Linear | None = None


def _inputs(student: nn.Module, rules: Rules) -> dict[nn.Module, Input]:
    """What the linear layers of BERT layers read; queries, keys and values read the same."""
    found: dict[nn.Module, Input] = {}
    for layer in student.modules():
        if isinstance(layer, BertLayer):
            attention, inner = layer.attention, layer.intermediate
            reads = _with_bias_of(attention.output.dense, rules.inputs)
            found |= dict.fromkeys((attention.self.query, attention.self.key, attention.self.value), reads)
            found[inner.dense] = _with_bias_of(layer.output.dense, rules.inputs)
            relu = isinstance(inner.intermediate_act_fn, nn.ReLU)
            found[layer.output.dense] = Input(Rounded(rules.after_relu if relu else rules.after_gelu))
    return found


def _with_bias_of(residual: nn.Linear, rule: Rule) -> Input:
    return Input(Rounded(partial(_carrying, residual, rule)), residual)


def _carrying(residual: nn.Linear, rule: Rule, x: Tensor) -> Tensor:
    return rule(x + residual.bias.detach())


def _lookups(student: nn.Module, rules: Rules) -> dict[Any, Callable[..., Tensor]]:
    """The embedding tables of a student, each with its forward pass."""
    found: dict[Any, Callable[..., Tensor]] = {}
    parts: list[Any] = list(student.modules())
    for part in parts:
        if isinstance(part, nn.Embedding):
            found[part] = partial(_lookup, part, rules.tables)
    for part in parts:
        if isinstance(part, ProductQuantizedEmbedding):
            found[part.book] = partial(_codebook, part)
        elif hasattr(part, "position_embeddings") and hasattr(part, "token_type_embeddings"):
            from_padding = getattr(own(student), "pad", None) is not None
            found[part.position_embeddings] = partial(_positions, part, rules.tables if from_padding else rounding.rows_in_8_bits)
            del found[part.token_type_embeddings]  # its one row in use is added to the position table
        elif isinstance(part, StaticStudent) and isinstance(part.embedding, nn.Embedding):
            found[part.embedding] = partial(_weighted_lookup, part, rules.tables)
    return found


def _with_bias(rule: Rule, residual: nn.Linear | None, x: Tensor) -> Tensor:
    return rule(x) if residual is None else rule(x + residual.bias.detach())


def _linear(module: nn.Linear, weight: Rounded, read: Input, x: Tensor) -> Tensor:
    bias: Tensor = module.bias
    if read.residual is not None:
        bias = bias - (module.weight * read.residual.bias.detach()).sum(1)  # by the weight before rounding, as the exporter does
    return linear(read.rounded(x), weight(module.weight), bias)


def _lookup(module: nn.Embedding, rule: Rule, ids: Tensor) -> Tensor:
    """Rows of a table, each token's rounded once."""
    tokens, where = ids.unique(return_inverse=True)
    return embedding(where, straight_through(nn.Embedding.forward(module, tokens), rule))


def _weighted_lookup(student: StaticStudent, rule: Rule, ids: Tensor) -> Tensor:
    """Rows of a static student's table, rounded as the exporter does: each times its token's weight."""
    tokens, where = ids.unique(return_inverse=True)
    weights = student.weights.detach()[tokens].unsqueeze(-1)
    weights = torch.where(weights == 0, 1, weights)
    rows = straight_through(nn.Embedding.forward(student.embedding, tokens), lambda rows: rule(rows * weights) / weights)
    return embedding(where, rows)


def _codebook(table: ProductQuantizedEmbedding, indices: Tensor) -> Tensor:
    """Centroids (…, M, H / M) of indices (…, M); all centroids of a block share a scale, since the exporter stores them as one row."""
    scale = rounding.scale_in_8_bits(table.book.weight.detach().view(table.codes.shape[1], -1))
    return straight_through(nn.Embedding.forward(table.book, indices), partial(rounding.rounded, scale=scale))


def _positions(embeddings: Any, rule: Rule, ids: Tensor) -> Tensor:
    """Rows of a position table, rounded together with the segment row that the exporter adds to them."""
    segment = embeddings.token_type_embeddings.weight[0].detach()
    rows = nn.Embedding.forward(embeddings.position_embeddings, ids)
    return straight_through(rows, lambda values: rule(values + segment) - segment)


def _lstm(module: nn.LSTM, weights: list[Rounded], *inputs: Any) -> Any:
    plain: Any = module._flat_weights
    module._flat_weights = [each(weight) if weight.ndim > 1 else weight for each, weight in zip(weights, plain, strict=True)]
    try:
        return type(module).forward(module, *inputs)
    finally:
        module._flat_weights = plain
