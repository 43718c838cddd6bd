"""An fp32 graph in, the same graph in another precision out."""

from edgedistill.quantization.conversion import (
    Converter,
    convert,
    convert_except,
    converted,
    converter,
    simulated,
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
    "graph_editor",
    "int8",
    "mixed_precision",
    "sample_texts",
    "simulated",
    "w4",
    "w8",
]
