"""A narrow BERT from a wide one: layers projected onto the principal directions of its hidden states, then
refitted by least squares."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, scaled_dot_product_attention
from transformers import BertModel

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.students import embedding_tables
from edgedistill.students.bert_layers import EncoderLayers, copy_tables, first_position

RIDGE = 1e-3  # of the features' mean variance, added to the diagonal in ridge regression


def shape(spec: recipe.Bert, source: Any) -> dict[str, int]:
    """The values of the `source`'s config that the narrow student replaces. Its heads are as large as the
    source's, and fewer.

    Raises UserError for a width that is not smaller or not a multiple of that size, for another number of
    heads, and for more neurons than the source has.
    """
    width, wide = int(spec.width or 0), int(source.hidden_size)
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
    ids, mask, model = sample[0], sample[1].bool(), source.model
    steps = _hidden_states(model, layers, _summed(model, source.pad, token_embeddings, ids), mask)
    space = projection(
        [state[mask] for state in (steps[0], *(each for step in steps[1:] for each in step[1:]))],
        student.model.config.hidden_size,
    )
    normed_space = _before_norm(model.embeddings.LayerNorm.weight) @ space
    table = student.model.embeddings.word_embeddings
    embedding_tables.initialize(table, token_embeddings @ normed_space, token_weights)
    copy_tables(student, source, normed_space)
    state = _fit_norm(
        student.model.embeddings.LayerNorm,
        _summed(student.model, student.pad, None, ids),
        steps[0] @ space,
        mask,
    )
    before = steps[0]
    for mine, (number, step) in enumerate(zip(layers, steps[1:], strict=True)):
        theirs, layer, (context, between, after) = (
            model.encoder.layer[number],
            student.model.encoder.layer[mine],
            step,
        )
        state = _set_attention(
            layer.attention, theirs.attention, space, (state, before, context, between), mask
        )
        state = _set_feed_forward(layer, theirs, space, (state, between, after), mask)
        before = after
    if student.head is not None and student.head.out_features == len(space) and not student.tanh:
        mean = before[mask].mean(0)
        student.head.weight.copy_(space)
        if student.head.bias is not None:
            student.head.bias.copy_(mean - space @ (space.T @ mean))


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
    tables, first = model.embeddings, first_position(pad)
    tokens: Any = tables.word_embeddings(ids) if token_embeddings is None else token_embeddings[ids]
    return (
        tokens
        + tables.position_embeddings.weight[first : first + ids.shape[1]]
        + tables.token_type_embeddings.weight[0]
    )


def _hidden_states(source: BertModel, layers: list[int], summed: Tensor, mask: Tensor) -> list[Any]:
    """The source's states (B, T, H): after the embeddings; then, per chosen layer, (attention context, after
    attention, after layer)."""
    state = source.embeddings.LayerNorm(summed)
    steps: list[Any] = [state]
    for number in layers:
        layer = source.encoder.layer[number]
        context = _context(layer.attention.self, state, mask)
        between = layer.attention.output.LayerNorm(state + layer.attention.output.dense(context))
        state = layer.output.LayerNorm(between + layer.output.dense(layer.intermediate(between)))
        steps.append((context, between, state))
    return steps


def _split(rows: Tensor, heads: int) -> Tensor:
    """(B, T, heads·s) -> (B, heads, T, s)."""
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


def _context(part: Any, state: Tensor, mask: Tensor) -> Tensor:
    """The concatenated outputs of all heads (B, T, heads·s), before the output matrix; `mask` (B, T) says
    which are tokens."""
    query, key, value = (
        _split(linear(state), part.num_attention_heads) for linear in (part.query, part.key, part.value)
    )
    heads = scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
    return heads.transpose(1, 2).flatten(2)


def _fit_norm(norm: nn.LayerNorm, summed: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Fit a LayerNorm's gain and bias, dimension by dimension, to a target output (B, T, w); returns its
    output."""
    unit = layer_norm(summed, summed.shape[-1:], eps=norm.eps)
    x, y = unit[mask], target[mask]
    x_mean, y_mean = x.mean(0), y.mean(0)
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
    space: Tensor,
    features: tuple[Tensor, Tensor],
    states: tuple[Tensor, Tensor, Tensor],
    mask: Tensor,
) -> Tensor:
    """Fit a block's output matrix and its LayerNorm to the source's; returns the narrow state after it.

    `features` are what the narrow and the wide matrix read, and `states` are the narrow state before the
    block, the wide one before it and the wide one after it.
    """
    state, before, after = states
    normed_space = _before_norm(theirs.LayerNorm.weight) @ space
    residual, added = before @ normed_space, theirs.dense(features[1]) @ normed_space
    summed = _fit_output(mine.dense, features[0], state, residual, added, mask)
    return _fit_norm(mine.LayerNorm, summed, after @ space, mask)


def _set_attention(
    mine: Any, theirs: Any, space: Tensor, states: tuple[Tensor, Tensor, Tensor, Tensor], mask: Tensor
) -> Tensor:
    """Set an attention block from a wide one; returns the narrow state after it. `states` are the narrow
    state before it, and of the wide one: the state before, the context of its heads, the state after."""
    state, before, context, after = states
    heads = theirs.self.num_attention_heads
    outputs = _split(context, heads).transpose(1, 2)[mask]  # (n, heads, s)
    parts = theirs.output.dense.weight.T.unflatten(0, (heads, -1)) @ space  # (heads, s, w)
    power = torch.stack(
        [
            (outputs[:, head] - outputs[:, head].mean(0)).matmul(parts[head]).square().sum()
            for head in range(heads)
        ]
    )
    kept = power.topk(mine.self.num_attention_heads).indices.sort().values.tolist()
    for name in ("query", "key", "value"):
        wide = getattr(theirs.self, name)
        weight, bias = (
            matrix.unflatten(0, (heads, -1))[kept].flatten(0, 1) for matrix in (wide.weight, wide.bias)
        )
        _fold(getattr(mine.self, name), weight, bias, space, before[mask].mean(0))
    features = _context(mine.self, state, mask), context
    return _fit_block(mine.output, theirs.output, space, features, (state, before, after), mask)


def _set_feed_forward(
    layer: Any, theirs: Any, space: Tensor, states: tuple[Tensor, Tensor, Tensor], mask: Tensor
) -> Tensor:
    """Set a feed-forward block from a wide one; returns the narrow state after it. `states` are the narrow
    state before it, the wide one before it and the wide one after it."""
    state, before, _ = states
    active = theirs.intermediate(before)
    power = active[mask].var(0) * (theirs.output.dense.weight.T @ space).square().sum(1)
    kept = power.topk(layer.intermediate.dense.out_features).indices.sort().values
    wide = theirs.intermediate.dense
    _fold(layer.intermediate.dense, wide.weight[kept], wide.bias[kept], space, before[mask].mean(0))
    features = layer.intermediate(state), active
    return _fit_block(layer.output, theirs.output, space, features, states, mask)
