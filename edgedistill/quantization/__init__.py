"""An fp32 graph in, the same graph in another precision out; `PRECISIONS` holds all of them."""

from edgedistill.quantization.precisions import PRECISIONS, convert

__all__ = ["PRECISIONS", "convert"]
