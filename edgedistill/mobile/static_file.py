"""A static student goes in, one binary file comes out, which small programs without any library read.

They are in export/static, with the page about the format. One of them, student.py, packs the file here, and
reads it back before it is kept.
"""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor

from edgedistill import bundle_run, files
from edgedistill.device.tokenizer_equality import LINES, TextTokenizer, changed_characters, first_difference
from edgedistill.errors import CheckFailed, UserError, quote
from edgedistill.export import parity
from edgedistill.precisions import PRECISIONS
from edgedistill.quantization import eight_bits, w4
from edgedistill.runtime.golden_file import Golden
from edgedistill.session import Log

FILE, READER = "student.bin", "student.py"
RUNTIME = "run its bundle with onnxruntime, see export/README.md"
KINDS = {"model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}
FLAGS = ("normalized", "single_word", "lstrip", "rstrip")  # of added tokens


def write(name: str, precision: str | None, out: Path, log: Log, lines: int = LINES) -> dict[str, Any]:
    """Write a static student, a run or a bundle, at `out`, atomically: FILE, its readers, the page about it.

    A product-quantized table keeps its codes, any other has the precision's rows, w4 (also for None) or w8;
    codebooks and head have 8 bits. Returns {name, precision, size_bytes, texts, cosine}: how many adversarial
    texts, `lines` at most, have the token ids of tokenizer.json, and the lowest cosine of a golden text's
    embedding to torch's. Raises UserError for a student of another kind, for a tokenizer that the file cannot
    hold, by their names, and for a precision of PQ codes; CheckFailed where the file gives other token ids or
    embeddings.
    """
    files.check_free(out, "name", True, FILE, f"a folder with {FILE}")
    if precision not in (None, "w4", "w8"):
        raise UserError(f"--precision {precision}: {FILE} has rows in 4 or 8 bits; choose w4 or w8")
    run = bundle_run.open_finished(name, "--static")
    kind = "static" if run.kind == "static" else f"of kind {run.kind}"
    kind += ", of several teachers" if run.shape.get("blocks") else ""
    kind += ", with a projection of words" if run.shape.get("lexical") else ""
    if kind != "static":
        raise UserError(f"{name}: a student {kind}, and {FILE} holds one static table; {RUNTIME}")
    has_codes = run.shape.get("pq_bytes") and run.shape.get("pq_centroids", 256) <= 256  # a code is a byte
    if has_codes and precision:
        raise UserError(f"--precision {precision}: {name} has PQ codes, kept as they are; leave it out")
    precision = precision or ("pq" if has_codes else "w4")
    words: Any = run.tokenizer()
    tokenizer: Tokenizer = words.backend_tokenizer
    tokenizer.enable_truncation(run.max_tokens, direction=words.truncation_side)
    text, settings = TextTokenizer(tokenizer, run.prompt, run.max_tokens, 0), json.loads(tokenizer.to_str())
    if facts := [f"{name}: tokenizer: {fact}, which {FILE} cannot hold" for fact in _unknown_parts(settings)]:
        raise UserError(*(f"{fact}; {RUNTIME}" for fact in facts))
    student: Any = run.student()
    golden, folder = parity.by_torch(run, student), files.shipped_folder("runner") / "static"
    format_ = runpy.run_path(str(folder / READER))
    try:
        data = format_["pack"](
            table=_table(student, precision),
            weights=student.weights.detach().numpy() if precision == "pq" else None,
            head=None if student.head is None else _quantized(student.head.weight, "w8"),
            biases=getattr(student.head, "bias", None),
            tanh=student.tanh,
            tokenizer=settings,
            around=text.template,
            characters=changed_characters(tokenizer),
            prompts=run.prompts,
            golden=_texts(golden),
        )
        reader = format_["Student"](data)
    except format_["StudentError"] as error:
        raise UserError(f"{name}: {FILE} cannot hold it ({error}); {RUNTIME}") from None
    found = _compared(reader, text, golden, precision, lines, str(out))
    with files.new_folder(out) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)
        (temporary / FILE).write_bytes(data)
    about = {"name": run.recipe.name, "precision": precision, "size_bytes": len(data)}
    log(f"{FILE}: {len(data) / 1e6:.2f} MB; token ids of tokenizer.json for {found['texts']:,} texts")
    return about | found


def _texts(golden: Golden) -> list[tuple[str, str]]:
    """(role, text) of each."""
    return list(zip(golden.all_roles, golden.texts, strict=True))


def _compared(
    reader: Any, text: TextTokenizer, golden: Golden, precision: str, lines: int, out: str
) -> dict[str, Any]:
    """{texts, cosine}, see `write`, of a file that was read back. Raises CheckFailed."""
    count, fact = first_difference(lambda some: [*map(reader.tokenize, some)], text, f"by {FILE}", lines)
    rows, measure = np.array([reader.encode(each, role) for role, each in _texts(golden)]), golden.measure
    cosines = measure.between(rows, golden.rows)
    at, least = measure.worst_of(cosines), measure.required(PRECISIONS.get(precision, PRECISIONS["w8"]))
    if not fact and (found := measure.problem(cosines[at], least, precision, f" by {FILE}")):
        fact = f"{golden.name(at)} {found}"
    if fact:
        raise CheckFailed(f"{out} was not written: {fact}; {RUNTIME}", {"cosine": float(cosines[at])})
    return {"texts": count, "cosine": measure.rounded(cosines)}


def _unknown_parts(settings: dict[str, Any]) -> Iterator[str]:
    """What the file cannot hold of a tokenizer.json."""
    for part, kind in KINDS.items():
        found = (settings[part] or {"type": "none"})["type"]
        if found != kind:
            yield f"{part} {found} in place of {kind}"
    if settings["truncation"]["direction"] == "Left":
        yield "truncation on the left"
    for token in settings["added_tokens"]:
        if flags := ", ".join(flag for flag in FLAGS if token[flag]):
            yield f"{flags} of the added token {quote(token['content'])}"


def _table(student: Any, precision: str) -> tuple[Any, np.ndarray | None]:
    """(rows, see `_quantized`, of each token, its weight multiplied in; None), or, for `pq`, (rows (K,
    width), PQ codes): row k has centroid k of every block."""
    if precision != "pq":
        return _quantized(student.weighted_table(), precision), None
    table = student.embedding
    book = table.book.weight.detach().unflatten(0, (-1, table.centroids))  # (M, K, width / M)
    rows = w4.in_groups(book.permute(1, 2, 0).flatten(1).numpy())  # dimension h is of block h mod M
    values, scales = eight_bits.quantize_rows(rows.reshape(-1, w4.GROUP))
    values = values.reshape(len(rows), -1)[:, : table.embedding_dim]
    return (8, values, scales.reshape(len(rows), -1)), table.codes.numpy()


def _quantized(rows: Tensor, precision: str) -> tuple[int, np.ndarray, np.ndarray]:
    """Bits, integers around zero (n, width), and their scales (n, groups)."""
    array = rows.detach().numpy()
    if precision == "w8":
        return 8, *eight_bits.quantize_rows(array)
    w4.check_range(array, "embedding.weight")
    return 4, *w4.quantize_groups(array)
