"""An fp32 graph in, the same graph in another precision out; `PRECISIONS` holds all of them."""

from edgedistill.quantization.precisions import PRECISIONS, convert, converter, known_precisions
from edgedistill.quantization.sample_batches import TokenIds
from edgedistill.quantization.skipping import convert_except

__all__ = [
    "PRECISIONS",
    "TokenIds",
    "convert",
    "convert_except",
    "converter",
    "dequantize",
    "golden_texts",
    "graph_facts",
    "int8",
    "known_precisions",
    "mixed_precision",
    "sample_texts",
    "sensitivity",
    "w8",
]
