"""fp32 graph -> the same graph, with the same inputs and outputs, in another precision; `PRECISIONS` holds all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import onnx

from edgedistill.errors import UserError, unknown_name
from edgedistill.quantization import fp16, int8, w4, w8
from edgedistill.quantization.sample_batches import TokenIds
from edgedistill.quantization.skipping import Converter


def convert(model: onnx.ModelProto, precision: str, samples: TokenIds = ()) -> onnx.ModelProto:
    """The graph in another precision; `fp32` returns it unchanged.

    samples: token ids of texts for precisions that measure activations; without them these round less well.
    Raises UserError for an unknown precision.
    """
    return converter(model, precision, samples)(model)


def converter(model: onnx.ModelProto, precision: str, samples: TokenIds = ()) -> Converter:
    """`convert` for this graph and for the same graph with some constants skipped, with activations measured only once."""
    known_precisions([precision])
    return PRECISIONS[precision].converter(model, samples)


def known_precisions(precisions: Sequence[str]) -> list[str]:
    """The requested precisions, each once, in the order of `PRECISIONS`. Raises UserError: none, or an unknown one."""
    if not precisions:
        raise UserError(f"--precision: none given; choose from {', '.join(PRECISIONS)}")
    unknown = [precision for precision in dict.fromkeys(precisions) if precision not in PRECISIONS]
    if unknown:
        raise UserError(*(f"--precision: {unknown_name('precision', precision, PRECISIONS)}" for precision in unknown))
    return [precision for precision in PRECISIONS if precision in precisions]


class Precision(NamedTuple):
    """How a graph is converted to a precision, its file in the bundle, and the least agreement with torch that an export requires.

    converter: measures a graph on samples, and returns what converts it.
    single_cosine, batched_cosine: of a golden text's embedding to torch's, run by itself and in one padded batch with all others.
    batch_cosine: of the single to the batched embedding; the manifest's `drift`. probability_difference: the largest of a classifier.
    fallback: the precision to try where one of these is not reached. simulate: a converted graph -> one that computes on a CPU what the
    device that the precision is for computes, where the CPU itself computes something else.
    """

    converter: Callable[[onnx.ModelProto, TokenIds], Converter]
    file: str
    description: str
    single_cosine: float
    batched_cosine: float
    batch_cosine: float
    probability_difference: float
    fallback: str | None
    simulate: Callable[[onnx.ModelProto], onnx.ModelProto] | None = None

    @property
    def remedy(self) -> str:
        """What to do where an export does not reach these."""
        return f"try --precision {self.fallback}" if self.fallback else "a bug in the graph, please report it"


# A new precision: its function above, and one entry in this table.
PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(
        converter=lambda model, samples: lambda graph: graph,
        file="onnx/model.onnx",
        description="float32",
        # the same products in another order: float32 differs in the seventh digit
        single_cosine=0.99999,
        batched_cosine=0.99999,
        batch_cosine=0.99999,
        probability_difference=1e-3,
        fallback=None,
    ),
    "w8": Precision(
        converter=lambda model, samples: w8.convert,
        file="onnx/model_w8.onnx",
        description="8-bit weights, one scale per block of 32; 8-bit activations in the same blocks, int8 products; the closest to fp32",
        # a six-layer encoder reaches 0.998 on ordinary text, and every row is quantized by itself
        single_cosine=0.99,
        batched_cosine=0.99,
        batch_cosine=0.99999,
        probability_difference=0.10,
        fallback="fp32",
    ),
    "int8": Precision(
        converter=lambda model, samples: partial(int8.convert_measured, largest=int8.measure(model, samples)),
        file="onnx/model_quantized.onnx",  # transformers.js looks for its q8, the default in a browser, under this name
        description="8-bit weights, one scale per output channel; 8-bit activations with fixed scales or one per row; the fastest",
        # a six-layer encoder reaches 0.995 on its worst text
        single_cosine=0.97,
        batched_cosine=0.97,
        batch_cosine=0.99999,
        probability_difference=0.20,
        fallback="w8",
    ),
    "w4": Precision(
        converter=lambda model, samples: partial(w4.convert_measured, moments=w4.measure(model, samples)),
        file="onnx/model_q4.onnx",  # the name of transformers.js for q4
        description="4-bit weights and embedding table, one float16 scale per group of 32; int8 matrix multiplication; the smallest",
        # rounded to the nearest, a six-layer encoder reaches 0.905 on its worst text, 0.94 with error feedback; a student of four layers
        # 0.93 and 0.96
        single_cosine=0.85,
        batched_cosine=0.85,
        batch_cosine=0.99999,
        probability_difference=0.35,
        fallback="w8",
    ),
    "fp16": Precision(
        converter=lambda model, samples: partial(fp16.convert_measured, largest=fp16.measure(model, samples)),
        file="onnx/model_fp16.onnx",
        description="float16, norms and pooling in float32; for GPUs and phones, slower than fp32 on a CPU",
        # eleven bits of a number: encoders reach 0.999999; a GPU that adds in float16 loses a little more
        single_cosine=0.9999,
        batched_cosine=0.9999,
        batch_cosine=0.9999,
        probability_difference=0.01,
        fallback="fp32",
        simulate=fp16.simulated,
    ),
}
