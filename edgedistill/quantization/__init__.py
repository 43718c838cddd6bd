"""An fp32 graph in, the same graph in another precision out."""

from edgedistill.quantization.conversion import (
    Converter,
    convert,
    convert_except,
    converted,
    converter,
)
from edgedistill.quantization.sample_texts import TokenIds

__all__ = [
    "Converter",
    "TokenIds",
    "convert",
    "convert_except",
    "converted",
    "converter",
    "eight_bits",
    "fp16",
    "graph_editor",
    "int8",
    "mixed_precision",
    "sample_texts",
    "w4",
    "w8",
]
