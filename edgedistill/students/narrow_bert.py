"""A narrow BERT from a wide one: layers projected onto the principal directions of its hidden states, then
refitted by least squares."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, scaled_dot_product_attention
from transformers import BertModel

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.students import embedding_tables
from edgedistill.students.bert_layers import EncoderLayers, copy_tables, first_position, scores_mask

RIDGE = 1e-3  # of the features' mean variance, added to the diagonal in ridge regression


def shape(spec: recipe.Bert, source: Any) -> dict[str, int]:
    """The values of the `source`'s config that the narrow student replaces. Its heads are as large as the
    source's, and fewer.

    Raises UserError for a width that is not smaller or not a multiple of that size, for another number of
    heads, and for more neurons than the source has.
    """
    width = int(spec.width or 0)
    wide = int(source.hidden_size)
    if width >= wide:
        raise UserError(
            f"student.width: {width} from weights that are {wide} wide; give less, or leave it out to keep "
            "their width"
        )
    size = wide // int(source.num_attention_heads)
    heads = width // size
    if width % size:
        raise UserError(
            f"student.width: {width} from weights whose heads have {size} dimensions; give a multiple of "
            f"{size}"
        )
    if spec.heads not in (None, heads):
        raise UserError(
            f"student.heads: {spec.heads} of a width of {width}, the weights' have {size} dimensions each; "
            f"give {heads}, or leave it out"
        )
    neurons = spec.intermediate or min(4 * width, int(source.intermediate_size))
    if neurons > source.intermediate_size:
        raise UserError(
            f"student.intermediate: {neurons} from weights that have {source.intermediate_size}; give that "
            "or fewer"
        )
    return {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": neurons}


@torch.no_grad()
def initialize(
    student: Any,
    source: EncoderLayers,
    layers: list[int],
    token_embeddings: Tensor,
    sample: tuple[Tensor, Tensor],
    token_weights: Tensor | None,
) -> None:
    """Set all weights in place so that hidden states are those of the source's chosen layers x, projected: z
    = Pᵀ x.

    `token_embeddings` (V, H) are the source's for the student's vocabulary, `sample` is (ids, mask), each
    (B, T), of some texts of the corpus, and `token_weights` (V,) weight each token where the embedding table
    is factorized or quantized.

    P (H, w) are the principal directions of the source's states on those texts, rotated so that the mean over
    a narrow state, which LayerNorm subtracts, lies along the last of them. A projection alone is wrong in
    three ways: it does not commute with LayerNorm's gain, a residual connection has no matrix to fold it
    into, and heads and neurons are dropped. So each block's output matrix is fitted by ridge regression, on
    the narrow student's own states: its target is what the source has before its LayerNorm, times the gain,
    projected. Then gain and bias of the narrow LayerNorm are fitted to the source's output. The heads with
    the largest output are kept; neurons are kept by E[a²]·‖their output‖².
    """
    ids = sample[0]
    mask = sample[1].bool()
    model = source.model
    wide = [model.encoder.layer[number] for number in layers]
    summed = _summed(model, source.pad, token_embeddings, ids)
    embedded, *steps = _hidden_states(model, wide, summed, scores_mask(source.relative, mask))
    states = [embedded, *(state for step in steps for state in step[1:])]
    space = projection([state[mask] for state in states], student.model.config.hidden_size)
    normed_space = _before_norm(model.embeddings.LayerNorm.weight) @ space
    table = student.model.embeddings.word_embeddings
    embedding_tables.initialize(table, token_embeddings @ normed_space, token_weights)
    copy_tables(student, source, normed_space)
    norm = student.model.embeddings.LayerNorm
    summed = _summed(student.model, student.pad, None, ids)
    state = _fit_norm(norm, summed, embedded @ space, mask)
    before = embedded
    contexts = [context[mask] for context, *_ in steps]
    count = student.model.config.num_attention_heads
    kept = _heads([layer.attention for layer in wide], space, contexts, count, source.relative is not None)
    if source.relative is not None:
        student.relative.weight.copy_(source.relative[:, kept[0]])
    fit = _Fit(space, mask, scores_mask(student.relative and student.relative.weight, mask))
    for layer, theirs, heads, step in zip(student.model.encoder.layer, wide, kept, steps, strict=True):
        context, between, after = step
        around = state, before, context, between
        state = _set_attention(layer.attention, theirs.attention, heads, fit, around)
        state = _set_feed_forward(layer, theirs, fit, (state, between, after))
        before = after
    if student.head is not None and student.head.out_features == len(space) and not student.tanh:
        mean = before[mask].mean(0)
        student.head.weight.copy_(space)
        if student.head.bias is not None:
            student.head.bias.copy_(mean - space @ (space.T @ mean))


class _Fit(NamedTuple):
    """What all blocks are fitted with: the projection (H, w), which of the texts' places are tokens (B, T),
    and the narrow student's `scores_mask`."""

    space: Tensor
    mask: Tensor
    scores: Tensor


def projection(states: list[Tensor], width: int) -> Tensor:
    """The principal directions P (H, width) of several sets of states (n, H), each with the same weight;
    orthonormal columns.

    They are rotated so that the mean over a projected state's dimensions is its smallest principal component.
    """
    total: Any = 0.0
    for state in states:
        centred = (state - state.mean(0)).double()
        covariance = centred.T @ centred
        total = total + covariance / covariance.trace()
    _, directions = torch.linalg.eigh(total)
    directions = directions.flip(1)[:, :width]
    directions = directions * directions.sum(0).sign()
    mirror = -torch.full((width,), width**-0.5, dtype=torch.float64)
    mirror[-1] += 1
    mirror /= mirror.norm()
    return (directions - 2 * torch.outer(directions @ mirror, mirror)).float()


def _before_norm(gain: Tensor) -> Tensor:
    """LayerNorm without its division, as a matrix (H, H) to the right of rows: subtract the mean, multiply by
    the gain."""
    return torch.diag(gain) - gain.expand(len(gain), -1) / len(gain)


def _summed(model: BertModel, pad: int | None, token_embeddings: Tensor | None, ids: Tensor) -> Tensor:
    """Token, position and segment embeddings of right-padded texts, summed: (B, T) -> (B, T, H). `pad`
    is that of `EncoderLayers`."""
    tables = model.embeddings
    first = first_position(pad)
    tokens = tables.word_embeddings(ids) if token_embeddings is None else token_embeddings[ids]
    return (
        tokens
        + tables.position_embeddings.weight[first : first + ids.shape[1]]
        + tables.token_type_embeddings.weight[0]
    )


def _hidden_states(source: BertModel, layers: list[Any], summed: Tensor, scores: Tensor) -> list[Any]:
    """The source's states (B, T, H): after the embeddings; then, per chosen layer, (attention context, after
    attention, after layer). `scores` is its `scores_mask`."""
    state = source.embeddings.LayerNorm(summed)
    steps = [state]
    for layer in layers:
        context = _context(layer.attention.self, state, scores)
        between = layer.attention.output.LayerNorm(state + layer.attention.output.dense(context))
        state = layer.output.LayerNorm(between + layer.output.dense(layer.intermediate(between)))
        steps.append((context, between, state))
    return steps


def _split(rows: Tensor, heads: int) -> Tensor:
    """(B, T, heads·s) -> (B, heads, T, s)."""
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


def _context(part: Any, state: Tensor, scores: Tensor) -> Tensor:
    """The concatenated outputs of all heads (B, T, heads·s), before the output matrix."""
    query, key, value = (
        _split(linear(state), part.num_attention_heads) for linear in (part.query, part.key, part.value)
    )
    heads = scaled_dot_product_attention(query, key, value, attn_mask=scores)
    return heads.transpose(1, 2).flatten(2)


def _heads(
    attentions: list[Any], space: Tensor, contexts: list[Tensor], count: int, same: bool
) -> list[list[int]]:
    """Of each layer the heads whose outputs (n, heads·s) over n tokens have most in the projection's space;
    with `same` those of all layers together, since a column of relative positions is a head's in all."""
    powers = []
    for attention, context in zip(attentions, contexts, strict=True):
        heads = attention.self.num_attention_heads
        outputs = context.unflatten(-1, (heads, -1))  # (n, heads, s)
        parts = attention.output.dense.weight.T.unflatten(0, (heads, -1)) @ space  # (heads, s, w)
        centred = zip((outputs - outputs.mean(0)).unbind(1), parts, strict=True)
        powers.append(torch.stack([rows.matmul(part).square().sum() for rows, part in centred]))
    if same:
        powers = [torch.stack([power / power.sum() for power in powers]).sum(0)] * len(powers)
    return [_largest(power, count) for power in powers]


def _largest(power: Tensor, count: int) -> list[int]:
    return list(power.topk(count).indices.sort().values.tolist())


def _fit_norm(norm: nn.LayerNorm, summed: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Fit a LayerNorm's gain and bias, dimension by dimension, to a target output (B, T, w); returns its
    output."""
    unit = layer_norm(summed, summed.shape[-1:], eps=norm.eps)
    x = unit[mask]
    y = target[mask]
    x_mean = x.mean(0)
    y_mean = y.mean(0)
    centred = x - x_mean
    covariance = (centred * (y - y_mean)).mean(0)
    variance = centred.square().mean(0).clamp(min=1e-12)
    norm.weight.copy_(covariance / variance)
    norm.bias.copy_(y_mean - norm.weight * x_mean)
    return norm(summed)


def _fold(linear: nn.Linear, weight: Tensor, bias: Tensor, space: Tensor, mean: Tensor) -> None:
    """Fold the projection into a linear layer that reads wide states; the dimensions it drops are replaced by
    their mean."""
    linear.weight.copy_(weight @ space)
    linear.bias.copy_(bias + weight @ (mean - space @ (space.T @ mean)))


def _fit_output(
    linear: nn.Linear, features: Tensor, state: Tensor, residual: Tensor, added: Tensor, mask: Tensor
) -> Tensor:
    """Fit a block's output matrix to the source's block by ridge regression; returns state + its output (B,
    T, w), before LayerNorm.

    `residual` and `added` (B, T, w) are the two terms of the source's sum before its LayerNorm, the state and
    the block's output, both times the gain and projected. LayerNorm ignores length, so both are scaled to
    bring `residual` closest to the narrow state, which no matrix can change; the block is fitted to add the
    rest.
    """
    x, z, skip, more = (rows[mask].double() for rows in (features, state, residual, added))
    middle = skip - skip.mean(0)
    missing = (skip + more) * ((z - z.mean(0)) * middle).sum() / middle.square().sum() - z
    known = x - x.mean(0)
    gram = known.T @ known
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    weight = torch.linalg.solve(gram, known.T @ (missing - missing.mean(0)))
    linear.weight.copy_(weight.T)
    linear.bias.copy_(missing.mean(0) - x.mean(0) @ weight)
    return state + linear(features)


def _fit_block(
    mine: Any,
    theirs: Any,
    fit: _Fit,
    features: tuple[Tensor, Tensor],
    states: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """Fit a block's output matrix and its LayerNorm to the source's; returns the narrow state after it.

    `features` are what the narrow and the wide matrix read, and `states` are the narrow state before the
    block, the wide one before it and the wide one after it.
    """
    state, before, after = states
    normed_space = _before_norm(theirs.LayerNorm.weight) @ fit.space
    residual = before @ normed_space
    added = theirs.dense(features[1]) @ normed_space
    summed = _fit_output(mine.dense, features[0], state, residual, added, fit.mask)
    return _fit_norm(mine.LayerNorm, summed, after @ fit.space, fit.mask)


def _set_attention(
    mine: Any, theirs: Any, kept: list[int], fit: _Fit, states: tuple[Tensor, Tensor, Tensor, Tensor]
) -> Tensor:
    """Set an attention block from the heads of a wide one that are kept; returns the narrow state after it.
    `states` are the narrow state before it, and of the wide one: the state before, the context of its heads,
    the state after."""
    state, before, context, after = states
    heads = theirs.self.num_attention_heads
    for name in ("query", "key", "value"):
        wide = getattr(theirs.self, name)
        weight, bias = (
            matrix.unflatten(0, (heads, -1))[kept].flatten(0, 1) for matrix in (wide.weight, wide.bias)
        )
        _fold(getattr(mine.self, name), weight, bias, fit.space, before[fit.mask].mean(0))
    features = _context(mine.self, state, fit.scores), context
    return _fit_block(mine.output, theirs.output, fit, features, (state, before, after))


def _set_feed_forward(layer: Any, theirs: Any, fit: _Fit, states: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Set a feed-forward block from a wide one; returns the narrow state after it. `states` are the narrow
    state before it, the wide one before it and the wide one after it."""
    state, before, _ = states
    active = theirs.intermediate(before)
    wide = theirs.intermediate.dense
    power = active[fit.mask].var(0) * (theirs.output.dense.weight.T @ fit.space).square().sum(1)
    kept = _largest(power, layer.intermediate.dense.out_features)
    _fold(layer.intermediate.dense, wide.weight[kept], wide.bias[kept], fit.space, before[fit.mask].mean(0))
    features = layer.intermediate(state), active
    return _fit_block(layer.output, theirs.output, fit, features, states)
