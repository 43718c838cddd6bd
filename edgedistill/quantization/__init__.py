"""An fp32 graph in, the same graph in another precision out; `PRECISIONS` holds all of them."""

from edgedistill.quantization.precisions import PRECISIONS, convert
from edgedistill.quantization.skipping import convert_except

__all__ = ["PRECISIONS", "convert", "convert_except", "int8", "saturation", "sensitivity", "w8"]
