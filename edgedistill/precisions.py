"""The precisions that graphs are converted to: `PRECISIONS` is the only list of them, and needs neither onnx
nor torch.

A new precision is one row here and one file, quantization/NAME.py. What runners need of a row is written into
each manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edgedistill.errors import UserError, unknown_name
from edgedistill.files import Json

# instruction sets that multiply 8-bit integers
INT8_PRODUCTS = {"avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm"}


class Rank(NamedTuple):
    """The place of a precision among all of them by measured speed, 1 for the fastest, on each kind of
    processor.

    int8_cpu is a CPU that multiplies 8-bit integers; runners that do not ask their processor read this one,
    as those in JavaScript.
    """

    cpu: int
    int8_cpu: int
    cuda: int


class Precision(NamedTuple):
    """A precision: its file in a bundle, its weights, its ranks, and the least agreement with torch that an
    export requires.

    A weight has so many bits, and with its scales so many bytes. `single_cosine` is that of a golden text's
    embedding to torch's, run by itself or in one padded batch with all others; `batch_cosine` that of the
    single to the batched embedding, the manifest's `drift`; `probability_difference` a classifier's largest.
    `fallback` is the precision to try where one of these is not reached, `dtype` transformers.js's name for
    the file, where it has one. An export that names no precision writes those that are `default`.
    """

    file: str
    description: str
    rank: Rank
    bits: int
    bytes_per_weight: float
    single_cosine: float
    batch_cosine: float
    probability_difference: float
    fallback: str | None
    dtype: str | None = None
    default: bool = False
    standard: bool = False  # operators of ai.onnx alone

    @property
    def remedy(self) -> str:
        """What to do where an export does not reach these."""
        return f"try --precision {self.fallback}" if self.fallback else "a bug in the graph, please report it"


# The most exact weights first. The products of w8 are slower than float32's where the processor does not
# multiply 8-bit integers. A CPU only emulates float16. On cuda, w8, w4 and qdq were not measured; int8's
# products, which are w4's too, run on the CPU there.
PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(
        file="onnx/model.onnx",
        description="float32",
        rank=Rank(cpu=4, int8_cpu=5, cuda=2),
        bits=32,
        bytes_per_weight=4,
        # the same products in another order: float32 differs in the seventh digit
        single_cosine=0.99999,
        batch_cosine=0.99999,
        probability_difference=1e-3,
        fallback=None,
        dtype="fp32",
        default=True,
        standard=True,
    ),
    "fp16": Precision(
        file="onnx/model_fp16.onnx",
        description="float16, norms and pooling in float32; for GPUs and phones, slower than fp32 on a CPU",
        rank=Rank(cpu=6, int8_cpu=6, cuda=1),
        bits=16,
        bytes_per_weight=2,
        # eleven bits of a number: encoders reach 0.999999; a GPU that adds in float16 loses a little more
        single_cosine=0.9999,
        batch_cosine=0.9999,
        probability_difference=0.01,
        fallback="fp32",
        dtype="fp16",
        standard=True,
    ),
    "w8": Precision(
        file="onnx/model_w8.onnx",
        description="8-bit weights, one scale per block of 32; 8-bit activations in the same blocks, int8 "
        "products; the closest to fp32",
        rank=Rank(cpu=5, int8_cpu=4, cuda=3),
        bits=8,
        bytes_per_weight=1.13,
        # a six-layer encoder reaches 0.998 on ordinary text, and every row is quantized by itself
        single_cosine=0.99,
        batch_cosine=0.99999,
        probability_difference=0.10,
        fallback="fp32",
        default=True,
    ),
    "int8": Precision(
        # transformers.js looks for its q8, the default in a browser, under this name
        file="onnx/model_quantized.onnx",
        description="8-bit weights, one scale per output channel; 8-bit activations with fixed scales or one "
        "per row; the fastest",
        rank=Rank(cpu=1, int8_cpu=1, cuda=4),
        bits=8,
        bytes_per_weight=1.02,
        # a six-layer encoder reaches 0.995 on its worst text
        single_cosine=0.97,
        batch_cosine=0.99999,
        probability_difference=0.20,
        fallback="w8",
        dtype="q8",
        default=True,
    ),
    "qdq": Precision(
        file="onnx/model_qdq.onnx",
        description="the products of int8 in ONNX's QuantizeLinear and DequantizeLinear, for other engines",
        rank=Rank(cpu=2, int8_cpu=2, cuda=6),
        bits=8,
        bytes_per_weight=1.02,
        # the same products as int8's
        single_cosine=0.97,
        batch_cosine=0.99999,
        probability_difference=0.20,
        fallback="fp32",
        standard=True,
    ),
    "w4": Precision(
        file="onnx/model_q4.onnx",  # the name of transformers.js for q4
        description="4-bit weights and embedding table, one float16 scale per group of 32; the products of "
        "int8, from weights restored when the graph is opened; the smallest",
        rank=Rank(cpu=3, int8_cpu=3, cuda=5),
        bits=4,
        bytes_per_weight=0.58,
        # rounded to the nearest, a six-layer encoder reaches 0.905 on its worst text, 0.94 with error
        # feedback; a student of four layers
        # 0.93 and 0.96
        single_cosine=0.85,
        batch_cosine=0.99999,
        probability_difference=0.35,
        fallback="w8",
        dtype="q4",
    ),
}
DEFAULT = [name for name, precision in PRECISIONS.items() if precision.default]
STANDARD = [name for name, precision in PRECISIONS.items() if precision.standard]


def known_precisions(precisions: Sequence[str]) -> list[str]:
    """The requested precisions, each once, in the order of `PRECISIONS`. Raises UserError: none, or an
    unknown one."""
    if not precisions:
        raise UserError(f"--precision: none given; choose from {', '.join(PRECISIONS)}")
    unknown = [precision for precision in dict.fromkeys(precisions) if precision not in PRECISIONS]
    if unknown:
        raise UserError(
            *(f"--precision: {unknown_name('precision', precision, PRECISIONS)}" for precision in unknown)
        )
    return [precision for precision in PRECISIONS if precision in precisions]


def fastest_first(entries: Json, processor: str) -> list[str]:
    """The precisions of a manifest by their rank on a kind of processor. One without a rank comes last, in
    the manifest's order."""
    return sorted(
        entries, key=lambda name: entries[name].get("rank", {}).get(processor, len(entries) + len(PRECISIONS))
    )
