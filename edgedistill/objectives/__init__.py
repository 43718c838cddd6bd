"""A recipe's objective goes in, a module comes out that computes a loss from student and teacher
embeddings."""

from edgedistill.objectives.classification import ClassifierHead, pair_features
from edgedistill.objectives.composition import (
    build,
    check_dimensions,
    fill_queues,
    learned_temperature,
    of_unit_length,
    queues_to_bfloat16,
    update_queues,
)
from edgedistill.objectives.regression import cosine
from edgedistill.objectives.targets import Targets

__all__ = [
    "ClassifierHead",
    "Targets",
    "build",
    "check_dimensions",
    "cosine",
    "fill_queues",
    "learned_temperature",
    "of_unit_length",
    "pair_features",
    "queues_to_bfloat16",
    "update_queues",
]
