"""A graph as numpy reads it: its nodes, and its constants as they are stored or as the floats that they stand
for.

Converters name what they store after the constant of the float32 graph (`table` -> `table_int8`,
`table_scale`), and these names are read here. The graph was checked when its bundle was opened.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from edgedistill.errors import CheckFailed
from edgedistill.files import Json
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.runtime.trust.graph_check import BYTES, FIXED32, number, span

GROUP = 32  # weights that share a scale in MatMulNBits and GatherBlockQuantized
# of a constant that is kept in another way, the last of products alone
ENDINGS = ("", "_fp16", "_negative", "_w4", "_int8", "_w8")
ENDING = re.compile(f"({'|'.join(ENDINGS[1:])})$")
PRODUCTS = ("MatMul", "MatMulIntegerToFloat", "MatMulNBits")
RESTORING = ("DequantizeLinear", "Cast", "Round", "Div", "Transpose", "Reshape", "Slice", "Mul", "Gather")
PASSED = ("Identity", "Reshape", "Squeeze", "Cast")  # nodes that only change how values are laid out
# of TensorProto.DataType
TYPES = {1: "f4", 2: "u1", 3: "i1", 5: "i2", 6: "i4", 7: "i8", 9: "?", 10: "f2"}
INT4 = 22
# fields of onnx.proto3
GRAPH = 7
NODE = 1
TENSOR = 5
INPUT = 1
OUTPUT = 2
OPERATOR = 4
ATTRIBUTE = 5
DIMS = 1
DATA_TYPE = 2
TENSOR_NAME = 8
RAW_DATA = 9
NAME = 1
FLOAT = 2
INTEGER = 3
STRING = 4
INTEGERS = 8

Fields = dict[int, list[Any]]  # of a message: numbers, or the bytes of texts, floats and messages


class Node(NamedTuple):
    """A node of a graph; of its attributes only numbers, lists of numbers and texts."""

    kind: str
    inputs: list[str]
    outputs: list[str]
    attributes: Json


class Tensor(NamedTuple):
    """A constant in its file."""

    shape: list[int]
    kind: int
    data: bytes


class Stored(NamedTuple):
    """A constant as it is stored: integers around 0, of which `group` along the last dimension share one of
    `scales`; or floats, or integers that are none of these, without scales.

    Where a product restores its 8 bits from 4, these are the `nibbles` around 0, and `halves` the scales of
    GROUP of them, in float16.
    """

    values: ndarray
    scales: ndarray | None = None
    group: int = 0
    bits: int = 8
    nibbles: ndarray | None = None
    halves: ndarray | None = None

    @property
    def plain(self) -> ndarray:
        """The floats that it stands for; integers without scales as they are."""
        if self.scales is None:
            return self.values
        scales = np.repeat(self.scales, self.group, axis=-1)[..., : self.values.shape[-1]]
        return np.asarray(self.values.astype(np.float32) * scales)


class GraphWeights:
    """The nodes of a graph in their order, and its constants by the names that they had in float32.

    Reading a constant raises CheckFailed where there is none of the name, ValueError, KeyError or IndexError
    where what is stored does not fit together. `place` opens the errors.
    """

    def __init__(self, data: bytes, place: str) -> None:
        self.place = place
        graph = _fields(_fields(data)[GRAPH][0])
        self.nodes = [_node(_fields(message)) for message in graph[NODE]]
        self.tensors = dict(map(_tensor, graph.get(TENSOR, [])))
        self.writers = {name: node for node in self.nodes for name in node.outputs}
        self.used = set[str]()
        products = [node for node in reversed(self.nodes) if self.weight_of(node)]
        self._products = {self.weight_of(node): node for node in products}  # of several the first

    def weight_of(self, node: Node) -> str:
        """The name of the constant that a node multiplies with; empty where it is no product with one."""
        stored = self._restored(node.inputs[1]) if node.kind in PRODUCTS else ""
        return ENDING.sub("", stored) if stored in self.tensors else ""

    def _restored(self, name: str) -> str:
        """What was stored of a value that is restored when the graph is opened; itself where nothing was."""
        for writer in self._restoring(name):
            name = writer.inputs[writer.kind == "Gather"]
        return name

    def _restoring(self, name: str) -> Iterator[Node]:
        """The nodes between a value and what was stored of it, the last first."""
        while (writer := self.writers.get(name)) is not None and writer.kind in RESTORING:
            yield writer
            name = writer.inputs[writer.kind == "Gather"]

    def writer(self, name: str) -> Node | None:
        """The node that computes a value, layout left out; None for inputs and constants."""
        node = self.writers.get(name)
        while node is not None and node.kind in PASSED:
            node = self.writers.get(node.inputs[0])
        return node

    def has(self, name: str) -> bool:
        """Whether there is a constant of this name, in any precision."""
        return any(name + ending in self.tensors for ending in ENDINGS)

    def constants(self) -> dict[str, ndarray]:
        """All constants: floats as float32, integers as they are. What is stored besides, such as scales,
        keeps its own name."""
        return {name: self.array(name) for name in {ENDING.sub("", stored): None for stored in self.tensors}}

    def array(self, name: str) -> ndarray:
        """A constant as `constants` gives it.

        Attention's values may keep channel factors that the next product's weight makes up for: that changes
        nothing that the graph computes.
        """
        if name not in self._products:
            return self.stored(name).plain
        weight = self.weight(name).plain
        factors = self.factors(self._products[name])
        return np.ascontiguousarray((weight if factors is None else weight * factors).T)

    def stored(self, name: str) -> Stored:
        """A constant that is no product's weight."""
        ending = next((ending for ending in ENDINGS[:-1] if name + ending in self.tensors), None)
        if ending is None:
            raise CheckFailed(f"{self.place}: no constant {name!a}; {GET_AGAIN}")
        values = self._values(name + ending)
        if ending == "_negative":  # a bias, see quantization.qdq
            return Stored(-values)
        if ending == "_w4":
            return Stored(values, self.array(f"{name}_w4_scale").reshape(len(values), -1), GROUP, 4)
        if ending == "_int8":
            return Stored(values, self.array(f"{name}_scale"), values.shape[-1])
        return Stored(values)

    def product(self, name: str) -> Node:
        """The node that multiplies with a weight. Raises CheckFailed where none does."""
        if name not in self._products:
            raise CheckFailed(f"{self.place}: no product with {name!a}; {GET_AGAIN}")
        return self._products[name]

    def weight(self, name: str) -> Stored:
        """The weight of a product as it is stored, turned: (outputs, inputs)."""
        node = self.product(name)
        if node.kind == "MatMulNBits":
            return self._in_blocks(node)
        stored = self._restored(node.inputs[1])
        if stored.endswith("_w4"):
            return self._from_four_bits(node, stored)
        values = np.ascontiguousarray(self._values(stored).T)
        if not stored.endswith("_int8"):
            return Stored(values)
        scale = node.inputs[3] if node.kind == "MatMulIntegerToFloat" else f"{name}_scale"
        return Stored(values, self.array(scale).reshape(-1, 1), values.shape[1])

    def _from_four_bits(self, node: Node, stored: str) -> Stored:
        """The 8 bits that a product multiplies with: onnxruntime makes them of the 4 that are stored."""
        scales, factors, step = self.array(f"{stored}_scale"), self.factors(node), self.array(node.inputs[3])
        nibbles = _nibbles(self._values(stored)).astype(np.float32).reshape(len(scales), -1) - 8
        even = (nibbles.reshape(*scales.shape[:2], GROUP) * scales).reshape(nibbles.shape)
        for writer in self._restoring(node.inputs[1]):
            even = even[:, : self._values(writer.inputs[2])[0]] if writer.kind == "Slice" else even
        even = even if factors is None else even / factors
        columns = even.shape[1]
        values = np.rint(even).astype(np.int8)
        return Stored(values, step.reshape(-1, 1), columns, 8, nibbles[:, :columns], scales[..., 0])

    def _in_blocks(self, node: Node) -> Stored:
        """The weight of a MatMulNBits of 8 bits: symmetric, in groups along its inputs."""
        rows, columns = (int(node.attributes[key]) for key in ("N", "K"))
        packed = self._values(node.inputs[1]).reshape(rows, -1)
        scales = self.array(node.inputs[2].removesuffix("_float")).reshape(rows, -1)
        values = (packed.astype(np.int16) - 128).astype(np.int8)
        return Stored(np.ascontiguousarray(values[:, :columns]), scales, GROUP)

    def factors(self, node: Node) -> ndarray | None:
        """What the channels of a product's input are multiplied with before they are rounded to 8 bits; None
        where that is 1."""
        name = f"{self._restored(node.inputs[0]).removesuffix('_uint8')}_factors"
        return self.array(name) if self.has(name) else None  # w4 stores them in float16

    def unused(self) -> list[str]:
        """The constants of a student that were not read; not those that the graph's writer made, such as
        shapes, or the factors of a product that others read the weight of too."""
        large = [name for name, tensor in self.tensors.items() if np.prod(tensor.shape) > GROUP]
        own = re.compile(r"_(\d+|factors)(_fp16)?$")
        return [name for name in large if name not in self.used and not own.search(name)]

    def _values(self, name: str) -> ndarray:
        """A tensor by its own name, float16 as float32."""
        tensor = self.tensors[name]
        self.used.add(name)
        if tensor.kind == INT4:
            values = _nibbles(np.frombuffer(tensor.data, np.uint8)).reshape(-1)[: int(np.prod(tensor.shape))]
            return ((values ^ 8).astype(np.int8) - 8).reshape(tensor.shape)
        values = np.frombuffer(tensor.data, f"<{TYPES[tensor.kind]}").reshape(tensor.shape)
        return values.astype(np.float32) if values.dtype.kind == "f" else values


def _nibbles(packed: ndarray) -> ndarray:
    return np.stack([packed & 15, packed >> 4], -1)


def _fields(message: bytes) -> Fields:
    """The values of each field of a message."""
    fields: Fields = {}
    at = 0
    while at < len(message):
        key, at = number(message, at, len(message))
        value, stop = span(message, key & 7, at, len(message))
        is_span = key & 7 in (BYTES, FIXED32)
        fields.setdefault(key >> 3, []).append(message[value:stop] if is_span else value)
        at = stop
    return fields


def _numbers(values: list[Any]) -> Iterator[int]:
    """Of a repeated field, whose numbers may stand behind each other."""
    for value in values:
        if isinstance(value, int):
            yield value
            continue
        at = 0
        while at < len(value):
            item, at = number(value, at, len(value))
            yield item


def _tensor(message: bytes) -> tuple[str, Tensor]:
    fields = _fields(message)
    shape = [*_numbers(fields.get(DIMS, []))]
    tensor = Tensor(shape, fields[DATA_TYPE][0], fields.get(RAW_DATA, [b""])[0])
    return fields[TENSOR_NAME][0].decode(), tensor


def _node(fields: Fields) -> Node:
    attributes = dict(_attribute(_fields(message)) for message in fields.get(ATTRIBUTE, []))
    inputs, outputs = ([name.decode() for name in fields.get(key, [])] for key in (INPUT, OUTPUT))
    return Node(fields[OPERATOR][0].decode(), inputs, outputs, attributes)


def _attribute(fields: Fields) -> tuple[str, Any]:
    value = [*_numbers(fields.get(INTEGERS, []))]
    if FLOAT in fields:
        (value,) = struct.unpack("<f", fields[FLOAT][0])
    elif STRING in fields:
        value = fields[STRING][0].decode()
    elif INTEGER in fields:
        (value,) = fields[INTEGER]
    return fields[NAME][0].decode(), value
