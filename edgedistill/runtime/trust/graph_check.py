"""What is checked in an ONNX file before onnxruntime opens it: all of its data is in its own bytes, and its
operators are known ones.

onnxruntime shows a graph only once it has opened it, and the package onnx is not in the base install. So the
fields are read here, by the rules of protobuf's wire format (protobuf.dev/programming-guides/encoding). What
is not listed is refused, so that nothing is read here in one way and by onnxruntime in another. The contents
of tensors are skipped: a file of any size takes the time of its fields.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgedistill.errors import CheckFailed
from edgedistill.runtime.trust import GET_AGAIN

MOST_FIELDS = 200_000
MOST_NODES = 20_000  # a traced encoder of 24 layers has some 30,000 and 5,000
ORT_FORMAT = b"ORTM"  # bytes 4 to 8 of a file that onnxruntime reads past this check
VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5  # wire types
DATA_LOCATION = 14  # of a tensor; 0: in this file

# Of each message of onnx.proto3: the fields that are skipped, and those that hold a message or a text that is
# read. Not listed are external data, subgraphs, functions, training steps, sparse tensors, strings.
FIELDS: dict[str, tuple[set[int], dict[int, str]]] = {
    "model": ({1, 2, 3, 4, 5, 6, 8, 14, 26}, {7: "graph"}),
    "graph": ({2, 10, 11, 12, 13, 14, 16}, {1: "node", 5: "tensor"}),
    "node": ({1, 2, 3, 6, 8, 9, 10}, {4: "operator", 5: "attribute", 7: "domain"}),
    "attribute": ({1, 2, 3, 4, 7, 8, 9, 13, 20}, {5: "tensor", 10: "tensor"}),
    "tensor": ({1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 16}, {}),
}


def check(path: Path) -> None:
    """Raise CheckFailed for a file that holds anything but a graph of known operators and its weights."""
    if path.stat().st_size == 0:
        raise CheckFailed(f"{path}: empty; copy the bundle again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            check_graph(data)
        except ValueError as error:
            raise CheckFailed(f"{path}: refused: {error}; {GET_AGAIN}") from None


def check_graph(data: Any) -> None:
    """Raise ValueError with what is wrong with the bytes of a graph."""
    if data[4:8] == ORT_FORMAT:
        raise ValueError("in ORT format, not ONNX")
    if _read(data, "model", 0, len(data), iter(range(MOST_FIELDS))).get("graph") != 1:
        raise ValueError("not an ONNX graph")


def _read(data: Any, message: str, at: int, end: int, left: Iterator[int]) -> dict[str, Any]:
    """Read a message. Returns how often each field occurs that is read, and a node's texts.

    left: an item for each field that may still be read.
    """
    skipped, read = FIELDS[message]
    fields: dict[str, Any] = {}
    while at < end:
        if next(left, None) is None or fields.get("node", 0) > MOST_NODES:
            raise ValueError(f"more than {MOST_NODES} nodes, or {MOST_FIELDS} fields")
        key, start = number(data, at, end)
        field = key >> 3
        wire_type = key & 7
        value, stop = span(data, wire_type, start, end)
        name = read.get(field)
        if name is None:
            in_this_file = message == "tensor" and (field, wire_type, value) == (DATA_LOCATION, VARINT, 0)
            if field not in skipped and not in_this_file:
                raise ValueError(
                    f"field {field} of a {message} at byte {at}, such as weights in another file, which "
                    "no bundle needs"
                )
        elif wire_type != BYTES:
            raise ValueError(f"not an ONNX graph ({name} of another type at byte {at})")
        elif name not in ("operator", "domain"):
            fields[name] = fields.get(name, 0) + 1
            _read(data, name, value, stop, left)
        elif name in fields:
            raise ValueError(f"a node with {name} twice at byte {at}")
        else:
            fields[name] = bytes(data[value:stop]).decode("utf-8")
        at = stop
    if message == "node":
        _check_operator(fields.get("domain", ""), fields.get("operator", ""))
    return fields


def _check_operator(domain: str, kind: str) -> None:
    domain = "" if domain == "ai.onnx" else domain
    if (domain, kind) not in ALLOWED:
        name = f"{domain}.{kind}" if domain else kind
        raise ValueError(f"an operator that a bundle may not use ({name[:100]!a})")


def span(data: Any, wire_type: int, at: int, end: int) -> tuple[int, int]:
    """(the number itself, or where the value starts; where it stops) of a field."""
    if wire_type == VARINT:
        return number(data, at, end)
    if wire_type == BYTES:
        length, at = number(data, at, end)
    elif wire_type in (FIXED64, FIXED32):
        length = 8 if wire_type == FIXED64 else 4
    else:
        raise ValueError(f"not an ONNX graph (wire type {wire_type} at byte {at})")
    if at + length > end:
        raise ValueError(f"cut off at byte {at}")
    return at, at + length


def number(data: Any, at: int, end: int) -> tuple[int, int]:
    """An integer of 1 to 10 bytes, and where it ends."""
    number = 0
    for place in range(min(10, end - at)):
        byte = data[at + place]
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return number, at + place + 1
    raise ValueError(f"not an ONNX graph (a number without an end at byte {at})")


# The operators that a bundle's graph may use. All of them compute outputs from inputs, each in one pass, and
# do nothing else: none runs another graph (If, Loop, Scan: a loop need not end), reads a file
# (com.microsoft.EPContext) or calls code outside onnxruntime (other domains, functions in the model file).
# Here are those that edgedistill writes for any student and precision, those of traced teachers, and their
# near relatives. What is missing is added here, after reading in its definition that it is of this kind.
STANDARD = {
    "look up and select": "Compress Gather GatherElements GatherND NonZero ScatterElements ScatterND Slice "
    "Split Where",
    "shape": "Concat ConstantOfShape Expand Flatten Identity Pad Range Reshape Shape Size Squeeze Tile "
    "Transpose Trilu Unsqueeze",
    "arithmetic": "Abs Add Ceil Clip CumSum Div Erf Exp Floor Log Max Mean Min Mod Mul Neg Pow Reciprocal "
    "Round Sign Sqrt Sub Sum Sin Cos",
    "logic": "And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor",
    "bits": "BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor",
    "reduction": "ArgMax ArgMin ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare",
    "activation": "Elu Gelu HardSigmoid HardSwish LeakyRelu Mish Relu Sigmoid Softmax LogSoftmax Softplus "
    "Tanh",
    "product, norm, recurrence": "Conv Einsum Gemm MatMul LayerNormalization LpNormalization GRU LSTM",
    "types and quantization": "Cast CastLike Constant DequantizeLinear DynamicQuantizeLinear MatMulInteger "
    "QLinearMatMul QuantizeLinear",
}
MICROSOFT = {  # onnxruntime's own, in every build of it
    "activation": "BiasGelu FastGelu Gelu QuickGelu",
    "attention, norm": "Attention EmbedLayerNormalization MultiHeadAttention RotaryEmbedding "
    "SkipLayerNormalization",
    "quantization": "DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul GatherBlockQuantized "
    "MatMulIntegerToFloat MatMulNBits "
    "QuantizeLinear",
}

ALLOWED = frozenset(
    [
        *[("", name) for names in STANDARD.values() for name in names.split()],
        *[("com.microsoft", name) for names in MICROSOFT.values() for name in names.split()],
    ]
)


def full_name(domain: str, name: str) -> str:
    """MatMul, com.microsoft.MatMulNBits: as manifests name an operator."""
    return f"{domain}.{name}" if domain else name
