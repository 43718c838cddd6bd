"""A bundle's graph -> the parts of a student's file: what pools, what follows it, the layers below, found by
the operators and the names that edgedistill's graphs have."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.runtime.graph_weights import GraphWeights, Node, Stored

# numbers of the file, in the order of edgedistill.c
KINDS = ("static", "bert", "bilstm")
ACTIVATIONS = ("Gelu", "FastGelu", "Relu", "Tanh", "Sigmoid", "Linear")
POOLINGS = ("mean", "cls", "max", "last", "mean_sqrt_len", "weighted_mean")
FIXED = -1  # scales of a product's input that are the same for all texts
LAYER = "model.encoder.layer.{}."
TABLES = {"bert": "model.embeddings.word_embeddings", "bilstm": "embedding", "static": "embedding"}
LEXICAL = "lexical_channel"


class Product(NamedTuple):
    """A weight (outputs, inputs), what its input is stored as in 8 bits (the byte that stands for 0, or
    FIXED), what fixed scales multiply each input with and then divide it by, and a bias."""

    weight: Stored
    zero: int = 0
    factors: ndarray | None = None
    step: float = 0
    bias: ndarray | None = None
    is_int8: bool = False


class Table(NamedTuple):
    """Rows of all tokens; or PQ codes (tokens, blocks), and for each block its centroids in one row."""

    rows: Stored
    codes: ndarray | None = None
    centroids: int = 0

    @property
    def tokens(self) -> int:
        return len(self.rows.values if self.codes is None else self.codes)

    @property
    def width(self) -> int:
        """The dimensions of a token's row."""
        columns = int(self.rows.values.shape[1])
        return columns if self.codes is None else columns // self.centroids * self.codes.shape[1]


class Dense(NamedTuple):
    """A layer behind pooling; its input is first scaled to unit length where `from_unit`."""

    product: Product
    activation: str
    from_unit: bool


class Words(NamedTuple):
    """The projection of a text's words; weights of tokens that continue a word are negative. So many dense
    layers come before."""

    rows: Table
    weights: ndarray
    product: Product


@dataclass
class Student:
    """All parts of a student; see edgedistill.c for what each is, and in which order `layers` are."""

    kind: str
    table: Table
    projection: Product | None
    pooling: str
    dense: list[Dense]
    words: Words | None
    words_at: int  # how many dense layers come before the words; -1 without these
    numbers: Json = field(default_factory=dict)
    weights: ndarray | None = None
    layers: list[Product | ndarray] = field(default_factory=list)


def read(graph: GraphWeights, output: str) -> Student:
    """The student that a graph computes. Raises UserError for what the file has no place for, by name."""
    tail = _Tail(graph)
    pooled = tail.read(output)
    operators = {node.kind for node in graph.nodes}
    kind = "bilstm" if "LSTM" in operators else "static"
    kind = "bert" if "LayerNormalization" in operators else kind
    layers = {"bert": _bert, "bilstm": _bilstm, "static": _static}[kind](graph)
    table, projection = _table(graph, TABLES[kind])
    if kind == "static" and layers["weights"] is None:
        layers["weights"] = np.ones(table.tokens, np.float32)
    student = Student(
        kind,
        table,
        projection,
        _pooling(graph, pooled, kind),
        tail.dense[::-1],
        tail.words,
        len(tail.dense) - tail.words_behind if tail.words else -1,
        **layers,
    )
    if unused := graph.unused():
        raise _unknown(graph, f"uses {', '.join(unused[:3])}")
    return student


def _unknown(graph: GraphWeights, fact: str) -> UserError:
    return UserError(
        f"{graph.place}: its graph {fact}, which the core has no place for; run it with onnxruntime"
    )


def product(graph: GraphWeights, names: list[str], biases: list[str]) -> Product:
    """Products of the same input as one, whose outputs stand after each other; a bias that there is not is
    0."""
    parts = [_product(graph, name) for name in names]
    joined = parts[0]
    if len(parts) > 1:
        kinds = {(part.is_int8, part.weight.bits, part.weight.group) for part in parts}
        if len(kinds) > 1:
            raise _unknown(graph, f"multiplies {names[0]} and {names[1]} in two precisions")
        joined = joined._replace(weight=Stored(*map(_joined, *(part.weight for part in parts))))
    if not any(map(graph.has, biases)):
        return joined
    bias = [
        graph.array(name) if graph.has(name) else np.zeros(len(part.weight.values), np.float32)
        for name, part in zip(biases, parts, strict=True)
    ]
    return joined._replace(bias=np.concatenate(bias))


def _joined(*values: Any) -> Any:
    return np.concatenate(values) if isinstance(values[0], ndarray) else values[0]


def _product(graph: GraphWeights, name: str) -> Product:
    node = graph.product(name)
    weight = graph.weight(name)
    if node.kind != "MatMulIntegerToFloat":
        return Product(weight)
    zero = int(graph.array(node.inputs[4]))
    if node.outputs[0].endswith("_product"):  # which is multiplied by a scale for each row
        return Product(weight, zero, is_int8=True)
    assert weight.scales is not None
    step = graph.array(node.inputs[2])
    factors = graph.factors(node)
    if factors is None:
        factors = np.ones(weight.values.shape[1], np.float32)
    scaled = weight._replace(scales=weight.scales * step)
    return Product(scaled, FIXED, factors, float(step), is_int8=True)


def _table(graph: GraphWeights, name: str) -> tuple[Table, Product | None]:
    """An embedding table; the projection of a factorized one."""
    if graph.has(f"{name}.codes"):
        return _codes(graph, name), None
    if graph.has(f"{name}.table.weight"):
        return Table(graph.stored(f"{name}.table.weight")), product(graph, [f"{name}.project.weight.T"], [])
    return Table(graph.stored(f"{name}.weight")), None


def _codes(graph: GraphWeights, name: str) -> Table:
    """A product-quantized table; the graph's writer reshapes its codebook to (-1, dimensions of a block)."""
    codes = graph.array(f"{name}.codes")
    book = graph.stored(f"{name}.book.weight")
    shapes = [
        node.inputs[1]
        for node in graph.nodes
        if node.kind == "Reshape" and node.inputs[0].startswith(f"{name}.book.weight")
    ]
    size = int(graph.array(shapes[0])[1])
    if codes.dtype == np.int16:
        codes = codes.view(np.uint16)
    return Table(book, codes, book.values.shape[1] // size)


class _Tail:
    """What follows pooling, read from the output back."""

    def __init__(self, graph: GraphWeights) -> None:
        self.graph = graph
        self.dense: list[Dense] = []  # the last one first
        self.words: Words | None = None
        self.words_behind = 0  # how many dense layers follow them
        self.activation = "Linear"
        self.bias = ""  # of the product that comes before what was read

    def read(self, output: str) -> str:
        """Returns the name of what was pooled."""
        name = output
        before = self._before(output)
        while before is not None:
            name = before
            before = self._before(before)
        return name

    def _before(self, name: str) -> str | None:
        """What the node that computes a value reads, once that node is noted; None for a pooling."""
        graph = self.graph
        node = self.graph.writer(name)
        if node is None:
            return None
        kind = node.kind
        first, *others = node.inputs
        if weight := graph.weight_of(node):
            return self._product(node, weight)
        if kind == "Div" and self._is_length(others[0]):
            if self.dense:  # what was read before is given an input of unit length
                self.dense[-1] = self.dense[-1]._replace(from_unit=True)
            return first
        if kind in ("Relu", "Tanh", "Sigmoid"):
            self.activation = kind
            return first
        if kind == "Mul" and self._multiplies(first):
            return first  # a product, which is multiplied by the scales of its rows
        if kind == "Add" and self._operator(first) == "Div" and graph.has(f"{LEXICAL}.rows.codes"):
            self._read_words()
            return graph.writers[first].inputs[0]
        if kind == "Add" and graph.has(others[0]):
            self.bias = others[0]
            return first
        return None

    def _product(self, node: Node, weight: str) -> str:
        """Returns the name of what a product reads, before it was quantized."""
        bias = self.bias or next(iter(node.inputs[6:]), "")
        dense = Dense(product(self.graph, [weight], [bias] if bias else []), self.activation, False)
        self.dense.append(dense)
        self.activation = "Linear"
        self.bias = ""
        return node.inputs[0].removesuffix("_uint8").removesuffix("_as_rows")

    def _multiplies(self, name: str) -> bool:
        node = self.graph.writer(name)
        return node is not None and bool(self.graph.weight_of(node))

    def _operator(self, name: str) -> str:
        """Of the node that computes a value; empty where none does."""
        node = self.graph.writer(name)
        return "" if node is None else node.kind

    def _is_length(self, name: str) -> bool:
        clip = self.graph.writer(name)
        return clip is not None and clip.kind == "Clip" and self._operator(clip.inputs[0]) == "ReduceL2"

    def _read_words(self) -> None:
        graph = self.graph
        weights = graph.array(f"{LEXICAL}.token_weights")
        continues = graph.array(f"{LEXICAL}.continues").astype(bool)
        projection = product(graph, [f"{LEXICAL}.projection.weight.T"], [])
        rows = _codes(graph, f"{LEXICAL}.rows")
        self.words = Words(rows, np.where(continues, -weights, weights), projection)
        self.words_behind = len(self.dense)


def _pooling(graph: GraphWeights, name: str, kind: str) -> str:
    """How tokens are pooled to the value of a name."""
    node = graph.writer(name)
    if node is None:
        raise _unknown(graph, "has no pooling")
    if node.kind == "MatMul":
        weights = graph.writers[node.inputs[0]]
        tokens, total = (graph.writers[part] for part in graph.writers[weights.inputs[0]].inputs)
        if total.kind == "Sqrt":
            return "mean_sqrt_len"
        return "weighted_mean" if tokens.kind == "Mul" else "mean"
    poolings = {"Gather": "cls", "ReduceMax": "max", "GatherND": "last"}
    if kind == "bilstm":
        poolings["Transpose"] = "last"
    if node.kind not in poolings:
        raise _unknown(graph, f"pools by {node.kind}")
    return poolings[node.kind]


def _static(graph: GraphWeights) -> Json:
    return {"weights": graph.array("weights") if graph.has("weights") else None}


def _bilstm(graph: GraphWeights) -> Json:
    directions = []
    layers = sum(node.kind == "LSTM" for node in graph.nodes)
    for layer in range(layers):
        inputs, states = (graph.stored(f"lstm.weight_{part}_l{layer}[onnx]") for part in ("ih", "hh"))
        biases = graph.array(f"lstm.bias_ih_l{layer}[onnx]")  # (2, 8h): of the input, then of the state
        for way, bias in enumerate(biases):
            of_inputs, of_states = np.split(bias, 2)
            directions.append(Product(_direction(inputs, way), bias=of_inputs + of_states))
            directions.append(Product(_direction(states, way)))
    inner = directions[1].weight.values.shape[1]
    return {"layers": directions, "numbers": {"layers": layers, "inner": inner}}


def _direction(both: Stored, way: int) -> Stored:
    """Of two directions' matrices, (2, rows, cols), one."""
    scales = None if both.scales is None else both.scales[way]
    return both._replace(values=both.values[way], scales=scales)


def _bert(graph: GraphWeights) -> Json:
    matches = (re.match(r"model\.encoder\.layer\.(\d+)\.", name) for name in graph.tensors)
    count = 1 + max((int(match[1]) for match in matches if match), default=-1)
    attentions = [node for node in graph.nodes if node.kind in ("MultiHeadAttention", "Softmax")]
    if len(attentions) % max(count, 1):
        raise _unknown(graph, f"has {len(attentions)} attentions of {count} layers")
    norms = [node for node in graph.nodes if node.kind == "LayerNormalization"]
    layers = [part for at in range(count) for part in _layer(graph, LAYER.format(at))]
    again = LAYER.format(count - 1) + "output.LayerNorm.bias[again]"
    embeddings = "model.embeddings"
    positions = graph.stored(f"{embeddings}.position_embeddings.weight[segments]")
    numbers = {
        "layers": count,
        "times": len(attentions) // max(count, 1) or 1,
        "heads": _heads(graph, attentions),
        "inner": len(layers[4].weight.values) if layers else 1,
        "activation": ACTIVATIONS.index(_activation(graph)),
        "positions": len(positions.values),
        "first_position": _first_position(graph),
        "epsilon": norms[0].attributes["epsilon"],
    }
    parts = [Product(positions), *_norm(graph, f"{embeddings}.LayerNorm"), *layers]
    if graph.has(again):
        parts.append(graph.array(again))
    return {"numbers": numbers, "layers": parts}


def _activation(graph: GraphWeights) -> str:
    """The activation between the products of a layer."""
    for node in graph.nodes:
        if node.attributes.get("approximate") == "tanh":
            return "FastGelu"
        if node.kind in ("Gelu", "FastGelu", "Relu"):
            return node.kind
    return "Gelu"


def _heads(graph: GraphWeights, attentions: list[Node]) -> int:
    """As the operator names them; or as the reshaping of keys does, to (batch, tokens, heads, size)."""
    if attentions and "num_heads" in attentions[0].attributes:
        return int(attentions[0].attributes["num_heads"])
    for node in graph.nodes:
        if node.attributes.get("perm") == [0, 2, 3, 1]:
            shape = graph.writers[graph.writers[node.inputs[0]].inputs[1]]
            return int(graph.array(shape.inputs[1])[0])
    return 1


def _first_position(graph: GraphWeights) -> int:
    """0; or, where positions are counted from the padding id, that and 1."""
    for node in graph.nodes:
        if node.kind == "Equal" and node.inputs[0] == "input_ids":
            return int(graph.array(node.inputs[1])) + 1
    return 0


def _layer(graph: GraphWeights, name: str) -> list[Any]:
    attention = [f"{name}attention.self.{part}" for part in ("query", "key", "value")]
    weights, biases = ([f"{part}.{end}" for part in attention] for end in ("weight.T", "bias"))
    inner = f"{name}intermediate.dense"
    return [
        product(graph, weights, biases),
        product(graph, [f"{name}attention.output.dense.weight.T"], []),
        *_norm(graph, f"{name}attention.output.LayerNorm"),
        product(graph, [f"{inner}.weight.T"], [f"{inner}.bias"]),
        product(graph, [f"{name}output.dense.weight.T"], []),
        *_norm(graph, f"{name}output.LayerNorm"),
    ]


def _norm(graph: GraphWeights, name: str) -> list[ndarray]:
    return [graph.array(f"{name}.{part}") for part in ("weight", "bias")]
