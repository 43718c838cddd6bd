"""A recipe's objective goes in, a module comes out that computes a loss from student and teacher
embeddings."""

from edgedistill.objectives.composition import (
    build,
    check_dimensions,
    fill_queues,
    learned_temperature,
    matryoshka_dims,
    of_unit_length,
    queue_prefill,
    queues_to_bfloat16,
    reads_teacher,
    update_queues,
)
from edgedistill.objectives.ranking import Ranking
from edgedistill.objectives.regression import cosine

__all__ = [
    "Ranking",
    "build",
    "check_dimensions",
    "cosine",
    "fill_queues",
    "learned_temperature",
    "matryoshka_dims",
    "of_unit_length",
    "queue_prefill",
    "queues_to_bfloat16",
    "reads_teacher",
    "update_queues",
]
