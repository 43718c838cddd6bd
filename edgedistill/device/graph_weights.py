"""A bundle's graph as numpy reads it: nodes, and constants as they are stored or as the floats that they
stand for. The graph was checked when its bundle was opened."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill.errors import CheckFailed
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.runtime.trust.graph_check import BYTES, FIXED32, number, span

GROUP = 32  # weights that share a scale in MatMulNBits and GatherBlockQuantized
MIDDLE = {8: 128, 4: 8}  # what stands for 0 in MatMulNBits, by its bits
INT4 = 22
# of TensorProto.DataType
TYPES = {1: "f4", 2: "u1", 3: "i1", 5: "i2", 6: "i4", 7: "i8", 9: "?", 10: "f2"}
# fields of onnx.proto3
GRAPH, NODE, TENSOR, INPUT, OUTPUT, OPERATOR, ATTRIBUTE = 7, 1, 5, 1, 2, 4, 5
DIMS, DATA_TYPE, TENSOR_NAME, RAW_DATA = 1, 2, 8, 9
NAME, FLOAT, INTEGER, STRING, INTEGERS = 1, 2, 3, 4, 8
PASSED = ("Identity", "Reshape", "Squeeze", "Cast")  # nodes that only change how values are laid out


class Node(NamedTuple):
    """A node of a graph; of its attributes only numbers, lists of numbers and texts."""

    kind: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


class Stored(NamedTuple):
    """A matrix (rows, cols) as it is stored: integers around 0, of which `group` in a row share one of
    `scales` (rows, ⌈cols / group⌉); or floats, without scales."""

    values: np.ndarray
    scales: np.ndarray | None = None
    group: int = 0
    bits: int = 8


class GraphWeights:
    """The nodes of a graph in their order, and its constants by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = path.read_bytes()
        (graph,) = _fields(data, 0, len(data))[GRAPH]
        fields = _fields(data, *graph)
        self.nodes = [_node(data, _fields(data, *place)) for place in fields[NODE]]
        tensors = [_fields(data, *place) for place in fields.get(TENSOR, [])]
        self.tensors = {_text(data, tensor[TENSOR_NAME][0]): tensor for tensor in tensors}
        self._data = data
        self.writers = {name: node for node in self.nodes for name in node.outputs}
        self.used = set[str]()
        self._products = {name: node for node in self.nodes[::-1] for name in self._constants(node)}

    def _constants(self, node: Node) -> list[str]:
        """The weight of a product, under the name that it has in the float32 graph."""
        endings = {"MatMulIntegerToFloat": ("_int8",), "MatMulNBits": ("_w8", "_w4"), "MatMul": ("",)}
        name = node.inputs[1] if node.kind in endings else ""
        ending = next((each for each in endings.get(node.kind, ()) if name.endswith(each)), None)
        return [] if ending is None or name not in self.tensors else [name.removesuffix(ending)]

    def has(self, name: str) -> bool:
        """Whether there is a constant of this name, in any precision."""
        endings = ("", "_int8", "_uint8", "_w8", "_w4", "_fp16")
        return any(name + ending in self.tensors for ending in endings)

    def array(self, name: str) -> np.ndarray:
        """A constant by its own name, or by that of a float one which is kept in fewer bits. Raises
        CheckFailed where there is none."""
        for kept in (name, f"{name}_fp16"):
            if kept in self.tensors:
                self.used.add(kept)
                return self._values(kept).astype(np.float32) if kept != name else self._values(kept)
        stored = self.matrix(name)
        if stored.scales is None:
            return stored.values
        return stored.values.astype(np.float32) * np.repeat(stored.scales, stored.group, 1)

    def floats(self, name: str) -> np.ndarray:
        """A constant as float32."""
        return np.asarray(self.array(name), np.float32)

    def matrix(self, name: str) -> Stored:
        """A table (rows, cols) as it is stored."""
        if f"{name}_w4" in self.tensors:
            values = self._values(f"{name}_w4")
            scales = self.floats(f"{name}_w4_scale").reshape(len(values), -1)
            return self._took(Stored(values, scales, GROUP, 4), f"{name}_w4")
        for ending, zero in (("_int8", 0), ("_uint8", 128)):
            if name + ending in self.tensors:
                values = self._values(name + ending).astype(np.int16) - zero
                shape = (-1, values.shape[-1])
                scales = self.floats(f"{name}_scale").reshape(-1, 1)
                stored = Stored(values.astype(np.int8).reshape(shape), scales, values.shape[-1])
                return self._took(stored, name + ending)
        if not {name, f"{name}_fp16"} & set(self.tensors):
            raise CheckFailed(f"{self.path}: no constant {name!a}; {GET_AGAIN}")
        return Stored(self.floats(name))

    def _took(self, stored: Stored, name: str) -> Stored:
        self.used.add(name)
        return stored

    def product(self, name: str) -> Node:
        """The node that multiplies with a weight. Raises CheckFailed where none does."""
        if name not in self._products:
            raise CheckFailed(f"{self.path}: no product with {name!a}; {GET_AGAIN}")
        return self._products[name]

    def weight(self, name: str) -> Stored:
        """The weight of a product, turned: (outputs, inputs)."""
        node = self.product(name)
        if node.kind == "MatMulNBits":
            return self._in_blocks(node)
        stored = self.array(node.inputs[1])
        if node.kind == "MatMul":
            return Stored(np.ascontiguousarray(stored.T, np.float32))
        scales = self.floats(node.inputs[3]).reshape(-1, 1)
        return Stored(np.ascontiguousarray(stored.T), scales, len(stored))

    def _in_blocks(self, node: Node) -> Stored:
        bits, rows, cols = (int(node.attributes[key]) for key in ("bits", "N", "K"))
        packed = self.array(node.inputs[1]).reshape(rows, -1)
        if bits == 4:
            packed = np.stack([packed & 15, packed >> 4], -1).reshape(rows, -1)
        values = (packed.astype(np.int16) - MIDDLE[bits]).astype(np.int8)
        scales = self.array(node.inputs[2].removesuffix("_float")).astype(np.float32).reshape(rows, -1)
        return Stored(np.ascontiguousarray(values[:, :cols]), scales, GROUP, bits)

    def writer(self, name: str) -> Node | None:
        """The node that computes a value, layout left out; None for inputs and constants."""
        node = self.writers.get(name)
        while node is not None and node.kind in PASSED:
            node = self.writers.get(node.inputs[0])
        return node

    def unused(self) -> list[str]:
        """The constants of a student that nothing has asked for."""
        return [
            name
            for name, tensor in self.tensors.items()
            if np.prod(_numbers(self._data, tensor.get(DIMS, []))) > GROUP
            and name not in self.used
            and not _is_own(name)
        ]

    def _values(self, name: str) -> np.ndarray:
        tensor = self.tensors[name]
        kind, shape = int(tensor[DATA_TYPE][0]), _numbers(self._data, tensor.get(DIMS, []))
        start, end = tensor.get(RAW_DATA, [(0, 0)])[0]
        if kind == INT4:
            bits = np.frombuffer(self._data[start:end], np.uint8)
            nibbles = np.stack([bits & 15, bits >> 4], -1).reshape(-1)[: int(np.prod(shape))]
            return ((nibbles ^ 8).astype(np.int8) - 8).reshape(shape)
        dtype = np.dtype("<" + TYPES[kind])
        if (end - start) != dtype.itemsize * int(np.prod(shape)):
            raise CheckFailed(f"{self.path}: {name!a} is not stored as raw data; {GET_AGAIN}")
        return np.frombuffer(self._data[start:end], dtype).reshape(shape)


def _is_own(name: str) -> bool:
    """Whether the graph's writer made a constant, such as a shape, a block's offsets, or the factors of a
    product that others read the weight of too."""
    return name.rpartition("_")[2].isdigit() or name.endswith("_factors")


def _fields(data: bytes, at: int, end: int) -> dict[int, list[Any]]:
    """The values of each field of a message: numbers, or where the others start and end."""
    found: dict[int, list[Any]] = {}
    while at < end:
        key, at = number(data, at, end)
        value, stop = span(data, key & 7, at, end)
        is_span = key & 7 in (BYTES, FIXED32)
        found.setdefault(key >> 3, []).append((value, stop) if is_span else value)
        at = stop
    return found


def _numbers(data: bytes, values: list[Any]) -> list[int]:
    """Of a repeated field, whose numbers may stand behind each other."""
    found = []
    for value in values:
        if isinstance(value, int):
            found.append(value)
            continue
        at, end = value
        while at < end:
            each, at = number(data, at, end)
            found.append(each)
    return found


def _text(data: bytes, place: tuple[int, int]) -> str:
    return data[slice(*place)].decode()


def _node(data: bytes, fields: dict[int, list[Any]]) -> Node:
    attributes: dict[str, Any] = {}
    for place in fields.get(ATTRIBUTE, []):
        found = _fields(data, *place)
        name = _text(data, found[NAME][0])
        if FLOAT in found:
            attributes[name] = struct.unpack("<f", data[slice(*found[FLOAT][0])])[0]
        elif STRING in found:
            attributes[name] = _text(data, found[STRING][0])
        elif INTEGER in found or INTEGERS in found:
            numbers = _numbers(data, found.get(INTEGER, found.get(INTEGERS, [])))
            attributes[name] = numbers[0] if INTEGER in found else numbers
    inputs, outputs = ([_text(data, place) for place in fields.get(each, [])] for each in (INPUT, OUTPUT))
    return Node(_text(data, fields[OPERATOR][0]), inputs, outputs, attributes)
