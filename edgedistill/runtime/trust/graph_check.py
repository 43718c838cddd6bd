"""What is checked in an ONNX file before onnxruntime opens it: its own bytes alone, known operators, tensors
of the size they claim.

A graph that passes reads no other file, runs no other code than onnxruntime's kernels, divides no integer in
a way that ends the process, and is opened in seconds. How long a run takes, and how much memory, is not
decided here.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill.errors import CheckFailed, raise_failed
from edgedistill.runtime import manifest as manifests
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.runtime.trust.graph_values import FLOATS, GraphValues, Node, Tensor
from edgedistill.runtime.trust.onnx_reader import MOST_PROBLEMS, MalformedMessage, OnnxReader
from edgedistill.runtime.trust.operators import ALLOWED, full_name

MOST_NODES = MOST_TENSORS = 20_000  # a traced encoder of 24 layers has some 5,000
MOST_METADATA = 30_000  # entries, and
MOST_DESCRIPTION_BYTES = 16_000_000  # of everything that only describes
FEW = 64  # integers of a constant that are read
MOST_DIMENSIONS = 8
FLOAT, INT64, UINT64 = 1, 7, 13  # of TensorProto.DataType
INT64_MAX = 2**63 - 1


class Element(NamedTuple):
    """A type of a tensor's elements. An element has so many bits, and stands in this field where it is not in
    raw_data. Values are looked at where numpy has a name for the type."""

    bits: int
    field: str
    numpy: str = ""


# By TensorProto.DataType. No strings, complex numbers or float8.
ELEMENTS = {
    1: Element(32, "float_data", "<f4"),
    2: Element(8, "int32_data", "u1"),
    3: Element(8, "int32_data", "i1"),
    4: Element(16, "int32_data", "<u2"),
    5: Element(16, "int32_data", "<i2"),
    6: Element(32, "int32_data", "<i4"),
    7: Element(64, "int64_data", "<i8"),
    9: Element(8, "int32_data"),
    10: Element(16, "int32_data", "<f2"),
    11: Element(64, "double_data", "<f8"),
    12: Element(32, "uint64_data", "<u4"),
    13: Element(64, "uint64_data", "<u8"),
    16: Element(16, "int32_data", "<u2"),  # bfloat16, which numpy has not
    21: Element(4, "int32_data"),
    22: Element(4, "int32_data"),
}
BYTES_OF = {"float_data": 4, "double_data": 8}  # an element in a typed field; the others are varints
TYPED_FIELDS = {element.field for element in ELEMENTS.values()}


class TensorType(NamedTuple):
    """The type of a graph's input or output. `element` is a TensorProto.DataType; a dimension that may vary
    is None."""

    element: int
    shape: list[int | None]


class GraphSummary(NamedTuple):
    """What a graph says of itself: the full names of its operators, sorted, and the types of its inputs and
    outputs by their names. The smallest table in which token ids are looked up has so many rows; None where
    there is none."""

    operators: list[str]
    inputs: dict[str, TensorType]
    outputs: dict[str, TensorType]
    rows: int | None


def check(path: Path, manifest: dict[str, Any], largest_id: int, operators: list[str] | None = None) -> None:
    """Check a bundle's graph, and hold it against the manifest, which may list its operators, and against the
    largest token id. Raises CheckFailed with all that is wrong."""
    found = read(path)
    problems = list(_interface_problems(found, manifest))
    if operators not in (None, found.operators):
        problems.append(f"has other operators than manifest.json lists; {GET_AGAIN}")
    if found.rows is not None and largest_id >= found.rows:
        problems.append(
            f"token id {largest_id}, and its graph has embeddings of {found.rows} tokens; {GET_AGAIN}"
        )
    raise_failed([f"{path}: {problem}" for problem in problems])


def read(path: Path) -> GraphSummary:
    """Check an ONNX file by itself, and summarize it. Raises CheckFailed with all that is wrong, and for a
    file that is no ONNX graph."""
    size = path.stat().st_size
    if size == 0:
        raise CheckFailed(f"{path}: empty; copy the bundle again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = OnnxReader(data)
        try:
            found = _summary(reader, size)
        except MalformedMessage as error:
            raise CheckFailed(f"{path}: not a readable ONNX graph ({error}); copy the bundle again") from None
    raise_failed([f"{path}: {problem}" for problem in reader.problems])
    return found


def _interface_problems(found: GraphSummary, manifest: dict[str, Any]) -> Iterator[str]:
    names, output = manifest.get("inputs", manifests.INPUTS[:2]), manifest["output"]
    are_ids = all(kind.element == INT64 and len(kind.shape) == 2 for kind in found.inputs.values())
    if sorted(found.inputs) != sorted(names) or not are_ids:
        listed = ", ".join(ascii(name) for name in sorted(found.inputs)[:5])
        yield f"its inputs ({listed}) are not {', '.join(names)}, int64 (batch, sequence); {GET_AGAIN}"
    width = manifests.width(manifest)
    kind = found.outputs.get(output, TensorType(0, []))
    has_width = not kind.shape or (len(kind.shape) == 2 and kind.shape[1] in (None, width))
    if kind.element != FLOAT or not has_width:
        yield f"it has no output {output!r} that is float32 (batch, {width}); {GET_AGAIN}"


def _summary(reader: OnnxReader, size: int) -> GraphSummary:
    """What a model's file holds; the reader collects what it may not hold."""
    model = reader.message((0, size), "model")
    if "graph" not in model or "opset_import" not in model:
        raise MalformedMessage("no graph, or no opset")
    graph = model["graph"]
    nodes, tensors = graph.get("node", []), graph.get("initializer", [])
    if len(nodes) > MOST_NODES or len(tensors) > MOST_TENSORS:
        raise MalformedMessage(f"{len(nodes)} nodes and {len(tensors)} tensors; {MOST_NODES} of each at most")
    described = (
        model.get("metadata_props", []) + graph.get("metadata_props", []) + graph.get("value_info", [])
    )
    size = sum(end - start for start, end in described)
    if len(described) > MOST_METADATA or size > MOST_DESCRIPTION_BYTES:
        raise MalformedMessage(f"{len(described)} entries of metadata, of {size} bytes")
    constants = {tensor.get("name", ""): _tensor(reader, tensor) for tensor in tensors}
    inputs = {name: kind for name, kind in _types(graph.get("input", [])).items() if name not in constants}
    values, operators = GraphValues(constants, list(inputs)), set()
    for message in nodes:
        domain, node = message.get("domain", ""), _node(reader, message)
        operator = ("" if domain == "ai.onnx" else domain, node.kind)
        operators.add(operator)
        if operator in ALLOWED:
            for problem in values.problems(node):
                reader.problem(problem)
    unknown = [ascii(full_name(*operator)) for operator in sorted(operators - ALLOWED)]
    if unknown:
        reader.problem(
            f"operators that a bundle may not use: {', '.join(unknown[:MOST_PROBLEMS])}; a newer edgedistill "
            "may know them; otherwise this is no bundle to open"
        )
    return GraphSummary(
        [full_name(*operator) for operator in sorted(operators)],
        inputs,
        _types(graph.get("output", [])),
        values.rows,
    )


def _node(reader: OnnxReader, message: dict[str, Any]) -> Node:
    """A node, and its attributes by their names. One that holds a tensor has it as `tensor` too."""
    attributes = {}
    for attribute in message.get("attribute", []):
        for tensor in [*attribute.get("tensors", []), *([attribute["t"]] if "t" in attribute else [])]:
            attribute["tensor"] = _tensor(reader, tensor)
        attributes[attribute.get("name", "")] = attribute
    return Node(message.get("op_type", ""), message.get("input", []), message.get("output", []), attributes)


def _types(messages: list[dict[str, Any]]) -> dict[str, TensorType]:
    """The types of inputs or outputs by their names."""
    found = {}
    for message in messages:
        kind = message.get("type", {}).get("tensor_type", {})
        dimensions = kind.get("shape", {}).get("dim", [])
        shape = [dimension.get("dim_value") for dimension in dimensions]
        found[message.get("name", "")] = TensorType(kind.get("elem_type", 0), shape)
    return found


def _tensor(reader: OnnxReader, message: dict[str, Any]) -> Tensor:
    """A tensor. Its data must be in this file, as long as its dimensions ask for, and finite."""
    name, kind, dims = message.get("name", ""), message.get("data_type", 0), message.get("dims", [])
    element, integers = ELEMENTS.get(kind), None
    if message.get("data_location", 0) or "external_data" in message:
        reader.problem(f"tensor {name!a} has its data in another file; {GET_AGAIN}")
    elif element is None or "string_data" in message or "segment" in message:
        reader.problem(
            f"tensor {name!a}: elements of type {kind}, which no bundle needs; copy the bundle again"
        )
    elif len(dims) > MOST_DIMENSIONS or any(dim > INT64_MAX for dim in dims):
        reader.problem(f"tensor {name!a}: dimensions {dims[:MOST_DIMENSIONS]}; copy the bundle again")
    elif problem := _size_problem(message, element, prod(dims)):
        reader.problem(f"tensor {name!a}: {problem}; copy the bundle again")
    elif "raw_data" in message and element.numpy:
        start, end = message["raw_data"]
        numbers = np.frombuffer(reader.data, element.numpy, (end - start) * 8 // element.bits, start)
        if kind in FLOATS:
            if (at := _not_finite(numbers)) is not None:
                reader.problem(
                    f"tensor {name!a} holds NaN or infinity in row {at // prod(dims[1:])}; {GET_AGAIN}"
                )
        elif len(numbers) <= FEW:
            integers = numbers.tolist()
    elif element.numpy and kind not in FLOATS and prod(dims) <= FEW:
        numbers = message.get(element.field, [])  # a negative one is read as a huge one
        integers = [number - 2**64 if number >> 63 and kind != UINT64 else number for number in numbers]
    return Tensor(kind, dims, integers)


def _size_problem(message: dict[str, Any], element: Element, elements: int) -> str | None:
    """What is wrong with the length of a tensor's data."""
    if "raw_data" in message:
        start, end = message["raw_data"]
        what, field, found, expected = "bytes", "raw_data", end - start, (elements * element.bits + 7) // 8
    else:
        what, field = "elements", element.field
        expected = (elements + 1) // 2 if element.bits == 4 else elements
        values = message.get(field, [])
        found = len(values)
        if field in BYTES_OF:
            found = sum(end - start for start, end in values) // BYTES_OF[field]
    if found == expected and not TYPED_FIELDS & set(message) - {field}:
        return None
    return f"{found} {what} of data where its dimensions need {expected}"


def _not_finite(numbers: np.ndarray) -> int | None:
    """The index of the first number that is not finite: golden texts do not reach all rows. A single −∞ is a
    mask."""
    if numbers.dtype == np.uint16:  # bfloat16, the upper half of a float32
        numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
    finite = np.isfinite(numbers)
    if finite.all() or (len(numbers) == 1 and numbers[0] == -np.inf):
        return None
    return int(finite.argmin())
