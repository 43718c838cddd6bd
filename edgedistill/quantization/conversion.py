"""fp32 graph -> the same graph, with the same inputs and outputs, in another precision."""

from __future__ import annotations

import importlib
from typing import Any

import onnx

from edgedistill.precisions import known_precisions
from edgedistill.quantization import fp16
from edgedistill.quantization.sample_batches import TokenIds
from edgedistill.quantization.skipping import Converter


def convert(model: onnx.ModelProto, precision: str, samples: TokenIds = ()) -> onnx.ModelProto:
    """The graph in another precision; `fp32` returns it unchanged.

    samples: token ids of texts for precisions that measure activations; without them these round less well.
    Raises UserError for an unknown precision.
    """
    return converter(model, precision, samples)(model)


def converter(model: onnx.ModelProto, precision: str, samples: TokenIds = ()) -> Converter:
    """`convert` for this graph and for the same graph with some constants skipped, with activations measured
    only once."""
    known_precisions([precision])
    if precision == "fp32":
        return lambda graph: graph
    module: Any = importlib.import_module(f"edgedistill.quantization.{precision}")
    found: Converter = module.converter(model, samples)
    return found


def simulated(model: onnx.ModelProto, precision: str) -> onnx.ModelProto | None:
    """A converted graph that computes on a CPU what the device that the precision is for computes; None where
    the CPU does it itself."""
    return fp16.simulated(model) if precision == "fp16" else None
