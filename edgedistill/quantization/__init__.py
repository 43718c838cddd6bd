"""An fp32 graph in, the same graph in another precision out."""

from edgedistill.quantization.conversion import convert, converter, simulated
from edgedistill.quantization.sample_batches import TokenIds
from edgedistill.quantization.skipping import convert_except

__all__ = [
    "TokenIds",
    "convert",
    "convert_except",
    "converter",
    "dequantize",
    "graph_facts",
    "int8",
    "mixed_precision",
    "sample_texts",
    "sensitivity",
    "simulated",
    "w8",
]
