"""What a student may cost, and what a candidate does cost before it is trained: it is built, exported and
timed."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from transformers import PreTrainedTokenizerBase

from edgedistill import quantization
from edgedistill.export import library_files
from edgedistill.fitting.candidates import PRECISIONS
from edgedistill.planning.cost import least_median_ms, size_and_latency
from edgedistill.quantization.mixed_precision import int8_with_w8
from edgedistill.quantization.sample_texts import Reader, samples
from edgedistill.students import graph
from edgedistill.training.initial_student.prepared_student import PreparedStudent


@dataclass(frozen=True)
class Budget:
    """What the student may cost: graph and tokenizer.json together in 10⁶ bytes, and the p50 of one text on
    one thread."""

    max_mb: float
    max_p50_ms: float

    def excess(self, size_bytes: float, p50_ms: float) -> float:
        """By how much a cost exceeds the budget, as a share: 0.2 is a fifth too much of one of the two; at
        most 0 where it fits."""
        return max(size_bytes / 1e6 / self.max_mb, p50_ms / self.max_p50_ms) - 1

    def __str__(self) -> str:
        return f"{self.max_mb:g} MB and {self.max_p50_ms:g} ms"


@dataclass(frozen=True)
class Cost:
    """What a candidate costs in each precision.

    `size_bytes` counts the graph and tokenizer.json together, exactly (in int8 to some ten bytes, as
    constants are named by their values). `p50_ms` is of one text, tokenization included.
    """

    size_bytes: dict[str, int]
    p50_ms: dict[str, float]

    def fitting(self, budget: Budget) -> list[str]:
        """The precisions that keep to the budget, the preferred one first."""
        return [name for name in PRECISIONS if budget.excess(self.size_bytes[name], self.p50_ms[name]) <= 0]

    def best(self, budget: Budget) -> str:
        """The preferred precision that keeps to the budget; the nearest one where none does."""
        fits = self.fitting(budget)
        return fits[0] if fits else self.nearest(budget)[1]

    def nearest(self, budget: Budget) -> tuple[float, str]:
        """(by how much it exceeds the budget, in which precision): the least."""
        return min(
            (budget.excess(self.size_bytes[name], self.p50_ms[name]), name) for name in self.size_bytes
        )

    def described(self, precision: str) -> str:
        """int8 4.31 MB, 0.52 ms"""
        return f"{precision} {self.size_bytes[precision] / 1e6:.3g} MB, {self.p50_ms[precision]:.3g} ms"


def measured(student: PreparedStudent, texts: list[str]) -> Cost:
    """The cost of a student in every precision. The `texts` are timed."""
    reader = Reader(student.tokenizer, "", student.max_tokens)
    drawn, ids = samples(reader, []), reader.token_ids(texts)
    sizes, p50_ms = size_and_latency(student.module, PRECISIONS, drawn, ids, threads=1)
    backend: Any = student.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(student.max_tokens)
    size, ms = tokenizer_bytes(student.tokenizer, student.max_tokens), least_median_ms(backend.encode, texts)
    return Cost(
        {name: each + size for name, each in sizes.items()},
        {name: round(each + ms, 4) for name, each in p50_ms.items()},
    )


def tokenizer_bytes(tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> int:
    """Bytes of the tokenizer.json that a bundle would have."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        found = library_files.tokenizer_json(Path(folder), max_tokens)
    return len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()) + 1


def in_precision(student: PreparedStudent, precision: str) -> onnx.ModelProto:
    """A trained student's graph in a precision, as `export` makes it."""
    reader = Reader(student.tokenizer, student.prompt, student.max_tokens)
    model, golden = graph.build(student.module.eval()), reader.token_ids(reader.golden_texts())
    drawn = samples(reader, golden)
    if precision == "int8":
        return int8_with_w8(model, drawn, golden)[0]
    return quantization.convert(model, precision, drawn)
