"""A teacher's int8 graph, as an export would write it: compared with torch, then cached, because making it
takes a while."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from edgedistill import files
from edgedistill.data.cached_folder import cached_folder
from edgedistill.errors import CheckFailed, UserError
from edgedistill.precisions import PRECISIONS
from edgedistill.quantization import mixed_precision
from edgedistill.quantization.sample_texts import Reader, agreement, embeddings, samples
from edgedistill.runtime.onnx_session import RUN_OPTIONS, open_session
from edgedistill.session import Session
from edgedistill.students import graph

# part of every key: raise it when this module, or the precision, makes another graph of the same weights
FORMAT = 2
WAY_OUT = "set it to auto, bf16 or fp32"


# (ids, mask), each (B, T) int64, right-padded -> embeddings (B, d) before they are scaled to unit length
Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]


def identity(reader: Reader) -> dict[str, Any]:
    """What decides the graph besides the teacher's weights: how it is made, onnxruntime's version, the texts
    it is measured on."""
    version = ".".join(onnxruntime.__version__.split(".")[:2])
    return {"format": FORMAT, "onnxruntime": version, "samples": files.cache_key(samples=_samples(reader))}


def read_or_make(teacher: Any, key: str, session: Session) -> Forward:
    """The int8 graph of an opened TeacherEncoder from the cache, otherwise made and cached. `key` is the hash
    of all that determines it.

    Raises UserError for a teacher that cannot be written as a graph, or loses too much in int8.
    """

    def write(folder: Path) -> None:
        fact = f"making the int8 graph of {teacher.spec.name}"
        session.log(f"{teacher.place}: {fact}; once, and a minute or two for twelve layers")
        _make(teacher, folder / "graph.onnx", session)

    folder = cached_folder(session.cache / "graphs" / key, write, session.log)
    opened = open_session(folder / "graph.onnx", torch.get_num_threads(), "cpu")
    names = [output.name for output in opened.get_outputs()]
    rows = names[-1] if names[-1] != "last_hidden_state" else "sentence_embedding"  # see `graph.before_unit`
    return lambda ids, mask: opened.run([rows], {"input_ids": ids, "attention_mask": mask}, RUN_OPTIONS)[0]


def _make(teacher: Any, file: Path, session: Session) -> None:
    """Write the graph after the comparison with torch."""
    reader = teacher.reader
    try:
        model = graph.build_checked(teacher.module, reader.max_tokens, len(reader.tokenizer))
    except CheckFailed as error:
        fact = f"int8 needs a graph of {teacher.spec.name}, and {error}"
        raise UserError(f"{teacher.place}.dtype: {fact}; {WAY_OUT}") from error
    golden = _golden(reader)
    quantized, in_w8 = mixed_precision.converted(model, "int8", _samples(reader), golden)
    mean, least = agreement(quantized, embeddings(model, golden), golden)
    if not least >= (required := PRECISIONS["int8"].single_cosine):  # NaN is above nothing
        fact = f"{teacher.spec.name} in int8 has a cosine of {least:.4f} on a text, {required} is required"
        raise UserError(f"{teacher.place}.dtype: {fact}; {WAY_OUT}")
    cosines = f"cosine to torch {mean:.4f} mean, {least:.4f} min on the golden texts"
    session.log(f"{teacher.place}: int8 graph made; {cosines}, {len(in_w8)} products in w8")
    graph.before_unit(quantized)
    file.write_bytes(quantized.SerializeToString())


def _samples(reader: Reader) -> list[list[int]]:
    return [row for row in samples(reader, _golden(reader)) if row]


def _golden(reader: Reader) -> list[list[int]]:
    """Token ids of the golden texts, but for those without any."""
    return [row for row in reader.token_ids(reader.golden_texts()) if row]
