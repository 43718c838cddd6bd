"""A bundle's graph -> the parts of a student's file: what pools, what follows it, the layers below, found by
the operators and the names that edgedistill's graphs have."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from edgedistill.device.graph_weights import GraphWeights, Node, Stored
from edgedistill.errors import UserError

# numbers of the file, in the order of edgedistill.c
KINDS = ("static", "bert", "bilstm")
ACTIVATIONS = ("Gelu", "FastGelu", "Relu", "Tanh", "Sigmoid", "Linear")
POOLINGS = ("mean", "cls", "max", "last", "mean_sqrt_len", "weighted_mean")
PRODUCTS = ("MatMul", "MatMulIntegerToFloat", "MatMulNBits")
FIXED = -1  # scales of a product's input that are the same for all texts
LAYER = "model.encoder.layer.{}."
TABLES = {"bert": "model.embeddings.word_embeddings", "bilstm": "embedding", "static": "embedding"}


class Product(NamedTuple):
    """A weight (outputs, inputs), what its input is stored as in 8 bits (the byte that stands for 0, or
    FIXED), what fixed scales multiply each input with and then divide it by, and a bias."""

    weight: Stored
    zero: int = 0
    factors: np.ndarray | None = None
    step: float = 0
    bias: np.ndarray | None = None
    is_int8: bool = False


class Table(NamedTuple):
    """Rows of all tokens; or PQ codes (tokens, blocks), and for each block its centroids in one row."""

    rows: Stored
    codes: np.ndarray | None = None
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
    """The projection of a text's words; weights of tokens that continue a word are negative."""

    rows: Table
    weights: np.ndarray
    product: Product


class Student(NamedTuple):
    """All layers of a student; see edgedistill.c for what each is."""

    kind: str
    table: Table
    projection: Product | None
    weights: np.ndarray | None
    numbers: dict[str, Any]
    positions: Stored | None
    norm: list[np.ndarray]
    layers: list[list[Any]]
    again: np.ndarray | None
    directions: list[Product]
    pooling: str
    dense: list[Dense]
    words: Words | None
    words_at: int
    blocks: list[tuple[int, float]]


def read(graph: GraphWeights, output: str) -> Student:
    """The student that a graph computes. Raises UserError for what the file has no place for, by name."""
    tail = _Tail(graph)
    pooled = tail.read(output)
    kinds = {node.kind for node in graph.nodes}
    marks = {"LayerNormalization": "bert", "LSTM": "bilstm"}
    kind = next((kind for mark, kind in marks.items() if mark in kinds), "static")
    pooling = _pooling(graph, pooled, kind)
    table, projection = _table(graph, TABLES[kind])
    student = Student(
        kind, table, projection, None, {}, None, [], [], None, [], pooling, tail.dense[::-1], tail.words,
        len(tail.dense) - tail.words_behind if tail.words else -1, tail.blocks,
    )  # fmt: skip
    student = {"bert": _bert, "bilstm": _bilstm, "static": _static}[kind](graph, student)
    if unused := graph.unused():
        raise _unknown(graph, f"uses {', '.join(unused[:3])}")
    return student


def _unknown(graph: GraphWeights, fact: str) -> UserError:
    return UserError(
        f"{graph.path}: its graph {fact}, which the core has no place for; run it with onnxruntime"
    )


def product(graph: GraphWeights, names: list[str], biases: list[str] | None = None) -> Product:
    """Products of the same input as one, whose outputs stand after each other; a bias that there is not is
    0."""
    parts = [_product(graph, name) for name in names]
    found = parts[0]
    if len(parts) > 1:
        same = {(part.is_int8, part.weight.bits, part.weight.group) for part in parts}
        if len(same) > 1:
            raise _unknown(graph, f"multiplies {names[0]} and {names[1]} in two precisions")
        values = np.concatenate([part.weight.values for part in parts])
        given = [part.weight.scales for part in parts if part.weight.scales is not None]
        scales = np.concatenate(given) if given else None
        found = found._replace(weight=found.weight._replace(values=values, scales=scales))
    rows = [len(part.weight.values) for part in parts]
    if biases and any(map(graph.has, biases)):
        each = [
            graph.floats(name) if graph.has(name) else np.zeros(size)
            for name, size in zip(biases, rows, strict=True)
        ]
        found = found._replace(bias=np.concatenate(each).astype(np.float32))
    return found


def _product(graph: GraphWeights, name: str) -> Product:
    node, weight = graph.product(name), graph.weight(name)
    if node.kind != "MatMulIntegerToFloat":
        return Product(weight)
    zero = int(graph.array(node.inputs[4]))
    assert weight.scales is not None
    quantized = graph.writer(node.inputs[0])
    even = None if quantized is None else graph.writer(quantized.inputs[0])
    is_fixed = (
        quantized is not None and quantized.kind == "QuantizeLinear" and quantized.inputs[1] in graph.tensors
    )
    by_row = even is not None and even.kind == "Div" and even.inputs[1] not in graph.tensors
    if quantized is None or not is_fixed or by_row:
        return Product(
            weight, zero, is_int8=True
        )  # a scale for each row, or rows of a table as they are stored
    step = float(graph.array(quantized.inputs[1]))
    factors = np.ones(weight.values.shape[1], np.float32)
    if even is not None and even.kind == "Mul" and even.inputs[1].endswith("_factors"):
        factors = graph.floats(even.inputs[1])
    scaled = weight._replace(scales=weight.scales * np.float32(step))
    return Product(scaled, FIXED, factors, step, is_int8=True)


def _table(graph: GraphWeights, name: str) -> tuple[Table, Product | None]:
    """An embedding table; the projection of a factorized one."""
    if graph.has(f"{name}.codes"):
        return _codes(graph, name), None
    if graph.has(f"{name}.table.weight"):
        return Table(graph.matrix(f"{name}.table.weight")), product(graph, [f"{name}.project.weight.T"])
    return Table(graph.matrix(f"{name}.weight")), None


def _codes(graph: GraphWeights, name: str) -> Table:
    codes, book = graph.array(f"{name}.codes"), graph.matrix(f"{name}.book.weight")
    offsets = next(
        node for node in graph.nodes if node.kind == "Gather" and node.inputs[0] == f"{name}.codes"
    )
    add = next(node for node in graph.nodes if node.kind == "Add" and graph.writer(node.inputs[0]) is offsets)
    steps = graph.array(add.inputs[1])
    size = next(
        int(graph.array(node.inputs[1])[1])
        for node in graph.nodes
        if node.kind == "Reshape" and node.inputs[0].startswith(f"{name}.book.weight")
    )
    centroids = book.values.shape[1] // size
    if codes.dtype == np.int16:
        codes = codes.view(np.uint16)
    if len(steps) > 1 and int(steps[1]) != centroids:
        raise _unknown(graph, f"has blocks of {int(steps[1])} centroids")
    return Table(book, codes, centroids)


class _Tail:
    """What follows pooling, read from the output back."""

    def __init__(self, graph: GraphWeights) -> None:
        self.graph = graph
        self.dense: list[Dense] = []  # the last one first
        self.words: Words | None = None
        self.words_behind = 0  # how many dense layers follow them
        self.blocks: list[tuple[int, float]] = []

    def read(self, name: str) -> str:
        """Returns the name of what was pooled."""
        activation, from_unit, bias = "Linear", False, None
        first = True
        while (node := self.graph.writer(name)) is not None:
            if node.kind == "Div" and self._is_length(node.inputs[1]):
                if not first:
                    self._unit()
                name = node.inputs[0]
            elif node.kind in ACTIVATIONS and node.kind not in ("Gelu", "FastGelu"):
                activation, name = node.kind, node.inputs[0]
            elif node.kind == "Add" and self._words(node):
                name = self.graph.writers[node.inputs[0]].inputs[0]
            elif node.kind == "Add" and self.graph.has(node.inputs[1]):
                bias, name = node.inputs[1], node.inputs[0]
            elif node.kind == "Mul" and self._product(node.inputs[0]) is not None:
                name = node.inputs[0]  # times the scales of its rows
            elif self._product(name) is not None:
                weight = self.graph._constants(node)[0]
                found = product(self.graph, [weight], [bias] if bias else self._own_bias(node))
                self.dense.append(Dense(found, activation, from_unit))
                activation, bias, name = "Linear", None, self._input(node)
            elif node.kind == "Concat" and self._is_blocks(node):
                name = self._blocks(node)
            else:
                break
            first = False
        return name

    def _unit(self) -> None:
        """What was read before is given an input of unit length."""
        if not self.dense:
            return
        self.dense[-1] = self.dense[-1]._replace(from_unit=True)

    def _is_length(self, name: str) -> bool:
        node = self.graph.writer(name)
        length = None if node is None or node.kind != "Clip" else self.graph.writer(node.inputs[0])
        return length is not None and length.kind == "ReduceL2"

    def _product(self, name: str) -> Node | None:
        node = self.graph.writer(name)
        return node if node is not None and node.kind in PRODUCTS and self.graph._constants(node) else None

    def _own_bias(self, node: Node) -> list[str] | None:
        return [node.inputs[6]] if len(node.inputs) > 6 else None

    def _input(self, node: Node) -> str:
        """What a product reads, before it was quantized."""
        name = node.inputs[0]
        while (writer := self.graph.writer(name)) is not None:
            scaled = writer.kind == "Mul" and writer.inputs[1].endswith("_factors")
            by_row = writer.kind == "Div" and not self._is_length(writer.inputs[1])
            if writer.kind != "QuantizeLinear" and not scaled and not (by_row and name != node.inputs[0]):
                break
            name = writer.inputs[0]
        return name

    def _words(self, node: Node) -> bool:
        own, added = (self.graph.writer(name) for name in node.inputs)
        name = "lexical_channel"
        if own is None or added is None or own.kind != "Div" or not self.graph.has(f"{name}.rows.codes"):
            return False
        weights = self.graph.floats(f"{name}.token_weights")
        goes_on = self.graph.array(f"{name}.continues").astype(bool)
        projection = product(self.graph, [f"{name}.projection.weight.T"])
        self.words = Words(
            _codes(self.graph, f"{name}.rows"), np.where(goes_on, -weights, weights), projection
        )
        self.words_behind = len(self.dense)
        return True

    def _is_blocks(self, node: Node) -> bool:
        parts = [self.graph.writer(name) for name in node.inputs]
        return all(part is not None and part.kind == "Mul" for part in parts)

    def _blocks(self, node: Node) -> str:
        source = ""
        for name in node.inputs:
            scaled = self.graph.writer(name)
            unit = None if scaled is None else self.graph.writer(scaled.inputs[0])
            cut = None if unit is None else self.graph.writer(unit.inputs[0])
            if scaled is None or cut is None or cut.kind != "Slice":
                raise _unknown(self.graph, "joins parts of no block")
            start, end = (int(self.graph.array(each)[0]) for each in cut.inputs[1:3])
            self.blocks.append((end - start, float(self.graph.array(scaled.inputs[1])) ** 2))
            source = cut.inputs[0]
        return source


def _pooling(graph: GraphWeights, name: str, kind: str) -> str:
    """How tokens are pooled to the value of a name."""
    node = graph.writer(name)
    if node is None:
        raise _unknown(graph, "has no pooling")
    weights = graph.writer(node.inputs[0]) if node.kind == "MatMul" else None
    if weights is not None and weights.kind == "Unsqueeze":
        divided = graph.writer(weights.inputs[0])
        total = None if divided is None else graph.writer(divided.inputs[1])
        counted = None if divided is None else graph.writer(divided.inputs[0])
        if total is not None and total.kind == "Sqrt":
            return "mean_sqrt_len"
        return "weighted_mean" if counted is not None and counted.kind == "Mul" else "mean"
    if node.kind == "ReduceSum" and kind == "static":
        return "mean"  # the sum of rows: the same, once at unit length
    known = {"Gather": "cls", "ReduceMax": "max", "GatherND": "last"}
    if kind == "bilstm" and node.kind == "Transpose":
        return "last"
    if node.kind not in known:
        raise _unknown(graph, f"pools by {node.kind}")
    return known[node.kind]


def _static(graph: GraphWeights, student: Student) -> Student:
    weights = graph.floats("weights") if graph.has("weights") else np.ones(student.table.tokens, np.float32)
    return student._replace(weights=weights)


def _bilstm(graph: GraphWeights, student: Student) -> Student:
    directions = []
    nodes = [node for node in graph.nodes if node.kind == "LSTM"]
    for layer in range(len(nodes)):
        weights = [f"lstm.weight_{kind}_l{layer}[onnx]" for kind in ("ih", "hh")]
        bias = graph.floats(f"lstm.bias_ih_l{layer}[onnx]")  # (2, 8h): of the input, then of the state
        inner = bias.shape[1] // 8
        for way in range(2):
            both = [_direction(graph.matrix(name), way, 4 * inner) for name in weights]
            directions.append(Product(both[0], bias=bias[way, : 4 * inner] + bias[way, 4 * inner :]))
            directions.append(Product(both[1]))
    inner = directions[1].weight.values.shape[1]
    return student._replace(directions=directions, numbers={"layers": len(nodes), "inner": inner})


def _direction(both: Stored, way: int, rows: int) -> Stored:
    """Of two directions' rows, those of one. Floats come as (2, rows, cols)."""
    values = both.values.reshape(-1, both.values.shape[-1])[way * rows : (way + 1) * rows]
    scales = None if both.scales is None else both.scales[way * rows : (way + 1) * rows]
    return both._replace(values=np.ascontiguousarray(values), scales=scales)


def _bert(graph: GraphWeights, student: Student) -> Student:
    attentions = [node for node in graph.nodes if node.kind in ("MultiHeadAttention", "Softmax")]
    found = (re.match(r"model\.encoder\.layer\.(\d+)\.", name) for name in graph.tensors)
    count = 1 + max((int(match[1]) for match in found if match), default=-1)
    if len(attentions) % max(count, 1):
        raise _unknown(graph, f"has {len(attentions)} attentions of {count} layers")
    norms = [node for node in graph.nodes if node.kind == "LayerNormalization"]
    known = (_activation(node) for node in graph.nodes)
    layers = [_layer(graph, LAYER.format(at)) for at in range(count)]
    again = LAYER.format(count - 1) + "output.LayerNorm.bias[again]"
    inner = len(layers[0][3].weight.values) if layers else 1
    name = "model.embeddings."
    positions = graph.matrix(f"{name}position_embeddings.weight[segments]")
    numbers = {
        "layers": count,
        "times": len(attentions) // max(count, 1) or 1,
        "heads": _heads(graph, attentions),
        "inner": inner,
        "activation": next((each for each in known if each is not None), "Gelu"),
        "positions": len(positions.values),
        "first_position": _first_position(graph),
        "epsilon": norms[0].attributes["epsilon"],
    }
    return student._replace(
        numbers=numbers,
        positions=positions,
        norm=[graph.floats(f"{name}LayerNorm.{part}") for part in ("weight", "bias")],
        layers=layers,
        again=graph.floats(again) if graph.has(again) else None,
    )


def _activation(node: Node) -> str | None:
    """The activation between the products of a layer."""
    if node.kind == "Gelu":
        return "FastGelu" if node.attributes.get("approximate") == "tanh" else "Gelu"
    return node.kind if node.kind in ("FastGelu", "Relu") else None


def _heads(graph: GraphWeights, attentions: list[Node]) -> int:
    """As the operator names them; or as the reshaping of keys does, to (batch, tokens, heads, size)."""
    if attentions and "num_heads" in attentions[0].attributes:
        return int(attentions[0].attributes["num_heads"])
    keys = (node for node in graph.nodes if node.attributes.get("perm") == [0, 2, 3, 1])
    turned = next((graph.writers[node.inputs[0]] for node in keys), None)
    return 1 if turned is None else int(graph.array(graph.writers[turned.inputs[1]].inputs[1])[0])


def _first_position(graph: GraphWeights) -> int:
    """0; or, where positions are counted from the padding id, that and 1."""
    counted = [node for node in graph.nodes if node.kind == "Equal" and node.inputs[0] == "input_ids"]
    return int(graph.array(counted[0].inputs[1])) + 1 if counted else 0


def _layer(graph: GraphWeights, name: str) -> list[Any]:
    attention = [f"{name}attention.self.{part}" for part in ("query", "key", "value")]
    weights, biases = ([f"{part}.{end}" for part in attention] for end in ("weight.T", "bias"))
    norm, last = f"{name}attention.output.LayerNorm", f"{name}output.LayerNorm"
    parts = [
        product(graph, weights, biases),
        product(graph, [f"{name}attention.output.dense.weight.T"]),
        [graph.floats(f"{norm}.weight"), graph.floats(f"{norm}.bias")],
        product(graph, [f"{name}intermediate.dense.weight.T"], [f"{name}intermediate.dense.bias"]),
        product(graph, [f"{name}output.dense.weight.T"]),
        [graph.floats(f"{last}.weight"), graph.floats(f"{last}.bias")],
    ]
    return parts
