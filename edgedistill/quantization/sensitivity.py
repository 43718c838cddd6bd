"""What quantizing each weight of a graph by itself costs: which layers a precision hurts, and what it saves
there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import onnx

from edgedistill import machine
from edgedistill.quantization.conversion import convert
from edgedistill.quantization.sample_batches import TokenIds, same_length
from edgedistill.quantization.skipping import Converter, convert_except
from edgedistill.runtime.onnx_session import open_in_memory

PARTS = {  # the ends of parameters' names, after the layer's number where there is one
    "word_embeddings": "token embeddings",
    "tok_embeddings": "token embeddings",
    "embedding": "token embeddings",
    "book": "token embeddings (PQ codebook)",
    "project": "token embeddings (projection)",
    "position_embeddings": "position embeddings",
    "attention.self.query": "attention q",
    "attention.self.key": "attention k",
    "attention.self.value": "attention v",
    "attention.output.dense": "attention out",
    "intermediate.dense": "feed-forward in",
    "output.dense": "feed-forward out",
    "attn.Wqkv[0]": "attention q",
    "attn.Wqkv[1]": "attention k",
    "attn.Wqkv[2]": "attention v",
    "attn.Wo": "attention out",
    "mlp.Wi[0]": "feed-forward in",
    "mlp.Wi[1]": "feed-forward gate",
    "mlp.Wo": "feed-forward out",
    "linear": "reduction",
    "hidden": "classifier hidden",
    "out": "classifier out",
}

READERS = ("MatMul", "Gather", "LSTM", "Slice", "Reshape")  # of the weights that a precision may convert


class LayerCost(NamedTuple):
    """One weight, quantized while all others stay float32.

    name: of its constant, what `convert_except` takes. label: where it is, for people. operator: that reads
        it.
    cosine_mean, cosine_min: of the embeddings to fp32's, over all texts. saved_bytes: by this weight. share:
        of all that is lost,
    1 − cosine_mean over the sum of all layers' (errors of different layers are nearly independent, so they
    add up).
    """

    name: str
    label: str
    operator: str
    shape: tuple[int, ...]
    cosine_mean: float
    cosine_min: float
    saved_bytes: int
    share: float


class GraphCost(NamedTuple):
    """What quantizing costs a graph: all weights together, under an empty name, and each by itself, the most
    expensive first."""

    whole: LayerCost
    layers: list[LayerCost]


def costs(
    model: onnx.ModelProto,
    precision: str | Converter,
    ids: TokenIds,
    names: Sequence[str] | None = None,
    track: Callable[[Sequence[str]], Iterable[str]] = iter,
) -> GraphCost:
    """The cost of the precision, and of each weight that it converts.

    model: an fp32 graph. precision: its name, or a function that converts to it, such as one with samples.
        ids: the token ids of texts.
    names: only these constants, by default all. An LSTM is one layer, under the name of its W. track:
        iterates over the names, and may
    show how far it is. The graph is opened and run once for each layer, once in the precision and once in
    fp32.
    """
    converter = _converter(precision)
    quantized = converter(model)
    weights, labels, expected = _converted(model, quantized), layer_names(model), embeddings(model, ids)

    def cost(
        changed: onnx.ModelProto, name: str, label: str, operator: str, shape: tuple[int, ...]
    ) -> LayerCost:
        mean, least = agreement(changed, expected, ids)
        return LayerCost(
            name, label, operator, shape, mean, least, model.ByteSize() - changed.ByteSize(), 1.0
        )

    found = []
    for name in track(list(names or weights)):
        node, shape = weights[name]
        found.append(
            cost(
                convert_except(converter, model, set(weights) - {name}),
                name,
                labels[name],
                node.op_type,
                shape,
            )
        )
    lost = sum(1 - layer.cosine_mean for layer in found) or 1.0
    found = [layer._replace(share=(1 - layer.cosine_mean) / lost) for layer in found]
    return GraphCost(
        cost(quantized, "", "all together", "", ()),
        sorted(found, key=lambda layer: (layer.cosine_mean, layer.name)),
    )


def agreement(quantized: onnx.ModelProto, expected: np.ndarray, ids: TokenIds) -> tuple[float, float]:
    """(mean, minimum) of the cosines between a graph's embeddings and those expected (n, d)."""
    return cosines(embeddings(quantized, ids), expected)


def convertible(
    model: onnx.ModelProto, precision: str | Converter
) -> dict[str, tuple[onnx.NodeProto, tuple[int, ...]]]:
    """The weights that a precision converts, in the order of the graph: the first node that reads each, and
    its shape."""
    return _converted(model, _converter(precision)(model))


def _converted(
    model: onnx.ModelProto, quantized: onnx.ModelProto
) -> dict[str, tuple[onnx.NodeProto, tuple[int, ...]]]:
    before = {constant.name: constant for constant in model.graph.initializer if len(constant.dims) > 1}
    after = {constant.name for constant in quantized.graph.initializer}
    found: dict[str, tuple[onnx.NodeProto, tuple[int, ...]]] = {}
    for node in model.graph.node:
        if node.op_type not in READERS:
            continue
        for name in node.input[
            :2
        ]:  # the data of a lookup; the matrix of a product; W of an LSTM, whose R goes with it
            if name in before and name not in after:
                found.setdefault(name, (node, tuple(before[name].dims)))
    return found


def _converter(precision: str | Converter) -> Converter:
    return partial(convert, precision=precision) if isinstance(precision, str) else precision


def cosines(found: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """Mean and minimum of the rows' cosines."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    each = (found * expected).sum(1) / np.maximum(lengths, 1e-30)
    each[lengths == 0] = 1.0  # an empty text without special tokens: zero in both
    return float(each.mean()), float(each.min())


def embeddings(model: onnx.ModelProto, ids: TokenIds) -> np.ndarray:
    """(n, d) float64: the graph's first output."""
    session = open_in_memory(model.SerializeToString(), machine.processors())
    output, rows = session.get_outputs()[0], np.empty(0)
    for texts, batch in same_length(ids):
        found = session.run([output.name], {"input_ids": batch, "attention_mask": np.ones_like(batch)})[0]
        if not len(rows):
            rows = np.zeros((len(ids), found.shape[1]))
        rows[texts] = found
    return rows


def layer_names(model: onnx.ModelProto) -> dict[str, str]:
    """A name for every constant with two dimensions or more; its own where nothing else is known of it."""
    matrices = {constant.name for constant in model.graph.initializer if len(constant.dims) > 1}
    names: dict[str, str] = {}
    lstms = 0
    for node in model.graph.node:
        read = [name for name in node.input if name in matrices and name not in names]
        if node.op_type == "LSTM":
            names |= dict.fromkeys(read, f"LSTM layer {lstms}")
            lstms += 1
        else:
            names |= {name: _label(name) for name in read}
    return names


def _label(constant: str) -> str:
    """model.encoder.layer.3.attention.self.query.weight.T -> layer 3 · attention q."""
    found = re.fullmatch(r"(.+?)(?:\.table)?\.(?:weight|codes)(\[\d\])?(?:\[[a-z]+\])?(?:\.T)?", constant)
    if not found:
        return constant
    numbered = re.fullmatch(r".*?layers?\.(\d+)\.(.+)", found[1])
    name = numbered[2] if numbered else found[1].rsplit(".", 1)[-1]
    part = PARTS.get(name + (found[2] or ""), name.replace(".", " ").replace("_", " "))
    return f"layer {numbered[1]} · {part}" if numbered else part
