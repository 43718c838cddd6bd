"""A strict reader of ONNX files: the messages of onnx.proto3 (IR version 13) in protobuf's wire format.

It is stricter than protobuf: an unknown field, a wrong wire type, or a field twice that a message has once,
is an error. So nothing is read here in one way and by onnxruntime in another. The contents of tensors are
skipped, not copied: a file of any size is read in the time of its fields. No library of the base install
serves: onnxruntime shows a graph only once it has opened it. The package onnx, which is not in the base
install, copies every tensor, keeps the last of a field that comes twice, and passes over unknown ones.
Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# fields and repeated numbers in a file, read in half a second; a traced encoder of 24 layers has some 30,000
MOST_FIELDS = 200_000
LONGEST_TEXT = 1024  # bytes of a name
MOST_PROBLEMS = 20  # reported
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 are groups, which no ONNX message has

# The fields of each message: number, type, name. A type is another message of this table, or one of these:
# number and float; text, which is read; bytes, of which only the place is kept; refused, which no bundle
# needs. A type with a star repeats; of float* and double*, a tensor's elements, only the places are kept.
MESSAGES_AS_TEXT = {
    "model": "1 number ir_version, 2 bytes producer_name, 3 bytes producer_version, 4 bytes domain, "
    "5 number model_version, 6 bytes doc_string, 7 graph graph, 8 opset* opset_import, "
    "14 bytes* metadata_props, 20 refused training_info, 25 refused functions, 26 bytes* configuration",
    "opset": "1 text domain, 2 number version",
    "graph": "1 node* node, 2 bytes name, 5 tensor* initializer, 10 bytes doc_string, 11 value* input, "
    "12 value* output, 13 bytes* value_info, 14 bytes* quantization_annotation, "
    "15 refused sparse_initializer, 16 bytes* metadata_props",
    "node": "1 text* input, 2 text* output, 3 bytes name, 4 text op_type, 5 attribute* attribute, "
    "6 bytes doc_string, 7 text domain, 8 bytes overload, 9 bytes* metadata_props, "
    "10 bytes* device_configurations",
    "attribute": "1 text name, 2 float f, 3 number i, 4 bytes s, 5 tensor t, 6 refused g, 7 float* floats, "
    "8 number* ints, 9 bytes* strings, 10 tensor* tensors, 11 refused graphs, 13 bytes doc_string, "
    "14 refused tp, 15 refused type_protos, 20 number type, 21 refused ref_attr_name, "
    "22 refused sparse_tensor, 23 refused sparse_tensors",
    "tensor": "1 number* dims, 2 number data_type, 3 bytes segment, 4 float* float_data, "
    "5 number* int32_data, 6 bytes* string_data, 7 number* int64_data, 8 text name, 9 bytes raw_data, "
    "10 double* double_data, 11 number* uint64_data, 12 bytes doc_string, 13 bytes* external_data, "
    "14 number data_location, 16 bytes* metadata_props",
    "value": "1 text name, 2 type type, 3 bytes doc_string, 4 bytes* metadata_props",
    "type": "1 tensor_type tensor_type, 6 bytes denotation",
    "tensor_type": "1 number elem_type, 2 shape shape",
    "shape": "1 dimension* dim",
    "dimension": "1 number dim_value, 2 bytes dim_param, 3 bytes denotation",
}
WIRE_TYPES = {"number": VARINT, "float": FIXED32, "double": FIXED64}  # of others: BYTES
WIDTHS = {FIXED32: 4, FIXED64: 8}

Span = tuple[int, int]


class Field(NamedTuple):
    """A field of a message."""

    name: str
    type: str
    repeats: bool


def _fields(text: str) -> dict[int, Field]:
    found = {}
    for entry in text.split(", "):
        number, kind, name = entry.split()
        found[int(number)] = Field(name, kind.rstrip("*"), kind.endswith("*") or kind == "refused")
    return found


MESSAGES = {name: _fields(text) for name, text in MESSAGES_AS_TEXT.items()}


class MalformedMessage(Exception):
    """The bytes are not the message that they should be; the error names the place."""


class OnnxReader:
    """Reads messages from a buffer. `left` is how many more fields it reads; `problems` collects what a sound
    file holds and a bundle may not."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.left = MOST_FIELDS
        self.problems: list[str] = []

    def message(self, span: Span, kind: str) -> dict[str, Any]:
        """Return the fields that occur in the message at `span`, by name. `kind` is its name in the table.

        Values are messages (dicts again), strings, numbers, spans, and lists of these. Raises
        MalformedMessage.
        """
        found: dict[str, Any] = {}
        at, end = span
        while at < end:
            place = at
            key, at = self._varint(at, end)
            wire_type, field = key & 7, MESSAGES[kind].get(key >> 3)
            if field is None:
                raise MalformedMessage(f"byte {place}: field {key >> 3} of a {kind}, which is not known here")
            right = WIRE_TYPES.get(field.type, BYTES)
            packed = field.repeats and wire_type == BYTES
            if wire_type != right and not packed:
                raise MalformedMessage(f"byte {place}: {field.name} of a {kind} has wire type {wire_type}")
            if field.name in found and not field.repeats:
                raise MalformedMessage(f"byte {place}: {field.name} of a {kind} occurs twice")
            self._count_field(place)
            part = self._part(wire_type, at, end)
            at = part[1]
            if (part[1] - part[0]) % WIDTHS.get(right, 1):
                raise MalformedMessage(f"byte {part[0]}: {field.name} of {part[1] - part[0]} bytes")
            if field.type == "refused":
                self.problem(
                    f"the {kind} at byte {span[0]} has {field.name}, which no bundle needs; open it only if "
                    "you know who wrote it"
                )
            if not field.repeats:
                found[field.name] = self._value(field.type, part)
            elif field.type == "number":
                found.setdefault(field.name, []).extend(self._numbers(part))
            else:
                found.setdefault(field.name, []).append(self._value(field.type, part))
        return found

    def problem(self, problem: str) -> None:
        """Collect a problem, once."""
        if len(self.problems) < MOST_PROBLEMS and problem not in self.problems:
            self.problems.append(problem)

    def _value(self, kind: str, part: Span) -> Any:
        if kind == "number":
            return self._varint(*part)[0]
        if kind == "text":
            return self._text(part)
        return self.message(part, kind) if kind in MESSAGES else part

    def _numbers(self, part: Span) -> list[int]:
        """The varints that stand behind each other."""
        found, (at, end) = [], part
        while at < end:
            number, at = self._varint(at, end)
            found.append(number)
            self._count_field(at)
        return found

    def _count_field(self, place: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise MalformedMessage(f"byte {place}: more than {MOST_FIELDS:,} fields")

    def _part(self, wire_type: int, at: int, end: int) -> Span:
        """Where a field's value starts and ends."""
        if wire_type == VARINT:
            return at, self._varint(at, end)[1]
        length = WIDTHS.get(wire_type, 0)
        if wire_type == BYTES:
            length, at = self._varint(at, end)
        if at + length > end:
            raise MalformedMessage(f"byte {at}: {length} bytes where {end - at} are left")
        return at, at + length

    def _text(self, part: Span) -> str:
        start, end = part
        if end - start > LONGEST_TEXT:
            raise MalformedMessage(f"byte {start}: a name of {end - start} bytes")
        try:
            return bytes(self.data[start:end]).decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedMessage(f"byte {start}: a name that is not UTF-8") from None

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """An integer of 1 to 10 bytes, and where it ends."""
        number = shift = 0
        for place in range(at, min(end, at + 10)):
            byte = self.data[place]
            number |= (byte & 127) << shift
            if byte < 128:
                return number, place + 1
            shift += 7
        raise MalformedMessage(f"byte {at}: a number without an end")
