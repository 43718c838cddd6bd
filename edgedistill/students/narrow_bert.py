"""A narrow BERT from a wide one: its layers projected onto the directions its hidden states use, then mended by least squares."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, scaled_dot_product_attention
from transformers import BertConfig, BertModel

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.students import bert, embedding_tables

RIDGE = 1e-3  # of the features' mean variance, added to the diagonal of least squares


def shape(spec: recipe.Bert, source: BertConfig) -> dict[str, int]:
    """What of the source's config becomes smaller. Heads keep the source's size where the width allows it.

    Raises UserError: a width that is not smaller, more heads or neurons than the source has, a width no count of heads divides.
    """
    width, wide = int(spec.width or 0), int(source.hidden_size)
    if width >= wide:
        raise UserError(f"student.width: {width} from weights that are {wide} wide; give less, or leave it out to take them whole")
    most = int(source.num_attention_heads)
    size = wide // most
    heads = spec.heads or (width // size if width % size == 0 else max(n for n in range(1, most + 1) if width % n == 0))
    if width % heads or heads > most:
        raise UserError(
            f"student.heads: {heads} heads for a width of {width} from weights with {most}; give a divisor of {width} up to {most}"
        )
    if width // heads > size:
        raise UserError(f"student.heads: {heads} heads of {width // heads} numbers, the weights' have {size}; give more heads")
    neurons = spec.intermediate or min(4 * width, int(source.intermediate_size))
    if neurons > source.intermediate_size:
        raise UserError(f"student.intermediate: {neurons} from weights that have {source.intermediate_size}; give that or fewer")
    return {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": neurons}


@torch.no_grad()
def start(
    student: bert.BertStudent, source: BertModel, layers: list[int], words: Tensor, seen: tuple[Tensor, Tensor], weights: Tensor | None
) -> None:
    """Set all weights in place so that hidden states are those of the source's chosen layers x, projected: z = Pᵀ x.

    words (V, H): the source's vectors of the student's pieces; seen: (ids, mask), each (B, T), of some of the corpus' texts;
    weights (V,): what pieces count for in a table that cannot hold all.
    P (H, w) are the principal directions of the source's states on those texts, turned so that the mean over a narrow state, which
    LayerNorm takes away, is the least of them. What a projection alone would get wrong: LayerNorm's gain does not commute with it, a
    residual path has no matrix to fold it into, and heads and neurons are dropped. So each block's output matrix is fitted by
    ridge regression, on the narrow student's own states as they come, to bring before its LayerNorm what the source has there with
    its gain, projected; then gain and bias of the narrow LayerNorm are fitted to the source's output. Heads are kept that say
    most, shortened to their principal directions where the width asks for it; neurons are kept by E[a²]·‖their output‖².
    """
    ids, mask = seen[0], seen[1].bool()
    summed = _summed(source, words, ids)
    steps = _walk(source, layers, summed, mask)
    space = directions(
        [state[mask] for state in (steps[0], *(each for step in steps[1:] for each in step[1:]))], student.model.config.hidden_size
    )
    gained = _centred(source.embeddings.LayerNorm.weight) @ space
    _tables(student.model, source, words @ gained, gained, weights)
    state = _normed(student.model.embeddings.LayerNorm, _summed(student.model, None, ids), steps[0] @ space, mask)
    before = steps[0]
    for mine, (number, step) in enumerate(zip(layers, steps[1:], strict=True)):
        theirs, layer, (context, between, after) = source.encoder.layer[number], student.model.encoder.layer[mine], step
        state = _attention(layer.attention, theirs.attention, space, (state, before, context, between), mask)
        state = _neurons(layer, theirs, space, (state, between, after), mask)
        before = after
    if student.head is not None and student.head.out_features == len(space) and not student.tanh:
        mean = before[mask].mean(0)
        student.head.weight.copy_(space)
        if student.head.bias is not None:
            student.head.bias.copy_(mean - space @ (space.T @ mean))


def directions(states: list[Tensor], width: int) -> Tensor:
    """The directions P (H, width) that states (n, H) each, all of the same weight, vary in most; columns orthonormal.

    They are turned so that the mean of a projected state's numbers is its least principal component.
    """
    total: Any = 0.0
    for state in states:
        centred = (state - state.mean(0)).double()
        covariance = centred.T @ centred
        total = total + covariance / covariance.trace()
    _, found = torch.linalg.eigh(total)
    found = found.flip(1)[:, :width]
    found = found * found.sum(0).sign()
    mirror = -torch.full((width,), width**-0.5, dtype=torch.float64)
    mirror[-1] += 1
    mirror /= mirror.norm()
    return (found - 2 * torch.outer(found @ mirror, mirror)).float()


def _centred(gain: Tensor) -> Tensor:
    """LayerNorm before the division, as a matrix (H, H) to the right of rows: take the mean away, multiply by the gain."""
    return torch.diag(gain) - gain.expand(len(gain), -1) / len(gain)


def _summed(model: BertModel, words: Tensor | None, ids: Tensor) -> Tensor:
    """Word, position and segment vectors of texts, summed: (B, T) -> (B, T, H)."""
    tables = model.embeddings
    read: Any = tables.word_embeddings(ids) if words is None else words[ids]
    return read + tables.position_embeddings.weight[: ids.shape[1]] + tables.token_type_embeddings.weight[0]


def _walk(source: BertModel, layers: list[int], summed: Tensor, mask: Tensor) -> list[Any]:
    """The source's states (B, T, H) on the way through the chosen layers: after the tables; then (context, after attention, after)."""
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
    """What the heads gather (B, T, heads·s), before the output matrix."""
    query, key, value = (_split(each(state), part.num_attention_heads) for each in (part.query, part.key, part.value))
    found = scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
    return found.transpose(1, 2).flatten(2)


def _tables(model: BertModel, source: BertModel, words: Tensor, gained: Tensor, weights: Tensor | None) -> None:
    """Word, position and segment tables, projected behind the first LayerNorm's gain."""
    embedding_tables.start(model.embeddings.word_embeddings, words, weights)
    for name in ("position_embeddings", "token_type_embeddings"):
        mine = getattr(model.embeddings, name).weight
        mine.copy_(getattr(source.embeddings, name).weight[: len(mine)] @ gained)


def _normed(norm: nn.LayerNorm, summed: Tensor, wanted: Tensor, mask: Tensor) -> Tensor:
    """Fit a LayerNorm's gain and bias, number by number, to what should come out of it (B, T, w); what does come out."""
    unit = layer_norm(summed, summed.shape[-1:], eps=norm.eps)
    x, y = unit[mask], wanted[mask]
    spread = (x - x.mean(0)).square().mean(0).clamp(min=1e-12)
    norm.weight.copy_(((x - x.mean(0)) * (y - y.mean(0))).mean(0) / spread)
    norm.bias.copy_(y.mean(0) - norm.weight * x.mean(0))
    return norm(summed)


def _fold(linear: nn.Linear, weight: Tensor, bias: Tensor, space: Tensor, mean: Tensor) -> None:
    """Set a linear layer that read wide states to read projected ones; what the projection drops stays at its mean."""
    linear.weight.copy_(weight @ space)
    linear.bias.copy_(bias + weight @ (mean - space @ (space.T @ mean)))


def _mended(linear: nn.Linear, features: Tensor, state: Tensor, skipped: Tensor, added: Tensor, mask: Tensor) -> Tensor:
    """Fit an output matrix to the source's block; returns state + its output, (B, T, w), to be normalised.

    skipped, added (B, T, w): what the source adds before its LayerNorm, the state and the block's output, both with the gain and
    projected. LayerNorm ignores length: both are scaled so that `skipped` lies nearest to the narrow state, which has no matrix on
    its way; the block is to add what then is missing.
    """
    x, z, skip, more = (each[mask].double() for each in (features, state, skipped, added))
    middle = skip - skip.mean(0)
    missing = (skip + more) * ((z - z.mean(0)) * middle).sum() / middle.square().sum() - z
    known = x - x.mean(0)
    gram = known.T @ known
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    weight = torch.linalg.solve(gram, known.T @ (missing - missing.mean(0)))
    linear.weight.copy_(weight.T)
    linear.bias.copy_(missing.mean(0) - x.mean(0) @ weight)
    return state + linear(features)


def _attention(mine: Any, theirs: Any, space: Tensor, states: tuple[Tensor, Tensor, Tensor, Tensor], mask: Tensor) -> Tensor:
    """An attention block from a wide one; states: (its own, the wide one's before, its context, after). Returns its own after."""
    state, before, context, after = states
    out = theirs.output.dense
    said = _split(context, theirs.self.num_attention_heads).transpose(1, 2)[mask]  # (n, heads, s)
    parts = out.weight.T.unflatten(0, (theirs.self.num_attention_heads, -1)) @ space  # (heads, s, w)
    power = torch.stack([(said[:, head] - said[:, head].mean(0)).matmul(parts[head]).square().sum() for head in range(len(parts))])
    kept = power.topk(mine.self.num_attention_heads).indices.sort().values.tolist()
    flat, size = before[mask], mine.self.attention_head_size
    mean = flat.mean(0)
    weights: dict[str, list[Tensor]] = {"query": [], "key": [], "value": []}
    biases: dict[str, list[Tensor]] = {"query": [], "key": [], "value": []}
    for head in kept:
        for name, turn in zip(weights, _shortened(theirs.self, head, flat, said[:, head], size), strict=True):
            linear, rows = getattr(theirs.self, name), slice(head * len(turn), (head + 1) * len(turn))
            weights[name].append(turn.T @ linear.weight[rows])
            biases[name].append(turn.T @ linear.bias[rows])
    for name in weights:
        _fold(getattr(mine.self, name), torch.cat(weights[name]), torch.cat(biases[name]), space, mean)
    gained = _centred(theirs.output.LayerNorm.weight) @ space
    summed = _mended(mine.output.dense, _context(mine.self, state, mask), state, before @ gained, out(context) @ gained, mask)
    return _normed(mine.output.LayerNorm, summed, after @ space, mask)


def _shortened(part: Any, head: int, flat: Tensor, said: Tensor, size: int) -> list[Tensor]:
    """Maps (s, size) for a head's queries, keys and values: the first keep q·k best on average, the last what the head says.

    Independent q and k with second moments A and B: E (q·k − q'·k')² is least for the truncated SVD of A^½ B^½. Queries also take up
    that scores are divided by the root of the size.
    """
    long = part.attention_head_size
    if size == long:
        return [torch.eye(long)] * 3
    rows = slice(head * long, (head + 1) * long)
    query, key = (flat @ linear.weight[rows].T + linear.bias[rows] for linear in (part.query, part.key))
    (half_q, back_q), (half_k, back_k) = _roots(query), _roots(key)
    left, values, right = torch.linalg.svd(half_q @ half_k)
    root = values[:size].sqrt()
    _, spoken = torch.linalg.eigh(said.double().T @ said.double())
    scale = (size / long) ** 0.5
    return [(back_q @ left[:, :size] * root * scale).float(), (back_k @ right[:size].T * root).float(), spoken.flip(1)[:, :size].float()]


def _roots(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The root of the second moment of rows (n, s), and its inverse, (s, s) float64."""
    values, vectors = torch.linalg.eigh(rows.double().T @ rows.double() / len(rows))
    values = values.clamp(min=values[-1].item() * 1e-9)
    return vectors * values.sqrt() @ vectors.T, vectors / values.sqrt() @ vectors.T


def _neurons(layer: Any, theirs: Any, space: Tensor, states: tuple[Tensor, Tensor, Tensor], mask: Tensor) -> Tensor:
    """A feed-forward block from a wide one; states: (its own, the wide one's before, after). Returns its own after."""
    state, before, after = states
    active = theirs.intermediate(before)
    power = active[mask].var(0) * (theirs.output.dense.weight.T @ space).square().sum(1)
    kept = power.topk(layer.intermediate.dense.out_features).indices.sort().values
    wide = theirs.intermediate.dense
    _fold(layer.intermediate.dense, wide.weight[kept], wide.bias[kept], space, before[mask].mean(0))
    gained = _centred(theirs.output.LayerNorm.weight) @ space
    added = theirs.output.dense(active) @ gained
    summed = _mended(layer.output.dense, layer.intermediate(state), state, before @ gained, added, mask)
    return _normed(layer.output.LayerNorm, summed, after @ space, mask)
