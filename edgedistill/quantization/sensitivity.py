"""What quantizing each weight of a graph by itself costs: which layers a precision hurts, and what it saves there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime as ort

from edgedistill import machine
from edgedistill.quantization.layer_names import layer_names
from edgedistill.quantization.sample_batches import same_length
from edgedistill.quantization.skipping import convert_except

Converter = Callable[[onnx.ModelProto], onnx.ModelProto]
READERS = ("MatMul", "Gather", "LSTM", "Slice", "Reshape")  # of the weights that a precision may convert


class LayerCost(NamedTuple):
    """One weight, quantized while all others stay float32.

    name: of its constant, what `convert_except` takes. label: where it is, for people. operator: that reads it.
    cosine_mean, cosine_min: of the embeddings to fp32's, over all texts. saved_bytes: by this weight. share: of all that is lost,
    1 − cosine_mean over the sum of all layers' (errors of different layers are nearly independent, so they add up).
    """

    name: str
    label: str
    operator: str
    shape: tuple[int, ...]
    cosine_mean: float
    cosine_min: float
    saved_bytes: int
    share: float


def rank(
    model: onnx.ModelProto, precision: str | Converter, ids: Sequence[Sequence[int]], names: Sequence[str] | None = None
) -> list[LayerCost]:
    """The cost of each weight that the precision converts, the most expensive first.

    model: an fp32 graph. precision: its name, or a function that converts to it, such as one with samples. ids: the token ids of texts.
    names: only these constants, by default all. An LSTM is one layer, under the name of its W. The graph is opened and run once for each
    layer, and once in fp32.
    """
    convert = _converter(precision)
    weights = convertible(model, convert)
    expected, size, found = _embeddings(model, ids), model.ByteSize(), []
    labels = layer_names(model)
    for name in names or weights:
        quantized = convert_except(convert, model, set(weights) - {name})
        mean, least = cosines(_embeddings(quantized, ids), expected)
        node, shape = weights[name]
        found.append(LayerCost(name, labels[name], node.op_type, shape, mean, least, size - quantized.ByteSize(), 0.0))
    lost = sum(1 - layer.cosine_mean for layer in found) or 1.0
    found = [layer._replace(share=(1 - layer.cosine_mean) / lost) for layer in found]
    return sorted(found, key=lambda layer: (layer.cosine_mean, layer.name))


def whole(model: onnx.ModelProto, precision: str | Converter, ids: Sequence[Sequence[int]]) -> tuple[float, float, int]:
    """(cosine mean, cosine min, bytes saved) of the whole graph in a precision."""
    quantized = _converter(precision)(model)
    mean, least = agreement(quantized, model, ids)
    return mean, least, model.ByteSize() - quantized.ByteSize()


def agreement(quantized: onnx.ModelProto, model: onnx.ModelProto, ids: Sequence[Sequence[int]]) -> tuple[float, float]:
    """(mean, minimum) of the cosines between the embeddings of two graphs."""
    return cosines(_embeddings(quantized, ids), _embeddings(model, ids))


def convertible(model: onnx.ModelProto, precision: str | Converter) -> dict[str, tuple[onnx.NodeProto, tuple[int, ...]]]:
    """The weights that a precision converts, in the order of the graph: the first node that reads each, and its shape."""
    before = {constant.name: constant for constant in model.graph.initializer if len(constant.dims) > 1}
    after = {constant.name for constant in _converter(precision)(model).graph.initializer}
    found: dict[str, tuple[onnx.NodeProto, tuple[int, ...]]] = {}
    for node in model.graph.node:
        if node.op_type not in READERS:
            continue
        for name in node.input[:2]:  # the data of a lookup; the matrix of a product; W of an LSTM, whose R goes with it
            if name in before and name not in after:
                found.setdefault(name, (node, tuple(before[name].dims)))
    return found


def _converter(precision: str | Converter) -> Converter:
    if not isinstance(precision, str):
        return precision
    from edgedistill.quantization.precisions import convert  # here, so that a converter may rank too

    name = precision
    return lambda model: convert(model, name)


def cosines(found: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """Mean and minimum of the rows' cosines."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    each = (found * expected).sum(1) / np.maximum(lengths, 1e-30)
    each[lengths == 0] = 1.0  # an empty text without special tokens: zero in both
    return float(each.mean()), float(each.min())


def _embeddings(model: onnx.ModelProto, ids: Sequence[Sequence[int]]) -> np.ndarray:
    """(n, d) float64: the graph's first output."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, machine.processors()
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    output, rows = session.get_outputs()[0], np.empty(0)
    for texts, batch in same_length(ids):
        found = session.run([output.name], {"input_ids": batch, "attention_mask": np.ones_like(batch)})[0]
        if not len(rows):
            rows = np.zeros((len(ids), found.shape[1]))
        rows[texts] = found
    return rows
