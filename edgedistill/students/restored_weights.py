"""The constants of a graph that was written node by node -> the state dict of its student: the other way round than its writer.

A graph holds less than its student did: some biases are added to others, token weights to their table. The weights that come out here
compute the same embeddings, though they may be others than went in.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import BertConfig, ModernBertConfig

from edgedistill.errors import CheckFailed, UserError
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.students import modernbert
from edgedistill.students.product_quantization import CENTROIDS, code_type
from edgedistill.students.relative_bias import FARTHEST, RelativeBias

State = dict[str, Tensor]
Sizes = tuple[int, ...]


def read(constants: Mapping[str, np.ndarray], shape: dict[str, Any], place: str) -> State:
    """The state dict of the student that `shape` (student.json) describes. constants: float32, by their names in the graph.

    place: the bundle, which opens the errors. Raises UserError for a graph that was traced, CheckFailed for constants of other sizes than
    the student's.
    """
    found = READERS[shape["kind"]](_Constants(constants, place), shape)
    return {f"inner.{name}": value for name, value in found.items()} if shape.get("blocks") else found


class _Constants:
    """A graph's constants by the names that the writers gave them, without their numbers; the first written first."""

    def __init__(self, constants: Mapping[str, np.ndarray], place: str) -> None:
        self.place = place
        self.arrays: dict[str, list[np.ndarray]] = {}
        numbered = [(found, array) for name, array in constants.items() if (found := re.fullmatch(r"(\w+?)_(\d{1,9})", name))]
        for found, array in sorted(numbered, key=lambda each: int(each[0][2])):
            self.arrays.setdefault(found[1], []).append(array)

    def take(self, name: str, sizes: Sizes, at: int = 0) -> Tensor:
        """The constant of that name, of several the one at `at`; sizes: those that it must have."""
        arrays = self.arrays.get(name, [])
        if not -len(arrays) <= at < len(arrays):
            fact = "its graph was traced, so its weights cannot be read back"
            raise UserError(f"{self.place}: {fact}; give the run it was exported from")
        if arrays[at].shape != sizes:
            fact = f"{name} has the shape {arrays[at].shape}, its student's has {sizes}"
            raise CheckFailed(f"{self.place}: {fact}; {GET_AGAIN}")
        return torch.from_numpy(np.array(arrays[at]))

    def dense(self, name: str, inputs: int, outputs: int) -> Tensor:
        """The weight of a linear layer as torch has it, (outputs, inputs)."""
        return self.take(name, (inputs, outputs)).T.contiguous()


def _head(constants: _Constants, shape: dict[str, Any], width: int) -> State:
    head = shape["head"]
    if not head:
        return {}
    weight = {"head.weight": constants.dense("head_weight", width, head["dims"])}
    return {**weight, **({"head.bias": constants.take("head_bias", (head["dims"],))} if head["bias"] else {})}


def _table(constants: _Constants, shape: dict[str, Any], sizes: tuple[int, int]) -> State:
    """An embedding table (V, H): full, factorized or product-quantized."""
    (vocabulary, width), blocks, rank = sizes, shape.get("codes"), shape.get("bottleneck")
    if rank:
        projection = constants.dense("word_project_weight", rank, width)
        return {"table.weight": constants.take("word_table", (vocabulary, rank)), "project.weight": projection}
    if blocks:
        centroids = shape.get("centroids", CENTROIDS)
        book = constants.take("word_book", (blocks, centroids * (width // blocks))).reshape(-1, width // blocks)
        return {"codes": constants.take("word_codes", (vocabulary, blocks)).to(code_type(centroids)), "book.weight": book}
    return {"weight": constants.take("word_table", (vocabulary, width))}


def _under(name: str, state: State) -> State:
    return {f"{name}.{key}": value for key, value in state.items()}


def _static(constants: _Constants, shape: dict[str, Any]) -> State:
    """Token weights are 1 where they are part of the table."""
    sizes = shape["pieces"], shape["width"]
    weights = constants.take("word_weights", sizes[:1]) if shape.get("codes") else torch.ones(sizes[0])
    return {"weights": weights, **_under("embedding", _table(constants, shape, sizes)), **_head(constants, shape, sizes[1])}


def _bilstm(constants: _Constants, shape: dict[str, Any]) -> State:
    """ONNX's gates i, o, f, c are reordered to torch's i, f, g, o."""
    hidden, inputs = shape["hidden"], shape["width"]
    state = _under("embedding", _table(constants, shape, (shape["pieces"], inputs)))
    for layer in range(shape["layers"]):
        parts = {
            "weight_ih": constants.take("W", (2, 4 * hidden, inputs), layer),
            "weight_hh": constants.take("R", (2, 4 * hidden, hidden), layer),
        }
        parts["bias_ih"], parts["bias_hh"] = constants.take("B", (2, 8 * hidden), layer).chunk(2, 1)
        for name, both in parts.items():
            for direction, suffix in enumerate(("", "_reverse")):
                i, o, f, c = both[direction].chunk(4)
                state[f"lstm.{name}_l{layer}{suffix}"] = torch.cat([i, f, c, o])
        inputs = 2 * hidden
    return state | _head(constants, shape, 2 * hidden)


def _bert(constants: _Constants, shape: dict[str, Any]) -> State:
    """Biases of outputs in front of a residual are zero, and what carried them keeps them; but for the one of a repeated block's start.

    The LayerNorm in front of a repeated block carries the output bias of the block's first layer, and so does the block's last LayerNorm
    unless it is the graph's last: that bias is their difference.
    """
    config, repeated = BertConfig(**shape["config"]), shape.get("times", 1) > 1
    width, depth = config.hidden_size, config.num_hidden_layers
    norms = [constants.take("norm_bias", (width,), at) for at in range(1 + depth + repeated)]  # the embeddings', then the layers'
    carried = norms[depth] - norms[depth + 1] if repeated else torch.zeros(width)
    shifts = [norms[0] - carried, *norms[1:depth], norms[-1]]
    embeddings = {
        **_under("word_embeddings", _table(constants, shape, (config.vocab_size, width))),
        "position_embeddings.weight": constants.take("position_table", (config.max_position_embeddings, width)),
        "token_type_embeddings.weight": torch.zeros(config.type_vocab_size, width),  # part of the position table
        "LayerNorm.weight": constants.take("norm_weight", (width,)),
        "LayerNorm.bias": shifts[0],
    }
    state = _under("embeddings", embeddings)
    for number in range(depth):
        layer = _layer(constants, config, number, carried if number == 0 else torch.zeros(width))
        state |= _under(f"encoder.layer.{number}", {**layer, "output.LayerNorm.bias": shifts[number + 1]})
    if shape["pooling"] == "cls_pooler":
        state["pooler.dense.weight"] = constants.dense("pooler_weight", width, width)
        state["pooler.dense.bias"] = constants.take("pooler_bias", (width,))
    return _under("model", state) | _relative_bias(constants, shape, config.num_attention_heads) | _head(constants, shape, width)


def _relative_bias(constants: _Constants, shape: dict[str, Any], heads: int) -> State:
    """The table of a relative attention bias, from its values for all distances."""
    if not shape.get("relative_bias"):
        return {}
    bias = RelativeBias(shape["relative_bias"], heads)
    bias.load_by_distance(constants.take("relative_bias", (1, 2 * FARTHEST + 1, heads))[0])
    return _under("relative_bias", bias.state_dict())


def _layer(constants: _Constants, config: BertConfig, number: int, carried: Tensor) -> State:
    """A layer without its last LayerNorm's shift. carried (H,): the bias of the attention's output, which the layer's input carries."""
    width, inner, name = config.hidden_size, config.intermediate_size, f"layer_{number}_"
    query, value = (constants.dense(f"{name}{part}_weight", width, width) for part in ("query", "value"))
    return {
        "attention.self.query.weight": query,
        "attention.self.query.bias": constants.take(f"{name}query_bias", (width,)) + query @ carried,
        "attention.self.key.weight": constants.dense(f"{name}key_weight", width, width),
        "attention.self.key.bias": torch.zeros(width),
        "attention.self.value.weight": value,
        "attention.self.value.bias": constants.take(f"{name}value_bias", (width,)) + value @ carried,
        "attention.output.dense.weight": constants.dense(f"{name}attention_weight", width, width),
        "attention.output.dense.bias": carried,
        "attention.output.LayerNorm.weight": constants.take(f"{name}attention_norm_weight", (width,)),
        "attention.output.LayerNorm.bias": constants.take(f"{name}attention_norm_bias", (width,)),
        "intermediate.dense.weight": constants.dense(f"{name}inner_weight", width, inner),
        "intermediate.dense.bias": constants.take(f"{name}inner_bias", (inner,)),
        "output.dense.weight": constants.dense(f"{name}feed_forward_weight", inner, width),
        "output.dense.bias": torch.zeros(width),
        "output.LayerNorm.weight": constants.take(f"{name}norm_weight", (width,)),
    }


def _modernbert(constants: _Constants, shape: dict[str, Any]) -> State:
    """Matrices that a graph holds in parts (queries, keys and values; neurons and their gates) are joined again."""
    config = ModernBertConfig(**{**shape["config"], **modernbert.NO_TOKENS})
    width, inner, norms = config.hidden_size, config.intermediate_size, itertools.count()

    def norm(name: str) -> State:
        """The next norm, in the order in which a text passes them."""
        parts = ("weight", "bias") if config.norm_bias else ("weight",)
        at = next(norms)
        return {f"{name}.{part}": constants.take(f"norm_{part}", (width,), at) for part in parts}

    def joined(name: str, parts: list[str], sizes: Sizes, biased: bool) -> State:
        """A linear layer (outputs, inputs) from its parts, each of `sizes` (inputs, outputs)."""
        found = {f"{name}.weight": torch.cat([constants.dense(f"{part}_weight", *sizes) for part in parts])}
        biases = [constants.take(f"{part}_bias", sizes[1:]) for part in parts] if biased else []
        return found | ({f"{name}.bias": torch.cat(biases)} if biases else {})

    table = _table(constants, shape, (config.vocab_size, width))
    state = _under("embeddings.tok_embeddings", table) | norm("embeddings.norm")
    for number, normed in enumerate(shape["config"]["attention_norms"]):
        name, layer = f"layer_{number}_", norm("attn_norm") if normed else {}
        layer |= joined("attn.Wqkv", [f"{name}{part}" for part in ("query", "key", "value")], (width, width), config.attention_bias)
        layer |= joined("attn.Wo", [f"{name}attention"], (width, width), config.attention_bias)
        layer |= norm("mlp_norm") | joined("mlp.Wi", [f"{name}inner", f"{name}gate"], (width, inner), config.mlp_bias)
        layer |= joined("mlp.Wo", [f"{name}feed_forward"], (inner, width), config.mlp_bias)
        state |= _under(f"layers.{number}", layer)
    return _under("model", state | norm("final_norm")) | _head(constants, shape, width)


def _encoder(constants: _Constants, shape: dict[str, Any]) -> State:
    modern = shape["config"].get("model_type") == modernbert.MODEL_TYPE
    return _modernbert(constants, shape) if modern else _bert(constants, shape)


# From a student's kind to the function that reads its weights.
READERS: dict[str, Callable[[_Constants, dict[str, Any]], State]] = {
    "bert": _encoder,
    "bilstm": _bilstm,
    "recurrent": _bert,
    "static": _static,
}
