"""An fp32 graph in, the same graph in another precision out."""

from edgedistill.quantization.conversion import (
    PRODUCTS,
    convert,
    converter,
    within_limit,
)
from edgedistill.quantization.graph_editor import Converter
from edgedistill.quantization.sample_texts import TokenIds

__all__ = [
    "PRODUCTS",
    "Converter",
    "TokenIds",
    "convert",
    "converter",
    "eight_bits",
    "fp16",
    "graph_editor",
    "int8",
    "qdq",
    "sample_texts",
    "w4",
    "w8",
    "within_limit",
]
