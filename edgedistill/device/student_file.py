"""The file of a student: numbers, then arrays, each behind its count and size at a multiple of 64 bytes, so
that it is mapped and used without a copy; export/DESIGN.md describes it."""

from __future__ import annotations

import json
import re
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from edgedistill import files
from edgedistill.device import student_layers, tokenizer_tables
from edgedistill.device.student_layers import (
    ACTIVATIONS,
    FIXED,
    KINDS,
    POOLINGS,
    Dense,
    Product,
    Student,
    Table,
)
from edgedistill.device.tokenizer_tables import MODELS, Tables
from edgedistill.errors import CheckFailed, UserError
from edgedistill.files import Json
from edgedistill.runtime import bundle, bundle_location, golden_file
from edgedistill.runtime.graph_weights import GraphWeights, Stored
from edgedistill.runtime.prompts import ROLES
from edgedistill.runtime.trust import GET_AGAIN

MAGIC = b"edstudnt"
VERSION = 6
UNPACKED = 5  # the version of a file without 4 bits, which older cores open
START = 16
FILE = "student.bin"
STUDENTS = "students.json"  # of a page: [{name, file, size_bytes, languages}]
NOT_SERVED = shutil.ignore_patterns("test", "*.m*", "package*.json", "node_modules")  # of export/web
NOT_LOADED = shutil.ignore_patterns(
    *("*.c", "*.h", "*.md", "*.ts", "*akefile", "*.swift", "package.json", "cli.js"),
    *("jvm", "swift", "sqlite", "rust"),
)  # of export/core, by a page
PRECISIONS = ("fp32", "w8", "int8", "w4")
FLOATS, BYTES, NIBBLES, INT8, PACKED = range(5)  # how a matrix is stored
ALIGNED = 64
PADDED = 16
RUNTIME = "run its bundle with onnxruntime, see export/README.md"


def write(name: str, out: Path, overwrite: bool = False) -> Json:
    """Write a bundle as one file for the core, at `out`/student.bin beside its source, atomically.

    Returns {name, file, size_bytes, precision}. Raises UserError for a bundle that the core has no place for,
    by the name of what it lacks.
    """
    files.check_free(out, "--core", overwrite, FILE, f"a folder with {FILE}")
    with bundle.load(name, threads=1) as opened:
        data = content(opened)
    source = files.shipped_folder("runner") / "core"
    with files.new_folder(out) as temporary:
        shutil.copytree(source, temporary, dirs_exist_ok=True)
        files.write_bytes(temporary / FILE, data)
    name, precision = opened.manifest["name"], opened.precision
    return {"name": name, "file": FILE, "size_bytes": len(data), "precision": precision}


def write_page(name: str, out: Path, overwrite: bool = False) -> Json:
    """Write export/web's page with the core and a bundle as one file below students/, atomically. Where `out`
    is such a page, only the student is added, and what its user has edited stays; `overwrite` writes the page
    again.

    Returns {name, file, size_bytes, languages}. Raises UserError as `write`.
    """
    files.check_free(out, "--web", True, STUDENTS, f"a page with {STUDENTS}")
    with bundle.load(name, threads=1) as opened:
        data = content(opened)
        name, languages = opened.manifest["name"], _about(opened.encoders[0])["languages"]
    file = f"students/{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}.bin"
    row = {"name": name, "file": file, "size_bytes": len(data), "languages": languages}
    others = files.read_json(out / STUDENTS) if out.exists() else []
    runners = files.shipped_folder("runner")
    with files.new_folder(out) as temporary:
        if out.exists():
            shutil.copytree(out, temporary, symlinks=True, dirs_exist_ok=True)
        if overwrite or not out.exists():
            shutil.copytree(runners / "web", temporary, ignore=NOT_SERVED, dirs_exist_ok=True)
            shutil.copytree(runners / "core", temporary / "core", ignore=NOT_LOADED, dirs_exist_ok=True)
        files.write_bytes(temporary / file, data)
        files.write_json(temporary / STUDENTS, [*(other for other in others if other["file"] != file), row])
    return row


def content(opened: bundle.Bundle) -> bytes:
    """The file of an opened bundle; of a pair of encoders that of queries, behind it at a multiple of 64 the
    one of documents. Raises UserError as `write`."""
    manifest = opened.manifest
    name = manifest["name"]
    if manifest.get("shape"):
        raise UserError(f"{name}: graphs of one fixed shape; export the student without --shape for the core")
    if opened.pair:
        raise UserError(f"{name}: classifies pairs of texts, which the core does not support; {RUNTIME}")
    if len(opened.encoders) > 1:
        query, document = opened.encoders
        both = {"name": name, "documents": manifest.get("documents", "own")}
        first = _student(query, both)
        return first + bytes(-len(first) % ALIGNED) + _student(document, {})
    return _student(opened, {})


def _student(opened: bundle.Bundle, about: Json) -> bytes:
    """The file of one encoder or classifier, which says `about` too."""
    manifest = opened.manifest
    name = manifest["name"]
    if opened.precision not in PRECISIONS:
        raise UserError(
            f"{name}: the precision {opened.precision}, which the core has no place for; take one of "
            f"{', '.join(PRECISIONS)}"
        )
    try:
        graph = GraphWeights(opened.graph_file.read_bytes(), str(opened.graph_file))
        student = student_layers.read(graph, manifest["output"])
    except (KeyError, IndexError, ValueError):
        raise CheckFailed(f"{opened.graph_file}: its constants do not fit together; {GET_AGAIN}") from None
    settings = json.loads((opened.folder / "tokenizer.json").read_text("utf-8"))
    tables = tokenizer_tables.read(opened._tokenizer, settings, student.table.tokens)
    if isinstance(tables, list):
        raise UserError(
            *(f"{name}: tokenizer: {fact}, which the core has no place for; {RUNTIME}" for fact in tables)
        )
    return _File().write(opened, student, tables, about)


class _File:
    """A file in the making."""

    def __init__(self) -> None:
        self.data = bytearray(START)
        self.version = UNPACKED

    def write(self, opened: bundle.Bundle, student: Student, tables: Tables, about: Json) -> bytes:
        golden = golden_file.read(opened.folder, opened.manifest)
        self.data += _header(opened, student, tables)
        said = {**_about(opened), "golden": len(golden.items), **about}
        self.raw(json.dumps(said, ensure_ascii=False).encode())
        self._tokenizer(tables, [prompt.encode() for prompt in opened.prompts])
        self._table(student.table)
        if student.projection is not None:
            self.product(student.projection)
        if student.weights is not None:
            self.array(student.weights)
        for part in student.layers:
            if isinstance(part, Product):
                self.product(part)
            else:
                self.floats(part)
        for at in range(len(student.dense) + 1):
            if at == student.words_at and student.words is not None:
                self._table(student.words.rows)
                self.array(student.words.weights.astype(np.float32))
                self.product(student.words.product)
            if at < len(student.dense):
                self._dense(student.dense[at])
        self.numbers([])  # reserved, as is the next
        self.array(np.zeros(0, np.float32))
        self.numbers(opened.dims if not opened.labels else [])
        self.strings([label.encode() for label in opened.labels])
        mean = opened.calibration.mean
        self.array(np.zeros(0, np.float32) if mean is None else mean)
        self._golden(golden)
        struct.pack_into("<i", self.data, START, len(self.data))
        self.data[:START] = MAGIC + struct.pack("<II", self.version, zlib.crc32(self.data[START:]))
        return bytes(self.data)

    def array(self, values: ndarray) -> None:
        """Rows of one array: the last dimension of more than one is an item's."""
        values = np.ascontiguousarray(values)
        width = values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)
        self.data += struct.pack("<II", len(values), width)
        self.data += (
            bytes(-len(self.data) % ALIGNED) + values.astype(values.dtype.newbyteorder("<")).tobytes()
        )
        self.data += bytes(-len(self.data) % 4)

    def numbers(self, values: Any) -> None:
        """Numbers, in as few bytes as the largest takes."""
        array = np.asarray(values, np.int64)
        most = int(array.max(initial=0))
        self.array(array.astype(np.min_scalar_type(most)))

    def strings(self, texts: list[bytes]) -> None:
        self.numbers([len(text) for text in texts])
        self.raw(b"".join(texts))

    def raw(self, data: bytes) -> None:
        self.array(np.frombuffer(data, np.uint8))

    def rows(self, rows: Any, columns: int) -> None:
        self.array(np.array(rows, np.int32).reshape(-1, columns))

    def floats(self, values: ndarray) -> None:
        """Floats, padded."""
        self.array(_padded(np.asarray(values, np.float32), (PADDED,)))

    def _tokenizer(self, tables: Tables, prompts: list[bytes]) -> None:
        self.numbers(tables.before)
        self.numbers(tables.after)
        for prompt in prompts:
            self.raw(prompt)
        order = sorted(range(len(tables.tokens)), key=tables.tokens.__getitem__)
        self.strings([tables.tokens[at] for at in order])
        self.numbers(order)
        self.strings([text for text, _ in tables.added])
        self.numbers([at for _, at in tables.added])
        self.raw(tables.prefix)
        self.rows(tables.runs, 3)
        self.numbers(tables.letters)
        self.array(tables.scores[order] if len(tables.scores) else tables.scores)
        self.array(tables.units)
        self.raw(tables.replaced)
        self.rows(tables.classes, 3)
        self.rows(tables.marks, 3)
        self.rows(tables.parts, 5)
        self.rows(tables.composed, 3)

    def _table(self, table: Table) -> None:
        blocks = 0 if table.codes is None else table.codes.shape[1]
        self.array(np.array([blocks, table.centroids], np.int32))
        self.matrix(table.rows)
        if table.codes is not None:
            self.array(table.codes.reshape(-1))

    def matrix(self, stored: Stored, bias: ndarray | None = None) -> None:
        """A matrix whose product is in floats, or which is looked up."""
        rows, cols = stored.values.shape
        kind = NIBBLES if stored.bits == 4 else BYTES
        kind = FLOATS if stored.scales is None else kind
        group = min(stored.group or cols, cols)
        self.array(np.array([kind, rows, cols, group, 0, bias is not None, 0], np.int32))
        values = stored.values.reshape(-1)
        if kind == NIBBLES:
            self.version = VERSION
            values = _pairs(_padded(stored.values, (1, 2)), 1)
        self.array(values)
        if stored.scales is not None:
            self.array(stored.scales.astype("<f2" if kind == NIBBLES else "<f4").reshape(-1))
        if bias is not None:
            self.floats(bias)

    def product(self, product: Product) -> None:
        """A weight; in int8 as the core multiplies: blocks of 16 rows, which have 4 columns after each
        other. Of w4 the 4 bits in that order, and the scales of 16 rows after each other."""
        if not product.is_int8:
            self.matrix(product.weight, product.bias)
            return
        values, scales, _, _, nibbles, halves = product.weight
        assert scales is not None
        rows, cols = values.shape
        kind = INT8 if nibbles is None else PACKED
        step = np.float32(product.step).view(np.int32)
        self.array(np.array([kind, rows, cols, cols, product.zero, product.bias is not None, step], np.int32))
        blocks = _blocks(values if nibbles is None else nibbles, PADDED, 4)
        self.array(blocks if nibbles is None else _pairs(blocks, 32))
        self.floats(scales.reshape(-1))
        self.array(_padded(values.sum(1, dtype=np.int32), (PADDED,)))
        if product.zero == FIXED:
            assert product.factors is not None
            self.array(np.pad(product.factors, (0, -cols % PADDED), constant_values=1).astype(np.float32))
        if halves is not None:
            self.version = VERSION
            self.array(_blocks(halves, 1, 1).astype(np.float16))
        if product.bias is not None:
            self.floats(product.bias)

    def _dense(self, dense: Dense) -> None:
        self.array(np.array([ACTIVATIONS.index(dense.activation), dense.from_unit], np.int32))
        self.product(dense.product)

    def _golden(self, golden: golden_file.Golden) -> None:
        ids = [row for (row,) in golden.ids]
        self.strings([text.encode() for (text,) in golden.items])
        self.numbers([ROLES.index(role) for role in golden.all_roles])
        self.numbers([len(row) for row in ids])
        self.numbers([token for row in ids for token in row])
        self.array(golden.rows.astype("<f2").reshape(-1))


def _header(opened: bundle.Bundle, student: Student, tables: Tables) -> bytes:
    """The numbers of ed_header in edgedistill.c, in its order."""
    labels = len(opened.labels)
    threshold = opened.manifest["precisions"][opened.precision]["parity"]["threshold"]
    layer = student.projection.weight.values if student.projection is not None else None
    fields = {
        "length": 0,  # once it is known
        "kind": KINDS.index(student.kind),
        "model": MODELS.index(tables.model),
        "tokens": student.table.tokens,
        "width": student.table.width if layer is None else len(layer),
        "layers": 0,
        "times": 1,
        "heads": 1,
        "inner": 1,
        "activation": 0,
        "positions": 0,
        "first_position": 0,
        "max_tokens": opened.max_tokens,
        "pooling": POOLINGS.index(student.pooling),
        "denses": len(student.dense),
        "lexical_at": student.words_at,
        "reserved": 0,
        "size": labels or opened.dims[0],
        "cuts": 0 if labels else len(opened.dims),
        "labels": labels,
        "unknown": tables.unknown,
        "longest_word": tables.longest_word,
        "composes": tables.composes,
        "int8_range": opened.calibration.int8_range,
        "epsilon": 0,
        "least": 1 - threshold if labels else threshold,
    }
    return struct.pack(f"<{len(fields) - 3}i3f", *(fields | student.numbers).values())


def _about(opened: bundle.Bundle) -> Json:
    """What callers show of a student, and compare before they mix embeddings."""
    manifest = opened.manifest
    return {
        "name": manifest["name"],
        "precision": opened.precision,
        "languages": bundle_location.languages(manifest),
        "space": manifest.get("space"),
    }


def _padded(values: ndarray, to: tuple[int, ...]) -> ndarray:
    """Zeros behind each dimension, up to a multiple."""
    return np.pad(values, [(0, -size % multiple) for size, multiple in zip(values.shape, to, strict=True)])


def _blocks(values: ndarray, to: int, width: int) -> ndarray:
    """Of 16 rows at a time, `width` columns of every one after each other; zeros up to `to` columns."""
    padded = _padded(values, (PADDED, to))
    return padded.reshape(-1, PADDED, padded.shape[1] // width, width).transpose(0, 2, 1, 3).reshape(-1)


def _pairs(values: ndarray, apart: int) -> ndarray:
    """Two values of 4 bits around 0 in a byte, so many from each other, the first in the lower bits."""
    pairs = (values + 8).astype(np.uint8).reshape(-1, 2, apart)
    return (pairs[:, 0] | pairs[:, 1] << 4).reshape(-1)
