"""A small reader of protobuf's wire format: the fields of a message, by a table of those that are known.

It is stricter than protobuf: an unknown field, a wrong wire type, or a field twice that a message has once,
    is an error. So nothing is
read here in one way and by onnxruntime in another. Contents are skipped, not copied: a file of any size is
read in the time of its fields.
Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MOST_FIELDS = 200_000  # in a file, read in half a second; a traced encoder of 24 layers has some 30,000
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 are groups, which no ONNX message has

# How a field's value is read, and how often it may occur:
NUMBER = "number"  # once: an integer
PART = "part"  # once: bytes or a message, as (start, end)
PARTS = "parts"  # any number of these
NUMBERS = "numbers"  # repeated integers, packed or not
VARINTS, FLOATS, DOUBLES = "varints", "floats", "doubles"  # repeated, packed or not: only counted
FLOAT = "float"  # once: four bytes, skipped
WIDTHS = {FLOAT: 4, FLOATS: 4, DOUBLES: 8}
WIRE_TYPES = {
    NUMBER: {VARINT},
    NUMBERS: {VARINT, BYTES},
    VARINTS: {VARINT, BYTES},
    PART: {BYTES},
    PARTS: {BYTES},
}
WIRE_TYPES |= {FLOAT: {FIXED32}, FLOATS: {FIXED32, BYTES}, DOUBLES: {FIXED64, BYTES}}

Schema = dict[int, tuple[str, str]]  # field number: (name, one of the kinds above)
Span = tuple[int, int]


class MalformedMessage(Exception):
    """Bytes that are not the message they should be; says where."""


class WireReader:
    """Reads messages from a buffer; `left` fields more."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.left = MOST_FIELDS

    def message(self, span: Span, schema: Schema, what: str) -> dict[str, Any]:
        """The fields of the message at `span` that occur, by name. what: "node", for errors.

        Raises MalformedMessage. A list holds the values of PARTS and NUMBERS; a number the count of VARINTS,
        FLOATS and DOUBLES.
        """
        found: dict[str, Any] = {}
        at, end = span
        while at < end:
            key, start = self._varint(at, end)
            name, kind = schema.get(key >> 3, ("", ""))
            if not name:
                raise MalformedMessage(f"byte {at}: field {key >> 3} of a {what}, which is not known here")
            if key & 7 not in WIRE_TYPES[kind]:
                raise MalformedMessage(f"byte {at}: {name} of a {what} has wire type {key & 7}")
            if name in found and kind in (NUMBER, PART, FLOAT):
                raise MalformedMessage(f"byte {at}: {name} of a {what} occurs twice")
            at = self._value(found, name, kind, key & 7, (start, end))
        return found

    def text(self, span: Span | None, longest: int = 1024) -> str:
        """The string at a span, "" where there is none."""
        start, end = span or (0, 0)
        if end - start > longest:
            raise MalformedMessage(f"byte {start}: a name of {end - start} bytes")
        try:
            return bytes(self.data[start:end]).decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedMessage(f"byte {start}: a name that is not UTF-8") from None

    def _value(self, found: dict[str, Any], name: str, kind: str, wire_type: int, rest: Span) -> int:
        """Store a field's value; returns where the next field starts."""
        at, end = rest
        self.left -= 1
        if self.left < 0:
            raise MalformedMessage(f"byte {at}: more than {MOST_FIELDS:,} fields")
        if wire_type == VARINT:
            number, stop = self._varint(at, end)
            if kind == NUMBER:
                found[name] = number
            elif kind == NUMBERS:
                found.setdefault(name, []).append(number)
            else:
                found[name] = found.get(name, 0) + 1
            return stop
        if wire_type == BYTES:
            length, at = self._varint(at, end)
        else:
            length = 4 if wire_type == FIXED32 else 8
        stop = at + length
        if stop > end:
            raise MalformedMessage(f"byte {at}: {length} bytes where {end - at} are left")
        if kind == PART:
            found[name] = (at, stop)
        elif kind == PARTS:
            found.setdefault(name, []).append((at, stop))
        elif kind == NUMBERS:
            found.setdefault(name, []).extend(self._packed((at, stop)))
        elif kind == VARINTS:
            found[name] = found.get(name, 0) + self._count_varints((at, stop))
        elif kind != FLOAT:
            if length % WIDTHS[kind]:
                raise MalformedMessage(f"byte {at}: {name} of {length} bytes")
            found[name] = found.get(name, 0) + length // WIDTHS[kind]
        else:
            found[name] = None
        return stop

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

    def _packed(self, span: Span) -> list[int]:
        numbers, (at, end) = [], span
        while at < end:
            number, at = self._varint(at, end)
            numbers.append(number)
            self.left -= 1
            if self.left < 0:
                raise MalformedMessage(f"byte {at}: more than {MOST_FIELDS:,} fields")
        return numbers

    def _count_varints(self, span: Span) -> int:
        start, end = span
        last = (
            np.frombuffer(bytes(self.data[start:end]), np.uint8) < 128
        )  # a view into a memory map would keep it from closing
        if end > start and not last[-1]:
            raise MalformedMessage(f"byte {end - 1}: a number without an end")
        return int(np.count_nonzero(last))
