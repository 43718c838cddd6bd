"""fp32 graph -> `w8` or `int8`: the same inputs and outputs in a quarter of the bytes; `PRECISIONS` holds all precisions.

`w8` stores weights in 8 bits, in blocks of 32 with a scale each, and quantizes activations in the same blocks inside the product (int8
products). A text's embedding depends on that text alone, which makes it the safe default. `int8` uses one activation scale per product
for the whole batch (DynamicQuantizeLinear). It is the fastest at batch 1, but a text's embedding varies with the other texts of its
batch; the manifest's `drift` measures by how much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import onnx

from edgedistill.errors import UserError, unknown_name
from edgedistill.quantization import int8, w8


def convert(model: onnx.ModelProto, precision: str) -> onnx.ModelProto:
    """The graph in another precision; `fp32` returns it unchanged. Raises UserError for an unknown precision."""
    if precision not in PRECISIONS:
        raise UserError(f"--precision: {unknown_name('precision', precision, PRECISIONS)}")
    return PRECISIONS[precision].convert(model)


class Precision(NamedTuple):
    """How a graph is converted to a precision, its file in the bundle, and the least agreement with torch that an export requires.

    single_cosine, batched_cosine: of a golden text's embedding to torch's, run by itself and in one padded batch with all others.
    batch_cosine: of the single to the batched embedding; the manifest's `drift`. probability_difference: the largest of a classifier.
    fallback: the precision to try where one of these is not reached.
    """

    convert: Callable[[onnx.ModelProto], onnx.ModelProto]
    file: str
    description: str
    single_cosine: float
    batched_cosine: float
    batch_cosine: float
    probability_difference: float
    fallback: str | None

    @property
    def remedy(self) -> str:
        """What to do where an export does not reach these."""
        return f"try --precision {self.fallback}" if self.fallback else "a bug in the graph, please report it"


# A new precision: its function above, and one entry in this table.
PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(
        convert=lambda model: model,
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
        convert=w8.convert,
        file="onnx/model_w8.onnx",
        description="8-bit weights, one scale per block of 32; int8 matrix multiplication; the default",
        # a six-layer encoder reaches 0.998 on ordinary text, and every row is quantized by itself
        single_cosine=0.99,
        batched_cosine=0.99,
        batch_cosine=0.99999,
        probability_difference=0.10,
        fallback="fp32",
    ),
    "int8": Precision(
        convert=int8.convert,
        file="onnx/model_quantized.onnx",  # transformers.js looks for its q8, the default in a browser, under this name
        description="dynamic int8, one activation scale per tensor; fastest for single texts",
        # the same encoder reaches 0.978 by itself and 0.967 in a batch; batch sensitivity is reported, not limited, so that only a
        # wrong graph fails here
        single_cosine=0.95,
        batched_cosine=0.90,
        batch_cosine=0.0,
        probability_difference=0.35,
        fallback="w8",
    ),
}
