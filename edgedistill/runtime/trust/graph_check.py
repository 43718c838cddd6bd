"""What is checked in an ONNX file before onnxruntime opens it: its own bytes alone, known operators, tensors
of the size they claim.

A graph that passes reads no other file, runs no other code than onnxruntime's kernels, divides no integer in
a way that ends the process, and is opened in seconds. How long a run takes, and how much memory, is not
decided here.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill.errors import CheckFailed
from edgedistill.runtime.trust import GET_AGAIN, onnx_messages
from edgedistill.runtime.trust.graph_values import GraphValues, Node, Tensor
from edgedistill.runtime.trust.operators import ALLOWED, full_name
from edgedistill.runtime.trust.wire_format import MalformedMessage, Schema, Span, WireReader

LARGEST_BYTES = 2**31 - 1  # of a protobuf message
MOST_NODES = MOST_TENSORS = 20_000  # a traced encoder of 24 layers has some 5,000
MOST_METADATA = 10_000  # entries, and
MOST_DESCRIPTION_BYTES = 16_000_000  # of everything that only describes
FEW = 64  # integers of a constant that are read
MOST_DIMENSIONS = 8
MOST_PROBLEMS = 20  # reported
FLOAT, INT64 = 1, 7  # of TensorProto.DataType
INT64_MAX = 2**63 - 1

# TensorProto.DataType: (bits per element, the field of elements that are not in raw_data). No strings,
# complex numbers or float8.
ELEMENTS = {
    1: (32, "float_data"),
    2: (8, "int32_data"),
    3: (8, "int32_data"),
    4: (16, "int32_data"),
    5: (16, "int32_data"),
    6: (32, "int32_data"),
    7: (64, "int64_data"),
    9: (8, "int32_data"),
    10: (16, "int32_data"),
    11: (64, "double_data"),
    12: (32, "uint64_data"),
    13: (64, "uint64_data"),
    16: (16, "int32_data"),
    21: (4, "int32_data"),
    22: (4, "int32_data"),
}
FLOATS = {
    1: "<f4",
    10: "<f2",
    11: "<f8",
    16: "<u2",
}  # of these; numpy has no bfloat16, the upper half of a float32
INTEGERS = {
    2: "u1",
    3: "i1",
    4: "<u2",
    5: "<i2",
    6: "<i4",
    7: "<i8",
    12: "<u4",
    13: "<u8",
}  # TensorProto.DataType: numpy's name
TYPED_DATA = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
REFUSED_IN = {  # {message: fields that hold a graph, code or data of a kind that no bundle needs}
    "model": ("training_info", "functions"),
    "graph": ("sparse_initializer",),
    "attribute": ("g", "graphs", "sparse_tensor", "sparse_tensors", "tp", "type_protos", "ref_attr_name"),
}


class TensorType(NamedTuple):
    """The type of a graph's input or output. element: a TensorProto.DataType; shape: None for a dimension
    that may vary."""

    element: int
    shape: list[int | None]


class GraphSummary(NamedTuple):
    """operators: full names, sorted; opsets: {domain: version}; inputs, outputs: {name: type}, without
    initializers.

    rows: of the smallest table in which token ids are looked up, None where there is none.
    """

    operators: list[str]
    opsets: dict[str, int]
    inputs: dict[str, TensorType]
    outputs: dict[str, TensorType]
    rows: int | None


def check(path: Path, manifest: dict[str, Any]) -> GraphSummary:
    """Check a bundle's graph, and its inputs and output against the manifest. Raises CheckFailed with all
    that is wrong."""
    found = read(path)
    problems = [f"{path}: {problem}" for problem in _interface_problems(found, manifest)]
    if problems:
        raise CheckFailed("\n".join(problems), {"problems": problems})
    return found


def read(path: Path) -> GraphSummary:
    """Check an ONNX file by itself, and summarize it. Raises CheckFailed with all that is wrong, and for a
    file that is no ONNX graph."""
    size = path.stat().st_size
    if not 0 < size <= LARGEST_BYTES:
        raise CheckFailed(
            f"{path}: {size} bytes, an ONNX graph has 1 to {LARGEST_BYTES}; copy the bundle again"
        )
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _GraphReader(data)
        try:
            found = reader.model((0, size))
        except MalformedMessage as error:
            raise CheckFailed(f"{path}: not a readable ONNX graph ({error}); copy the bundle again") from None
    if reader.problems:
        problems = [f"{path}: {problem}" for problem in reader.problems]
        raise CheckFailed("\n".join(problems), {"problems": problems})
    return found


def _interface_problems(found: GraphSummary, manifest: dict[str, Any]) -> list[str]:
    problems = []
    inputs = list(manifest.get("inputs", ("input_ids", "attention_mask")))
    if sorted(found.inputs) != sorted(inputs):
        listed = ", ".join(ascii(name) for name in sorted(found.inputs)[:5]) or "none"
        problems.append(f"its inputs are {listed}, the manifest's {', '.join(sorted(inputs))}; {GET_AGAIN}")
        return problems
    for name, kind in found.inputs.items():
        if kind.element != INT64 or len(kind.shape) != 2:
            problems.append(f"input {name!r} is not int64 (batch, sequence); {GET_AGAIN}")
    output = found.outputs.get(manifest["output"])
    width = len(manifest["labels"]) if manifest.get("labels") else manifest["dims"][0]
    if output is None:
        problems.append(f"no output {manifest['output']!r}, which the manifest names; {GET_AGAIN}")
    elif output.element != FLOAT or (
        output.shape and (len(output.shape) != 2 or output.shape[1] not in (None, width))
    ):
        problems.append(
            f"output {manifest['output']!r} is not float32 (batch, {width}), as the manifest has it; "
            f"{GET_AGAIN}"
        )
    return problems


class _GraphReader(WireReader):
    """Reads a model, and collects what is wrong with it."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.problems: list[str] = []

    def model(self, span: Span) -> GraphSummary:
        model = self._read(span, onnx_messages.MODEL, "model")
        opsets = [self.message(each, onnx_messages.OPSET, "opset") for each in model.get("opset_import", [])]
        if "graph" not in model or not opsets:
            raise MalformedMessage("no graph, or no opset")
        graph = self._read(model["graph"], onnx_messages.GRAPH, "graph")
        nodes, tensors = graph.get("node", []), graph.get("initializer", [])
        if len(nodes) > MOST_NODES or len(tensors) > MOST_TENSORS:
            raise MalformedMessage(
                f"{len(nodes)} nodes and {len(tensors)} tensors; {MOST_NODES} of each at most"
            )
        described = [
            *model.get("metadata_props", []),
            *graph.get("metadata_props", []),
            *graph.get("value_info", []),
        ]
        if (
            len(described) > MOST_METADATA + MOST_NODES
            or sum(end - start for start, end in described) > MOST_DESCRIPTION_BYTES
        ):
            raise MalformedMessage(
                f"{len(described)} entries of metadata, above {MOST_METADATA}, or {MOST_DESCRIPTION_BYTES} "
                "bytes"
            )
        initializers = dict(self._tensor(tensor) for tensor in tensors)
        inputs = dict(self._value_type(value) for value in graph.get("input", []))
        values, found = (
            GraphValues(initializers, [name for name in inputs if name not in initializers]),
            set(),
        )
        for span in nodes:
            domain, node = self._node(span)
            found.add((domain, node.kind))
            for problem in list(values.problems(node)) if (domain, node.kind) in ALLOWED else []:
                self._problem(problem)
        operators = sorted(found)
        self._refuse_unknown(operators)
        return GraphSummary(
            [full_name(*operator) for operator in operators],
            {self.text(opset.get("domain")): opset.get("version", 0) for opset in opsets},
            {name: kind for name, kind in inputs.items() if name not in initializers},
            dict(self._value_type(value) for value in graph.get("output", [])),
            values.rows,
        )

    def _read(self, span: Span, schema: Schema, what: str) -> dict[str, Any]:
        """A message; a field of REFUSED_IN that it has is a problem."""
        found = self.message(span, schema, what)
        for field in REFUSED_IN.get(what, ()):
            if field in found:
                self._problem(
                    f"the {what} at byte {span[0]} has {field}, which no bundle needs; open it only if you "
                    "know who wrote it"
                )
        return found

    def _node(self, span: Span) -> tuple[str, Node]:
        """A node, and the domain of its operator."""
        node, attributes = self.message(span, onnx_messages.NODE, "node"), {}
        for attribute in node.get("attribute", []):
            found = self._read(attribute, onnx_messages.ATTRIBUTE, "attribute")
            for tensor in [*([found["t"]] if "t" in found else []), *found.get("tensors", [])]:
                found["tensor"] = self._tensor(tensor)[1]
            attributes[self.text(found.get("name"))] = found
        domain = self.text(node.get("domain"))
        inputs, outputs = (
            [self.text(each) for each in node.get("input", [])],
            [self.text(each) for each in node.get("output", [])],
        )
        return "" if domain == "ai.onnx" else domain, Node(
            self.text(node.get("op_type")), inputs, outputs, attributes
        )

    def _refuse_unknown(self, operators: list[tuple[str, str]]) -> None:
        unknown = [full_name(*operator) for operator in operators if operator not in ALLOWED]
        if unknown:
            shown = ", ".join(ascii(name) for name in unknown[:MOST_PROBLEMS])
            way_out = "a newer edgedistill may know them; otherwise this is no bundle to open"
            self._problem(f"operators that a bundle may not use: {shown}; {way_out}")

    def _tensor(self, span: Span) -> tuple[str, Tensor]:
        """A tensor and its name. Its data must be here, and as long as its dimensions ask for."""
        tensor = self.message(span, onnx_messages.TENSOR, "tensor")
        name, element, dims = (
            self.text(tensor.get("name")),
            tensor.get("data_type", 0),
            tensor.get("dims", []),
        )
        integers = None
        if tensor.get("data_location", 0) or "external_data" in tensor:
            self._problem(f"tensor {name!a} has its data in another file; {GET_AGAIN}")
        elif problem := _size_problem(tensor):
            self._problem(f"tensor {name!a}: {problem}; copy the bundle again")
        elif (row := self._row_not_finite(tensor)) is not None:
            self._problem(f"tensor {name!a} holds NaN or infinity in row {row}; {GET_AGAIN}")
        elif element in INTEGERS and prod(dims) <= FEW:
            integers = self._integers(span, tensor)
        return name, Tensor(element, dims, integers)

    def _integers(self, span: Span, tensor: dict[str, Any]) -> list[int]:
        element = tensor["data_type"]
        if "raw_data" in tensor:
            start, end = tensor["raw_data"]
            return [int(value) for value in np.frombuffer(bytes(self.data[start:end]), INTEGERS[element])]
        numbers: Sequence[int] = self.message(span, onnx_messages.FEW_INTEGERS, "tensor").get(
            ELEMENTS[element][1], []
        )
        return [number - 2**64 if number >> 63 and element != 13 else number for number in numbers]

    def _row_not_finite(self, tensor: dict[str, Any]) -> int | None:
        """The first row of a tensor with a number that is not finite: golden texts do not reach all rows. A
        single −∞ is a mask."""
        kind, (start, end) = (
            np.dtype(FLOATS.get(tensor.get("data_type", 0), "V1")),
            tensor.get("raw_data", (0, 0)),
        )
        if kind == "V1" or start == end:
            return None
        numbers = np.frombuffer(self.data, kind, (end - start) // kind.itemsize, start)
        if kind == "<u2":
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        finite = np.isfinite(numbers)
        if finite.all() or (len(numbers) == 1 and numbers[0] == -np.inf):
            return None
        return int(finite.argmin()) // prod(tensor.get("dims", [])[1:])

    def _value_type(self, span: Span) -> tuple[str, TensorType]:
        """(name, type) of an input or output."""
        value = self.message(span, onnx_messages.VALUE, "input or output")
        kind = self.message(value.get("type", (0, 0)), onnx_messages.TYPE, "type")
        tensor = self.message(kind.get("tensor_type", (0, 0)), onnx_messages.TENSOR_TYPE, "tensor type")
        shape = self.message(tensor.get("shape", (0, 0)), onnx_messages.SHAPE, "shape")
        dims = [self.message(each, onnx_messages.DIMENSION, "dimension") for each in shape.get("dim", [])]
        return self.text(value.get("name")), TensorType(
            tensor.get("elem_type", 0), [dim.get("dim_value") for dim in dims]
        )

    def _problem(self, problem: str) -> None:
        if len(self.problems) < MOST_PROBLEMS and problem not in self.problems:
            self.problems.append(problem)


def _size_problem(tensor: dict[str, Any]) -> str | None:
    """What is wrong with a tensor's type, dimensions and the length of its data."""
    dims, kind = tensor.get("dims", []), tensor.get("data_type", 0)
    if kind not in ELEMENTS or "string_data" in tensor or "segment" in tensor:
        return f"elements of type {kind}, which no bundle needs"
    if len(dims) > MOST_DIMENSIONS or any(dim > INT64_MAX for dim in dims):
        return f"dimensions {dims[:MOST_DIMENSIONS]}"
    bits, field = ELEMENTS[kind]
    elements = prod(dims)
    if "raw_data" in tensor:
        start, end = tensor["raw_data"]
        found, expected = end - start, (elements * bits + 7) // 8
        others = [name for name in TYPED_DATA if name in tensor]
    else:
        found, expected = tensor.get(field, 0), (elements + 1) // 2 if bits == 4 else elements
        others = [name for name in TYPED_DATA if name in tensor and name != field]
    if found != expected or others:
        return (
            f"{found} {'bytes' if 'raw_data' in tensor else 'elements'} of data where its dimensions need "
            f"{expected}"
        )
    return None
